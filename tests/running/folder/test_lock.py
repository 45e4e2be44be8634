"""The lock on a folder."""

from __future__ import annotations

from pathlib import Path

import filelock
import pytest

from fedray.running.folder import lock
from fedray.types import FedRayError, RunError


def test_who_gets_the_lock_as_it_is_given_back_holds_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, second = tmp_path / "run", lock.locked(tmp_path / "run")
    release = filelock.FileLock.release
    monkeypatch.setattr(lock, "PATIENCE", 0)

    def handed_over(lock: filelock.FileLock, *args: bool) -> None:
        release(lock, *args)
        monkeypatch.setattr(filelock.FileLock, "release", release)
        second.__enter__()

    with lock.locked(folder):
        monkeypatch.setattr(filelock.FileLock, "release", handed_over)
    with pytest.raises(FedRayError, match="going on in another process"), lock.locked(folder):
        pass
    second.__exit__(None, None, None)
    with lock.locked(folder):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_removed_hides_no_error_and_is_given_back(tmp_path: Path) -> None:
    def run() -> None:
        with lock.locked(tmp_path / "run"):
            (tmp_path / ".run.lock").unlink()
            (tmp_path / ".run.lock").mkdir()  # which root, too, cannot remove as a file
            raise RunError("run: cannot be written (read-only file system)")

    with pytest.raises(RunError, match="read-only file system"):
        run()
    (tmp_path / ".run.lock").rmdir()
    with lock.locked(tmp_path / "run"):
        pass
