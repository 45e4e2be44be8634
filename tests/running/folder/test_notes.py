"""The note of a run, read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedray.config import Execution, override
from fedray.running.folder import notes
from fedray.running.folder.notes import Note
from tests.helpers import small_plan


def note(on_failure: str) -> Note:
    return Note("x", override(small_plan().cfg, {"on_failure": on_failure}), Execution(), None)


@pytest.mark.parametrize("kept", ["retry", "skip", "abort", None])
def test_a_note_of_an_older_version_has_its_failure_policy_moved(kept: str | None, tmp_path: Path) -> None:
    notes.write(tmp_path, note("retry"))
    stored = json.loads((tmp_path / notes.NOTE).read_text())
    del stored["experiment"]["on_failure"]
    if kept:
        stored["execution"]["on_failure"] = kept
    (tmp_path / notes.NOTE).write_text(json.dumps(stored))
    assert notes.read(str(tmp_path)).experiment.on_failure == (kept or "retry")
