"""Finished runs, read from the folders of their results, where no tracking store is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedray.compare.runs import CONFIG, FinishedRun
from fedray.config import flatten
from fedray.config.decode import decode, refuse_damage
from fedray.federate import report
from fedray.federate.uncertainty import summary as uncertain
from fedray.running.drawing.figure_style import read_csv, read_names
from fedray.running.files import read_measures

if TYPE_CHECKING:
    from fedray.data.readers import Names

SUMMARY = "summary.json"


class Folders:
    """Reads runs whose ids are the paths of their folders."""

    def rounds(self, run: FinishedRun, metrics: Iterable[str]) -> list[dict[str, float]]:
        """One row per round, as in metrics.csv; the last evaluation has the numbers of the uncertainty report, too."""
        return _rounds(Path(run.id))

    def csv_rows(self, run: FinishedRun, name: str) -> list[dict[str, str]]:
        """The rows of a CSV file in the folder; empty if there is none."""
        return read_csv(Path(run.id) / name)

    def names(self, run: FinishedRun) -> Names:
        """What the data of the run call their classes and clients."""
        return read_names(Path(run.id))


def finished_run(folder: Path, tags: Mapping[str, str]) -> FinishedRun:
    """The run of a folder; raises FedRayError where it holds no result."""
    with refuse_damage(f"{folder}: holds no finished run", "give the folder of one"):
        described = decode((folder / CONFIG).read_bytes())
        params = {"algorithm.name": described["algorithm"]} | flatten(described["experiment"])
        params |= described.get("digests", {})  # older runs have none
        settings = {name: str(value) for name, value in params.items()}
        measured = frozenset(name for row in _rounds(folder) for name in row)
        return FinishedRun(str(folder), folder.name, (folder / CONFIG).stat().st_mtime_ns, settings, tags, measured)


def _rounds(folder: Path) -> list[dict[str, float]]:
    rows = read_measures(folder)
    evaluated = [row for row in rows if any(name in row for name in report.EVALUATED)]
    if evaluated:  # not always rows[-1], which newcomers may have played
        evaluated[-1] |= uncertain.tracked(decode((folder / SUMMARY).read_bytes()))
    return rows
