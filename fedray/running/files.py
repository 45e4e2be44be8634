"""Small files that are there whole or not at all, and what a killed process may leave of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Write a text file in one step: a reader finds the old content or the new one; raises OSError."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in one step, and the folder that it lies in; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(value, indent=2) + "\n")


def leftover(path: Path) -> bool:
    """Whether a file is what a killed process left of a file that it was writing."""
    older = path.name == "run.part"  # of FedRay before 0.1.0 was released
    return path.is_file() and path.name.endswith(".part") and (path.name.startswith(".") or older)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left directly below a folder."""
    for path in folder.iterdir():
        if leftover(path):
            path.unlink()
