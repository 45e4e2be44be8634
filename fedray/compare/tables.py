"""A comparison as a table: Markdown, LaTeX (booktabs), CSV and HTML, all from the same entries."""

from __future__ import annotations

import csv
import html
import io
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from fedray.compare import published
from fedray.compare.groups import Row
from fedray.compare.published import Published

LONG = 1e5  # numbers from which on decimals hide the size


class Style(NamedTuple):
    """How a metric is shown."""

    label: str
    scale: float = 1.0
    digits: int = 3
    better: int = 0  # +1: more is better; -1: less is; 0: neither


STYLES = {
    "accuracy": Style("accuracy (%)", 100, 2, +1),
    "worst_decile": Style("worst tenth of clients (%)", 100, 2, +1),
    "nll": Style("NLL (nats)", better=-1),
    "ece": Style("ECE (%)", 100, 2, -1),
    "mce": Style("MCE (%)", 100, 2, -1),
    "brier": Style("Brier score", better=-1),
    "entropy": Style("entropy (nats)"),
    "mutual_information": Style("mutual information (nats)"),
    "stability": Style("sd over the last 10 evaluations (%)", 100, 2, -1),
}
OTHERS = {
    "comm/bytes_up": Style("MB up", 1e-6, 1, -1),
    "comm/bytes_down": Style("MB down", 1e-6, 1, -1),
    "selection/effective": Style("effective clients", digits=1),
    "selection/chosen": Style("score of the chosen"),
    "selection/average": Style("score of all"),
}
WHOSE = {"personal": "personal", "global": "global", "novel": "newcomers'"}
ARROWS = {+1: " ↑", -1: " ↓", 0: ""}


class Entry(NamedTuple):
    """What stands in one cell."""

    text: str
    bold: bool = False
    note: str = ""  # the published figures


class Table(NamedTuple):
    """A comparison, ready to be written in any format."""

    header: list[str]
    blocks: list[list[list[Entry]]]  # rows of the same data stand together
    left: int  # columns that hold words
    caption: str


def style(metric: str) -> Style:
    """How to show a metric; one that is not a measure of a model is shown as it is stored."""
    kind, _, name = metric.partition("/")
    if kind in WHOSE and name in STYLES:
        return STYLES[name]._replace(label=f"{WHOSE[kind]} {STYLES[name].label}")
    return OTHERS.get(metric, Style(metric))


def table(rows: Sequence[Row], by: Sequence[str], metrics: Sequence[str]) -> Table:
    """The entries of a comparison; the best of each column among the rows of the same data is bold."""
    labelled = any(row.label for row in rows)
    styles = [style(metric) for metric in metrics]
    header = [*by, *(["settings"] if labelled else []), "n", *(s.label + ARROWS[s.better] for s in styles)]
    blocks = []
    for _, group in itertools.groupby(rows, key=lambda row: row.block):
        block = list(group)
        columns = [_column(block, metric) for metric in metrics]
        heads = [[*row.values, *([row.label] if labelled else []), str(len(row.runs))] for row in block]
        entries = zip(heads, zip(*columns, strict=True), strict=True)
        blocks.append([[*map(Entry, head), *numbers] for head, numbers in entries])
    return Table(header, blocks, len(by) + labelled, _caption(blocks, metrics))


def _caption(blocks: Sequence[Sequence[Sequence[Entry]]], metrics: Sequence[str]) -> str:
    text = (
        "Mean ± sample standard deviation over n seeds of each run's mean over its last tenth of evaluations, at most "
        "ten. Bold: the best on the same data."
    )
    if any(metric.startswith("comm/") for metric in metrics):
        text += " Bytes are those of the whole run."
    if any(metric.startswith("selection/") for metric in metrics):
        text += " What a policy reports of its choices is averaged over all rounds."
    if any(entry.note for block in blocks for row in block for entry in row):
        text += " In brackets: published figures; papers report the best round on test data, after 700 to 800 rounds."
    return text


def _column(block: Sequence[Row], metric: str) -> list[Entry]:
    shown = style(metric)
    best = _best([row.cells[metric].mean for row in block if metric in row.cells], shown)
    entries = []
    for row in block:
        cell = row.cells.get(metric)
        note = "; ".join(_cite(figure, shown) for figure in published.find(row.settings, metric))
        if cell is None:
            entries.append(Entry("–", note=note))
            continue
        seeds = f" (n={cell.n})" if cell.n != len(row.runs) else ""
        entries.append(Entry(_number(cell.mean, cell.sd, shown) + seeds, _round(cell.mean, shown) == best, note))
    return entries


def _best(means: Sequence[float], shown: Style) -> float | None:
    """The best mean as printed, so that what looks equal is treated so; None where nothing competes."""
    finite = [_round(mean, shown) for mean in means if math.isfinite(mean)]
    if len(means) < 2 or not finite or not shown.better:
        return None
    return max(finite) if shown.better > 0 else min(finite)


def _round(mean: float, shown: Style) -> float:
    return float(_number(mean, None, shown))


def _number(mean: float, sd: float | None, shown: Style) -> str:
    """With fixed decimals; scientific where only scores and bytes get to."""
    form = f".{shown.digits}f" if abs(mean * shown.scale) < LONG else ".2e"
    return " ± ".join(f"{value * shown.scale:{form}}" for value in (mean, sd) if value is not None)


def _cite(figure: Published, shown: Style) -> str:
    return f"{_number(figure.mean, figure.sd, shown)} [{figure.source}]"


def markdown(table: Table) -> str:
    """Pipes, with the columns of words to the left and those of numbers to the right."""

    def show(entry: Entry) -> str:
        text = entry.text.replace("|", r"\|")
        return (f"**{text}**" if entry.bold else text) + (f" ({entry.note})" if entry.note else "")

    ruler = [":--" if i < table.left else "--:" for i in range(len(table.header))]
    rows = [[show(entry) for entry in row] for block in table.blocks for row in block]
    lines = ["| " + " | ".join(row) + " |" for row in [table.header, ruler, *rows]]
    return "\n".join([*lines, "", table.caption, ""])


_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "–": "--",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def latex(table: Table) -> str:
    """A table environment for the package booktabs."""

    def show(entry: Entry) -> str:
        text = rf"\textbf{{{_latex(entry.text)}}}" if entry.bold else _latex(entry.text)
        return text + (f" ({_latex(entry.note)})" if entry.note else "")

    def line(texts: Sequence[str]) -> str:
        return " & ".join(texts) + r" \\"

    columns = "l" * table.left + "r" * (len(table.header) - table.left)
    body = "\n\\midrule\n".join(
        "\n".join(line([show(entry) for entry in row]) for row in block) for block in table.blocks
    )
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(table.caption)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            line([_latex(text) for text in table.header]),
            r"\midrule",
            body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def webpage(table: Table) -> str:
    """A table element with one body per block."""

    def show(entry: Entry) -> str:
        text = f"<strong>{html.escape(entry.text)}</strong>" if entry.bold else html.escape(entry.text)
        return text + (f"<small>{html.escape(entry.note)}</small>" if entry.note else "")

    def line(tag: str, texts: Sequence[str]) -> str:
        sides = ["" if i < table.left else ' class="number"' for i in range(len(texts))]
        return (
            "<tr>" + "".join(f"<{tag}{side}>{text}</{tag}>" for side, text in zip(sides, texts, strict=True)) + "</tr>"
        )

    head = line("th", [html.escape(text) for text in table.header])
    bodies = ["\n".join(line("td", [show(entry) for entry in row]) for row in block) for block in table.blocks]
    return "\n".join(
        [
            f"<table>\n<caption>{html.escape(table.caption)}</caption>\n<thead>{head}</thead>",
            *(f"<tbody>\n{body}\n</tbody>" for body in bodies),
            "</table>",
        ]
    )


def plain(rows: Sequence[Row], by: Sequence[str], metrics: Sequence[str]) -> str:
    """CSV with numbers in stored units to the last bit: shares instead of %, empty where there is none."""
    parts = ("mean", "sd", "n", "published_mean", "published_sd", "published_source")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*by, "settings", "runs", *(f"{metric} {part}" for metric in metrics for part in parts)])
    for row in rows:
        values: list[object] = [*row.values, row.label, " ".join(run.id for run in row.runs)]
        for metric in metrics:
            cell, figures = row.cells.get(metric), published.find(row.settings, metric)
            values += [cell.mean, cell.sd, cell.n] if cell else [None, None, 0]
            values += [figures[0].mean, figures[0].sd, figures[0].source] if figures else [None, None, None]
        writer.writerow(values)
    return out.getvalue()
