"""A comparison as a table for a paper: LaTeX with the package booktabs, no wider than a page of one column."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2

from fedray.compare.groups import MISSING
from fedray.compare.tables import CONTROLS, ComparisonTable, Entry, titled
from fedray.terminal import parts

LINE, LINES = 72, 46  # letters of a line of \small, and its lines, on the page of the class article
NOTES = 80  # letters of a line of \footnotesize
WORDS = 26  # letters of a line in a column of words
GAP = 4  # letters between two columns, and that of a note
TITLE_LINES = 6  # of a part without rows, at most
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class SetEntry(NamedTuple):
    """An entry as it is set."""

    lines: list[str]
    bold: bool = False
    note: str = ""


class TablePart(NamedTuple):
    """Some columns of some rows."""

    layout: str  # the argument of tabular
    titles: list[list[str]]  # lines of each
    blocks: list[list[list[SetEntry]]]

    @property
    def height(self) -> int:
        """Its lines, with two for the rules and one for the space below."""
        return max(map(len, self.titles)) + sum(_height(row) for block in self.blocks for row in block) + 3

    @property
    def notes(self) -> list[str]:
        return [cell.note for block in self.blocks for row in block for cell in row if cell.note]


class Page(NamedTuple):
    """Some parts, one below the other, and the notes below them."""

    parts: list[TablePart]

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(note for part in self.parts for note in part.notes))

    @property
    def height(self) -> int:
        return sum(part.height for part in self.parts) + math.ceil(sum(map(_share, self.notes)))


def latex(table: ComparisonTable) -> str:
    """The environments of a table, one for each page that it needs, from table.tex.jinja; every value is escaped.

    What all rows have in common is in the caption. A table that is too wide or too long is set in parts, one below the
    other, each with the words of its rows. Published results stand at the end of the page, under letters.
    """
    common = _common(table)
    shared = ", ".join(f"{table.header[at]} {value}" for at, value in common.items())
    caption = f"{table.caption} All rows: {shared}." if common else table.caption
    room = LINES - len(caption) // LINE
    pages = _pages(_parts(table, common, room), room)
    return _template().render(
        name=table.name,
        caption=caption,
        pages=pages,
        letters=_letters(pages),
        stacked=stacked,
        top_aligned=top_aligned,
        number=number,
    )


def _common(table: ComparisonTable) -> dict[int, str]:
    """The columns of words, and n, in which all rows are alike; the first is the name of a row."""
    rows = [row for block in table.blocks for row in block if not _is_title(row)]
    found = {at: {row[at].text for row in rows} for at in range(1, table.left + 1)}
    return {at: next(iter(texts)) for at, texts in found.items() if len(texts) == 1 and MISSING not in texts}


def _is_title(row: Sequence[Entry]) -> bool:
    return row[0].text == CONTROLS


def _parts(table: ComparisonTable, left_out: Container[int], room: int) -> list[TablePart]:
    """The parts of a table, each no wider than a line and with room for so many lines."""
    titles = titled(table)
    blocks = [[_set(row, table.left) for row in block] for block in table.blocks]
    rows = [row for block in blocks for row in block if len(row) == len(titles)]
    widths = [
        max(len(line) for cell in (SetEntry(titles[at]), *(row[at] for row in rows)) for line in cell.lines) + GAP
        for at in range(len(titles))
    ]
    words = [at for at in range(table.left + 1) if at not in left_out]
    return [
        TablePart("".join("l" if at < table.left else "r" for at in columns), [titles[at] for at in columns], some)
        for columns in parts(words, range(table.left + 1, len(titles)), widths, LINE)
        for some in _split([[_chosen(row, columns) for row in block] for block in blocks], room)
    ]


def _set(row: Sequence[Entry], left: int) -> list[SetEntry]:
    """The cells of a row, long words on several lines; the title of the controls is one cell."""
    if _is_title(row):
        return [SetEntry([CONTROLS])]
    return [
        SetEntry(textwrap.wrap(entry.text, WORDS) or [""] if at < left else [entry.text], entry.bold, entry.note)
        for at, entry in enumerate(row)
    ]


def _chosen(row: list[SetEntry], columns: Sequence[int]) -> list[SetEntry]:
    return row if len(row) == 1 else [row[at] for at in columns]


def _share(note: str) -> float:
    """How much of a line a note fills, with its letter."""
    return (len(note) + 4) / NOTES


def _height(row: Sequence[SetEntry]) -> int:
    return max(len(cell.lines) for cell in row)


def _split(blocks: Sequence[Sequence[list[SetEntry]]], room: int) -> list[list[list[list[SetEntry]]]]:
    """Blocks of rows in turns that have room for so many lines, with their titles and notes."""
    found: list[list[list[list[SetEntry]]]] = [[]]
    height: float = TITLE_LINES
    for block in blocks:
        found[-1].append([])
        for row in block:
            more = _height(row) + sum(_share(cell.note) for cell in row if cell.note)
            if height + more > room and any(found[-1]):
                found.append([[]])
                height = TITLE_LINES
            found[-1][-1].append(row)
            height += more
    return [[block for block in turn if block] for turn in found]


def _pages(pieces: Sequence[TablePart], room: int) -> list[Page]:
    """The parts on pages that have room for so many lines, or for one part."""
    found = [Page([])]
    for part in pieces:
        if found[-1].parts and Page([*found[-1].parts, part]).height > room:
            found.append(Page([]))
        found[-1].parts.append(part)
    return found


def _letters(pages: Sequence[Page]) -> dict[str, str]:
    """The letter of every note, in the order in which a reader meets them: a to z, then aa to zz."""
    notes = dict.fromkeys(note for page in pages for note in page.notes)
    turns = (divmod(k, len(LETTERS)) for k in range(len(notes)))
    return {note: LETTERS[at] * (turn + 1) for note, (turn, at) in zip(notes, turns, strict=True)}


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


class Tex(str):
    """LaTeX, not text."""

    __slots__ = ()


def stacked(lines: Sequence[str], side: str) -> Tex:
    """The lines of a title, flush left (l) or right (r); the last one stands on the line of the others' last ones."""
    rows = r" \\ ".join(map(escape, lines))
    return Tex(rf"\shortstack[{side}]{{{rows}}}" if len(lines) > 1 else rows)


def top_aligned(lines: Sequence[str]) -> Tex:
    """The lines of a cell; the first one stands on the line of its row, where it cannot belong to the row above."""
    rows = r" \\ ".join(map(escape, lines))
    return Tex(rf"\begin{{tabular}}[t]{{@{{}}l@{{}}}}{rows}\end{{tabular}}" if len(lines) > 1 else rows)


def number(text: str) -> Tex:
    """An entry of numbers, of which large ones have powers of ten."""
    return Tex(re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)e(?:\+|(-))0*(\d+)\b", r"\1$\\cdot10^{\2\3}$", escape(text)))


def escape(value: object) -> str:
    """Text that LaTeX shows as it is."""
    if isinstance(value, Tex):
        return value
    text = re.sub(r"(?<![\w.-])-(?=\d)", "−", str(value))  # a hyphen before a number is its sign
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
