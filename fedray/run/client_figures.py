"""The figures of a finished run, client by client, drawn from the files in its folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedray.federate.loss_deviation import TABLE
from fedray.federate.report import NAMES, NOVEL
from fedray.run.figures import COLOURS, LINES, canvas, save, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS_MAX, COLUMNS = 12, 5  # reliability diagrams on a page, and side by side
AGREED = 1e-9  # nats of mutual information that only rounding makes: all draws predict the same
UNCERTAINTIES = (("entropy", "Predictive entropy"), ("mutual_information", "Mutual information"))
SHORT = {"personal": "personal", "global": "global", NOVEL: "newcomer"}
LIGHT, DARK = "#E2E2E2", "#BDBDBD"

Rows = Sequence[Mapping[str, str]]  # of a CSV file


class DeviationCurve(NamedTuple):
    """The loss deviation of a run, and how its lines look."""

    name: str
    rows: Rows  # of loss_deviation.csv
    look: Mapping[str, Any]


def draw_all(folder: Path) -> list[Path]:
    """Every figure whose input exists and is not empty, as figures/<name>.png below the folder."""
    makers = {
        "reliability_clients": lambda path: reliability_figure(table(path / "client_calibration.csv")),
        "uncertainty_clients": lambda path: uncertainty_figure(table(path / "clients.csv")),
        "loss_deviation": lambda path: deviation_figure(
            [DeviationCurve("", table(path / TABLE), {"color": COLOURS["personal"], "marker": "o"})]
        ),
    }
    paths = [save(folder, f"{name}.png", make) for name, make in makers.items()]
    return [path for path in paths if path]


def reliability_figure(rows: Rows) -> Figure | None:
    """Accuracy (%) against confidence (%) per bin, a panel per client, the worst ECE first; areas are counts.

    Of more than PANELS_MAX clients those evenly spaced from the worst to the best.
    """
    filled: dict[str, dict[int, list[Mapping[str, str]]]] = {}
    for row in rows:
        if float(row["count"]):
            filled.setdefault(row["model"], {}).setdefault(int(row["client"]), []).append(row)
    if not filled:
        return None
    first = {client: model for model in reversed(COLOURS) for client in filled.get(model, ())}  # newcomers have one
    ranked = sorted(first, key=lambda client: -_ece(filled[first[client]][client]))
    places = np.linspace(0, len(ranked) - 1, min(len(ranked), PANELS_MAX)).round().astype(int)
    picked = [ranked[place] for place in places]
    lines = math.ceil(len(picked) / COLUMNS)
    columns = math.ceil(len(picked) / lines)
    figure = canvas(2.3 * columns + 0.5, 2.5 * lines + 1.1)
    axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for place, ax in enumerate(axes.flat):
        ax.set_visible(place < len(picked))
        if place < len(picked):
            _draw_client(ax, picked[place], filled)
        if place + columns >= len(picked):
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("Confidence (%)")
    thinned = f": {len(picked)} of {len(ranked)}, evenly spaced" if len(picked) < len(ranked) else ""
    by = NAMES[next(model for model in COLOURS if model in filled)] + ", newcomers by theirs" * (NOVEL in filled)
    figure.suptitle(f"Clients by the ECE of the {by}, the worst first{thinned}", fontsize=10)
    figure.supylabel("Accuracy (%)", fontsize=10)
    _model_legend(figure, list(filled))
    return figure


def _model_legend(figure: Figure, models: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for model in models:
        look: dict[str, Any] = dict(zip(("linestyle", "marker"), LINES[model], strict=True))
        handles.append(Line2D([], [], color=COLOURS[model], label=NAMES[model], **look))
    handles.append(Line2D([], [], color="black", linestyle="--", linewidth=0.8, label="perfectly calibrated"))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        title="Areas: shares of the client's test examples",
        title_fontsize=9,
    )


def _ece(bins: Rows) -> float:
    count, confidence, accuracy = _columns(bins, "count", "confidence", "accuracy")
    return float((count * np.abs(accuracy - confidence)).sum() / count.sum())


def _columns(rows: Rows, *names: str) -> tuple[np.ndarray, ...]:
    """Columns as numbers, NaN where they are empty."""
    return tuple(np.array([float(row[name] or "nan") for row in rows]) for name in names)


def _draw_client(ax: Axes, client: int, filled: Mapping[str, Mapping[int, Rows]]) -> None:
    models = {model: clients[client] for model, clients in filled.items() if client in clients}
    ax.plot([0, 100], [0, 100], "--", color="black", linewidth=0.8)
    for model, bins in models.items():
        count, confidence, accuracy = _columns(bins, "count", "confidence", "accuracy")
        style, marker = LINES[model]
        ax.plot(100 * confidence, 100 * accuracy, style, color=COLOURS[model], linewidth=1)
        areas = 150 * count / count.sum()
        ax.scatter(100 * confidence, 100 * accuracy, areas, COLOURS[model], marker=marker, alpha=0.8)
    errors = ", ".join(f"{100 * _ece(bins):.1f} % {SHORT[model]}" for model, bins in models.items())
    ticks = range(0, 101, 25)
    ax.set(xlim=(-4, 104), ylim=(-4, 104), xticks=ticks, yticks=ticks)
    ax.set_title(f"Client {client}\nECE {errors}", fontsize=8)


def uncertainty_figure(rows: Rows) -> Figure | None:
    """Mean entropy and mutual information of each client's predictions, a line from its own model to the global one."""
    models = [model for model in COLOURS if rows and f"{model}_entropy" in rows[0]]
    panels = [(_columns(rows, *(f"{model}_{name}" for model in models)), label) for name, label in UNCERTAINTIES]
    panels = [(values, label) for values, label in panels if values and max(map(np.nanmax, values)) > AGREED]
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
    places = np.arange(len(models))
    spread = 0.1 * np.sin(2.4 * np.arange(len(values[0])))  # so that equal clients do not hide each other
    lines = ax.plot(places[:, None] + spread, np.stack(values), color=DARK, linewidth=0.8, zorder=1)
    joined = np.isfinite(np.stack(values)).sum(0).max() > 1  # a newcomer has one model
    lines[0].set_label("the same client" if joined else "")
    for place, model, each in zip(places, models, values, strict=True):
        marker = LINES[model][1]
        ax.plot(place + spread, each, marker, color=COLOURS[model], alpha=0.7, markersize=4.5, linestyle="none")
    medians = [np.nanmedian(each) for each in values]
    ax.hlines(medians, places - 0.25, places + 0.25, color="black", linewidth=1.5, label="median over clients")
    ax.set(xlim=(-0.5, len(models) - 0.5))
    ax.set_xticks(places, [NAMES[model] for model in models])
    ax.margins(y=0.08)
    ax.grid(visible=False, axis="x")


def deviation_figure(curves: Sequence[DeviationCurve], client: int = 0) -> Figure | None:
    """ΔG and ΔL (nats) of one client by class, a pair of lines per run, over its and all clients' test examples."""
    curves = [curve for curve in curves if curve.rows]
    if not curves:
        return None
    figure = canvas(7.2, 3.9 + 0.2 * len(curves))
    ax = figure.subplots()
    _draw_counts(ax, curves[0].rows, client)
    for curve in curves:
        mine = [row for row in curve.rows if int(row["client"]) == client]
        classes, own, union = _columns(mine, "class", "dL", "dG")
        name = f"{curve.name}: " if curve.name else ""
        ax.plot(classes, union, "-", label=f"{name}ΔG, all clients' examples", **curve.look)
        ax.plot(classes, own, ":", label=f"{name}ΔL, its own examples", markerfacecolor="white", **curve.look)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set(xlabel="Class", ylabel="NLL above the clients' mean (nats)", title=f"Loss deviation of client {client}")
    ax.grid(visible=False)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _draw_counts(ax: Axes, rows: Rows, client: int) -> None:
    """Test examples per class, of all clients and of one, on a second, logarithmic axis behind the lines."""
    owner, label, count = _columns(rows, "client", "class", "test_examples")
    classes = np.unique(label).astype(int)
    everyone = [count[label == c].sum() for c in classes]
    own = [count[(label == c) & (owner == client)].sum() for c in classes]
    behind = ax.twinx()
    behind.bar(classes - 0.2, everyone, 0.4, color=LIGHT, label="test examples of all clients")
    behind.bar(classes + 0.2, own, 0.4, color=DARK, label=f"test examples of client {client}")
    behind.set_yscale("log")
    behind.yaxis.set_major_formatter("{x:g}")
    behind.set(ylabel="Test examples", ylim=(0.8, None))
    behind.grid(visible=False)
    behind.spines["right"].set_visible(True)
    ax.set_zorder(behind.get_zorder() + 1)
    ax.patch.set_visible(False)
    ax.set_xticks(classes)
