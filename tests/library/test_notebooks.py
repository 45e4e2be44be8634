"""The notebooks run from the first cell to the last, and what is committed is what they give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedray.compare.tables import CELLS

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS = 300  # of one cell, on a machine that is busy


def test_there_are_five_and_they_are_committed_with_their_outputs():
    nbformat = pytest.importorskip("nbformat")
    assert len(NOTEBOOKS) == 5
    for path in NOTEBOOKS:
        book = nbformat.read(path, as_version=4)
        nbformat.validate(book)
        code = [cell for cell in book.cells if cell.cell_type == "code"]
        assert any(cell.outputs for cell in code)
        assert all(cell.execution_count for cell in code), path.name
        for output in (output for cell in code for output in cell.outputs):
            assert output.output_type != "error"
            assert output.get("name") != "stderr"
            image = output.get("data", {}).get("image/png", "")
            assert len(image) * 3 / 4 < 100_000, path.name
        captions = re.findall(r"^ *\"(Mean ±.*)\"", path.read_text(), re.MULTILINE)
        assert all(caption.startswith(CELLS) for caption in captions), path.name  # else: run it again
        assert not re.search(r"/(work|home|root|Users)/", path.read_text()), path.name


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    book = nbformat.read(path, as_version=4)
    played = client.NotebookClient(book, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}})
    played.execute()
    shown = [cell.outputs for cell in book.cells if cell.cell_type == "code"]
    assert all(output.output_type != "error" for outputs in shown for output in outputs)
