"""A comparison as a table in Markdown, on a terminal and in CSV; latex.py and html.py show the same entries."""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.text import Text

from fedray.compare import paired, published
from fedray.compare.groups import MISSING, Estimate, History, RunGroup
from fedray.compare.published import Published
from fedray.compare.styles import ARROWS, Style, style
from fedray.federate.measures.tasks import printed
from fedray.federate.uncertainty.summary import TRACKED
from fedray.terminal import parts

TIE = "\N{NO-BREAK SPACE}"
TITLE_WIDTH = 16  # characters of a line of a title in a terminal
CELLS = (
    "Mean ± half its 95 % interval (Student's t) over n seeds; one seed has none. Each run counts with its mean over "
    "the last tenth of its evaluations, at most ten. Bold: the best result on the same data, with as many rounds and "
    "the same clients evaluated."
)
CONTROLS = "Controls, not federated"  # the title of their block


class Entry(NamedTuple):
    """The content of one table cell."""

    text: str
    bold: bool = False
    note: str = ""  # the published results


class ComparisonTable(NamedTuple):
    """A comparison, ready to be written in any format."""

    name: str  # by which a paper refers to it
    header: list[str]
    blocks: list[list[list[Entry]]]  # one block of rows per dataset
    left: int  # number of columns that hold words; they come first and are left-aligned
    caption: str


def build(groups: Sequence[RunGroup], by: Sequence[str], metrics: Sequence[str]) -> ComparisonTable:
    """The table of a comparison. In each block, the best entry of a column is bold; controls have their own."""
    labelled = any(group.label for group in groups)
    styles = [style(metric) for metric in metrics]
    header = [*by, *(["settings"] if labelled else []), "n", *(s.label + ARROWS[s.better] for s in styles)]
    blocks = []
    for (_, controls), members in itertools.groupby(groups, key=lambda group: (group.block, group.control)):
        title = [[Entry(CONTROLS), *[Entry("")] * (len(header) - 1)]] if controls else []
        blocks.append(title + _block(list(members), metrics, labelled))
    return ComparisonTable("comparison", header, blocks, len(by) + labelled, _caption(blocks, metrics))


def differences(
    groups: Sequence[RunGroup],
    by: Sequence[str],
    metrics: Sequence[str],
    histories: Mapping[str, History],
    name: str,
) -> ComparisonTable | None:
    """What every row has more than the baseline of its data, over the seeds of both; None if nothing can be paired."""
    blocks: list[list[Pair]] = []
    for base in paired.baseline(groups, by, name).values():
        alike = [group for group in groups if group is not base and paired.dealt(group) == paired.dealt(base)]
        found = [{each: paired.difference(group, base, histories, each) for each in metrics} for group in alike]
        pairs = [Pair(group, base, gaps) for group, gaps in zip(alike, found, strict=True) if any(gaps.values())]
        blocks += [pairs] if pairs else []
    # A measure that no two rows share would be a column of dashes.
    shared = [metric for metric in metrics if any(pair.gaps[metric] for block in blocks for pair in block)]
    header = ["row", "minus", "n", *(style(metric).label for metric in shared)]
    caption = (
        "Differences to the baseline by seed: mean ± half its 95 % interval (Student's t) over the n seeds of both "
        "rows, and the p-value of the paired t test, not corrected for the number of tests. The runs of a seed have "
        "the same examples on the same clients."
    )
    if any(pair.group.protocol != pair.base.protocol for block in blocks for pair in block):
        caption += " Some rows were not measured as their baseline was: rounds or evaluated clients differ, as named."
    rows = [[_gaps(pair, shared) for pair in block] for block in blocks]
    return ComparisonTable("differences", header, rows, 2, caption) if blocks else None


class Pair(NamedTuple):
    """A row, the baseline of its data, and by how much the row has more of every metric."""

    group: RunGroup
    base: RunGroup
    gaps: Mapping[str, paired.Difference | None]


def _gaps(pair: Pair, metrics: Sequence[str]) -> list[Entry]:
    most = max(gap.estimate.n for gap in pair.gaps.values() if gap)
    names = [" ".join(filter(None, [*each.values, each.label])) for each in (pair.group, pair.base)]
    return [*map(Entry, [*names, str(most)]), *(_gap(pair.gaps[metric], style(metric), most) for metric in metrics)]


def _gap(found: paired.Difference | None, shown: Style, most: int) -> Entry:
    if found is None:
        return Entry(MISSING)
    some = f" (n={found.estimate.n})" if found.estimate.n != most else ""
    mean = _number(found.estimate, shown)
    sign = "+" if found.estimate.mean > 0 and math.isfinite(found.estimate.mean) else ""
    return Entry(f"{sign}{mean}{some}" + ("" if found.p is None or math.isnan(found.p) else f" (p {found.p:.2g})"))


def _block(groups: Sequence[RunGroup], metrics: Sequence[str], labelled: bool) -> list[list[Entry]]:
    """The rows of groups that were measured on the same data."""
    columns = [_column(groups, metric) for metric in metrics]
    rows = []
    for index, group in enumerate(groups):
        words = [*group.values, *([group.label] if labelled else []), str(len(group.runs))]
        rows.append([*(Entry(word) for word in words), *(column[index] for column in columns)])
    return rows


def _column(groups: Sequence[RunGroup], metric: str) -> list[Entry]:
    shown = style(metric)
    means: dict[tuple[str | None, ...], list[float]] = {}
    for group in groups:
        if metric in group.estimates and not group.control:  # a control does not compete
            means.setdefault(group.protocol, []).append(group.estimates[metric].mean)
    best = {protocol: _best(competing, shown) for protocol, competing in means.items()}
    return [_entry(group, metric, shown, best.get(group.protocol)) for group in groups]


def _entry(group: RunGroup, metric: str, shown: Style, best: float | None) -> Entry:
    note = "; ".join(_cite(result, shown) for result in published.find(group.settings, metric))
    found = group.estimates.get(metric)
    if found is None:
        return Entry(MISSING, note=note)
    some_seeds = f" (n={found.n})" if found.n != len(group.runs) else ""
    wins = math.isfinite(found.mean) and _as_printed(found.mean, shown) == best
    return Entry(_number(found, shown) + some_seeds, wins, note)


def _best(means: Sequence[float], shown: Style) -> float | None:
    """The best mean; None if there is nothing to compete with.

    Means are compared as they are printed, so that entries which look equal are both bold.
    """
    finite = [_as_printed(mean, shown) for mean in means if math.isfinite(mean)]
    if len(means) < 2 or not finite or not shown.better:
        return None
    return max(finite) if shown.better > 0 else min(finite)


def _as_printed(mean: float, shown: Style) -> float:
    return float(printed(mean * shown.scale, shown.digits, shown.unit))


def _number(value: Estimate | Published, shown: Style) -> str:
    """Mean ± half its interval, or the sd of a paper, with the decimals of its style; large numbers are scientific."""
    half = value.sd if isinstance(value, Published) else value.half
    spread = None if half is None else half * shown.scale
    return printed(value.mean * shown.scale, shown.digits, shown.unit, spread)


def _cite(result: Published, shown: Style) -> str:
    return f"{_number(result, shown)} [{result.source}]"


def _caption(blocks: Sequence[Sequence[Sequence[Entry]]], metrics: Sequence[str]) -> str:
    """What the numbers mean, as far as the table has them."""
    entries = [entry for block in blocks for row in block for entry in row]
    text = CELLS
    if any(entry.text == CONTROLS for entry in entries):
        text += (
            " Controls bound the federated methods and do not compete: local trains every client alone, from below; "
            "pooled has all data at one place, from above."
        )
    if any(entry.text == MISSING for entry in entries):
        text += " A dash: not available."
    if any(metric.partition("/")[2] in TRACKED for metric in metrics):
        text += " Measures of the uncertainty report are those of the models after the last round."
    if any(metric.startswith("comm/") for metric in metrics):
        text += " Bytes are totals of the whole run."
    if any(metric.startswith("selection/") for metric in metrics):
        text += " Selection scores are means over all rounds."
    if any(entry.note for entry in entries):
        text += (
            " With a source in brackets: published results ± sd; of accuracies papers report the best evaluation on "
            "test data, of all rounds or, for pFedBayes, of rounds 700 to 800."
        )
    return text


def markdown(table: ComparisonTable) -> str:
    """A pipe table; columns of words are left-aligned, columns of numbers right-aligned."""

    def show(entry: Entry) -> str:
        text = entry.text.replace("|", r"\|").replace("\n", " ")
        text = f"**{text}**" if entry.bold else text
        return f"{text} ({entry.note})" if entry.note else text

    ruler = [":--" if i < table.left else "--:" for i in range(len(table.header))]
    rows = [[show(entry) for entry in row] for block in table.blocks for row in block]
    lines = ["| " + " | ".join(row) + " |" for row in [table.header, ruler, *rows]]
    return "\n".join([*lines, "", table.caption, ""])


def titled(table: ComparisonTable) -> list[list[str]]:
    """The lines of every title, for a narrow column; an arrow stays with its word."""
    tied = [re.sub(r" (?=[↑↓])", TIE, title) for title in table.header]
    wrapped = [textwrap.wrap(title, TITLE_WIDTH, break_long_words=False, break_on_hyphens=False) for title in tied]
    return [[line.replace(TIE, " ") for line in lines] for lines in wrapped]


def terminal(table: ComparisonTable, width: int) -> str:
    """The table for a terminal of so many characters: a wide one in parts, each with the words of the rows."""
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table as View

    rows = [[_plain(entry) for entry in row] for block in table.blocks for row in block]
    titles = ["\n".join(lines) for lines in titled(table)]
    widths = [
        max([cell_len(line) for line in lines] + [row[at].cell_len for row in rows]) + 2
        for at, lines in enumerate(titled(table))
    ]
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, highlight=False)
    words = range(table.left + 1)  # and n
    for part in parts(words, range(len(words), len(table.header)), widths, width):
        view = View(box=SIMPLE_HEAD, header_style="bold")
        for at in part:
            justify = "left" if at < table.left else "right"
            view.add_column(titles[at], justify=justify, no_wrap=at >= table.left, overflow="fold")
        start = 0
        for block in table.blocks:
            for row in rows[start : start + len(block)]:
                view.add_row(*(row[at] for at in part))
            view.add_section()
            start += len(block)
        console.print(view)
    console.print(table.caption, markup=False)
    return out.getvalue()


def _plain(entry: Entry) -> Text:
    """An entry as rich shows it; its note is left to the files."""
    return Text(entry.text, style="bold green" if entry.bold else "")


def plain(groups: Sequence[RunGroup], by: Sequence[str], metrics: Sequence[str]) -> str:
    """CSV in the units that runs log (shares instead of %), exact to the last bit; empty where nothing was measured."""
    parts = ("mean", "sd", "n", "ci95_half", "published_mean", "published_sd", "published_source")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*by, "settings", "runs", *(f"{metric} {part}" for metric in metrics for part in parts)])
    for group in groups:
        values: list[object] = [*group.values, group.label, " ".join(run.id for run in group.runs)]
        for metric in metrics:
            found = group.estimates.get(metric)
            values += [found.mean, found.sd, found.n, found.half] if found else [None, None, 0, None]
            results = published.find(group.settings, metric)
            values += results[0] if results else [None, None, None]
        writer.writerow(values)
    return out.getvalue()
