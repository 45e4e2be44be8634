"""A comparison as a table for a paper: LaTeX with the package booktabs, no wider than a page of one column."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2

from fedray.compare.tables import CONTROLS, Entry, Table, parts, titled

LINE, LINES = 72, 46  # letters of a line of \small, and its lines, on the page of the class article
GAP = 3  # letters between two columns
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Part(NamedTuple):
    """Some columns of a table."""

    layout: str  # the argument of tabular
    titles: list[list[str]]  # lines of each
    blocks: list[list[list[Entry]]]

    @property
    def height(self) -> int:
        """Its lines, with two for the rules and one for the space below."""
        return max(map(len, self.titles)) + sum(map(len, self.blocks)) + 3


def latex(table: Table) -> str:
    """The environments of a table, one for each page that it needs, from table.tex.jinja; every value is escaped.

    What all rows have in common is in the caption. A table that is too wide is set in parts, one below the other, each
    with the words of its rows. The published results of a cell stand below them all, under a letter.
    """
    marks, common = _marks(table), _common(table)
    shared = ", ".join(f"{table.header[at]} {value}" for at, value in common.items())
    caption = f"{table.caption} All rows: {shared}." if common else table.caption
    pages = _pages(_parts(table, common, marks), LINES - len(caption) // LINE)
    return _template().render(name=table.name, caption=caption, pages=pages, marks=marks)


def _pages(parts: Sequence[Part], lines: int) -> list[list[Part]]:
    """The parts of each page; a page has room for so many lines, or for one part."""
    found: list[list[Part]] = [[]]
    for part in parts:
        if found[-1] and sum(each.height for each in [*found[-1], part]) > lines:
            found.append([])
        found[-1].append(part)
    return found


def _marks(table: Table) -> dict[str, str]:
    """The letter of every note, in the order in which a reader meets them."""
    found: dict[str, str] = {}
    for row in _rows(table):
        for entry in row:
            if entry.note and entry.note not in found:
                turn, at = divmod(len(found), len(LETTERS))
                found[entry.note] = LETTERS[at] * (turn + 1)  # a to z, then aa to zz
    return found


def _rows(table: Table) -> list[list[Entry]]:
    """Those of runs, without the titles of blocks."""
    return [row for block in table.blocks for row in block if not _titles(row)]


def _titles(row: Sequence[Entry]) -> bool:
    return row[0].text == CONTROLS


def _common(table: Table) -> dict[int, str]:
    """The columns of words, and n, in which all rows are alike; the first is the name of a row."""
    found = {at: {row[at].text for row in _rows(table)} for at in range(1, table.left + 1)}
    return {at: next(iter(texts)) for at, texts in found.items() if len(texts) == 1}


def _parts(table: Table, left_out: Container[int], marks: Mapping[str, str]) -> list[Part]:
    titles = titled(table)
    words = [at for at in range(table.left + 1) if at not in left_out]
    widths = [
        max(
            [len(line) for line in titles[at]]
            + [len(row[at].text + marks.get(row[at].note, "")) for row in _rows(table)]
        )
        + GAP
        for at in range(len(titles))
    ]
    return [
        Part(
            "".join("l" if at < table.left else "r" for at in part),
            [titles[at] for at in part],
            [[row[:1] if _titles(row) else [row[at] for at in part] for row in block] for block in table.blocks],
        )
        for part in parts(words, range(table.left + 1, len(titles)), widths, LINE)
    ]


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        finalize=escape,
        undefined=jinja2.StrictUndefined,
        # LaTeX itself uses braces and percent signs.
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("table.tex.jinja")


_SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "[": "{[}",  # a line that begins with it would be the length of the line break before it
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "\n": " ",
}


def escape(value: object) -> str:
    """Text that LaTeX shows as it is."""
    text = re.sub(r"(?<![\w.-])-(?=\d)", "−", str(value))  # a hyphen before a number is its sign
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
