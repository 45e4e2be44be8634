"""The MLflow runs of the trials of a sweep, below that of the sweep itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedray.config import Experiment, flatten, override, to_dict
from fedray.federate import report
from fedray.federate.planning import resolve
from fedray.running import mlflow_store
from fedray.running.mlflow_store import connect
from fedray.running.tracking import MLflowTracker, NullTracker, Tracker
from fedray.terminal import say
from fedray.types import FedRayError
from tune.options import Sweep, by_test
from tune.planner import Planner
from tune.record import UNFINISHED, outcome_of

KEPT = ("validation/", "train/", "time/", "comm/", "selection/", "failures")  # prefixes of what a trial's run holds
TESTED = ("personal/", "global/")  # and of what it holds only where test data rank the trials


class ParentRun(NamedTuple):
    """The MLflow run of the sweep itself."""

    uri: str  # absolute
    experiment: str
    run_id: str
    name: str  # of the sweep
    algorithm: str


class ChildRun:
    """The run of one trial: retries and resumes continue it, and no step is written twice.

    Measures on test examples stay out of the store, so that nobody chooses by them, unless the sweep ranks by one.
    """

    def __init__(self, tracker: Tracker, last: int, trial: Any, rounds: int, sweep: Sweep):
        """``last`` is the last step that the run holds already."""
        self._tracker = tracker
        self._last = last
        self._trial = trial
        self._rounds = rounds
        self._mutated = sweep.scheduler == "pbt"
        self._kept = (*KEPT, *TESTED) if by_test(sweep.metric) else KEPT

    def add(self, row: Mapping[str, float]) -> None:
        """Log the measures of a round, once."""
        step = int(row["round"])
        if step <= self._last:  # a retry played it again
            return
        self._last = step
        values = {name: value for name, value in row.items() if name.startswith(self._kept)}
        if self._mutated:  # population based training changes settings in mid-run
            settings = {f"config/{name}": value for name, value in self._trial.config.items()}
            values |= {name: value for name, value in settings.items() if isinstance(value, int | float)}
        self._tracker.log(step, values)

    def close(self) -> None:
        """End the run as the trial ended, or was left."""
        text = outcome_of(self._trial, self._rounds)
        if text == UNFINISHED:
            self._tracker.finish("KILLED")
            return
        self._tracker.tag("outcome", text)
        self._tracker.tag(report.PLAYED, str(self._last))
        self._tracker.finish("FAILED" if text.startswith("failed") else "FINISHED")


def child_run(parent: ParentRun | None, base: Experiment, sweep: Sweep, planner: Planner, trial: Any) -> ChildRun:
    """The run of a trial that starts, continued where the store has it; without a parent nothing is recorded."""
    if parent is None:
        return ChildRun(NullTracker(), 0, trial, base.rounds, sweep)
    try:
        return _opened(parent, base, sweep, planner, trial)
    except Exception as error:  # any of a store that was there when the sweep began
        why = str(error) if isinstance(error, FedRayError) else mlflow_store.reason(error)
        say(f"warning: trial {trial.trial_id} is not in the tracking store: {why}")
        return ChildRun(NullTracker(), 0, trial, base.rounds, sweep)


def _opened(parent: ParentRun, base: Experiment, sweep: Sweep, planner: Planner, trial: Any) -> ChildRun:
    cfg, digests = _planned(planner, override(base, trial.config))
    found = find_child(parent, trial.trial_id)
    tags = {
        "mlflow.parentRunId": parent.run_id,
        "fedray.kind": "trial",
        "sweep": parent.name,
        "trial": trial.trial_id,
        "algorithm": parent.algorithm,
        "dataset": cfg.data.name,
        "seed": str(cfg.seed),
    }
    settings = {"algorithm.name": parent.algorithm} | flatten(to_dict(cfg)) | digests
    params: Mapping[str, Any] = {} if found else settings
    name = f"{parent.name}-{trial.trial_id}"
    run_id, step = found or (None, 0)
    tracker = MLflowTracker(
        parent.uri,
        parent.experiment,
        name,
        params,
        tags,
        warn=lambda text: say(f"warning: trial {trial.trial_id}: {text}"),
        run_id=run_id,
    )
    return ChildRun(tracker, step, trial, base.rounds, sweep)


def _planned(planner: Planner, cfg: Experiment) -> tuple[Experiment, dict[str, str]]:
    """The settings and digests of a trial as the store has those of any other run, with which it may be compared."""
    try:
        plan = planner.plan(cfg)
    except FedRayError:  # the trial itself will fail and say so
        return resolve(cfg), {}
    return plan.cfg, dict(plan.digests)


def find_child(parent: ParentRun, trial_id: str) -> tuple[str, int] | None:
    """(run id, last step) of a trial that the store holds already."""
    client = connect(parent.uri)
    experiment = client.get_experiment_by_name(parent.experiment)
    if experiment is None:
        return None
    query = f"tags.`mlflow.parentRunId` = '{parent.run_id}' and tags.trial = '{trial_id}'"
    runs = client.search_runs([experiment.experiment_id], query, max_results=1)
    if not runs:
        return None
    history = client.get_metric_history(runs[0].info.run_id, "time/round_seconds")
    return runs[0].info.run_id, max((metric.step for metric in history), default=0)
