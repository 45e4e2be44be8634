"""The options of a sweep beside those of a federation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from fedray.federate import report
from fedray.federate.measures.tasks import CLASSIFICATION, Task
from fedray.types import Algorithm, FedRayError, check_types, require

MODES = {  # of the measures of which more, or less, is better
    "accuracy": "max", "worst_decile": "max", "nll": "min", "ece": "min", "mce": "min", "brier": "min", "rmse": "min",
    "worst_rmse": "min",
}  # fmt: skip
TEST = "test"  # before a measure on test examples, where a sweep was asked to rank by one
SHARE = 0.2  # of every client's training examples that a sweep holds out, where the experiment says nothing


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is searched, and how."""

    samples: int = 8
    """Configurations drawn from the space (random, tpe); a grid in the space multiplies them, where there is something
    to draw beside it."""
    search: Literal["random", "grid", "tpe"] = "random"
    """random: independent draws; grid: every combination of choice(...) and grid(...); tpe: Optuna's sampler."""
    scheduler: Literal["auto", "asha", "median", "pbt", "none"] = "auto"
    """asha: stop the worse two thirds early, again and again; median: stop what falls below the median; pbt: copy good
    federations over bad ones and perturb them; none: play every trial to its end; auto: asha, or none over several
    seeds, for a mean over them needs equal rounds."""
    space: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=...")] = ()
    """What to search, once per setting: NAME=loguniform(0.5,20), uniform(0,1), choice(-1,-2,-2.5) or grid(1,5,10); by
    default the algorithm's own space."""
    metric: str = "validation/personal/accuracy"
    """Measure that ranks the trials and decides which are stopped early: validation/ (on examples that are held out of
    the training data, see --data.validation) or test/ (a choice by test data: its best score is too good to report),
    then personal/ or global/, then accuracy, nll, ece, mce, brier or worst_decile; with real targets rmse (the default
    then), nll or worst_rmse."""
    mode: Annotated[Literal["auto", "max", "min"], tyro.conf.arg(name="metric-mode")] = "auto"
    """Whether more or less of it is better; auto knows it of these."""
    max_rounds: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Rounds of a trial that is not stopped; by default --rounds."""
    grace_rounds: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Rounds that every trial may play (asha, median) and rounds between two copies (pbt); by default a quarter."""
    seeds: int = 1
    """Seeds on which every configuration is tried, from --seed on; trials are ranked by their mean."""
    concurrency: str = "auto"
    """Trials at a time; auto fills the cluster by packing each trial's clients into fewer actors."""
    resume: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Folder of an interrupted sweep to go on with; --concurrency and --tracking.* may differ, other options not."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("samples", "seeds", "max_rounds", "grace_rounds"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least one is needed", "give a positive whole number")
        number = self.concurrency.isdecimal() and int(self.concurrency) >= 1
        require(
            self.concurrency == "auto" or number, "concurrency", self.concurrency, "not a number of trials", "use auto"
        )


def complete(sweep: Sweep, record: Algorithm, rounds: int, task: Task = CLASSIFICATION) -> Sweep:
    """Fill in what is left open.

    Raises FedRayError for a measure that the algorithm's runs do not have, for one whose direction is neither known nor
    given, and for one on test examples by its plain name: a sweep ranks by those only where asked for ``test/...``.
    """
    kinds = {"personal": record.predict_personal, "global": record.predict_global}
    measures = [f"{kind}/{name}" for kind, predict in kinds.items() if predict for name in task.measures]
    known = [f"{report.VALIDATION}/{name}" for name in measures]
    metric = sweep.metric
    if metric == Sweep.metric and metric not in known:  # of a method without personal models, or of real targets
        metric = f"{report.VALIDATION}/{'personal' if record.predict_personal else 'global'}/{task.headline}"
    if metric in measures:
        raise FedRayError(
            f"--metric {metric}: is measured on test examples, and what they choose, they flatter; give "
            f"{report.VALIDATION}/{metric}, or {TEST}/{metric} to choose by test data all the same"
        )
    if metric not in (*known, *(f"{TEST}/{name}" for name in measures)):
        raise FedRayError(
            f"--metric {metric}: no such measure of this algorithm; choose from {', '.join(known)}, or one of them "
            f"with {TEST}/ for {report.VALIDATION}/"
        )
    most = sweep.max_rounds or rounds
    grace = sweep.grace_rounds or max(1, most // 4)
    if grace > most:
        raise FedRayError(
            f"--grace-rounds {grace}: exceeds the {most} rounds of a trial; lower it or raise --max-rounds"
        )
    mode = MODES.get(metric.rpartition("/")[2], "auto") if sweep.mode == "auto" else sweep.mode
    reason = f"neither more nor less of {metric} is better by itself"
    require(mode != "auto", "metric_mode", mode, reason, "give `metric_mode=max` or `metric_mode=min`")
    scheduler = sweep.scheduler if sweep.scheduler != "auto" else "asha" if sweep.seeds == 1 else "none"
    return dataclasses.replace(
        sweep, metric=metric, mode=mode, scheduler=scheduler, max_rounds=most, grace_rounds=grace
    )


def by_test(metric: str) -> bool:
    """Whether a sweep ranks by test data."""
    return metric.startswith(f"{TEST}/")


def validation_share(metric: str, given: float) -> float:
    """The share of the training examples that a sweep holds out: ``given``, or if that is 0 what the metric needs."""
    return given or (0.0 if by_test(metric) else SHARE)
