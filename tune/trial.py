"""A trial is a whole federation: Tune's actor is its server, and the client actors share its reservation."""

from __future__ import annotations

from typing import Any, NamedTuple

import ray
from ray import tune as ray_tune

from actors.cohort import RayCohort
from actors.placement import Layout
from fedray import registry
from fedray.config import Experiment, override
from fedray.federate import checkpoint_files, report
from fedray.federate.device.cpu import fix_numerics
from fedray.federate.device.numbers import on_device
from fedray.federate.failures import failure_policy
from fedray.federate.plan import make_plan
from fedray.federate.rounds import play_round, start
from fedray.types import RunError
from tune.options import TEST


class Common(NamedTuple):
    """What all trials of a sweep share."""

    base: Experiment
    layout: Layout
    backend: str
    metric: str
    plug_ins: tuple[str, ...]  # modules that bring names of their own
    dataset: Any  # reference to the loaded dataset: every node gets it once; None: each process loads its own
    timeout: float | None = None  # seconds after which a client actor counts as hanging


class Trial(ray_tune.Trainable):
    """Plays a federation from one evaluation to the next; Tune stops, pauses, copies and restores it in between."""

    def setup(self, config: dict[str, Any], common: Common) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start the clients."""
        fix_numerics()
        registry.plug_in_again(common.plug_ins, "this sweep")
        self._common = common
        self._begin(config)
        self._cohort = RayCohort(self._plan, common.layout, common.backend, common.dataset, self._policy)

    def _begin(self, config: dict[str, Any]) -> None:
        dataset = self._common.dataset
        plan = make_plan(override(self._common.base, config), None if dataset is None else ray.get(dataset))
        self._plan = on_device(plan, self._common.layout.gpus > 0)
        self._policy = failure_policy(self._plan.cfg, self._common.timeout)
        self._state = start(self._plan)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial, or the same with other settings, in the processes that are already there."""
        self._begin(new_config)
        self._cohort.reset(self._plan, self._policy)
        return True

    def step(self) -> dict[str, Any]:
        """Rounds up to the next evaluated one; its measures, and the windowed score that ranks trials.

        Nothing that is measured on test examples decides anything, unless the metric is one of them.
        """
        rounds = self._plan.cfg.rounds
        try:
            while self._state.round < rounds:
                self._state, _ = play_round(self._plan, self._state, self._cohort, self._policy)
                if self._state.rows[-1].keys() & set(report.EVALUATED):
                    break
        except RunError as error:
            # A result, not a fault: if Tune played the trial again, it would end the same way.
            return {"round": self._state.round + 1, "failure": str(error), "done": True}
        values = dict(self._state.rows[-1])
        summary = report.summarize(self._plan, self._state.rows, None, 0.0)
        metric = self._common.metric
        measure = metric.removeprefix(f"{TEST}/")  # as a run calls it
        return values | {
            "round": self._state.round,
            metric: values[measure],  # what a scheduler and a searcher read
            "score": report.mean(report.window(self._state.rows), measure),
            "tested": {kind: summary[kind] for kind in report.KINDS if summary[kind]},  # opened for the winner only
            "done": self._state.round >= rounds,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Server, clients, and the measures so far; in a folder of this machine, from which Tune collects them."""
        checkpoint_files.write(checkpoint_dir, self._plan, self._state, self._cohort.save(checkpoint_dir))

    def load_checkpoint(self, checkpoint_dir: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Go on from a checkpoint of this trial or, in population based training, of a better one."""
        found = checkpoint_files.read(checkpoint_dir, self._plan)
        self._state = found.state
        self._cohort.restore(found.clients)

    def cleanup(self) -> None:
        """Stop the client actors."""
        self._cohort.close()
