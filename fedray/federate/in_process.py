"""Federations: rounds and checkpoints over a cohort; here with all clients in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from fedray.arrays import trees
from fedray.data import loading
from fedray.federate import checkpoint, checkpoint_files, evaluation, loss_deviation
from fedray.federate.block import Block, numerics
from fedray.federate.checkpoint import Store
from fedray.federate.checkpoint_files import Checkpoint, File
from fedray.federate.messages import ClassLosses, Cohort, EvalReply, RoundMetrics, TrainReply
from fedray.federate.plan import Plan
from fedray.federate.rounds import Snapshot, State, play_round, start


def advance(
    plan: Plan, state: State, cohort: Cohort, store: Store | None = None, skip: bool = False
) -> tuple[State, RoundMetrics]:
    """Play the next round, and keep it where the store wants it kept."""
    state, metrics = play_round(plan, state, cohort, skip)
    if store is not None and store.wants(plan, state.round):
        failures = checkpoint.keep(store, plan, state, cohort)
        metrics = metrics._replace(failures=metrics.failures + failures)
    return state, metrics


class LocalCohort:
    """All clients in this process: those of a block, or of the plan's dataset."""

    def __init__(self, plan: Plan, backend: str = "auto", device: str = "cpu", block: Block | None = None):
        self.block = block or _hosted(plan, backend, device)

    def train(self, round: int, ids: Sequence[int], down: Any) -> list[TrainReply]:
        return [self.block.train(round, ids, down)]

    def evaluate(self, round: int, view: Any, spotlight: bool) -> list[EvalReply]:
        return [evaluation.evaluate(self.block, round, view, spotlight)]

    def class_losses(self, round: int, view: Any) -> ClassLosses:
        return loss_deviation.class_losses(self.block, round, view, self.block.plan.dataset())

    def probe(self, score: str, stage: int, view: Any, message: Any) -> Iterator[Tensor]:
        return self.block.probe(score, stage, view, message)

    def snapshot(self) -> Any:
        return self.block.states

    def restore(self, round: int, clients: Any) -> None:
        self.block.states = trees.tree_map(Tensor.clone, clients)

    def save(self, folder: str) -> list[File]:
        return checkpoint_files.write_clients(folder, self.block.ids, self.block.states)


def _hosted(plan: Plan, backend: str, device: str) -> Block:
    ids = range(plan.clients)
    return Block(plan, ids, loading.shards(plan.dataset(), plan.partition, ids), backend, device)


class LocalFederation:
    """A federation in this process, without Ray: iterate over its rounds, then take the snapshot.

    It begins at a checkpoint, if one is given, and keeps its own in the store.
    """

    def __init__(
        self,
        plan: Plan,
        backend: str = "auto",
        device: str = "cpu",
        store: Store | None = None,
        begun: Checkpoint | None = None,
        skip: bool = False,
    ):
        self.plan, self._store, self._skip = plan, store, skip
        self.state = begun.state if begun else start(plan)
        with numerics():
            self.cohort = LocalCohort(plan, backend, device)
        if begun:
            self.cohort.restore(begun.state.round, begun.clients)

    def __enter__(self) -> LocalFederation:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def __iter__(self) -> Iterator[RoundMetrics]:
        while self.state.round < self.plan.rounds:
            with numerics():
                self.state, metrics = advance(self.plan, self.state, self.cohort, self._store, self._skip)
            yield metrics

    def snapshot(self) -> Snapshot:
        """The server's and the clients' states now."""
        return Snapshot(self.state.server, self.cohort.snapshot())

    def class_losses(self) -> ClassLosses:
        """What the loss deviation is made of, of the personal models now."""
        with numerics():
            return self.cohort.class_losses(self.state.round, self.plan.view(self.state.server))

    def history(self) -> State:
        """The server's state with the measures of the rounds so far."""
        return self.state
