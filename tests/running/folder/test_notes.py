"""The note of a run, read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedray.config import Execution, override
from fedray.running.folder import notes
from fedray.running.folder.notes import Note
from fedray.types import FedRayError
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


@pytest.mark.parametrize(
    ("part", "name", "value", "reason"),
    [
        ("experiment", "rounds", "many", r"Experiment\.rounds is 'many', which is no value of it"),
        ("experiment", "rounds", -5, "Experiment: rounds -5: at least one is needed"),
        ("experiment", "pace", 1, "Experiment has no setting pace, but adapt_rounds"),
        ("execution", "runtime", "x", r"Execution\.runtime is 'x', which is no value of it"),
        ("execution", "checkpoint", 4, "Execution: checkpoint 4: is not CheckpointConfig"),
    ],
)
def test_a_setting_that_cannot_be_is_said_with_the_folder(part, name, value, reason, tmp_path: Path) -> None:
    notes.write(tmp_path, note("retry"))
    stored = json.loads((tmp_path / notes.NOTE).read_text())
    stored[part][name] = value
    (tmp_path / notes.NOTE).write_text(json.dumps(stored))
    with pytest.raises(FedRayError, match=rf"^--resume {tmp_path}: holds no run to go on with \({reason}"):
        notes.read(str(tmp_path))


def test_an_algorithm_that_is_not_known_is_said_with_the_folder(tmp_path: Path) -> None:
    notes.write(tmp_path, note("retry"))
    stored = json.loads((tmp_path / notes.NOTE).read_text()) | {"algorithm": "nope"}
    (tmp_path / notes.NOTE).write_text(json.dumps(stored))
    with pytest.raises(FedRayError, match=rf"^--resume {tmp_path}: holds no run .*'nope' is not known; choose from"):
        notes.read(str(tmp_path))
