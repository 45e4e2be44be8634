"""``fedray.compare_runs``: runs side by side, as a table, a DataFrame and figures."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.compare import comparison as finished
from fedray.compare import figures, html, tables
from fedray.compare.figures import builders
from fedray.compare.folders import Folders, finished_run
from fedray.compare.groups import RunGroup
from fedray.compare.runs import FinishedRun
from fedray.compare.styles import STYLES
from fedray.federate import report
from fedray.library.drawing import drawn, having_data
from fedray.library.errors import naming_arguments
from fedray.library.run import Run
from fedray.types import FedRayError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

RunOrFolder = Run | str | Path


class Comparison:
    """Runs side by side: each row averages the runs that differ only in their seeds."""

    def __init__(
        self,
        table: tables.ComparisonTable,
        groups: Sequence[RunGroup],
        series: Mapping[str, Sequence[figures.Series]],
        by: str,
    ):
        """``series`` are what the figures show, by the data that the runs were measured on."""
        self._table, self._groups, self._series, self._by = table, groups, series, by

    @property
    def frame(self) -> DataFrame:
        """A row of the table per row, in the units that runs log: mean over seeds, and sample standard deviation."""
        import pandas

        rows = []
        for group in self._groups:
            row: dict[str, Any] = {self._by: group.values[0], "settings": group.label, "n": len(group.runs)}
            for metric, found in group.estimates.items():
                sd = float("nan") if found.sd is None else found.sd  # of a single run
                row |= {metric: found.mean, f"{metric} sd": sd}
            rows.append(row)
        return pandas.DataFrame(rows).set_index([self._by, "settings"])

    @functools.cached_property
    def figures(self) -> tuple[str, ...]:
        """The names of the figures that the runs have data for."""
        return tuple(dict.fromkeys(name for shown in self._series.values() for name in having_data(builders(shown))))

    def plot(self, figure: str = "", data: str = "") -> Figure:
        """A figure of all rows that were measured on the same data, by default of accuracy or RMSE; ``data`` says on
        which where there are several.

        Raises FedRayError for an unknown name, and for a figure that the runs measured nothing for.
        """
        if (not data and len(self._series) > 1) or (data and data not in self._series):
            raise FedRayError(
                f"data={data!r}: the runs were measured on {'; '.join(self._series)}; choose one of these"
            )
        shown = self._series[data or next(iter(self._series))]
        return drawn(builders(shown), figure or figures.headline(shown).name)

    def __repr__(self) -> str:
        return tables.markdown(self._table)

    def _repr_html_(self) -> str:
        return html.fragment(self._table)


def compare_runs(
    runs: Sequence[RunOrFolder] | Mapping[str, RunOrFolder | Sequence[RunOrFolder]],
    metrics: Sequence[str] = (),
) -> Comparison:
    """Compare finished runs, given as they are or as the folders of their results.

    A list has a row for every algorithm and every setting in which runs differ; of {name: runs} the names are the rows.
    ``metrics`` are names such as ``personal/accuracy``; by default the usual ones that some run has, and its own ones.
    Raises FedRayError for a run that is not finished, an unknown metric, and where two runs have the same settings.
    """
    named = runs if isinstance(runs, Mapping) else {"": runs}
    found = [finished_run(_folder(each), {"run": name}) for name, some in named.items() for each in _several(some)]
    if not found:
        raise FedRayError("runs: there are none to compare")
    by = "run" if isinstance(runs, Mapping) else "algorithm"
    with naming_arguments():
        chosen = finished.chosen(",".join(metrics), found) if metrics else _usual(found)
        files = Folders()
        groups, histories = finished.grouped(files, found, [by], chosen)
    if sum(len(group.runs) for group in groups) < len(found):
        raise FedRayError("runs: two of them have the same settings and seed; name them, {name: run}")
    series = {
        title: [finished.series(files, group, histories, group.name([by])) for group in block]
        for title, block in finished.blocks(groups).items()
    }
    return Comparison(tables.build(groups, [by], chosen), groups, series, by)


def _several(runs: RunOrFolder | Sequence[RunOrFolder]) -> Sequence[RunOrFolder]:
    return [runs] if isinstance(runs, Run | str | Path) else runs


def _folder(run: RunOrFolder) -> Path:
    if not isinstance(run, Run | str | Path):
        raise FedRayError(f"runs: {run!r} is neither a run nor the folder of a result")
    return run.folder if isinstance(run, Run) else Path(run)


def _usual(runs: Sequence[FinishedRun]) -> list[str]:
    """The usual metrics that some run has, and the callers' own ones."""
    own = {name for run in runs for name in run.measured if _own(name)}
    return [*finished.chosen(finished.METRICS, runs), *sorted(own)]


def _own(metric: str) -> bool:
    kind, _, name = metric.partition("/")
    return kind in report.KINDS and name not in STYLES
