"""Data of runs that nobody played, a page with tables of one's own, and what a figure shows."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from fedray.config import override
from fedray.studies.cell import Cell
from fedray.studies.named.quick import quick
from fedray.studies.results import missing, sections
from fedray.studies.results.data import Line
from fedray.studies.results.table import Table


def short() -> list[Cell]:
    """The first cell of the quick study with two minibatches per round."""
    return [cell._replace(experiment=override(cell.experiment, {"local_steps": 2})) for cell in quick()[:1]]


def line(seed: int = 0, cell: str = "fedavg", **metrics: float) -> Line:
    found = metrics or {"global/accuracy": 0.9}
    return Line("quick", cell, seed, 5, 1, 0, f"f{seed}", "all", "abc", "python", "x86", 1.5, "d", found)


def played(table: Table, cell: str, seed: int = 0, **metrics: float) -> Line:
    """A run of a table with the settings of today."""
    [config] = [key for key, run in table.runs().items() if (run.cell, run.experiment.seed) == (cell, seed)]
    return line(seed, cell, **metrics)._replace(study=table.study, rounds=table.rounds, config=config)


def publish(monkeypatch: pytest.MonkeyPatch, *published: Table) -> None:
    """Let the page have these tables alone."""
    monkeypatch.setattr(sections, "TABLES", published)
    monkeypatch.setattr(missing, "TABLES", published)


def points(figure: Figure | None) -> set[tuple[float, float]]:
    """Every point of a figure with one panel, with the half length of its error bar."""
    assert figure is not None
    (ax,) = figure.axes
    bars = {}
    for collection in ax.collections:
        assert isinstance(collection, LineCollection)
        ((low, _), (high, _)) = collection.get_segments()[0]
        bars[round((low + high) / 2, 2)] = round((high - low) / 2, 2)
    single = [drawn for drawn in ax.lines if drawn.get_marker() not in ("|", "None")]
    found = {round(float(x), 2) for drawn in single for x in np.atleast_1d(np.asarray(drawn.get_xdata()))}
    return {(x, bars.get(x, 0)) for x in found}
