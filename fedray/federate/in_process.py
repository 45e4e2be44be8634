"""A federation whose clients all live in this process, without Ray."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedray.data.shards import Shards
from fedray.federate import evaluation
from fedray.federate.block import Block
from fedray.federate.compiled.package import Backend
from fedray.federate.device.cpu import numerics
from fedray.federate.device.host import moved
from fedray.federate.device.numbers import multiplying, on_device
from fedray.federate.failures import FailurePolicy, failure_policy
from fedray.federate.measures import loss_deviation
from fedray.federate.messages import ClassLosses, Cohort, EvalReply, File, RoundMetrics, TrainReply
from fedray.federate.plan import Plan
from fedray.federate.rounds import Snapshot, State, last_common, play_round, start
from fedray.federate.storage import checkpoint
from fedray.federate.storage.checkpoint import CheckpointStore, prepared
from fedray.federate.storage.checkpoint_files import Checkpoint, Saved
from fedray.federate.uncertainty import answers
from fedray.federate.uncertainty.reply import Uncertainty, together


def play_and_keep(
    plan: Plan, state: State, cohort: Cohort, policy: FailurePolicy, store: CheckpointStore | None = None
) -> tuple[State, RoundMetrics]:
    """Play the next round, and write a checkpoint of it if the store wants one."""
    state, metrics = play_round(plan, state, cohort, policy)
    if store is not None and store.wants(plan, state.round):
        began = time.perf_counter()
        failures = checkpoint.keep(store, plan, state, cohort)
        seconds = {**metrics.seconds, "checkpoint": time.perf_counter() - began}
        metrics = metrics._replace(failures=metrics.failures + failures, seconds=seconds)
    return state, metrics


class LocalCohort:
    """All clients in this process: those of a block, or of the plan's dataset."""

    def __init__(
        self, plan: Plan, backend: Backend = "auto", device: str = "cpu", block: Block | None = None, folder: str = ""
    ):
        self.block = block or _hosted(plan, backend, device, folder)

    def wait_until_ready(self) -> bool:
        return False

    def train(self, round_number: int, ids: Sequence[int], down: Any) -> list[TrainReply]:
        return [moved(self.block.train(round_number, ids, self._there(down)), "cpu")]

    def add(self, round_number: int, ids: Sequence[int], exponents: Sequence[int]) -> list[Any]:
        return [self.block.add(ids, exponents)]

    def evaluate(self, round_number: int, view: Any, spotlight: bool) -> list[EvalReply]:
        return [evaluation.evaluate(self.block, round_number, self._there(view), spotlight)]

    def class_losses(self, round_number: int, view: Any) -> ClassLosses:
        return loss_deviation.class_losses(self.block, round_number, self._there(view), self.block.plan.dataset())

    def uncertainty(self, round_number: int, view: Any, far: Tensor | None) -> Uncertainty:
        found = answers.uncertainty(self.block, round_number, self._there(view), self.block.plan.dataset(), far)
        return together([found])

    def probe(self, score: str, number: int, view: Any, message: Any) -> Iterator[Tensor]:
        return self.block.probe(score, number, *self._there((view, message)))

    def _there(self, tree: Any) -> Any:
        """What the server sends, on the clients' device; the server itself computes on the CPU."""
        return moved(tree, self.block.device)

    def snapshot(self) -> Any:
        return moved(self.block.states, "cpu")

    def restore(self, saved: Saved) -> None:
        self.block.private.load(saved)

    def save(self, folder: str) -> list[File]:
        return self.block.private.save(folder)


def _hosted(plan: Plan, backend: Backend, device: str, folder: str) -> Block:
    ids = range(plan.clients)
    return Block(plan, ids, Shards(plan.dataset(), plan.partition, ids), backend, device, folder)


class LocalFederation:
    """A federation in this process: iterate over its rounds, then take the snapshot.

    It starts from the checkpoint ``begun`` if one is given, and writes its own to the store.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend = "auto",
        device: str = "cpu",
        store: CheckpointStore | None = None,
        begun: Checkpoint | None = None,
    ):
        gpu = torch.device(device).type == "cuda"
        self.device = torch.cuda.get_device_name() if gpu else "cpu"
        self.plan = plan = on_device(plan, gpu)
        self._store = store
        self._policy = failure_policy(plan.cfg)
        self.state = begun.state if begun else start(plan)
        with numerics():
            self.cohort = LocalCohort(plan, backend, device, folder=prepared(store))
        if begun:
            self.cohort.restore(begun.clients)

    def __enter__(self) -> LocalFederation:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def __iter__(self) -> Iterator[RoundMetrics]:
        while self.state.round < self.plan.rounds:
            with numerics(), multiplying(self.plan.cfg.precision):
                self.state, metrics = play_and_keep(self.plan, self.state, self.cohort, self._policy, self._store)
            yield metrics

    def snapshot(self) -> Snapshot:
        """The server's and the clients' states now."""
        return Snapshot(self.state.server, self.cohort.snapshot())

    def save(self, folder: str) -> list[File]:
        """Write the clients' states into a folder, and list the files."""
        return self.cohort.save(folder)

    def class_losses(self) -> ClassLosses:
        """What the loss deviation is made of, of the personal models now."""
        with numerics(), multiplying(self.plan.cfg.precision):
            return self.cohort.class_losses(self.state.round, self.plan.view(self.state.server))

    def uncertainty(self, far: Tensor | None = None) -> Uncertainty:
        """What the uncertainty of the members' models now is good for; ``far`` are examples of another dataset."""
        with numerics(), multiplying(self.plan.cfg.precision):
            return self.cohort.uncertainty(last_common(self.plan, self.state), self.plan.view(self.state.server), far)

    def history(self) -> State:
        """The server's state with the measures of the rounds so far."""
        return self.state
