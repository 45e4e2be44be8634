"""The published figures as data: a CSV file per study, a line for each run."""

from __future__ import annotations

import contextlib
import csv
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedray.config.decode import refuse_damage
from fedray.running.files import write_whole
from fedray.types import FedRayError

# Before a metric: the best evaluation of a run, or of the last eighth of its rounds; else the last ten's mean.
# Runs with `eval_last` have the last eighth twice: by the rounds that others evaluate, too, and by every round.
BEST, LATE, EVERY = "best:", "late:", "every:"
WORDS: Mapping[str, str] = {
    "": "mean of last ten",
    BEST: "best",
    LATE: "best of last eighth",
    EVERY: "best of last eighth, every round",
}


class Line(NamedTuple):
    """A finished run. Metrics are in the units that runs log; seconds are CPU seconds of all rounds."""

    study: str
    cell: str
    seed: int
    rounds: int
    eval_every: int
    eval_last: int
    config: str  # fingerprint of all settings
    protocol: str
    commit: str
    command: str
    machine: str
    cpu_seconds: float
    digest: str  # SHA-256 of the states of server and clients
    metrics: Mapping[str, float]

    @property
    def key(self) -> tuple[str, int, int]:
        """What a later run replaces."""
        return self.cell, self.rounds, self.seed


NAMES = Line._fields[:-1]


def read(folder: Path, study: str) -> list[Line]:
    """The lines of a study in the order of the file; none where it has no file. Raises FedRayError for a bad one."""
    path = folder / f"{study}.csv"
    if not path.exists():
        return []
    with refuse_damage(f"{path}: not a file of results", "restore it, or delete it and record the runs again"):
        return [_line(row) for row in csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))]


def add(folder: Path, lines: Sequence[Line]) -> None:
    """Add runs to the file of their study, each in the place of an earlier one of the same cell, rounds and seed.

    A run that is already there keeps its machine: whoever writes it again may have another one. Raises FedRayError
    where the folder cannot be written.
    """
    prepare(folder)
    for study in dict.fromkeys(line.study for line in lines):
        path = folder / f"{study}.csv"
        with _writing(folder), _alone(folder / f".{study}.lock"):
            known = {line.key: line for line in read(folder, study)}
            for line in lines:
                if line.study == study:
                    before = known.get(line.key, line)
                    same = (before.config, before.digest) == (line.config, line.digest)
                    known[line.key] = line._replace(machine=before.machine) if same else line
            write_whole(path, text([known[key] for key in sorted(known)]))


def prepare(folder: Path) -> None:
    """Make the folder of the data; raises FedRayError where it cannot be made or written."""
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise FedRayError(f"--record {folder}: cannot be written ({reason}); choose a folder that can") from None


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Keep other processes from the file of a study meanwhile. The lock file stays: its removal would open the lock."""
    from filelock import FileLock

    with FileLock(place):
        yield


def text(lines: Sequence[Line]) -> str:
    """A file's content: the columns of a line, then its metrics by name; a metric that a run lacks is empty."""
    metrics = sorted({name for line in lines for name in line.metrics})
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*NAMES, *metrics])
    for line in lines:
        writer.writerow([*line[:-1], *(line.metrics.get(name, "") for name in metrics)])
    return file.getvalue()


def _line(row: Mapping[str, str]) -> Line:
    row = {"eval_last": "0", **row}  # files of earlier versions lack it
    values: dict[str, Any] = {name: row[name] for name in NAMES}
    values |= {name: int(row[name]) for name in ("seed", "rounds", "eval_every", "eval_last")}
    metrics = {name: float(value) for name, value in row.items() if name not in NAMES and value}
    return Line(**values | {"cpu_seconds": float(row["cpu_seconds"]), "metrics": metrics})
