"""Figures of a finished run, client by client, drawn only from the files in its folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedray.data.readers import Names
from fedray.federate.measures.loss_deviation import TABLE
from fedray.federate.measures.metrics import ROUNDING_NATS
from fedray.federate.report import NAMES, NOVEL
from fedray.running.drawing.figure_style import (
    COLOURS,
    LINE,
    LINES,
    Builders,
    Rows,
    add_legend,
    calibration_error,
    canvas,
    clip_percent_axis,
    column,
    evenly_spaced,
    jitter,
    legend_height,
    plot_diagonal,
    read_csv,
    read_names,
    shortened,
    titled,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS_MAX = 12  # reliability diagrams that fit on a page
COLUMNS = 5  # of them side by side
NARROWEST = 4.6  # inches that hold a legend of two columns
LETTERS = 13  # of a title that fit in an inch
CLASS = 0.17  # inches between two classes that keep their labels apart
WIDEST = 14.0  # inches of a figure; of more classes some have labels
NAMED_MAX = 40  # clients with a tick of their own
Z = 1.959964  # 97.5 % quantile of the standard normal
LINES_MAX = 500  # of more clients, evenly spaced ones have a line between their models: each takes a millisecond
LABEL_MAX = 42  # letters of a line of a legend in two columns
DEVIATIONS = "ΔG, all clients' examples", "ΔL, its own examples"
COUNTS = ["test examples of all clients", "test examples of one"]
UNCERTAINTIES = (("entropy", "Predictive entropy"), ("mutual_information", "Mutual information"))
SHORT = {"personal": "personal", "global": "global", NOVEL: "newcomer"}
UNNAMED = Names()
LIGHT = "#E2E2E2"
DARK = "#BDBDBD"


class DeviationCurve(NamedTuple):
    """The loss deviation of a run, and the look of its lines."""

    name: str
    rows: Rows  # of loss_deviation.csv
    look: Mapping[str, Any]  # arguments of matplotlib's plot


def builders(folder: Path) -> Builders:
    """What draws each figure of a run's folder, by its name."""
    calibration = read_csv(folder / "client_calibration.csv")
    clients = read_csv(folder / "clients.csv")
    deviation = DeviationCurve("", read_csv(folder / TABLE), {"color": COLOURS["personal"], "marker": "o"})
    names = read_names(folder)
    return {
        "reliability_clients": lambda: reliability_figure(calibration, names.users),
        "uncertainty_clients": lambda: uncertainty_figure(clients),
        "loss_deviation": lambda: deviation_figure([deviation], names=names),
        "accuracy_clients": lambda: accuracy_figure(clients, names.users),
    }


def accuracy_figure(rows: Rows, names: Sequence[str] = ()) -> Figure | None:
    """Accuracy (%) of every client's models on its own test examples, or RMSE; the worst client first.

    Bars are 95 % intervals of an accuracy that n test examples allow (Wilson 1927). Clients that were not evaluated
    are left out, and those with a measure that is not finite are counted. Of more than LINES_MAX clients, evenly spaced
    ones are shown.
    """
    measure = "rmse" if rows and any(f"{model}_rmse" in rows[0] for model in COLOURS) else "accuracy"
    models = [model for model in COLOURS if rows and f"{model}_{measure}" in rows[0]]
    finite = [
        [math.isfinite(float(row[name])) for model in models if row[name := f"{model}_{measure}"] != ""] for row in rows
    ]
    non_finite = sum(not all(each) for each in finite)
    rows = [row for row, each in zip(rows, finite, strict=True) if any(each)]
    if not rows:
        return None
    first = column(rows, f"{models[0]}_{measure}")
    for model in models[2:] + models[1:2]:  # who has no personal model is ranked by the newcomer's, then the global one
        first = np.where(np.isnan(first), column(rows, f"{model}_{measure}"), first)
    ranked = np.argsort(first if measure == "accuracy" else -first, kind="stable")
    rows = [rows[ranked[place]] for place in evenly_spaced(len(ranked), LINES_MAX)]
    figure = canvas(min(12.0, max(4.6, 1.6 + 0.25 * len(rows))), 3.8)
    ax = figure.subplots()
    for k, model in enumerate(models):
        places = np.arange(len(rows)) + (k - (len(models) - 1) / 2) * 0.3
        _draw_accuracies(ax, places, column(rows, f"{model}_{measure}"), column(rows, "test_examples"), model, measure)
    few = len(rows) <= NAMED_MAX
    labels = [titled(names, int(row["client"])).removeprefix("Client ") for row in rows]
    ax.set_xticks(range(len(rows)) if few else [], labels if few else [], rotation=90 if names else 0)
    ax.set(xlabel=_who(len(rows), len(ranked), non_finite), xlim=(-0.8, len(rows) - 0.2))
    ax.set_ylabel("Accuracy (%)" if measure == "accuracy" else "RMSE (units of the target)")
    ax.grid(visible=False, axis="x")
    if measure == "accuracy":
        ax.set_xlabel(f"{ax.get_xlabel()}\nBars: 95 % intervals (Wilson) from the client's test examples")
        clip_percent_axis(ax)
    add_legend(figure, [ax], ncols=len(models))
    return figure


def _who(shown: int, clients: int, non_finite: int) -> str:
    """The clients along an axis, in words."""
    some = f"{shown} of {clients} clients, evenly spaced" if shown < clients else f"Client, of {clients}"
    not_all = f"; {non_finite} with a model that is not finite" if non_finite else ""
    return f"{some}, the worst first; last evaluation{not_all}"


def _draw_accuracies(
    ax: Axes, places: np.ndarray, values: np.ndarray, examples: np.ndarray, model: str, measure: str
) -> None:
    """The points of one model, an accuracy with its interval."""
    _, marker = LINES[model]
    look: dict[str, Any] = {"color": COLOURS[model], "label": NAMES[model], "markersize": 4, "linestyle": "none"}
    if measure != "accuracy":
        ax.plot(places, values, marker, **look)
        return
    low, high = wilson(values, examples)
    spread = 100 * np.stack([values - low, high - values]).clip(0)
    ax.errorbar(places, 100 * values, spread, marker=marker, elinewidth=0.8, **look)


def wilson(share: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % interval of a probability of which ``share`` of n trials came true.

    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n). Wilson 1927, "Probable Inference, the Law of Succession".
    """
    centre = share + Z**2 / (2 * n)
    half = Z * np.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return (centre - half) / (1 + Z**2 / n), (centre + half) / (1 + Z**2 / n)


def reliability_figure(rows: Rows, names: Sequence[str] = ()) -> Figure | None:
    """Accuracy (%) against confidence (%) per bin, one panel per client, ordered from the worst ECE to the best.

    Areas show how many examples a bin holds. Of more than PANELS_MAX clients, evenly spaced ones are shown.
    """
    bins = _filled_bins(rows)
    if not bins:
        return None
    ranked = _worst_first(bins)
    shown = [ranked[place] for place in evenly_spaced(len(ranked), PANELS_MAX)]
    lines = math.ceil(len(shown) / COLUMNS)
    columns = math.ceil(len(shown) / lines)
    width = max(NARROWEST, 2.3 * columns + 0.5)
    title = wrapped(_title(bins, len(shown), len(ranked)), int(LETTERS * width))
    figure = canvas(width, 2.5 * lines + 1.1 + LINE * title.count("\n"))
    axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for place, ax in enumerate(axes.flat):
        ax.set_visible(place < len(shown))
        if place < len(shown):
            _draw_client(ax, shown[place], bins, names)
        if place + columns >= len(shown):  # nothing below this panel
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("Confidence (%)")
    figure.suptitle(title, fontsize=10)
    figure.supylabel("Accuracy (%)", fontsize=10)
    _model_legend(figure, list(bins), 2 if columns < 3 else len(bins) + 1)
    return figure


def _filled_bins(rows: Rows) -> dict[str, dict[int, list[Mapping[str, Any]]]]:
    """The confidence bins that hold examples, by model and client."""
    bins: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if float(row["count"]):
            bins.setdefault(row["model"], {}).setdefault(int(row["client"]), []).append(row)
    return bins


def _worst_first(bins: Mapping[str, Mapping[int, Rows]]) -> list[int]:
    """The clients by the ECE of their personal model, or of the one they have."""
    errors: dict[int, float] = {}
    for model in reversed(COLOURS):  # the personal model comes last and overwrites the others
        for client, rows in bins.get(model, {}).items():
            errors[client] = calibration_error(rows)
    return sorted(errors, key=lambda client: -errors[client])


def _title(bins: Mapping[str, Any], shown: int, clients: int) -> str:
    first = next(model for model in COLOURS if model in bins)
    newcomers = ", newcomers by theirs" if NOVEL in bins else ""
    thinned = f": {shown} of {clients}, evenly spaced" if shown < clients else ""
    return f"Clients by the ECE of the {NAMES[first]}{newcomers} at the last evaluation, the worst first{thinned}"


def _model_legend(figure: Figure, models: Sequence[str], ncols: int) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for model in models:
        style, marker = LINES[model]
        handles.append(Line2D([], [], color=COLOURS[model], label=NAMES[model], linestyle=style, marker=marker))
    handles.append(Line2D([], [], color="black", linestyle="--", linewidth=0.8, label="perfectly calibrated"))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=ncols,
        title="Areas: shares of the client's test examples",
        title_fontsize=9,
    )


def _draw_client(ax: Axes, client: int, bins: Mapping[str, Mapping[int, Rows]], names: Sequence[str]) -> None:
    plot_diagonal(ax, linewidth=0.8)
    errors = []
    for model, clients in bins.items():
        if client not in clients:
            continue
        rows = clients[client]
        style, marker = LINES[model]
        confidence = 100 * column(rows, "confidence")
        accuracy = 100 * column(rows, "accuracy")
        count = column(rows, "count")
        ax.plot(confidence, accuracy, style, color=COLOURS[model], linewidth=1)
        ax.scatter(confidence, accuracy, 150 * count / count.sum(), COLOURS[model], marker=marker, alpha=0.8)
        errors.append(f"{100 * calibration_error(rows):.1f} % {SHORT[model]}")
    ticks = range(0, 101, 25)
    ax.set(xlim=(-4, 104), ylim=(-4, 104), xticks=ticks, yticks=ticks)
    ax.set_title(f"{titled(names, client)}\nECE {', '.join(errors)}", fontsize=8)


def uncertainty_figure(rows: Rows) -> Figure | None:
    """Mean predictive entropy and mutual information of each client, with a line between its personal and global model.

    A measure that is zero everywhere has no panel.
    """
    models = [model for model in COLOURS if rows and f"{model}_entropy" in rows[0]]
    rows = [row for row in rows if any(row[f"{model}_entropy"] for model in models)]  # who was evaluated
    panels = []
    for name, label in UNCERTAINTIES:
        values = [column(rows, f"{model}_{name}") for model in models]
        if any((each > ROUNDING_NATS).any() for each in values):  # NaN is not
            panels.append((values, label))
    if not panels:
        return None
    figure = canvas(max(3.6, 3.1 * len(panels)), 3.6)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (values, label) in zip(axes, panels, strict=True):
        _draw_uncertainty(ax, models, values)
        ax.set_ylabel(f"{label}, client mean (nats)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _draw_uncertainty(ax: Axes, models: Sequence[str], values: Sequence[np.ndarray]) -> None:
    """One column of points per model; ``values`` holds an array [clients] for each."""
    places = np.arange(len(models))
    offsets = 0.1 * jitter(len(values[0]))
    stacked = np.stack(values)
    some = evenly_spaced(len(offsets), LINES_MAX)
    lines = ax.plot(places[:, None] + offsets[some], stacked[:, some], color=DARK, linewidth=0.8, zorder=1)
    joined = np.isfinite(stacked).sum(0).max() > 1  # a newcomer has only one model, hence no line
    lines[0].set_label("the same client" if joined else "")
    for place, model, each in zip(places, models, values, strict=True):
        _, marker = LINES[model]
        ax.plot(place + offsets, each, marker, color=COLOURS[model], alpha=0.7, markersize=4.5, linestyle="none")
    medians = [np.nanmedian(each) for each in values]
    ax.hlines(medians, places - 0.25, places + 0.25, color="black", linewidth=1.5, label="median over clients")
    ax.set(xlim=(-0.5, len(models) - 0.5))
    ax.set_xticks(places, [NAMES[model].replace(" ", "\n") if len(models) > 2 else NAMES[model] for model in models])
    ax.margins(y=0.08)
    ax.grid(visible=False, axis="x")


def deviation_figure(curves: Sequence[DeviationCurve], client: int = 0, names: Names = UNNAMED) -> Figure | None:
    """Loss deviations ΔG and ΔL (nats) of one client by class, a pair of lines per run.

    Behind them stand the numbers of test examples, of the client and of all clients.
    """
    curves = [curve for curve in curves if curve.rows]
    if not curves:
        return None
    who = shortened(names.users[client]) if names.users else f"client {client}"
    labels = [
        [wrapped(f"{curve.name}: {what}" if curve.name else what, LABEL_MAX) for what in DEVIATIONS] for curve in curves
    ]
    count = len({row["class"] for row in curves[0].rows})
    words = [shortened(name) for name in names.classes] or [str(c) for c in range(count)]
    width = min(WIDEST, max(7.2, 1.4 + CLASS * count))
    height = 3.6 + 0.08 * max(map(len, words), default=0)
    figure = canvas(width, height + legend_height([label for pair in labels for label in pair] + COUNTS, 2))
    ax = figure.subplots()
    _draw_counts(ax, curves[0].rows, client, who)
    for curve, (everyone, own) in zip(curves, labels, strict=True):
        rows = [row for row in curve.rows if int(row["client"]) == client]
        classes = column(rows, "class")
        ax.plot(classes, column(rows, "dG"), "-", label=everyone, **curve.look)
        ax.plot(classes, column(rows, "dL"), ":", label=own, markerfacecolor="white", **curve.look)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set(xlabel="Class", ylabel="NLL above the\nclients' mean (nats)", title=f"Loss deviation of {who}")
    every = math.ceil(CLASS * (len(words) + 8) / WIDEST)
    ax.set_xticks(range(0, len(words), every), words[::every], rotation=90 if max(map(len, words)) > 2 else 0)
    ax.grid(visible=False)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _draw_counts(ax: Axes, rows: Rows, client: int, who: str) -> None:
    """Test examples per class, of all clients and of one, on a logarithmic axis behind the lines."""
    owner = column(rows, "client")
    label = column(rows, "class")
    count = column(rows, "test_examples")
    classes = np.unique(label).astype(int)
    everyone = [count[label == c].sum() for c in classes]
    own = [count[(label == c) & (owner == client)].sum() for c in classes]
    behind = ax.twinx()
    behind.bar(classes - 0.2, everyone, 0.4, color=LIGHT, label="test examples of all clients")
    behind.bar(classes + 0.2, own, 0.4, color=DARK, label=f"test examples of {who}")
    behind.set_yscale("log")
    behind.yaxis.set_major_formatter("{x:g}")
    behind.yaxis.set_minor_formatter("")
    behind.set(ylabel="Test examples", ylim=(0.8, None))
    behind.grid(visible=False)
    behind.spines["right"].set_visible(True)
    ax.set_zorder(behind.get_zorder() + 1)
    ax.patch.set_visible(False)
