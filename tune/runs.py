"""Runs side by side on the whole cluster: each is a trial, and leaves what a launch leaves, a folder and a tracked run.

The driver alone writes to the tracking store. The servers are on its machine, where that offers CPUs, and write the
checkpoints and results of their runs there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray import tune as ray_tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from actors.machines import demand
from actors.machines.cluster import connect, here
from actors.machines.demand import Cluster
from actors.machines.offer import need_of_trials
from actors.machines.placement import Layout, arrange_trials
from fedray import registry
from fedray.config import Execution
from fedray.data.readers import Dataset
from fedray.federate.failures import ATTEMPTS
from fedray.federate.plan import Plan
from fedray.running import mlflow_store, progress, session, stages
from fedray.running.folder import checkpoint_place, lock, naming, notes
from fedray.running.published.publish import Finished
from fedray.running.side_by_side import Ended, Listener
from fedray.running.tracking import NullTracker, Tracker
from fedray.running.writer import Writer
from fedray.terminal import same_handlers, say
from fedray.types import FedRayError, require
from tune.planner import Planner
from tune.play import Programme
from tune.play import play as play_trials
from tune.record import UNFINISHED, Recorder, failure_of
from tune.run_trial import RUN, CommonToRuns, RunTask, RunTrial


class Entered(NamedTuple):
    """A run that can begin."""

    name: str
    plan: Plan
    execution: Execution  # with absolute addresses
    folder: Path
    dataset: Dataset
    note: notes.Note | None  # of the run that it goes on with


def play(requests: Sequence[stages.Request], tags: Mapping[str, str], at_once: int | None, listen: Listener) -> None:
    """Play requests, each with a name and an output of its own; ``tags`` are added to their tracked runs.

    ``at_once`` is how many runs are played at a time, by default as many as the cluster has room for. Every run that
    ends is told to the listener, whatever comes of it; Ctrl-C raises KeyboardInterrupt once all are stopped. Raises
    FedRayError, before the first run, for what the cluster cannot hold.
    """
    with same_handlers():
        own = connect(requests[0].execution.address)
    try:
        with contextlib.ExitStack() as locks:
            _play({str(request.execution.name): request for request in requests}, tags, at_once, listen, locks)
    finally:
        if own:
            ray.shutdown()


def _play(
    requests: Mapping[str, stages.Request],
    tags: Mapping[str, str],
    at_once: int | None,
    listen: Listener,
    locks: contextlib.ExitStack,
) -> None:
    planner = Planner()
    entered: dict[str, Entered] = {}
    for name, request in requests.items():
        try:
            entered[name] = _enter(request, planner, locks)
        except FedRayError as error:
            listen.ended(Ended(name, None, str(error)))
    if not entered:
        return
    first, most = next(iter(entered.values())).execution, max(run.plan.clients for run in entered.values())
    wanted = need_of_trials(most, at_once or len(entered), demand.wish(first))
    cluster = demand.survey(wanted, first.start_timeout)
    layouts, room = _layouts(entered, at_once, cluster)
    demand.bring_up(max((layout.bundles for layout in layouts.values()), key=len), cluster)
    say(f"{len(entered)} runs, {room} at a time")
    datasets = {id(run.dataset): run.dataset for run in entered.values()}
    references = {key: ray.put(dataset) for key, dataset in datasets.items()}
    tasks = {
        name: ray.put(RunTask(run.plan, run.execution, run.folder, layouts[name], references[id(run.dataset)]))
        for name, run in entered.items()
    }
    with tempfile.TemporaryDirectory(prefix="fedray-trials-") as folder:
        programme = Programme(
            RunTrial,
            CommonToRuns(tasks, registry.plug_ins()),
            {RUN: ray_tune.grid_search(list(tasks))},
            lambda config: layouts[config[RUN]],
            here(),
            BasicVariantGenerator(max_concurrent=room),
            FIFOScheduler(),
            samples=1,
            seed=0,
            folder=Path(folder) / "trials",
            checkpoints=ray_tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            retries=ATTEMPTS - 1,
        )
        recorder = Recorder(lambda trial: _TrackedRun(entered[trial.config[RUN]], tags, listen, trial))
        trials = play_trials(programme, recorder)
    if len(trials) < len(tasks) or any(_failure(trial) == UNFINISHED for trial in trials):
        raise KeyboardInterrupt  # which Tune keeps for itself


def _enter(request: stages.Request, planner: Planner, locks: contextlib.ExitStack) -> Entered:
    """Everything that can be refused before a run begins; raises FedRayError. Its folder stays locked."""
    execution = request.execution
    asked, reason = execution.tracking.system_metrics, "runs side by side share the machines"
    require(not asked, "tracking.system_metrics", asked, reason, "see Ray's dashboard, or launch a run alone")
    folder = naming.place(request.resume, execution.output, str(execution.name))
    locks.enter_context(lock.locked(folder, "--resume" if request.resume else "--output"))
    locks.enter_context(checkpoint_place.locked_place(folder, checkpoint_place.store(folder, execution)))
    note = notes.read(request.resume) if request.resume else None
    Writer(folder, note is not None and notes.holds(folder, note)).discard()
    plan = stages.accepted(request, note, planner.plan)
    for line in stages.announcements(plan, str(execution.name)):
        say(line)
    checkpoints = notes.absolute(execution, "").checkpoint
    execution = dataclasses.replace(execution, output=folder, checkpoint=checkpoints)
    return Entered(str(execution.name), plan, execution, folder, planner.dataset(request.experiment), note)


def _layouts(entered: Mapping[str, Entered], at_once: int | None, cluster: Cluster) -> tuple[dict[str, Layout], int]:
    """The layout of every run, and how many of them are played at a time; raises FedRayError for what cannot fit."""
    found: dict[str, Layout] = {}
    room = 0
    for name, run in entered.items():
        found[name], fits = arrange_trials(
            run.plan.clients,
            len(entered),
            cluster.nodes,
            None if at_once is None else min(at_once, len(entered)),
            demand.wish(run.execution),
            apart=run.execution.round_timeout is not None,
        )
        room = max(room, fits)
    return found, room


class _TrackedRun:
    """The run of a trial in the tracking store, new or continued, and its note in its folder."""

    def __init__(self, entered: Entered, tags: Mapping[str, str], listen: Listener, trial: Any):
        self._name, plan, execution, self._folder, _, note = entered
        self._plan, self._register = plan, execution.register
        self._listen = listen
        self._trial = trial
        self._tracker: Tracker = NullTracker()
        try:
            self._tracker = session.open_tracker(plan, execution, self._name, tags, note)
            uri, run_id = self._tracker.uri, self._tracker.run_id
        except FedRayError as error:  # of a store that was there when the study began
            say(f"warning: {self._name} is not in the tracking store until this command is run again: {error}")
            uri, run_id = mlflow_store.locate(execution.tracking.uri).uri, None
            if note:  # its run is there as far as it came
                execution, run_id = dataclasses.replace(execution, tracking=note.execution.tracking), note.run_id
                uri = note.execution.tracking.uri
        noted = notes.absolute(execution, uri)
        package = note.package if note else None
        own = notes.Note(self._name, plan.cfg, noted, run_id, package, plan.digests)
        notes.write(self._folder, own)

    def add(self, row: Mapping[str, float]) -> None:
        """Log the measures of a round."""
        round_number = int(row["round"])
        self._tracker.log(round_number, {name: value for name, value in row.items() if name != "round"})
        self._listen.reached(self._name, round_number)

    def close(self) -> None:
        """End the run as its trial ended, or was left."""
        failure = _failure(self._trial)
        if failure == UNFINISHED:
            progress.end(self._folder, "interrupted")
            self._tracker.finish("KILLED")
        elif failure:
            if self._trial.status == "ERROR":  # no message of ours: shown whole
                say(str(self._trial.get_error()))
            progress.end(self._folder, "failed")
            self._tracker.finish("FAILED")
            self._listen.ended(Ended(self._name, None, failure))
        else:
            self._tracker.finish("FINISHED", self._folder)
            self._tracker.publish(Finished(self._plan, self._folder, self._register))
            self._listen.ended(Ended(self._name, self._trial.last_result["summary"]))


def _failure(trial: Any) -> str:
    """Why a trial failed; UNFINISHED where it was left, and empty where its result is written."""
    return failure_of(trial) or ("" if "summary" in (trial.last_result or {}) else UNFINISHED)
