"""What is said of figures: how far they are from a paper's, and whether an ordering holds on the same seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from fedray.compare.groups import Estimate, of_runs
from fedray.compare.published import Published
from fedray.compare.styles import style

POINT = 0.01
ROUNDING = 1e-9  # of the difference of two printed figures: 0.9516 - 0.9416 is a point
Nearness = Literal["within ±", "within 1 point", "within twice ±", "apart"]


class Ordering(NamedTuple):
    """By how much one cell is better than another, over the seeds of both: positive where it is."""

    by: Estimate
    low: float  # of the 95 % interval of the mean difference, Student's
    high: float

    @property
    def answer(self) -> Literal["holds", "refuted", "open"]:
        """What the interval says of a claim that the difference is positive; no difference in any seed refutes it."""
        return "holds" if self.low > 0 else "refuted" if self.high <= 0 else "open"


def nearness(ours: float, paper: Published) -> Nearness:
    """How far a figure is from a printed one."""
    distance = abs(ours - paper.mean) - ROUNDING
    if paper.sd is not None and distance <= paper.sd:
        return "within ±"
    if distance <= POINT:
        return "within 1 point"
    return "within twice ±" if paper.sd is not None and distance <= 2 * paper.sd else "apart"


def ordering(metric: str, better: Mapping[int, float], worse: Mapping[int, float]) -> Ordering | None:
    """What the seeds of both say of one that should be better in a metric; None of fewer than two.

    Raises ValueError for a metric of which neither more nor less is better.
    """
    seeds = sorted(better.keys() & worse.keys())
    by = of_runs([advantage(metric, better[seed], worse[seed]) for seed in seeds]) if seeds else None
    return Ordering(by, by.mean - by.half, by.mean + by.half) if by and by.half is not None else None


def advantage(metric: str, better: float, worse: float) -> float:
    """By how much the first value of a metric is better; raises ValueError where neither more nor less is."""
    sign = style(metric).better
    if not sign:
        raise ValueError(f"{metric}: neither more nor less of it is better")
    return sign * (better - worse)
