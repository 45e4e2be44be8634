"""A trial that plays a run to its end, as a launch does, and leaves its result in the run's folder."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray import tune as ray_tune

from actors.hosted import Hosted
from actors.machines.placement import Layout
from fedray import registry
from fedray.arrays import trees
from fedray.config import Execution
from fedray.federate.device.numbers import on_device
from fedray.federate.failures import failure_policy
from fedray.federate.plan import Plan
from fedray.running import progress, stages
from fedray.running.folder import checkpoint_place, notes
from fedray.running.log import Log
from fedray.running.tracking import NullTracker
from fedray.running.writer import Writer
from fedray.types import FedRayError
from tune.processes import Processes, Served

RUN = "run"  # the only setting of a trial's configuration: the name of its run


class RunTask(NamedTuple):
    """A run as a trial gets it."""

    plan: Plan
    execution: Execution
    folder: Path  # absolute; holds the run's note
    layout: Layout
    dataset: Any  # reference to the loaded dataset


class CommonToRuns(NamedTuple):
    """What all trials share."""

    tasks: Mapping[str, Any]  # references to them, by the names of the runs
    plug_ins: tuple[str, ...]  # modules that bring names of their own


class Relay(NullTracker):
    """Keeps what a run logs until the driver gets it, which alone writes to the store."""

    def __init__(self, run_id: str | None, uri: str):
        self.run_id = run_id
        self.uri = uri
        self._rows: list[dict[str, float]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the measures of a round."""
        self._rows.append({"round": step} | dict(metrics))

    def take(self) -> list[dict[str, float]]:
        """What was logged since this was last called."""
        taken = self._rows
        self._rows = []
        return taken


class RunTrial(ray_tune.Trainable):
    """Plays a run; it goes on from the run's own checkpoints, also where its process was lost."""

    def setup(self, config: dict[str, Any], common: CommonToRuns) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Know the runs; one begins with the first step."""
        registry.plug_in_again(common.plug_ins, "these runs")
        self._common = common
        self._processes = Processes()
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Play another run, in the processes that are already there."""
        self._task: RunTask = ray.get(self._common.tasks[new_config[RUN]])
        self._run: stages.ActiveRun | None = None
        return True

    def step(self) -> dict[str, Any]:
        """Rounds up to the next evaluated one, and their measures; after the last round the result is written."""
        try:
            run = self._run or self._begin()
            while self._server.state.round < run.plan.rounds:
                metrics = trees.to_torch(self._server.play())
                self._tally = stages.account(run, self._tally, metrics)
                if metrics.evaluated and metrics.round < run.plan.rounds:
                    return {"rows": self._relay.take(), "done": False}
            served = Served(self._server, self._task.layout.device)
            outcome = stages.conclude(run, stages.collect(run, served, self._tally))
        except FedRayError as error:
            # A result, not a fault: if Tune played the trial again, it would end the same way.
            return self._failed(str(error))
        return {"rows": self._relay.take(), "summary": outcome.summary, "done": True}

    def _begin(self) -> stages.ActiveRun:
        """Start the clients, from the run's last checkpoint if it has one."""
        plan, execution, folder, layout, dataset = self._task
        if not (folder / notes.NOTE).exists():
            raise FedRayError(
                f"--output {folder.parent}: is not seen from {socket.gethostname()}; give a folder that all machines "
                "see, or let the machine on which you start offer CPUs"
            )
        note = notes.read(str(folder))
        self._relay = Relay(note.run_id, note.execution.tracking.uri)
        request = stages.Request(plan.cfg, execution, resume=str(folder))  # also after the loss of a trial's process
        store = checkpoint_place.store(folder, execution)
        self._run = stages.ActiveRun(plan, request, note.name, Writer(folder, True), self._relay, store, Log(), note)
        run, begun = stages.ready(self._run, layout.gpus > 0)
        run = run._replace(plan=on_device(run.plan, layout.gpus > 0))
        policy = failure_policy(plan.cfg, execution.round_timeout)
        backend = run.package or execution.backend
        hosted = Hosted(run.plan, layout, backend, policy, dataset, store, begun, note.name)
        self._server = self._processes.serve(hosted)
        self._run = run
        self._tally = stages.begin(run, begun)
        return run

    def _failed(self, reason: str) -> dict[str, Any]:
        rows = []
        if self._run is not None:
            progress.end(self._run.folder, "failed")
            self._run.writer.discard()
            rows = self._relay.take()
        return {"rows": rows, "failure": reason, "done": True}

    def cleanup(self) -> None:
        """Stop the client actors."""
        self._processes.close()
