"""Small files that are there whole or not at all, and what a killed process may leave of them."""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

METRICS = "metrics.csv"  # of a run's folder: a row of measures for every round


@contextlib.contextmanager
def whole(path: Path) -> Iterator[TextIO]:
    """A text file to write in one step: a reader finds the old content or the new one; raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # another process may write the same file just now
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            yield file
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a text file in one step; raises OSError."""
    with whole(path) as file:
        file.write(text)


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file in one step, with the union of the rows' columns in order of appearance; raises OSError."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with whole(path) as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def read_measures(folder: Path) -> list[dict[str, float]]:
    """The rows of a run's metrics.csv, without the measures that a round has not; raises OSError and ValueError."""
    with (folder / METRICS).open(newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in one step, and the folder that it lies in; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(value, indent=2) + "\n")


def to_disk(path: Path) -> None:
    """Wait until a file, or the list of the files of a folder, is on the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # of which some file systems cannot
            raise
    finally:
        os.close(descriptor)


def leftover(path: Path) -> bool:
    """Whether a file is what a killed process left of a file that it was writing."""
    return path.is_file() and path.name.startswith(".") and path.name.endswith(".part")


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left directly below a folder."""
    for path in folder.iterdir():
        if leftover(path):
            path.unlink()
