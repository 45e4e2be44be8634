"""Figures of a finished run, drawn only from the files in its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedray.federate.report import KINDS, NAMES, NOVEL
from fedray.running.drawing.figure_style import (
    COLOURS,
    GREY,
    LINES,
    Builders,
    Rows,
    add_legend,
    calibration_error,
    canvas,
    clip_percent_axis,
    column,
    evenly_spaced,
    plot_diagonal,
    read_csv,
    read_names,
    shortened,
    titled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS_MAX = 20  # evaluations; longer curves have no markers
UNCERTAINTY_KEY = (
    "Class (▲ the true one); boxes: quartiles over posterior draws,\n"
    "whiskers: range; H: predictive entropy, MI: mutual information (nats)"
)
FEW = 10  # examples; the accuracy of a bin with fewer has a standard error of up to 16 points
GRID_MAX = 5  # rows and columns of the uncertainty grid that fit on a page


class Measure(NamedTuple):
    """A metric on the vertical axis."""

    metric: str
    label: str
    scale: float


ACCURACY = Measure("accuracy", "Accuracy (%)", 100.0)
RMSE = Measure("rmse", "RMSE (units of the target)", 1.0)
NLL = Measure("nll", "NLL (nats)", 1.0)
ECE = Measure("ece", "ECE (%)", 100.0)


class Curve(NamedTuple):
    """A metric of one model over the rounds that evaluated it."""

    rounds: list[int]
    values: list[float]
    non_finite: int = 0  # evaluations whose values are not finite: nothing can be drawn there


class Average(NamedTuple):
    """A measure as the tables have it."""

    value: float
    of: str  # the evaluations that it averages, in words


def builders(folder: Path) -> Builders:
    """What draws each figure of a run's folder, by its name."""
    headline = RMSE if _curves(read_csv(folder / "metrics.csv"), RMSE) else ACCURACY
    return {
        headline.metric: lambda: accuracy_figure(folder, headline),
        "reliability": lambda: reliability_figure(folder),
        "coverage": lambda: coverage_figure(folder),
        "uncertainty": lambda: uncertainty_figure(folder),
    }


def accuracy_figure(folder: Path, headline: Measure = ACCURACY) -> Figure | None:
    """Accuracy (%), or RMSE, and beside it NLL (nats) or else ECE (%), against the round, from metrics.csv."""
    rows = read_csv(folder / "metrics.csv")
    panels = []
    for alternatives in ([headline], [NLL, ECE]):
        measured = [measure for measure in alternatives if _curves(rows, measure)]
        panels += measured[:1]
    if not panels:
        return None
    figure = canvas(4.2 * len(panels), 3.5)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, measure in zip(axes, panels, strict=True):
        _draw_curves(ax, _curves(rows, measure), measure)
    add_legend(figure, axes, ncols=min(len(COLOURS), 2 * len(panels)))
    return figure


def _curves(rows: Rows, measure: Measure) -> dict[str, Curve]:
    """The curves of a metric, by model; without models that have none."""
    curves = {model: _curve(rows, f"{model}/{measure.metric}") for model in COLOURS}
    return {model: curve for model, curve in curves.items() if curve.rounds}


def _curve(rows: Rows, name: str) -> Curve:
    """The finite values of a column of metrics.csv, and how many are not."""
    points = [(int(row["round"]), float(row[name])) for row in rows if row.get(name)]
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    return Curve([step for step, _ in finite], [value for _, value in finite], len(points) - len(finite))


def _draw_curves(ax: Axes, curves: Mapping[str, Curve], measure: Measure) -> None:
    from matplotlib.ticker import MaxNLocator

    for model, curve in curves.items():
        style, marker = LINES[model]
        ax.plot(
            curve.rounds,
            [measure.scale * value for value in curve.values],
            style,
            color=COLOURS[model],
            marker=marker if len(curve.rounds) <= MARKERS_MAX else None,
            markersize=4,
            label=NAMES[model],
        )
    ax.set(xlabel="Communication round", ylabel=measure.label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if measure in (ACCURACY, ECE):
        clip_percent_axis(ax)
    titles = [
        f"{NAMES[model]}: {curve.non_finite} of {curve.non_finite + len(curve.rounds)} evaluations are not finite"
        for model, curve in curves.items()
        if curve.non_finite
    ]
    ax.set_title("\n".join(titles), fontsize=8)


def reliability_figure(folder: Path) -> Figure | None:
    """Accuracy (%) against confidence (%) per bin, above the number of examples per bin, from calibration.csv."""
    bins: dict[str, list[dict[str, str]]] = {model: [] for model in COLOURS}
    for row in read_csv(folder / "calibration.csv"):
        bins[row["model"]].append(row)
    bins = {model: rows for model, rows in bins.items() if any(float(row["count"]) for row in rows)}
    if not bins:
        return None
    averages = _averages(folder)
    figure = canvas(3.6 * len(bins), 4.6)
    axes = figure.subplots(2, len(bins), squeeze=False, sharex=True, height_ratios=[3, 1])
    for (top, below), (model, rows) in zip(axes.T, bins.items(), strict=True):
        draw_reliability(top, below, model, rows, averages.get(model))
    axes[0, 0].set_ylabel("Accuracy (%)")
    axes[1, 0].set_ylabel("Examples")
    # Outside the panels, because the bars of an underconfident model fill them.
    add_legend(figure, axes[0], ncols=2)
    return figure


def _averages(folder: Path) -> dict[str, Average]:
    """The ECE of every model in summary.json; none of a folder without one."""
    path = folder / "summary.json"
    summary = json.loads(path.read_bytes()) if path.exists() else {}
    found = {model: (summary.get(model) or {}).get("ece") for model in COLOURS}
    of = {model: summary["protocol"]["rounds"] for model in KINDS if found[model] is not None}
    of |= {NOVEL: "mean of their last evaluations"}
    return {model: Average(ece, of[model]) for model, ece in found.items() if ece is not None}


def draw_reliability(top: Axes, below: Axes, model: str, rows: Rows, ece: Average | None = None) -> None:
    """A reliability diagram: per confidence bin, the accuracy (%) and its gap to the confidence above the examples.

    ``rows`` are all bins of one model, as in calibration.csv. At least one of them is filled. Bins of fewer than FEW
    examples are pale: their accuracy is hardly known. The title has the ``ece`` of the tables; without one, the bins'.
    """
    filled = [row for row in rows if float(row["count"])]
    width = 100.0 / len(rows)
    left = np.array([int(row["bin"]) * width for row in filled])
    accuracy = column(filled, "accuracy")
    gap = column(filled, "confidence") - accuracy
    bar: dict[str, Any] = {"width": width, "align": "edge", "edgecolor": "white", "linewidth": 0.5}
    hatched = bar | {"color": "none", "edgecolor": "black", "hatch": "////", "linewidth": 0.8}
    few = column(filled, "count") < FEW
    for some, look in ((~few, {"label": "accuracy"}), (few, {"label": f"fewer than {FEW} examples", "alpha": 0.3})):
        if some.any():
            top.bar(left[some], 100 * accuracy[some], color=COLOURS[model], **look, **bar)
    top.bar(left, 100 * gap, bottom=100 * accuracy, label="gap to confidence", **hatched)
    plot_diagonal(top, linewidth=1, label="perfectly calibrated")
    shown = Average(calibration_error(filled), "") if ece is None else ece
    title = f"{NAMES[model].capitalize()}: ECE {100 * shown.value:.2f} %"
    title += f"\n{shown.of};\nbars: the last evaluation" if shown.of else ""
    top.set(xlim=(0, 100), ylim=(0, 100))
    top.set_title(title, fontsize=9)
    below.bar(left, column(filled, "count"), color=GREY, **bar)
    below.set(xlabel="Confidence (%)")


def coverage_figure(folder: Path) -> Figure | None:
    """Share of real targets (%) in the central interval of every level (%), by model, from coverage.csv."""
    rows = read_csv(folder / "coverage.csv")
    if not rows:
        return None
    figure = canvas(4.0, 3.6)
    ax = figure.subplots()
    plot_diagonal(ax, linewidth=1, label="perfectly calibrated")
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        style, marker = LINES[model]
        look: dict[str, Any] = {"color": COLOURS[model], "marker": marker, "markersize": 4, "label": NAMES[model]}
        ax.plot(100 * column(own, "level"), 100 * column(own, "coverage"), style, clip_on=False, **look)
    ax.set(xlabel="Level of the central interval (%)", ylabel="Test targets inside (%)", xlim=(0, 100), ylim=(0, 100))
    ax.legend()
    return figure


def uncertainty_figure(folder: Path) -> Figure | None:
    """How posterior draws spread p(class), over rounds and clients, from uncertainty.npz.

    At most five rounds and five clients, evenly spaced.
    """
    path = folder / "uncertainty.npz"
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        predictions = dict(arrays)
    if not len(predictions["round"]):
        return None
    names = read_names(folder)
    rounds = _thinned(predictions["round"])
    clients = _thinned(predictions["client"])
    figure = canvas(max(4.6, 1.0 + 2.0 * len(clients)), 1.1 + 1.7 * len(rounds))
    axes = figure.subplots(len(rounds), len(clients), squeeze=False, sharex=True, sharey=True)
    _set_scales(axes[0, 0], predictions["probs"].shape[-1], names.classes)
    for row, step in zip(axes, rounds, strict=True):
        for ax, client in zip(row, clients, strict=True):
            (found,) = np.nonzero((predictions["round"] == step) & (predictions["client"] == client))
            if len(found):
                probs, label = predictions["probs"][found[0]], int(predictions["label"][found[0]])
                _draw_boxes(ax, probs, label, named=bool(names.classes))
            else:
                ax.set_title("not evaluated", fontsize=8)
    for ax, client in zip(axes[0], clients, strict=True):
        ax.annotate(titled(names.users, client), (0.5, 1), (0, 18), "axes fraction", "offset points", ha="center")
    for ax, step in zip(axes[:, 0], rounds, strict=True):
        ax.set_ylabel(f"Round {step}\np(class)")
    figure.supxlabel(UNCERTAINTY_KEY, fontsize=9)
    return figure


def _thinned(values: np.ndarray) -> Sequence[int]:
    """The distinct values, at most GRID_MAX of them."""
    distinct = np.unique(values)
    return distinct[evenly_spaced(len(distinct), GRID_MAX)].tolist()


def _set_scales(ax: Axes, classes: int, names: tuple[str, ...]) -> None:
    """Limits and ticks of the panels, which share them: set before the first is drawn, they cost once."""
    ax.set(xlim=(-0.7, classes - 0.3), ylim=(-0.14, 1.02), yticks=[0, 0.5, 1])
    ticks = range(0, classes, math.ceil(classes / 10))
    ax.set_xticks(ticks, [shortened(names[c]) if names else str(c) for c in ticks])


def _draw_boxes(ax: Axes, probs: np.ndarray, label: int, named: bool) -> None:
    """A box per class over the draws [M, C] of p(class); the true class is coloured.

    Matplotlib's own box plots, with seven artists per class, take far longer.
    """
    classes = np.arange(probs.shape[1])
    low, first, median, third, high = np.quantile(probs, [0, 0.25, 0.5, 0.75, 1], axis=0)
    faces = [COLOURS["personal"] if c == label else "white" for c in classes]
    ax.vlines(classes, low, high, color=GREY, linewidth=1, zorder=1)
    ax.bar(classes, third - first, 0.7, bottom=first, color=faces, edgecolor=GREY)
    ax.hlines(median, classes - 0.35, classes + 0.35, color="black", linewidth=1.2)
    ax.plot([label], [-0.07], "^", color=COLOURS["personal"], markersize=5)
    ax.tick_params(axis="x", labelsize=8, rotation=90 if named else 0)
    ax.grid(visible=False, axis="x")
    entropy, information = _entropies(probs)
    ax.set_title(f"H {entropy:.2f}, MI {information:.2f}", fontsize=8)


def _entropies(probs: np.ndarray) -> tuple[float, float]:
    """Predictive entropy H[p̄] and mutual information H[p̄] - mean_m H[p_m], in nats, of draws [M, C]."""
    total = float(_entropy(probs.mean(0)))
    expected = float(_entropy(probs).mean())
    return total, max(0.0, total - expected)


def _entropy(probs: np.ndarray) -> np.ndarray:
    return -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(-1)
