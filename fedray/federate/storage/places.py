"""Where a folder is: its file system, and its path there."""

from __future__ import annotations

from typing import Any

import fsspec


def located(folder: str) -> tuple[Any, str]:
    """The file system of an absolute path or a URL, and the path in it.

    fsspec takes ``::`` for the joint of two URLs, so that the path ``runs/a::b`` would be ``runs/a``, of another run.
    """
    if folder.startswith("/"):
        return fsspec.filesystem("file"), folder.rstrip("/") or "/"
    return fsspec.url_to_fs(folder)
