"""One process at a time works in a folder."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from fedray.types import FedRayError, unwritable

PATIENCE = 0.5  # seconds for the lock: its file may be going just then, and has to be opened again


@contextlib.contextmanager
def locked(folder: Path, option: str = "--output") -> Iterator[None]:
    """Keep others out of the folder of a run that goes on; raises FedRayError where somebody has it."""
    from filelock import FileLock, Timeout

    real = Path(os.path.realpath(folder))  # a link to it is the same folder
    lock = FileLock(real.parent / f".{real.name}.lock")
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=PATIENCE)
    except OSError as error:
        if isinstance(error, Timeout) and Path(lock.lock_file).exists():
            raise FedRayError(
                f"{option} {folder}: what is there is going on in another process; wait for it or stop it"
            ) from None
        reason = PermissionError(errno.EACCES, os.strerror(errno.EACCES)) if isinstance(error, Timeout) else error
        raise FedRayError(unwritable(f"{option} {folder}", reason)) from None
    try:
        yield
    finally:
        # Before the release: who has opened the file and waits then finds that it has no name any more, and opens it
        # anew. After it, that lock and one on the next file of this name would both hold.
        with contextlib.suppress(OSError):  # in a folder that can no longer be written it stays, and keeps nobody out
            Path(lock.lock_file).unlink()
        lock.release()
