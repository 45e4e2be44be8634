"""The note of a run: how it is read again, and what a resumed run may change of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedray.config import Execution, override
from fedray.running import runfolder
from fedray.running.runfolder import Note
from fedray.types import FedRayError
from tests.helpers import small_plan


def note(on_failure: str) -> Note:
    return Note("x", override(small_plan().cfg, {"on_failure": on_failure}), Execution(), None)


@pytest.mark.parametrize("kept", ["retry", "skip", "abort", None])
def test_a_note_of_an_older_version_has_its_failure_policy_moved(kept: str | None, tmp_path: Path) -> None:
    runfolder.write(tmp_path, note("retry"))
    stored = json.loads((tmp_path / runfolder.NOTE).read_text())
    del stored["experiment"]["on_failure"]
    if kept:
        stored["execution"]["on_failure"] = kept
    (tmp_path / runfolder.NOTE).write_text(json.dumps(stored))
    assert runfolder.read(str(tmp_path)).experiment.on_failure == (kept or "retry")


@pytest.mark.parametrize(("begun", "asked"), [("retry", "abort"), ("abort", "retry"), ("skip", "skip")])
def test_a_resumed_run_may_give_up_sooner_or_later(begun: str, asked: str) -> None:
    old, new = note(begun), note(asked)
    runfolder.check_same("runs/x", old, new.experiment, new.execution)


@pytest.mark.parametrize(("begun", "asked"), [("retry", "skip"), ("abort", "skip"), ("skip", "retry")])
def test_a_resumed_run_may_not_begin_or_cease_to_leave_clients_out(begun: str, asked: str) -> None:
    old, new = note(begun), note(asked)
    with pytest.raises(FedRayError, match=f"--on-failure {asked}: the run began with {begun}, and skip changes the"):
        runfolder.check_same("runs/x", old, new.experiment, new.execution)
    both = override(new.experiment, {"rounds": 7})
    with pytest.raises(FedRayError, match=r"it differs in rounds, on_failure"):
        runfolder.check_same("runs/x", old, both, new.execution)
