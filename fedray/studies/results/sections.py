"""A section of the page: a table, its rows for which there are data, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from fedray.compare.styles import style
from fedray.studies.results import judgement, printed
from fedray.studies.results.data import WORDS, Line
from fedray.studies.results.rows import Row, Verdict, rows
from fedray.studies.results.table import Claim, Table
from fedray.studies.results.tables import TABLES


class Judged(NamedTuple):
    """A claim of which the data say something."""

    claim: Claim
    said: judgement.Ordering
    last: judgement.Ordering | None  # the same by the mean of the last ten, where the claim is about the best
    paper: float | None  # the advantage that the paper prints, where it prints both figures

    @property
    def measure(self) -> str:
        """What differs, with its unit, and in which evaluations."""
        label = style(self.claim.metric).label.replace("%", "points")
        return label + (f", {WORDS[self.claim.best]}" if self.claim.best else "")

    @property
    def alike(self) -> bool:
        """Whether an open claim is settled to a point: the whole interval lies within one, whichever cell is better."""
        point = judgement.POINT if "%" in style(self.claim.metric).label else 0.0  # nats are no points
        return self.said.answer == "open" and -point <= self.said.low and self.said.high <= point

    @property
    def size(self) -> Literal["", "less than printed", "more than printed"]:
        """What the interval says of the printed advantage: empty where it contains it, or where the paper has none."""
        if self.paper is None:
            return ""
        if self.said.high < self.paper - judgement.ROUNDING:
            return "less than printed"
        return "more than printed" if self.said.low > self.paper + judgement.ROUNDING else ""


class Section(NamedTuple):
    """A table and its rows for which there are data."""

    table: Table
    rows: list[Row]

    @property
    def cells(self) -> dict[str, Row]:
        """The rows by STUDY/CELL."""
        return {f"{self.table.study}/{row.cell}": row for row in self.rows}

    @property
    def lines(self) -> list[Line]:
        """The runs of all rows."""
        return [line for row in self.rows for line in row.lines]

    @property
    def verdicts(self) -> list[Verdict]:
        """What is said of every figure that a paper prints."""
        return [verdict for row in self.rows for verdict in row.verdicts()]

    @property
    def claims(self) -> list[Judged]:
        """The claims of which the data say something: both cells have two seeds in common, with today's settings."""
        known = {row.cell: row for row in self.rows if row.current}
        found = []
        for claim in printed.claims(self.table) if known else ():
            if claim.better in known and claim.worse in known:
                better, worse = known[claim.better], known[claim.worse]
                if claim.best and better.chosen == worse.chosen:  # else what both have
                    claim = claim._replace(best=better.chosen)
                if said := _ordering(claim, claim.best, better, worse):
                    last = _ordering(claim, "", better, worse) if claim.best else None
                    found.append(Judged(claim, said, last, _paper(claim, better, worse)))
        return found


def _ordering(claim: Claim, best: str, better: Row, worse: Row) -> judgement.Ordering | None:
    name = f"{best}{claim.metric}"
    return judgement.ordering(claim.metric, better.values(name), worse.values(name))


def _paper(claim: Claim, better: Row, worse: Row) -> float | None:
    one, other = better.paper(claim.metric), worse.paper(claim.metric)
    return judgement.advantage(claim.metric, one.mean, other.mean) if one and other else None


def sections_of(folder: Path) -> list[Section]:
    """All tables, those without data included; raises FedRayError for damaged data."""
    return [Section(table, rows(folder, table)) for table in TABLES]
