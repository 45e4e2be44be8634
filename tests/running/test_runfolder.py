"""The note of a run: how it is read again, and what a resumed run may change of it."""

from __future__ import annotations

import json
from pathlib import Path

import filelock
import pytest

from fedray.config import Execution, override
from fedray.federate.messages import Failure
from fedray.running import failure_list, files, runfolder
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


def test_who_gets_the_lock_as_it_is_given_back_holds_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, second = tmp_path / "run", runfolder.locked(tmp_path / "run")
    release = filelock.FileLock.release
    monkeypatch.setattr(runfolder, "PATIENCE", 0)

    def handed_over(lock: filelock.FileLock, *args: bool) -> None:
        release(lock, *args)
        monkeypatch.setattr(filelock.FileLock, "release", release)
        second.__enter__()

    with runfolder.locked(folder):
        monkeypatch.setattr(filelock.FileLock, "release", handed_over)
    with pytest.raises(FedRayError, match="going on in another process"), runfolder.locked(folder):
        pass
    second.__exit__(None, None, None)
    with runfolder.locked(folder):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_cannot_be_written_leaves_the_one_before_it(tmp_path: Path) -> None:
    class Broken:
        def __str__(self) -> str:
            raise OSError("no space left")

    files.write_table(tmp_path / "a.csv", [{"a": 1}])
    with pytest.raises(OSError, match="no space"):
        files.write_table(tmp_path / "a.csv", [{"a": 2}, {"a": Broken()}])
    assert (tmp_path / "a.csv").read_bytes() == b"a\r\n1\r\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_failures_before_an_interruption_are_there_until_the_table_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [Failure(number, "client 1", "lost", "gone") for number in (1, 3)]
    failure_list.add(tmp_path, failures)

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        assert failure_list.begin(tmp_path, 2) == (failures[0],)
    assert failure_list.begin(tmp_path, 3) == tuple(failures)
    assert failure_list.begin(tmp_path, 2) == (failures[0],)
    assert failure_list.begin(tmp_path, 3) == (failures[0],)
