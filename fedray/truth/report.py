"""The rows of a measurement as tables, files and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedray.running.drawing import figure_style
from fedray.truth import calibration, contestants
from fedray.truth.meter import Contest
from fedray.truth.problem import PROBLEMS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAR = 1e-3  # of KL where a method has to be exact, nats
EXACT = "orthogonal"  # the problem of which this is asked


def record(row: Contest) -> dict[str, Any]:
    """A row with plain values: one line of table.csv."""
    found = row.calibration
    ranked = {} if found is None else {"ranked": len(found.ranks), "sbc_coverage": calibration.coverage(found)}
    verdict = "" if found is None else calibration.verdict(found)
    names = {"problem": row.problem, "method": row.method}
    empty = {"ranked": 0, "sbc_coverage": None}
    return names | row.distance._asdict() | empty | ranked | {"sbc": verdict, "cpu_seconds": row.seconds}


def histogram(rows: Sequence[Contest]) -> list[dict[str, Any]]:
    """The lines of ranks.csv: the counts of every bin, of every parameter of every ranked row, with their band."""
    lines = []
    for row in rows:
        if row.calibration is None:
            continue
        low, high = calibration.band(row.calibration)
        for parameter, found in enumerate(calibration.counts(row.calibration)):
            names = {"problem": row.problem, "method": row.method, "parameter": parameter}
            lines += [
                names | {"bin": b, "count": int(count), "low": int(low[b]), "high": int(high[b])}
                for b, count in enumerate(found)
            ]
    return lines


def bars(rows: Sequence[Contest]) -> dict[str, bool]:
    """Whether each method that has to be exact is."""
    asked = contestants.GLOBAL
    return {
        row.method: row.distance.kl < BAR
        for row in rows
        if row.problem == EXACT and row.method in asked and asked[row.method].bar
    }


def markdown(rows: Sequence[Contest]) -> str:
    """A table for each problem."""
    parts = []
    for name in dict.fromkeys(row.problem for row in rows):
        head = "| method | KL (nats) | W2 | σ / exact σ | error of the mean (exact σ) | 90 % interval holds | SBC |"
        lines = [f"{name}: {PROBLEMS[name].summary}", "", head, "|---" * 7 + "|"]
        lines += [_line(row) for row in rows if row.problem == name]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _line(row: Contest) -> str:
    found = row.distance
    ranked = row.calibration
    sbc = "" if ranked is None else f"{calibration.verdict(ranked)} ({len(ranked.ranks)} sets)"
    cells = (
        row.method,
        f"{found.kl:.2g}",
        f"{found.w2:.2g}",
        f"{found.sd_ratio:.2f}",
        f"{found.error:.2f}",
        f"{found.coverage:.1%}",
        sbc,
    )
    return "| " + " | ".join(cells) + " |"


def draw(rows: Sequence[Contest]) -> Figure | None:
    """Rank histograms, the parameters on top of each other, with the band of a calibrated method."""
    ranked = [(row, row.calibration) for row in rows if row.calibration is not None]
    if not ranked:
        return None
    columns = min(len(ranked), 4)
    lines = -(-len(ranked) // columns)
    figure = figure_style.canvas(3 * columns, 2.3 * lines)
    axes = figure.subplots(lines, columns, squeeze=False)
    for ax in axes.flat[len(ranked) :]:
        ax.set_axis_off()
    for ax, (row, found) in zip(axes.flat, ranked, strict=False):
        low, high = calibration.band(found)
        edges = np.arange(len(low) + 1) / len(low)
        ax.stairs(high, edges, baseline=low, fill=True, color=figure_style.GREY, alpha=0.35)
        for parameter, count in enumerate(calibration.counts(found)):
            ax.stairs(count, edges, color=figure_style.PALETTE[parameter], label=f"θ{parameter}")
        ax.set_title(f"{row.problem}: {row.method}\n{calibration.verdict(found)}", fontsize=8)
        ax.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("Data sets")
    axes[0, 0].legend()
    figure.supxlabel("Rank of the true parameter among the draws (grey: 99 % of calibrated counts)", fontsize=9)
    return figure


def summary(rows: Sequence[Contest], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The content of truth.json."""
    return {**settings, "bars": bars(rows), "rows": [record(row) for row in rows]}


def save_figure(folder: Path, rows: Sequence[Contest]) -> None:
    """Write figures/ranks.png; where nothing was ranked, remove that of an earlier measurement."""
    if figure_style.save(folder, "ranks.png", lambda: draw(rows)) is None:
        (folder / "figures" / "ranks.png").unlink(missing_ok=True)
