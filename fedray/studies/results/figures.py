"""A figure for each table of the page: what a cell reaches, beside what its paper prints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedray.compare.groups import of_runs
from fedray.running.drawing.figure_style import COLOURS, LINES, add_legend, canvas, jitter, save_all
from fedray.studies.results.data import WORDS
from fedray.studies.results.rows import KINDS, Row
from fedray.studies.results.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 0.27  # inches


def link(table: Table) -> str:
    """The line of the page that shows the figure of a table."""
    return f"![{table.title}: accuracy of every cell](figures/{table.slug}.png)"


def draw_all(folder: Path, tables: Sequence[tuple[Table, Sequence[Row]]]) -> None:
    """Write the figure of every table that has rows to figures/ below a folder."""
    save_all(folder, {table.slug: partial(accuracies, rows) for table, rows in tables if rows})


def accuracies(rows: Sequence[Row]) -> Figure | None:
    """Accuracies by cell, in %: mean and standard deviation over seeds, every seed, and the paper's figure.

    As in the table, the best evaluations where the paper has a figure for some cell; else the means of the last ten.
    """
    printed = any(row.paper(f"{kind}/accuracy") for row in rows for kind in KINDS)
    prefix = rows[0].table.best if printed else ""
    kinds = [kind for kind in KINDS if any(row.values(f"{prefix}{kind}/accuracy") for row in rows)]
    if not kinds:
        return None
    figure = canvas(2.0 + 3.6 * len(kinds), 1.3 + ROW * len(rows))
    axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for ax, kind in zip(axes, kinds, strict=True):
        _draw(ax, rows, kind, prefix)
        ax.set_xlabel(f"{kind} accuracy (%), {WORDS[prefix]}")
        ax.locator_params(axis="x", nbins=6)  # more would touch where accuracies differ in the third decimal
    axes[0].set_yticks(range(len(rows)), [row.cell for row in rows])
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    add_legend(figure, axes, ncols=4)
    return figure


def _draw(ax: Axes, rows: Sequence[Row], kind: str, prefix: str) -> None:
    """A panel: ours on the line of a cell, or above it, where the paper's lies below it."""
    up = 0.14 if prefix else 0.0
    for place, row in enumerate(rows):
        found = [100 * value for value in row.values(f"{prefix}{kind}/accuracy").values()]
        if found:
            ours = of_runs(found)
            label = f"FedRay, {kind}, mean ± sd over seeds"
            look = {"color": COLOURS[kind], "fmt": LINES[kind][1], "capsize": 2, "markersize": 5, "label": label}
            ax.errorbar(ours.mean, place - up, xerr=ours.sd or 0.0, **look)
            ax.plot(found, place - up + 0.1 * jitter(len(found)), ".", color=COLOURS[kind], alpha=0.35, markersize=4)
        if paper := row.paper(f"{kind}/accuracy"):
            look = {"color": "black", "fmt": "D", "mfc": "white", "capsize": 2, "markersize": 5}
            sd = 100 * (paper.sd or 0.0)
            ax.errorbar(100 * paper.mean, place + 0.2, xerr=sd, label="paper (± where printed)", **look)
