"""A trial of a sweep: a whole federation, which Tune stops, pauses, copies and restores between its evaluations."""

from __future__ import annotations

from typing import Any, NamedTuple

import ray
from ray import tune as ray_tune

from actors.hosted import Hosted
from actors.machines.placement import Layout
from fedray import registry
from fedray.config import Experiment, override
from fedray.federate import report
from fedray.federate.device.numbers import on_device
from fedray.federate.failures import failure_policy
from fedray.federate.planning import make_plan, resolve
from fedray.federate.storage import checkpoint_files
from fedray.types import FedRayError, RunError
from tune.options import TEST
from tune.processes import Processes


class CommonToTrials(NamedTuple):
    """What all trials of a sweep share."""

    base: Experiment
    layout: Layout  # of the largest federation
    backend: str
    metric: str
    plug_ins: tuple[str, ...]  # modules that bring names of their own
    dataset: Any  # reference to the loaded dataset: every node gets it once; None: each process loads its own
    timeout: float | None = None  # seconds after which a client actor counts as hanging
    name: str = "sweep"  # the sweep's


class Trial(ray_tune.Trainable):
    """Plays a federation from one evaluation to the next."""

    def setup(self, config: dict[str, Any], common: CommonToTrials) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start the clients."""
        registry.plug_in_again(common.plug_ins, "this sweep")
        self._common = common
        self._processes = Processes()
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become a trial, or the same with other settings, in the processes that are already there."""
        common = self._common
        self._refusal = ""
        try:
            cfg = resolve(override(common.base, new_config))  # unresolved, all users would be clients
            plan = make_plan(cfg, None if common.dataset is None else ray.get(common.dataset))
        except FedRayError as error:
            self._refusal = str(error)  # the result of the first step: if Tune began the trial again, it would be alike
            return True
        layout = common.layout.first(plan.clients)
        self._plan = on_device(plan, layout.gpus > 0)
        policy = failure_policy(self._plan.cfg, common.timeout)
        hosted = Hosted(
            self._plan,
            layout,
            common.backend,
            policy,
            common.dataset,
            name=common.name,
            label=f"{common.name}-{self.trial_id}",  # as in the store
        )
        self._server = self._processes.serve(hosted)
        return True

    def step(self) -> dict[str, Any]:
        """Rounds up to the next evaluated one; their measures, and the windowed score that ranks trials.

        Nothing that is measured on test examples decides anything, unless the metric is one of them.
        """
        if self._refusal:
            return {"round": 0, "failure": self._refusal, "done": True}
        server = self._server
        before = server.state.round
        rounds = self._plan.cfg.rounds
        try:
            while server.state.round < rounds:
                server.play()
                if server.state.rows[-1].keys() & set(report.EVALUATED):
                    break
        except RunError as error:
            # A result, not a fault: if Tune played the trial again, it would end the same way.
            rows = [dict(row) for row in server.state.rows[before:]]
            return {"round": server.state.round + 1, "rows": rows, "failure": str(error), "done": True}
        rows = server.state.rows
        summary = report.summarize(self._plan, rows, None)
        metric = self._common.metric
        measure = metric.removeprefix(f"{TEST}/")  # as a run calls it
        return {
            "round": server.state.round,
            "rows": [dict(row) for row in rows[before:]],
            metric: rows[-1][measure],  # what a scheduler and a searcher read
            "score": report.mean(report.window(rows), measure),
            "tested": {kind: summary[kind] for kind in report.KINDS if summary[kind]},  # opened for the winner only
            "done": server.state.round >= rounds,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Server, clients, and the measures so far; in a folder of this machine, from which Tune collects them."""
        if self._refusal:
            return
        server = self._server
        checkpoint_files.write(checkpoint_dir, self._plan, server.state, server.save(checkpoint_dir))

    def load_checkpoint(self, checkpoint_dir: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Go on from a checkpoint of this trial or, in population based training, of a better one."""
        if self._refusal:
            return
        self._server.restore(checkpoint_files.read(checkpoint_dir, self._plan))

    def cleanup(self) -> None:
        """Stop the client actors."""
        self._processes.close()
