"""What is said of figures: how far they are from a paper's, and whether an ordering holds on the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from scipy import stats

from fedray.compare.published import Published

POINT = 0.01
LESS = ("nll", "ece", "mce", "brier", "rmse", "stability")  # metrics of which less is better
Verdict = Literal["within ±", "within 1 point", "within twice ±", "apart"]


class Interval(NamedTuple):
    """A mean of paired differences with its 95 % confidence interval, of n seeds."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def verdict(self) -> str:
        """What the interval says of a claim that the difference is positive."""
        return "holds" if self.low > 0 else "refuted" if self.high < 0 else "open"


def verdict(ours: float, paper: Published) -> Verdict:
    """How far a figure is from a printed one."""
    distance = abs(ours - paper.mean)
    if paper.sd is not None and distance <= paper.sd:
        return "within ±"
    if distance <= POINT:
        return "within 1 point"
    return "within twice ±" if paper.sd is not None and distance <= 2 * paper.sd else "apart"


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Interval | None:
    """Student's interval of a - b over the seeds that both have; None of fewer than two."""
    seeds = sorted(a.keys() & b.keys())
    if len(seeds) < 2:
        return None
    differences = [a[seed] - b[seed] for seed in seeds]
    mean, n = statistics.mean(differences), len(seeds)
    half = float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(differences) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def better_by(metric: str, better: Mapping[int, float], worse: Mapping[int, float]) -> Interval | None:
    """By how much one is better than the other in a metric, over the seeds of both: above zero where it is."""
    return paired(worse, better) if metric.endswith(LESS) else paired(better, worse)


def spread(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None of a single value."""
    return statistics.stdev(values) if len(values) > 1 else None
