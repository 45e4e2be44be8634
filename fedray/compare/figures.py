"""The figures of a comparison, one set per dataset: accuracy against cost, reliability, and clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedray.compare.runs import DOWN, SECONDS, UP
from fedray.federate import report
from fedray.run import client_figures, figures
from fedray.run.client_figures import DeviationCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, which is lost on white; dashes and markers tell the rest apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX*"
ROWS_MAX = 12  # lines that a panel can carry
COLUMNS = 4  # reliability diagrams side by side
COSTS = (
    ("Communication round", 1.0, ("round",)),
    ("Cumulative time (s)", 1.0, (SECONDS,)),
    ("Cumulative traffic, both ways (MB)", 1e6, (UP, DOWN)),
)


class Series(NamedTuple):
    """What is drawn of one row of the table."""

    name: str
    histories: Sequence[Sequence[Mapping[str, float]]]  # the rounds of each run
    calibration: Sequence[Sequence[Mapping[str, str]]]  # rows of calibration.csv of each run
    clients: Sequence[Sequence[Mapping[str, str]]]  # rows of clients.csv of each run
    deviation: Sequence[Sequence[Mapping[str, str]]] = ()  # rows of loss_deviation.csv of each run, where it has them


class Curve(NamedTuple):
    """Accuracy against a cost, over seeds."""

    x: np.ndarray  # [evaluations], the mean cost
    mean: np.ndarray  # share of correct answers
    sd: np.ndarray  # sample standard deviation; 0 of a single run


def draw(folder: Path, suffix: str, series: Sequence[Series]) -> list[Path]:
    """Every figure that has data, as figures/<kind>-<suffix>.png below a folder; at most ROWS_MAX rows."""
    series = series[:ROWS_MAX]
    makers = [("accuracy", lambda _: accuracy_figure(series)), ("clients", lambda _: clients_figure(series))]
    makers += [("loss_deviation", lambda _: deviation_figure(series))]
    makers += [(f"reliability-{kind}", lambda _, kind=kind: reliability_figure(series, kind)) for kind in report.NAMES]
    paths = [figures.save(folder, f"{name}-{suffix}.png", make) for name, make in makers]
    return [path for path in paths if path]


def curve(histories: Sequence[Sequence[Mapping[str, float]]], kind: str, cost: Sequence[str], unit: float) -> Curve:
    """Accuracy of a model against a cost at the rounds that every run evaluated."""
    metric = f"{kind}/accuracy"
    points = [_points(rows, metric, cost) for rows in histories]
    points = [run for run in points if run]
    common = sorted(set.intersection(*(set(run) for run in points))) if points else []
    table = np.array([[run[step] for step in common] for run in points]).reshape(len(points), len(common), 2)
    if not common:
        return Curve(np.empty(0), np.empty(0), np.empty(0))
    sd = table[..., 1].std(0, ddof=1) if len(points) > 1 else np.zeros(len(common))
    return Curve(table[..., 0].mean(0) / unit, table[..., 1].mean(0), sd)


def _points(rows: Sequence[Mapping[str, float]], metric: str, cost: Sequence[str]) -> dict[int, tuple[float, float]]:
    """{round: (cost until then, metric)} of the rounds that have the metric."""
    points, spent = {}, 0.0
    for row in rows:
        spent = row["round"] if cost == ("round",) else spent + sum(row.get(name, 0.0) for name in cost)
        if metric in row:
            points[int(row["round"])] = (spent, row[metric])
    return points


def accuracy_figure(series: Sequence[Series]) -> Figure | None:
    """Accuracy (%) against rounds, seconds and bytes; a row of panels per kind of model, a band of one sd."""
    kinds = [kind for kind in report.NAMES if any(len(curve(s.histories, kind, ("round",), 1).x) for s in series)]
    if not kinds:
        return None
    figure = figures.canvas(12, 3.4 * len(kinds) + 0.25 * math.ceil(len(series) / 3))
    axes = figure.subplots(len(kinds), len(COSTS), squeeze=False, sharey="row")
    for kind, panels in zip(kinds, axes, strict=True):
        for ax, (label, unit, cost) in zip(panels, COSTS, strict=True):
            _draw_curves(ax, series, kind, cost, unit)
            ax.set_xlabel(label)
            ax.locator_params(axis="x", nbins=5)  # totals of large models have long labels
        panels[0].set_ylabel(f"Accuracy of the {report.NAMES[kind]} (%)")
    _legend(figure, series)
    return figure


def _draw_curves(ax: Axes, series: Sequence[Series], kind: str, cost: Sequence[str], unit: float) -> None:
    for index, each in enumerate(series):
        x, mean, sd = curve(each.histories, kind, cost, unit)
        if not len(x):
            continue
        line = _look(index)
        every = max(1, len(x) // 8)
        ax.plot(x, 100 * mean, markevery=(index % every, every), **line)
        if sd.any():
            ax.fill_between(x, 100 * (mean - sd), 100 * (mean + sd), color=line["color"], alpha=0.2, linewidth=0)


def _look(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of a row: no two of the first ROWS_MAX agree in the last two."""
    dashes, marker = DASHES[index % len(DASHES)], MARKERS[index % len(MARKERS)]
    colour = COLOURS[index % len(COLOURS)]
    return {"color": colour, "linestyle": dashes, "marker": marker, "markersize": 4, "linewidth": 1.5}


def _legend(figure: Figure, series: Sequence[Series]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=_wrap(each.name), **_look(index)) for index, each in enumerate(series)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(series)))


def pool(tables: Sequence[Sequence[Mapping[str, str]]], kind: str) -> list[dict[str, float]]:
    """The bins of calibration.csv of one model, added up over runs; empty where nothing was predicted."""
    rows = [row for table in tables for row in table if row["model"] == kind]
    bins = sorted({int(row["bin"]) for row in rows})
    pooled = []
    for b in bins:
        filled = [row for row in rows if int(row["bin"]) == b and float(row["count"])]
        count = sum(float(row["count"]) for row in filled)
        sums = {
            name: sum(float(row["count"]) * float(row[name]) for row in filled) for name in ("confidence", "accuracy")
        }
        pooled.append({"bin": b, "count": count} | {name: total / (count or 1) for name, total in sums.items()})
    return pooled if any(row["count"] for row in pooled) else []


def reliability_figure(series: Sequence[Series], kind: str) -> Figure | None:
    """Reliability diagrams of one kind of model, side by side, each pooled over its seeds."""
    tables = [(each.name, rows) for each in series if (rows := pool(each.calibration, kind))]
    if not tables:
        return None
    columns = min(COLUMNS, len(tables))
    lines = math.ceil(len(tables) / columns)
    figure = figures.canvas(3.1 * columns + 0.4, 4.3 * lines)
    axes = figure.subplots(2 * lines, columns, squeeze=False, sharex=True, height_ratios=[3, 1] * lines)
    for ax in axes.flat:
        ax.set_visible(False)
    for place, (name, rows) in enumerate(tables):
        line, column = divmod(place, columns)
        top, below = axes[2 * line, column], axes[2 * line + 1, column]
        top.set_visible(True)
        below.set_visible(True)
        figures.draw_reliability(top, below, kind, rows)
        top.set_title(f"{_wrap(name)}\n{top.get_title()}", fontsize=9)
        below.tick_params(labelbottom=True)
    for ax in axes[::2, 0]:
        ax.set_ylabel("Accuracy (%)")
    for ax in axes[1::2, 0]:
        ax.set_ylabel("Examples")
    figure.align_ylabels(axes[:, 0])
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, columns))
    return figure


def _wrap(text: str, width: int = 34) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))


def deviation_figure(series: Sequence[Series]) -> Figure | None:
    """The loss deviation of the first client: a run of each row that has one on the test examples of the first."""
    curves = []
    for index, each in enumerate(series):
        look = _look(index)
        rows = next((table for table in each.deviation if table), [])
        if rows and (not curves or _examples(rows) == _examples(curves[0].rows)):
            curves.append(
                DeviationCurve(each.name, rows, {key: look[key] for key in ("color", "marker", "markersize")})
            )
    return client_figures.deviation_figure(curves)


def _examples(rows: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    return [(row["client"], row["class"], row["test_examples"]) for row in rows]


def clients_figure(series: Sequence[Series]) -> Figure | None:
    """The accuracy (%) of every client at the last evaluation: one point per client and seed, and its quartiles."""
    kinds = {kind: [_clients(each, kind) for each in series] for kind in report.NAMES}
    kinds = {kind: values for kind, values in kinds.items() if any(len(each) for each in values)}
    if not kinds:
        return None
    figure = figures.canvas(1.5 + 5 * len(kinds), 1.2 + 0.55 * len(series))
    axes = figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0]
    for ax, (kind, values) in zip(axes, kinds.items(), strict=True):
        for index, accuracies in enumerate(values):
            _draw_clients(ax, index, 100 * accuracies)
        ax.set(xlabel=f"Accuracy on a client, {report.NAMES[kind]} (%)")
        ax.grid(visible=False, axis="y")
    axes[0].set_yticks(range(len(series)), [_wrap(each.name) for each in series])
    axes[0].set_ylim(len(series) - 0.5, -0.5)  # the first row on top, as in the table
    return figure


def _clients(series: Series, kind: str) -> np.ndarray:
    column = f"{kind}_accuracy"
    values = [float(row[column]) for table in series.clients for row in table if row.get(column)]
    return np.array([value for value in values if math.isfinite(value)])


def _draw_clients(ax: Axes, index: int, values: np.ndarray) -> None:
    if not len(values):
        return
    look = _look(index)
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    ax.barh([index], [high - low], 0.6, left=[low], color=look["color"], alpha=0.25)
    ax.vlines([median], index - 0.3, index + 0.3, color="black", linewidth=1.5, zorder=3)
    # Spread in height, so that equal clients do not hide each other.
    height = index + 0.22 * np.sin(2.4 * np.arange(len(values)))
    ax.plot(values, height, look["marker"], color=look["color"], markersize=3.5, alpha=0.8, linestyle="none")
