"""Figures for each table of the page: what cells reach, and by how much one is better, beside what its paper prints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedray.compare.groups import of_runs
from fedray.compare.styles import style
from fedray.running.drawing.figure_style import COLOURS, GREY, LINES, PALETTE, add_legend, canvas, jitter, save_all
from fedray.studies.results.data import WORDS
from fedray.studies.results.rows import KINDS, Row, Verdict
from fedray.studies.results.sections import Judged, Section
from fedray.studies.results.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 0.27  # inches
LETTER = 0.075  # inches
LINEAR = 20  # points: a wider range of differences is drawn with logarithms
COLLAPSE = 25  # points: in a wider range of accuracies some cell learns little
SIDE = 3.3  # inches, of a panel
TICKS = (10, 40, 60, 70, 80, 85, 90, 93, 95, 97, 98, 99)  # accuracies, on a scale of logarithms of errors
LINK_AGREEMENT = "![Our accuracies minus those that the papers print](figures/agreement.png)"
ANSWERS = {"holds": (PALETTE[2], "o"), "refuted": (PALETTE[1], "v"), "open": (GREY, "s")}  # colour and marker


def link(table: Table) -> str:
    """The line of the page that shows the figure of a table."""
    return f"![{table.title}: accuracy of every cell](figures/{table.slug}.png)"


def link_claims(table: Table) -> str:
    """The line of the page that shows the figure of a table's claims."""
    return f"![{table.title}: by how much one cell is better](figures/{table.slug}-claims.png)"


def draw_all(folder: Path, sections: Sequence[Section]) -> None:
    """Write the figures of every table that has rows, and the one of all, to figures/ below a folder."""
    save_all(folder, {"agreement": partial(agreement, sections)})
    for each in sections:
        if each.rows:
            slug = each.table.slug
            builders = {slug: partial(accuracies, each.rows), f"{slug}-claims": partial(advantages, each.claims)}
            save_all(folder, builders)


def agreement(sections: Sequence[Section]) -> Figure | None:
    """Our accuracy minus the printed one, in points, over the printed one in %: a panel for each paper.

    Differences beyond one point are on a logarithmic scale. Bars are the printed ±; what is apart is hollow.
    """
    papers: dict[str, list[Verdict]] = {}
    for each in sections:
        for verdict in each.verdicts:
            papers.setdefault(each.table.sources[0].partition(",")[0], []).append(verdict)
    if not papers:
        return None
    figure = canvas(0.9 + SIDE * len(papers), SIDE + 0.6)
    axes = figure.subplots(1, len(papers), sharey=True, squeeze=False)[0]
    for ax, (paper, verdicts) in zip(axes, papers.items(), strict=True):
        ax.axhspan(-1, 1, color=GREY, alpha=0.2, linewidth=0, label="within 1 point")
        for verdict in verdicts:
            apart = verdict.nearness == "apart"
            colour, printed = COLOURS[verdict.kind], verdict.paper
            ax.errorbar(
                100 * printed.mean,
                100 * (verdict.ours - printed.mean),
                yerr=100 * (printed.sd or 0.0),
                fmt=LINES[verdict.kind][1],
                color=colour,
                mfc="white" if apart else colour,
                elinewidth=0.6,
                markersize=4.5,
                label=f"{verdict.kind}, apart" if apart else verdict.kind,
            )
        ax.set_title(paper)
        where = "the paper" if any(verdict.paper.printed for verdict in verdicts) else "logs of its code"
        ax.set_xlabel(f"accuracy in {where} (%)")
    axes[0].set_yscale("symlog", linthresh=1)
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[0].yaxis.set_minor_formatter("")
    axes[0].set_ylabel("ours - paper (points)")
    add_legend(figure, axes, ncols=5)
    return figure


def accuracies(rows: Sequence[Row]) -> Figure | None:
    """Accuracies by cell, in %: mean and standard deviation over seeds, every seed, and the paper's figure.

    As in the table, the best evaluations where the paper has a figure for some cell; else the means of the last ten.
    Where accuracies differ much, so that a cell that learns nothing would push the others together, the scale is that
    of the logarithm of the error.
    """
    printed = any(row.paper(f"{kind}/accuracy") for row in rows for kind in KINDS)
    kinds = [kind for kind in KINDS if any(row.values(f"{kind}/accuracy") for row in rows)]
    if not kinds:
        return None
    figure = canvas(2.0 + 3.6 * len(kinds), 1.3 + ROW * len(rows))
    axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for ax, kind in zip(axes, kinds, strict=True):
        _draw(ax, rows, kind, printed)
        ax.set_xlabel(f"{kind} accuracy (%)\n{WORDS[rows[0].table.best if printed else '']}")
        _scale(ax)
    axes[0].set_yticks(range(len(rows)), [row.cell for row in rows])
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    add_legend(figure, axes, ncols=4)
    return figure


def _draw(ax: Axes, rows: Sequence[Row], kind: str, printed: bool) -> None:
    """A panel: ours on the line of a cell, or above it, where the paper's lies below it."""
    up = 0.14 if printed else 0.0
    for place, row in enumerate(rows):
        found = [100 * value for value in row.values(f"{row.chosen if printed else ''}{kind}/accuracy").values()]
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


def _scale(ax: Axes) -> None:
    """Lay out an axis of accuracies, and have its label say where the scale is not linear."""
    import numpy as np

    low, high = ax.get_xlim()
    if high - low <= COLLAPSE:
        ax.locator_params(axis="x", nbins=6)  # more would touch where accuracies differ in the third decimal
        return

    # Errors below 0.1 % are drawn as 0.1 %: the whiskers of a mean near 100 % may reach beyond.
    ax.set_xscale("function", functions=(lambda x: -np.log10(np.maximum(100 - x, 0.1)), lambda y: 100 - 10**-y))
    ax.autoscale(axis="x")
    low, high = ax.get_xlim()
    ax.set_xticks([tick for tick in TICKS if low < tick < high])
    ax.set_xlabel(f"{ax.get_xlabel()}\nlogarithmic in the error")


def advantages(claims: Sequence[Judged]) -> Figure | None:
    """A forest plot of claims: mean difference over seeds, 95 % interval, and the printed difference.

    A panel for each measure. Where differences are large, its scale is logarithmic beyond one point.
    """
    panels: dict[str, list[Judged]] = {}
    for judged in claims:
        panels.setdefault(judged.measure, []).append(judged)
    if not panels:
        return None
    letters = max(len(_ordering(judged)) for judged in claims)
    figure = canvas(5.2 + LETTER * letters, 0.8 + sum(0.85 + ROW * len(panel) for panel in panels.values()))
    heights = [len(panel) + 1 for panel in panels.values()]
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (measure, panel) in zip(axes, panels.items(), strict=True):
        _draw_claims(ax, panel)
        ax.set_xlabel(f"better by: {measure}".replace(", ", "\n", 1))  # of which evaluations, in a line of its own
    add_legend(figure, axes, ncols=4)
    return figure


def _draw_claims(ax: Axes, claims: Sequence[Judged]) -> None:
    """A panel: a claim is a line, ours above the paper's."""
    shown = style(claims[0].claim.metric)
    ax.axvline(0, color="black", linewidth=0.8)
    for place, judged in enumerate(claims):
        colour, marker = ANSWERS[judged.said.answer]
        low, mean, high = (shown.scale * value for value in (judged.said.low, judged.said.by.mean, judged.said.high))
        look = {"color": colour, "fmt": marker, "capsize": 2, "markersize": 5, "label": f"FedRay: {judged.said.answer}"}
        ax.errorbar(mean, place - 0.1, xerr=[[mean - low], [high - mean]], **look)
        if judged.paper is not None:
            ax.plot(shown.scale * judged.paper, place + 0.2, "D", color="black", mfc="white", ms=5, label="paper")
    ax.set_yticks(range(len(claims)), [_ordering(judged) for judged in claims])
    ax.set_ylim(len(claims) - 0.4, -0.6)
    if max(map(abs, ax.get_xlim())) > LINEAR:
        ax.set_xscale("symlog", linthresh=1)
        ax.autoscale(axis="x")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter("")


def _ordering(judged: Judged) -> str:
    return f"{judged.claim.better} > {judged.claim.worse}"
