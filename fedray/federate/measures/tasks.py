"""What is reported of predicted labels, and what of predicted real targets: the one place where the two differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedray.federate.measures import metrics, regression
from fedray.types import EvalStats, Stats

LONG = 1e5  # larger numbers are shown in scientific notation
NOT_FINITE = "not finite"  # as the figures say


class Shown(NamedTuple):
    """A measure in the table of a finished run."""

    name: str
    label: str
    scale: float
    digits: int
    unit: bool = False  # whether it has the unit of the target, which may be any: then small ones have more decimals


def printed(value: float, digits: int, unit: bool = False, spread: float | None = None) -> str:
    """A number of a table, with its spread behind a ±; in the unit of a target it has at least three digits."""
    if not math.isfinite(value):
        return NOT_FINITE
    size = abs(value)
    decimals = max(digits, 2 - math.floor(math.log10(size))) if unit and 0 < size < LONG else digits
    form = f".{decimals}f" if size < LONG else ".2e"
    text = f"{value:{form}}"
    text = text if float(text) else text.removeprefix("-")
    return text if spread is None or not math.isfinite(spread) else f"{text} ± {spread:{form}}"


class Task(NamedTuple):
    """How sums of one kind become measures."""

    headline: str  # the measure that is shown while a run plays, and by which sweeps rank
    ratios: tuple[str, ...]  # what ``summarize`` returns
    summarize: Callable[[Any], Any]  # pooled sums -> a NamedTuple of ratios
    worst: tuple[str, Callable[[Any], float]]  # name, function of sums [K, ...]: the worst tenth of the clients
    shown: Sequence[Shown]

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of all measures."""
        return *self.ratios, self.worst[0]

    def measure(self, stats: Stats) -> dict[str, float]:
        """All measures, pooled over the clients of sums [K, ...]."""
        name, worst = self.worst
        return self.summarize(metrics.pooled(stats))._asdict() | {name: worst(stats)}

    def of_client(self, stats: Stats, k: int) -> tuple[float, ...]:
        """The ratios of the k-th client of sums [K, ...]."""
        return self.summarize(type(stats)(*(field[k] for field in stats)))


CLASSIFICATION = Task(
    headline="accuracy",
    ratios=metrics.Summary._fields,
    summarize=metrics.summarize,
    worst=("worst_decile", metrics.worst_decile),
    shown=(
        Shown("accuracy", "accuracy (%)", 100, 2),
        Shown("worst_decile", "worst tenth of clients (%)", 100, 2),
        Shown("nll", "negative log-likelihood (nats)", 1, 3),
        Shown("ece", "calibration error, ECE (%)", 100, 2),
        Shown("brier", "Brier score (0-2)", 1, 3),
    ),
)
REGRESSION = Task(
    headline="rmse",
    ratios=regression.RegressionSummary._fields,
    summarize=regression.summarize,
    worst=("worst_rmse", regression.worst_rmse),
    shown=(
        Shown("rmse", "RMSE (units of the target)", 1, 4, unit=True),
        Shown("worst_rmse", "worst tenth of clients (RMSE)", 1, 4, unit=True),
        Shown("nll", "negative log-likelihood (nats)", 1, 3),
        Shown("coverage", "coverage of the 90 % interval (%)", 100, 1),
        Shown("aleatoric_sd", "sd of the noise", 1, 4, unit=True),
        Shown("epistemic_sd", "sd over posterior draws", 1, 4, unit=True),
    ),
)
TASKS = (CLASSIFICATION, REGRESSION)


def task_of(stats: Stats) -> Task:
    """The task whose sums these are."""
    return CLASSIFICATION if isinstance(stats, EvalStats) else REGRESSION
