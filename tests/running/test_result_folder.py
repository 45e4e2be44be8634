"""The page about the result folder: it names every file of a run, and its code reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedray import launch

PAGE = Path(__file__).parents[2] / "docs" / "result-folder.md"
ELSEWHERE = {"coverage.csv", "personal", "selection.safetensors", "failures.csv", "checkpoints"}  # of other runs


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, unpainted: None) -> Path:
    root = tmp_path_factory.mktemp("result")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        argv = ["pfedbayes", "--runtime", "local", "--rounds", "2", "--local-steps", "1", "--tracking.uri", "none"]
        argv += ["--name", "NAME", "--uncertainty", "--loss-deviation", "--data.validation", "0.2", "--clients", "4"]
        assert launch.main(argv) == 0
    return root


def test_the_page_names_every_file_and_no_other(here: Path) -> None:
    rows = re.findall(r"^\| (`.+?) \|", PAGE.read_text(), flags=re.MULTILINE)
    named = {name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert named - ELSEWHERE == {path.name for path in (here / "runs" / "NAME").iterdir()}


def test_its_code_reads_them(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    found: dict[str, object] = {}
    exec(code, found)
    rounds, clients, summary, spread = (found[name] for name in ("rounds", "clients", "summary", "spread"))
    assert list(rounds["round"]) == [1, 2]
    assert rounds["personal/accuracy"].iloc[-1] == summary["personal"]["accuracy"]
    training, test, validation = (found[name] for name in ("training", "test", "validation"))
    assert [len(each) for each in training] == list(clients["train_examples"])
    assert [len(each) for each in test] == list(clients["test_examples"])
    assert len(validation) == len(training) == 4
    assert spread.shape == (4, 10)
    assert (spread > 0).any()
    server, private = found["server"], found["private"]
    assert private["q.mu.layer1.weight"].shape == (4, *server["mu.layer1.weight"].shape)
