"""A measure against what it cost: rounds, seconds or bytes, averaged over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedray.compare.runs import DOWN, SECONDS, UP


class Cost(NamedTuple):
    """What accuracy or RMSE is plotted against."""

    label: str
    metrics: tuple[str, ...]  # summed over metrics and rounds; none: the number of the round
    unit: float = 1.0


COSTS = (
    Cost("Communication round", ()),
    Cost("Cumulative time (s)", (SECONDS,)),
    Cost("Cumulative traffic, both ways (MB)", (UP, DOWN), unit=1e6),
)


class CostCurve(NamedTuple):
    """A measure against a cost, over seeds."""

    x: np.ndarray  # [evaluations] mean cost
    mean: np.ndarray  # [evaluations] of the measure, such as the share of correct answers
    sd: np.ndarray  # [evaluations] sample standard deviation; 0 for a single run


def curve(
    histories: Sequence[Sequence[Mapping[str, float]]], kind: str, cost: Cost, name: str = "accuracy"
) -> CostCurve:
    """A measure of one kind of model against a cost, at the rounds that every run evaluated."""
    points = [_points(rows, f"{kind}/{name}", cost) for rows in histories]
    points = [run for run in points if run]
    common = sorted(set.intersection(*(set(run) for run in points))) if points else []
    if not common:
        return CostCurve(np.empty(0), np.empty(0), np.empty(0))
    costs = np.array([[run[step][0] for step in common] for run in points])
    values = np.array([[run[step][1] for step in common] for run in points])
    with np.errstate(invalid="ignore"):  # of infinite values, as runs that diverged have
        sd = values.std(0, ddof=1) if len(points) > 1 else np.zeros(len(common))
    return CostCurve(costs.mean(0) / cost.unit, values.mean(0), sd)


def _points(rows: Sequence[Mapping[str, float]], metric: str, cost: Cost) -> dict[int, tuple[float, float]]:
    """{round: (cost so far, metric)} for the rounds that have the metric."""
    points = {}
    spent = 0.0
    for row in rows:
        spent += sum(row.get(name, 0.0) for name in cost.metrics)
        if metric in row:
            points[int(row["round"])] = (spent if cost.metrics else row["round"], row[metric])
    return points
