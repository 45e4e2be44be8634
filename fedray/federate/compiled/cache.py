"""Packages on disk: found by key, whole or not at all.

A package is machine code: whoever can write one runs code as its reader. So one is read only from a folder and a file
that belong to this user and that nobody else may write. A checksum before it finds damage, not malice.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedray.types import FedRayError

VARIABLE = "FEDRAY_CACHE"
DIGEST_BYTES = 32  # of SHA-256, before the content


def folder() -> Path:
    """$FEDRAY_CACHE, or ~/.cache/fedray, made if it is missing.

    Raises FedRayError where it cannot be made, or where others could write into it.
    """
    path = Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "fedray")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(path, path.stat())
    except OSError as error:
        raise FedRayError(f"{VARIABLE}={path}: cannot be used ({error.strerror}); give another folder") from None
    return path


def read(key: str) -> bytes | None:
    """What was written under a key; None where nothing was, or where it is damaged.

    Raises FedRayError where others could have written it.
    """
    path = folder() / key
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FedRayError(f"{path}: cannot be read ({error.strerror}); remove it") from None
    with open(descriptor, "rb") as file:
        _check(path, os.fstat(descriptor))  # of what is open: a path could change hands between check and use
        digest, content = file.read(DIGEST_BYTES), file.read()
    return content if hashlib.sha256(content).digest() == digest else None


def write(key: str, content: bytes) -> None:
    """Keep a content under a key, in one step; raises FedRayError where the disk refuses."""
    place = folder()
    part = ""
    try:
        descriptor, part = tempfile.mkstemp(dir=place, prefix=".part-")  # which nobody else may read or write
        with open(descriptor, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        os.replace(part, place / key)
    except OSError as error:
        if part:
            Path(part).unlink(missing_ok=True)
        raise FedRayError(f"{place}: cannot be written ({error.strerror}); free space, or set {VARIABLE}") from None


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One process at a time: the others find what it has written."""
    from filelock import FileLock

    with FileLock(folder() / ".lock"):
        yield


def _check(path: Path, status: os.stat_result) -> None:
    """Raise FedRayError unless only this user may write there."""
    remedy = f"set {VARIABLE} to a folder of your own"
    if status.st_uid != os.geteuid():
        raise FedRayError(f"{path}: belongs to another user, who could have put any code there; {remedy}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise FedRayError(f"{path}: others may write there, and could put any code there; chmod go-w it, or {remedy}")
