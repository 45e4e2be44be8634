"""The failures of a run as a table in its folder, which grows with every round, so that a resumed run knows those
before its interruption."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Sequence
from pathlib import Path

from fedray.federate.messages import Failure
from fedray.running.files import write_table

FILE = "failures.csv"


def begin(folder: Path, rounds: int) -> tuple[Failure, ...]:
    """The failures of the first ``rounds`` rounds, to which the table is cut: later rounds are played again."""
    found = tuple(failure for failure in _read(folder / FILE) if failure.round <= rounds)
    with contextlib.suppress(OSError):  # a full disk must not cost the run
        if found:
            write_table(folder / FILE, rows(found))
        else:
            (folder / FILE).unlink(missing_ok=True)
    return found


def add(folder: Path, failures: Sequence[Failure]) -> None:
    """Add failures to the table, which a full disk may leave short."""
    if not failures:
        return
    path = folder / FILE
    with contextlib.suppress(OSError):
        if not path.exists():
            write_table(path, rows(failures))
            return
        with path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, Failure._fields).writerows(rows(failures))


def rows(failures: Sequence[Failure]) -> list[dict[str, object]]:
    """The failures as rows of the table."""
    return [failure._asdict() for failure in failures]


def _read(path: Path) -> list[Failure]:
    """The failures in a table, up to a line that a killed process left torn."""
    found: list[Failure] = []
    with (
        contextlib.suppress(OSError, ValueError, TypeError, csv.Error),
        path.open(encoding="utf-8", newline="") as file,
    ):
        for row in csv.DictReader(file, strict=True):
            if None in row.values():  # it ends between two fields
                break
            failure = Failure(**row)  # type: ignore[arg-type]  # all of them texts as yet
            found.append(failure._replace(round=int(failure.round)))
    return found
