"""Figures of a comparison, one set per dataset: accuracy or RMSE against cost, reliability, clients, loss deviation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedray.compare.curves import COSTS, Cost, curve
from fedray.compare.groups import Estimate, estimate
from fedray.compare.pooling import mean_rows, pool
from fedray.federate import report
from fedray.federate.measures.tasks import CLASSIFICATION, REGRESSION, TASKS, Shown
from fedray.running.drawing import client_figures, uncertainty_figures
from fedray.running.drawing.client_figures import UNNAMED, DeviationCurve
from fedray.running.drawing.figure_style import (
    LINE,
    PALETTE,
    Builders,
    Rows,
    add_legend,
    canvas,
    clip_percent_axis,
    column,
    jitter,
    legend_height,
    lines_of,
    save_all,
    wrapped,
)
from fedray.running.drawing.figures import Average, draw_reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedray.data.readers import Names

DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX*"
ROWS_MAX = 12  # rows that a panel can show
BOUNDS_MAX = 4  # of them controls
BOUND = "#555555"  # their colour
LABEL = 42  # letters along an axis
COLUMNS = 4  # reliability diagrams side by side


class Series(NamedTuple):
    """What the figures show of one row of the table; each field has one entry per run."""

    name: str
    histories: Sequence[Sequence[Mapping[str, float]]]  # rounds
    calibration: Sequence[Rows]  # of calibration.csv
    clients: Sequence[Rows]  # of clients.csv
    deviation: Sequence[Rows] = ()  # of loss_deviation.csv; empty for a run without it
    uncertain: Sequence[Rows] = ()  # of client_uncertainty.csv; empty for a run without it, as the next two are
    risks: Sequence[Rows] = ()  # of risk_coverage.csv
    shift: Sequence[Rows] = ()  # of shift.csv
    control: bool = False  # a bound of the others
    names: Names = UNNAMED  # what the data call their classes and clients


def draw(folder: Path, suffix: str, series: Sequence[Series], also: str) -> list[Path]:
    """Write every figure that has data to figures/<kind>-<suffix>.png below a folder; at most ROWS_MAX rows.

    ``also`` is a second format: pdf or svg.
    """
    return save_all(folder, {f"{name}-{suffix}": build for name, build in builders(series).items()}, also)


def clear(folder: Path) -> None:
    """Remove what :func:`draw` has written below a folder before; other files stay."""
    names = {*builders([]), *(task.shown[0].name for task in TASKS)}
    for path in (folder / "figures").glob("*.*"):
        if path.suffix in (".png", ".pdf", ".svg") and any(path.name.startswith(f"{name}-") for name in names):
            path.unlink()


def builders(series: Sequence[Series]) -> Builders:
    """What draws each figure of some rows, by its name; at most ROWS_MAX rows."""
    shown = _shown(series)
    built = {
        headline(shown).name: lambda: accuracy_figure(shown),
        "clients": lambda: clients_figure(shown),
        "loss_deviation": lambda: deviation_figure(shown),
    }
    built |= {f"reliability-{kind}": partial(reliability_figure, shown, kind) for kind in report.NAMES}
    return built | {
        f"{name}-{kind}": partial(build, shown, kind) for kind in report.KINDS for name, build in UNCERTAINTY.items()
    }


def headline(series: Sequence[Series]) -> Shown:
    """Accuracy, or RMSE where that is what the runs measured."""
    measured = {name for each in series for rows in each.histories for row in rows for name in row}
    real = any(f"{kind}/{REGRESSION.headline}" in measured for kind in report.NAMES)
    return (REGRESSION if real else CLASSIFICATION).shown[0]


def _shown(series: Sequence[Series]) -> list[Series]:
    """The first rows, and after them the controls, which are never crowded out."""
    bounds = [each for each in series if each.control][:BOUNDS_MAX]
    return [each for each in series if not each.control][: ROWS_MAX - len(bounds)] + bounds


def accuracy_figure(series: Sequence[Series]) -> Figure | None:
    """Accuracy (%), or RMSE, against rounds, seconds and bytes, with a band of one sd; a row of panels per kind.

    Controls are horizontal lines at their results: every kind of model is tested on the same examples.
    """
    rows = [each for each in series if not each.control] or series
    of = headline(series)
    kinds = [
        kind for kind in report.NAMES if any(len(curve(each.histories, kind, COSTS[0], of.name).x) for each in rows)
    ]
    if not kinds:
        return None
    note = "lines: means over seeds; bands: one sample standard deviation on either side"
    note = note if any(len(each.histories) > 1 for each in series) else ""
    height = LINE * bool(note) + legend_height([wrapped(each.name) for each in series], 3)
    figure = canvas(12, 3.4 * len(kinds) + height)
    axes = figure.subplots(len(kinds), len(COSTS), squeeze=False, sharey="row")
    for kind, panels in zip(kinds, axes, strict=True):
        for ax, cost in zip(panels, COSTS, strict=True):
            _draw_curves(ax, series, kind, cost, of)
            ax.set_xlabel(cost.label)
            # Large totals have long labels; rounds are whole.
            ax.locator_params(axis="x", nbins=5, **({} if cost.metrics else {"integer": True, "min_n_ticks": 1}))
        panels[0].set_ylabel(_labelled(of, f"of the {report.NAMES[kind]}"))
        if of is CLASSIFICATION.shown[0]:
            clip_percent_axis(panels[0])
    _legend(figure, series, note)
    return figure


def _labelled(measure: Shown, of: str) -> str:
    """A measure of something, with the unit last: Accuracy of the global model (%)."""
    name, _, unit = measure.label.partition(" (")
    words = f"{name[0].upper()}{name[1:]} {of}"
    return f"{words}{' ' if len(words) + len(unit) < LABEL else chr(10)}({unit}"


def _draw_curves(ax: Axes, series: Sequence[Series], kind: str, cost: Cost, of: Shown) -> None:
    for index, each in enumerate(series):
        if each.control:
            _draw_bound(ax, index, bound(each.histories, kind, of.name), of.scale)
            continue
        x, mean, sd = curve(each.histories, kind, cost, of.name)
        if not len(x):
            continue
        look = _look(index)
        every = max(1, len(x) // 8)  # about eight markers a line, at other places than those of the next line
        ax.plot(x, of.scale * mean, markevery=(index % every, every), **look)
        if sd.any():
            ax.fill_between(
                x, of.scale * (mean - sd), of.scale * (mean + sd), color=look["color"], alpha=0.2, linewidth=0
            )


def bound(histories: Sequence[Sequence[Mapping[str, float]]], kind: str, measure: str = "accuracy") -> Estimate | None:
    """The result of a control beside models of a kind: that of whichever model it has; newcomers' are apart."""
    kinds = (kind,) if kind == report.NOVEL else report.KINDS
    found = [estimate(histories, f"{name}/{measure}") for name in kinds]
    return next((each for each in found if each), None)


def _draw_bound(ax: Axes, index: int, found: Estimate | None, scale: float) -> None:
    if found is None:
        return
    look = _bound_look(index)
    ax.axhline(scale * found.mean, **look)
    if found.sd:
        low, high = scale * (found.mean - found.sd), scale * (found.mean + found.sd)
        ax.axhspan(low, high, color=look["color"], alpha=0.15, lw=0)


def _bound_look(index: int) -> dict[str, Any]:
    """Of the line of a control: no markers, and never solid."""
    return {"color": BOUND, "linestyle": DASHES[1 + index % (len(DASHES) - 1)], "linewidth": 1.2}


def _look(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of a row. No two of the first ROWS_MAX rows share both dashes and marker."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4,
        "linewidth": 1.5,
    }


def _look_of(series: Series, index: int) -> dict[str, Any]:
    """The look of a row where a control is drawn as the methods are; its colour is that of its bound."""
    return _look(index) | ({"color": BOUND} if series.control else {})


def _legend(figure: Figure, series: Sequence[Series], note: str) -> None:
    from matplotlib.lines import Line2D

    looks = [(_bound_look if each.control else _look)(index) for index, each in enumerate(series)]
    handles = [Line2D([], [], label=wrapped(each.name), **look) for each, look in zip(series, looks, strict=True)]
    look: dict[str, Any] = {"loc": "outside lower center", "ncols": min(3, len(series)), "title_fontsize": 9}
    figure.legend(handles=handles, title=note or None, **look)


def reliability_figure(series: Sequence[Series], kind: str) -> Figure | None:
    """Reliability diagrams of one kind of model, side by side, each pooled over its seeds."""
    pooled = [(each, pool(each.calibration, kind)) for each in series]
    diagrams = [(each, rows) for each, rows in pooled if rows]
    if not diagrams:
        return None
    columns = min(COLUMNS, len(diagrams))
    lines = math.ceil(len(diagrams) / columns)
    figure = canvas(3.1 * columns + 0.4, 4.3 * lines)
    axes = figure.subplots(2 * lines, columns, squeeze=False, sharex=True, height_ratios=[3, 1] * lines)
    for ax in axes.flat:
        ax.set_visible(False)
    for place, (each, rows) in enumerate(diagrams):
        line, position = divmod(place, columns)
        top = axes[2 * line, position]
        below = axes[2 * line + 1, position]
        top.set_visible(True)
        below.set_visible(True)
        found = estimate(each.histories, f"{kind}/ece")
        draw_reliability(top, below, kind, rows, found and Average(found.mean, "as in the table"))
        top.set_title(f"{wrapped(each.name)}\n{top.get_title()}", fontsize=9)
        below.tick_params(labelbottom=True)
    for ax in axes[::2, 0]:
        ax.set_ylabel("Accuracy (%)")
    for ax in axes[1::2, 0]:
        ax.set_ylabel("Examples")
    figure.align_ylabels(axes[:, 0])
    add_legend(figure, axes[::2].flat, ncols=min(3, columns))
    return figure


def deviation_figure(series: Sequence[Series]) -> Figure | None:
    """The loss deviation of the first client, for one run of each row.

    Rows whose test examples differ from those of the first row are left out.
    """
    curves: list[DeviationCurve] = []
    names = UNNAMED
    for index, each in enumerate(series):
        rows = next((table for table in each.deviation if table), None)
        if rows is None or (curves and _examples(rows) != _examples(curves[0].rows)):
            continue
        look = _look_of(each, index)
        names = names if curves else each.names
        curves.append(DeviationCurve(each.name, rows, {key: look[key] for key in ("color", "marker", "markersize")}))
    return client_figures.deviation_figure(curves, names=names)


def _examples(rows: Rows) -> list[tuple[str, ...]]:
    return [(row["client"], row["class"], row["test_examples"]) for row in rows]


def risk_figure(series: Sequence[Series], kind: str) -> Figure | None:
    """Risk-coverage curves of one kind of model, each the mean over its runs."""
    return uncertainty_figures.risk_figure(_lines(series, [each.risks for each in series], kind, ("coverage",)))


def shift_figure(series: Sequence[Series], kind: str) -> Figure | None:
    """Accuracy and ECE of one kind of model under corrupted inputs, each the mean over its runs."""
    keys = ("corruption", "severity")
    return uncertainty_figures.shift_figure(_lines(series, [each.shift for each in series], kind, keys))


def _lines(
    series: Sequence[Series], tables: Sequence[Sequence[Rows]], kind: str, keys: Sequence[str]
) -> list[uncertainty_figures.DrawnLine]:
    """One line per row of the table, of the files ``tables`` of its runs."""
    lines = []
    for index, (each, files) in enumerate(zip(series, tables, strict=True)):
        rows = mean_rows([row for file in files for row in file if row["model"] == kind], keys)
        if rows:
            lines.append(uncertainty_figures.DrawnLine(wrapped(each.name), rows, _look_of(each, index)))
    return lines


def unknown_figure(series: Sequence[Series], kind: str) -> Figure | None:
    """AUROC (%) of every client's confidence, classes that it does not hold against its own, for one kind of model."""
    name = "unknown_auroc"
    rows = [[row for file in each.uncertain for row in file if row["model"] == kind] for each in series]
    values = [column([row for row in each if row.get(name)], name) for each in rows]
    shown = [index for index, each in enumerate(values) if len(each)]
    if not shown:
        return None
    names = [wrapped(series[index].name) for index in shown]
    figure = canvas(6.5, 1.4 + _row_height(names) * len(names))
    ax = figure.subplots()
    for place, index in enumerate(shown):
        _draw_clients(ax, place, _look_of(series[index], index), 100 * values[index])
    ax.axvline(50, color=BOUND, linewidth=1, linestyle=":")
    ax.set(xlabel=f"Unknown-class AUROC on a client, {report.NAMES[kind]} (%)")
    ax.grid(visible=False, axis="y")
    _name_rows(figure, ax, names)
    return figure


def _row_height(names: Sequence[str]) -> float:
    """Inches between two rows with their names along the axis."""
    return max(0.55, 0.2 + LINE * lines_of(names))


def _name_rows(figure: Figure, ax: Axes, names: Sequence[str]) -> None:
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)  # the first row on top, as in the table
    figure.supxlabel("A point per client and seed, the quartiles (box) and the median (line)", fontsize=8)


UNCERTAINTY = {"risk_coverage": risk_figure, "unknown": unknown_figure, "shift": shift_figure}


def clients_figure(series: Sequence[Series]) -> Figure | None:
    """Accuracy (%), or RMSE, on every client at the last evaluation: a point per client and seed, and quartiles."""
    of = headline(series)
    values = {kind: [_of_clients(each, f"{kind}_{of.name}") for each in series] for kind in report.NAMES}
    kinds = [kind for kind in report.NAMES if any(len(each) for each in values[kind])]
    if not kinds:
        return None
    names = [wrapped(each.name) for each in series]
    figure = canvas(1.5 + 5 * len(kinds), 1.4 + _row_height(names) * len(names))
    axes = figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0]
    for ax, kind in zip(axes, kinds, strict=True):
        for index, each in enumerate(values[kind]):
            _draw_clients(ax, index, _look_of(series[index], index), of.scale * each)
        ax.set(xlabel=_labelled(of, f"on a client, {report.NAMES[kind]}"))
        ax.grid(visible=False, axis="y")
    _name_rows(figure, axes[0], names)
    return figure


def _of_clients(series: Series, name: str) -> np.ndarray:
    values = column([row for table in series.clients for row in table if row.get(name)], name)
    return values[np.isfinite(values)]


def _draw_clients(ax: Axes, index: int, look: Mapping[str, Any], values: np.ndarray) -> None:
    if not len(values):
        return
    ax.use_sticky_edges = False  # points at 0 are whole
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    ax.barh([index], [high - low], 0.6, left=[low], color=look["color"], alpha=0.25)
    ax.vlines([median], index - 0.3, index + 0.3, color="black", linewidth=1.5, zorder=3)
    heights = index + 0.22 * jitter(len(values))
    ax.plot(values, heights, look["marker"], color=look["color"], markersize=3.5, alpha=0.8, linestyle="none")
