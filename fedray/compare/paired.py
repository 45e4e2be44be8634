"""Differences between the rows of a comparison, seed by seed: what two methods share does not blur their difference.

Two runs of one seed on the same data have the same partition and the same draws of clients, so their difference varies
less than either of them. d_s is the difference of seed s, and the interval is that of Student's t: d̄ ± t sd(d) / √n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scipy.special import stdtr  # of Student's t; scipy.stats takes 0.7 s to import

from fedray.compare.groups import Estimate, History, RunGroup, of_runs, run_value
from fedray.types import FedRayError

ROUNDING = 1e-12  # of the values that are subtracted: equal differences deviate by some 1e-16 of them
SHARED = ("clients", "novel_clients")  # beside the data and the seed, what deals the examples


class Difference(NamedTuple):
    """What a row has more than the baseline, over the seeds that both have."""

    estimate: Estimate
    p: float | None  # of the paired t test; None where it has no meaning: one seed, or the same difference in all


def baseline(groups: Sequence[RunGroup], by: Sequence[str], name: str) -> dict[tuple, RunGroup]:
    """The row that the others of its data are compared with, by data: the first one that fits a name.

    The name is that of a legend, the row's first value, or its method. Without a name it is the first row
    that is no control. Raises FedRayError for a name that no row has.
    """
    found: dict[tuple, RunGroup] = {}
    for group in groups:
        words = (group.name(by), group.values[0], group.settings.get("algorithm.name"))
        if name in words if name else not group.control:
            found.setdefault(dealt(group), group)
    if name and not found:
        known = "\n".join(dict.fromkeys(f"  {group.name(by)}" for group in groups))
        raise FedRayError(f"--baseline {name}: no row has this name; choose from\n{known}")
    return found


def dealt(group: RunGroup) -> tuple:
    """All that decides, with the seed, which client has which examples."""
    return group.block, *(group.settings.get(key) for key in SHARED)


def difference(group: RunGroup, other: RunGroup, histories: Mapping[str, History], metric: str) -> Difference | None:
    """What ``group`` has more than ``other`` of a metric, over the seeds of both; None if they share none."""
    ours, theirs = (
        {run.settings.get("seed"): run_value(histories[run.id], metric) for run in each.runs} for each in (group, other)
    )
    gaps = [mine - value for seed, mine in ours.items() if mine is not None and (value := theirs.get(seed)) is not None]
    if not gaps:
        return None
    found = of_runs(gaps)
    largest = max(abs(value) for value in (*ours.values(), *theirs.values()) if value is not None)
    if not found.sd or found.sd <= ROUNDING * largest:
        return Difference(found, None)
    t = abs(found.mean) * math.sqrt(found.n) / found.sd
    return Difference(found, float(2 * stdtr(found.n - 1, -t)))
