"""Figures of what a run's uncertainty is good for, drawn only from the files in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedray.federate.report import NAMES
from fedray.federate.uncertainty.conformal import ALPHA
from fedray.federate.uncertainty.selective import RISK
from fedray.federate.uncertainty.summary import CLIENTS, RISKS, SHIFT
from fedray.running.drawing.figure_style import (
    COLOURS,
    GREY,
    LINES,
    Builders,
    Rows,
    canvas,
    column,
    jitter,
    legend_height,
    read_csv,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORES = {"": "maximum\nprobability", "_entropy": "entropy", "_mi": "mutual\ninformation"}
STRANGE = {"unknown": "classes that the client does not hold", "far": "another dataset"}
RULES = {"thr": "THR", "aps": "APS"}
UNDER_SHIFT = {"accuracy": "Accuracy (%)", "ece": "ECE (%)"}


class DrawnLine(NamedTuple):
    """The rows of a file that make one line of a figure, with its name and look."""

    name: str
    rows: Rows
    look: Mapping[str, Any]  # arguments of matplotlib's plot


def builders(folder: Path) -> Builders:
    """What draws each figure of a run's folder, by its name."""
    clients = read_csv(folder / CLIENTS)
    return {
        "risk_coverage": lambda: risk_figure(_by_model(read_csv(folder / RISKS))),
        "unknown": lambda: unknown_figure(clients),
        "sets": lambda: sets_figure(clients),
        "shift": lambda: shift_figure(_by_model(read_csv(folder / SHIFT))),
    }


def _by_model(rows: Rows) -> list[DrawnLine]:
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        style, marker = LINES[model]
        look = {"color": COLOURS[model], "linestyle": style, "marker": marker, "markersize": 4}
        lines.append(DrawnLine(NAMES[model], [row for row in rows if row["model"] == model], look))
    return lines


def risk_figure(lines: Sequence[DrawnLine]) -> Figure | None:
    """Errors among the predictions that are answered (%), against the share that is answered (%), the surest first."""
    if not lines:
        return None
    figure = canvas(4.4 if len(lines) <= 2 else 6.4, 3.5 + legend_height([line.name for line in lines], 2))
    ax = figure.subplots()
    for place, line in enumerate(lines):
        every = (5 * place % 9, 9)  # markers at other places than those of the next line
        ax.plot(100 * column(line.rows, "coverage"), 100 * column(line.rows, "risk"), markevery=every, **_named(line))
    ax.axhline(100 * RISK, color=GREY, linewidth=1, linestyle=":", label=f"a risk of {100 * RISK:g} %")
    ax.set(xlabel="Coverage: predictions answered (%)", ylabel="Risk: errors among them (%)", xlim=(0, 100))
    ax.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def shift_figure(lines: Sequence[DrawnLine]) -> Figure | None:
    """Accuracy (%) and ECE (%) against the severity of every kind of corruption; severity 0 has none."""
    kinds = list(dict.fromkeys(row["corruption"] for line in lines for row in line.rows if row["severity"] != "0"))
    if not kinds:
        return None
    figure = canvas(3.0 * len(kinds) + 0.6, 4.6 + legend_height([line.name for line in lines], 3))
    axes = figure.subplots(len(UNDER_SHIFT), len(kinds), squeeze=False, sharex=True, sharey="row")
    for panels, (measure, label) in zip(axes, UNDER_SHIFT.items(), strict=True):
        for ax, kind in zip(panels, kinds, strict=True):
            for line in lines:
                rows = [row for row in line.rows if row["corruption"] in ("none", kind)]
                ax.plot(column(rows, "severity"), 100 * column(rows, measure), **_named(line))
        panels[0].set_ylabel(label)
    for ax, kind in zip(axes[0], kinds, strict=True):
        ax.set_title(kind.capitalize())
    for ax in axes[-1]:
        ax.set_xlabel("Severity")
    axes[-1, 0].set_ylim(0, 1.04 * axes[-1, 0].get_ylim()[1])
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=min(3, len(lines)))
    return figure


def _named(line: DrawnLine) -> dict[str, Any]:
    return {**line.look, "label": line.name}


def unknown_figure(rows: Rows) -> Figure | None:
    """AUROC (%) of every client by every score of uncertainty: strange examples against its own."""
    panels = [what for what in STRANGE if any(row.get(f"{what}_auroc") for row in rows)]
    if not panels:
        return None
    figure = canvas(4.2 * len(panels) + 0.4, 3.8)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    models = list(dict.fromkeys(row["model"] for row in rows))
    scores = [s for s in SCORES if any(row.get(f"{what}_auroc{s}") for what in panels for row in rows)]
    for ax, what in zip(axes, panels, strict=True):
        for place, model in enumerate(models):
            own = [row for row in rows if row["model"] == model]
            for x, score in enumerate(scores):
                values = 100 * column(own, f"{what}_auroc{score}") if f"{what}_auroc{score}" in own[0] else np.empty(0)
                label = NAMES[model] if x == 0 else ""
                _points(ax, x + 0.3 * (place - (len(models) - 1) / 2), values[np.isfinite(values)], model, label)
        ax.axhline(50, color=GREY, linewidth=1, linestyle=":", label="chance")
        ax.set(title=f"Against {STRANGE[what]}", xlim=(-0.5, len(scores) - 0.5))
        ax.set_xticks(range(len(scores)), [SCORES[score] for score in scores])
        ax.grid(visible=False, axis="x")
    axes[0].set_ylabel("AUROC of a client (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))  # medians are drawn for every kind of model
    figure.legend(once.values(), once.keys(), loc="outside lower center", ncols=2 * len(panels))
    return figure


def _points(ax: Axes, x: float, values: np.ndarray, model: str, label: str) -> None:
    """One column of points, and a line at their median; only a labelled one is in the legend."""
    look: dict[str, Any] = {"color": COLOURS[model], "markersize": 4.5, "alpha": 0.7, "linestyle": "none"}
    ax.plot(x + 0.08 * jitter(len(values)), values, LINES[model][1], label=label, **look)
    if len(values):
        ax.hlines(
            np.median(values), x - 0.12, x + 0.12, color="black", linewidth=1.5, label=label and "median over clients"
        )


def sets_figure(rows: Rows) -> Figure | None:
    """Coverage (%) of every client's conformal sets against their mean size, by the two rules."""
    if not rows:
        return None
    figure = canvas(4.0 * len(RULES) + 0.4, 3.8)
    axes = figure.subplots(1, len(RULES), squeeze=False, sharex=True, sharey=True)[0]
    for ax, (rule, title) in zip(axes, RULES.items(), strict=True):
        for model in dict.fromkeys(row["model"] for row in rows):
            own = [row for row in rows if row["model"] == model]
            look: dict[str, Any] = {"color": COLOURS[model], "alpha": 0.7, "linestyle": "none", "markersize": 4.5}
            size, coverage = column(own, f"{rule}_size"), 100 * column(own, f"{rule}_coverage")
            ax.plot(size, coverage, LINES[model][1], label=NAMES[model], **look)
        ax.axhline(
            100 * (1 - ALPHA), color=GREY, linewidth=1, linestyle=":", label=f"{100 * (1 - ALPHA):g} %, as asked for"
        )
        ax.set(title=title, xlabel="Classes in a set, client mean")
        ax.locator_params(axis="x", nbins=5)  # with more, the labels of a narrow range overlap
    axes[0].set_ylabel("Sets with the true class, by client (%)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
