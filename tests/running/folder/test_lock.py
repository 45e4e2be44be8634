"""The lock on a folder."""

from __future__ import annotations

from pathlib import Path

import filelock
import pytest

from fedray.running.folder import lock
from fedray.types import FedRayError


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
