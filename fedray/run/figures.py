"""The figures of a finished run, drawn from the files in its folder; nothing here sees a live object."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedray.federate.report import NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with any kind of colour vision. A model has one colour in every figure.
COLOURS = {"personal": "#0072B2", "global": "#D55E00", "novel": "#009E73"}
GREY = "#8C8C8C"
LINES = {
    "personal": ("-", "o"),
    "global": ("--", "s"),
    "novel": ("-.", "^"),
}  # tell the models apart in black and white
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "legend.frameon": False,
    "legend.fontsize": 9,
}
UNCERTAINTY_KEY = (
    "Class (▲ the true one); boxes: quartiles over posterior draws,\n"
    "whiskers: range; H: predictive entropy, MI: mutual information (nats)"
)
GRID_MAX = 5  # rows and columns of the uncertainty grid that a page can carry


def accuracy_curves(folder: Path) -> Path | None:
    """Draw accuracy (%), and NLL (nats) or else ECE (%), against the round from metrics.csv.

    Returns figures/accuracy.png; None where there is nothing to draw.
    """
    return save(folder, "accuracy.png", _accuracy_figure)


def reliability(folder: Path) -> Path | None:
    """Draw accuracy (%) against confidence (%) per bin, above the examples per bin, from calibration.csv.

    Returns figures/reliability.png; None where there is nothing to draw.
    """
    return save(folder, "reliability.png", _reliability_figure)


def uncertainty(folder: Path) -> Path | None:
    """Draw the spread of the posterior draws of p(class) over rounds and clients from uncertainty.npz.

    At most five rounds and five clients, evenly spaced. Returns figures/uncertainty.png; None where there is
    nothing to draw.
    """
    return save(folder, "uncertainty.png", _uncertainty_figure)


def draw_all(folder: Path) -> list[Path]:
    """Every figure whose input exists and is not empty."""
    paths = [draw(folder) for draw in (accuracy_curves, reliability, uncertainty)]
    return [path for path in paths if path]


def save(folder: Path, name: str, build: Callable[[Path], Figure | None]) -> Path | None:
    """Write what ``build`` draws from a folder to its figures/, in the style of all figures; None for nothing."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = build(folder)
        if figure is None:
            return None
        path = folder / "figures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=200)
    return path


def canvas(width: float, height: float) -> Figure:
    """An empty figure of so many inches that needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _curve(rows: Sequence[Mapping[str, str]], column: str) -> tuple[list[int], list[float]]:
    """(rounds, values) of the rows that hold a finite value."""
    points = [(int(row["round"]), float(row[column])) for row in rows if row.get(column)]
    points = [(step, value) for step, value in points if math.isfinite(value)]
    return [step for step, _ in points], [value for _, value in points]


def _accuracy_figure(folder: Path) -> Figure | None:
    rows = table(folder / "metrics.csv")
    panels = [
        [("accuracy", "Accuracy (%)", 100.0)],
        [("nll", "NLL (nats)", 1.0), ("ece", "ECE (%)", 100.0)],  # the first that was measured
    ]
    drawn = []
    for choices in panels:
        for metric, label, scale in choices:
            curves = {model: _curve(rows, f"{model}/{metric}") for model in COLOURS}
            if any(rounds for rounds, _ in curves.values()):
                drawn.append((curves, label, scale))
                break
    if not drawn:
        return None
    figure = canvas(4.2 * len(drawn), 3.2)
    axes = figure.subplots(1, len(drawn), squeeze=False)[0]
    for ax, (curves, label, scale) in zip(axes, drawn, strict=True):
        _draw_curves(ax, curves, label, scale)
    return figure


def _draw_curves(ax: Axes, curves: Mapping[str, tuple[list[int], list[float]]], label: str, scale: float) -> None:
    from matplotlib.ticker import MaxNLocator

    for model, (rounds, values) in curves.items():
        if rounds:
            style, marker = LINES[model]
            ax.plot(
                rounds,
                [scale * value for value in values],
                style,
                color=COLOURS[model],
                marker=marker if len(rounds) <= 20 else None,  # a single point has nothing else to show
                markersize=4,
                label=NAMES[model],
            )
    ax.set(xlabel="Communication round", ylabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.legend()


def _reliability_figure(folder: Path) -> Figure | None:
    tables: dict[str, list[dict[str, str]]] = {model: [] for model in COLOURS}
    for row in table(folder / "calibration.csv"):
        tables[row["model"]].append(row)
    tables = {model: rows for model, rows in tables.items() if any(float(row["count"]) for row in rows)}
    if not tables:
        return None
    figure = canvas(3.6 * len(tables), 4.4)
    axes = figure.subplots(2, len(tables), squeeze=False, sharex=True, height_ratios=[3, 1])
    for column, (model, rows) in enumerate(tables.items()):
        draw_reliability(axes[0, column], axes[1, column], model, rows)
    axes[0, 0].set_ylabel("Accuracy (%)")
    axes[1, 0].set_ylabel("Examples")
    # Outside, because the bars of an underconfident model fill the panel.
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=1 + len(tables))
    return figure


def draw_reliability(top: Axes, below: Axes, model: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Bars of accuracy (%) per confidence bin with their gap to it, above the examples per bin.

    ``rows`` are all bins of one model as in calibration.csv; at least one of them is filled.
    """
    width = 100.0 / len(rows)
    filled = [row for row in rows if float(row["count"])]
    left = np.array([int(row["bin"]) * width for row in filled])
    count, confidence, accuracy = (
        np.array([float(row[name]) for row in filled]) for name in ("count", "confidence", "accuracy")
    )
    ece = float((count * np.abs(accuracy - confidence)).sum() / count.sum())
    bar: dict[str, Any] = {"width": width, "align": "edge", "edgecolor": "white", "linewidth": 0.5}
    top.bar(left, 100 * accuracy, color=COLOURS[model], label="accuracy", **bar)
    gap = {"color": "none", "edgecolor": "black", "hatch": "////", "linewidth": 0.8}
    top.bar(left, 100 * (confidence - accuracy), bottom=100 * accuracy, label="gap to confidence", **(bar | gap))
    top.plot([0, 100], [0, 100], "--", color="black", linewidth=1, label="perfectly calibrated")
    top.set(title=f"{NAMES[model].capitalize()}: ECE {100 * ece:.1f} %", xlim=(0, 100), ylim=(0, 100))
    below.bar(left, count, color=GREY, **bar)
    below.set(xlabel="Confidence (%)")


def _uncertainty_figure(folder: Path) -> Figure | None:
    path = folder / "uncertainty.npz"
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        cells = dict(arrays)
    if not len(cells["round"]):
        return None
    rounds, clients = (_spread(np.unique(cells[name])) for name in ("round", "client"))
    figure = canvas(max(4.6, 1.0 + 2.0 * len(clients)), 1.1 + 1.7 * len(rounds))
    axes = figure.subplots(len(rounds), len(clients), squeeze=False, sharex=True, sharey=True)
    for row, step in enumerate(rounds):
        for column, client in enumerate(clients):
            (found,) = np.nonzero((cells["round"] == step) & (cells["client"] == client))
            if len(found):
                _draw_cell(axes[row, column], cells["probs"][found[0]], int(cells["label"][found[0]]))
            else:
                axes[row, column].set_title("not evaluated", fontsize=8)
    for ax, client in zip(axes[0], clients, strict=True):
        ax.annotate(f"Client {client}", (0.5, 1), (0, 18), "axes fraction", "offset points", ha="center")
    for ax, step in zip(axes[:, 0], rounds, strict=True):
        ax.set_ylabel(f"Round {step}\np(class)")
    figure.supxlabel(UNCERTAINTY_KEY, fontsize=9)
    return figure


def _spread(values: np.ndarray) -> list[int]:
    """At most GRID_MAX of the values, evenly spaced, with the first and the last."""
    picked = np.unique(np.linspace(0, len(values) - 1, min(len(values), GRID_MAX)).round().astype(int))
    return [int(value) for value in values[picked]]


def _draw_cell(ax: Axes, probs: np.ndarray, label: int) -> None:
    """Boxes of the draws [M, C]: matplotlib's own, of seven artists a class, take far longer."""
    classes = np.arange(probs.shape[-1])
    low, first, median, third, high = np.quantile(probs, [0, 0.25, 0.5, 0.75, 1], axis=0)
    faces = [COLOURS["personal"] if c == label else "white" for c in classes]
    ax.vlines(classes, low, high, color=GREY, linewidth=1, zorder=1)
    ax.bar(classes, third - first, 0.7, bottom=first, color=faces, edgecolor=GREY)
    ax.hlines(median, classes - 0.35, classes + 0.35, color="black", linewidth=1.2)
    ax.plot([label], [-0.07], "^", color=COLOURS["personal"], markersize=5)
    ax.set(xlim=(-0.7, len(classes) - 0.3), ylim=(-0.14, 1.02), yticks=[0, 0.5, 1])
    ax.set_xticks(classes[:: math.ceil(len(classes) / 10)])
    ax.tick_params(axis="x", labelsize=8)
    ax.grid(visible=False, axis="x")
    entropy, information = _entropies(probs)
    ax.set_title(f"H {entropy:.2f}, MI {information:.2f}", fontsize=8)


def _entropies(probs: np.ndarray) -> tuple[float, float]:
    """(H[p̄], H[p̄] - mean H[p_m]) in nats of the draws [M, C]."""

    def entropy(p: np.ndarray) -> np.ndarray:
        return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)

    total = float(entropy(probs.mean(0)))
    return total, max(0.0, total - float(entropy(probs).mean()))
