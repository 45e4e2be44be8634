"""The client actor: a process that holds the data and private states of one or more clients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedray.arrays import trees
from fedray.data import loading
from fedray.data.shards import Shards
from fedray.federate import evaluation
from fedray.federate.block import Block
from fedray.federate.compiled.package import Backend
from fedray.federate.device.cpu import fix_numerics
from fedray.federate.device.host import leaving
from fedray.federate.device.memory import limit_to
from fedray.federate.device.numbers import set_precision
from fedray.federate.measures import loss_deviation
from fedray.federate.messages import ClassLosses, EvalReply, File, Saved, TrainReply
from fedray.federate.plan import Plan
from fedray.federate.storage.checkpoint_files import sees
from fedray.federate.storage.states import Piece, rows
from fedray.federate.uncertainty import answers
from fedray.federate.uncertainty.reply import Uncertainty


class ClientActor:
    """Hosts a block of clients; wrapped by ``ray.remote`` where it is placed.

    Private data is loaded here and never returned. What leaves: uploads, evaluation sums, the predictive of one test
    image, and the private states, either for a snapshot or to survive this process. Committed states are those of the
    clients that trained, and stay in the node's object store, owned by the server actor, until a later round replaces
    them; states on disk are committed by the names of their files. A checkpoint is a file that this process writes.
    """

    def __init__(
        self,
        plan: Plan,
        ids: Sequence[int],
        backend: Backend,
        dataset: loading.Dataset | None = None,
        folder: str = "",  # of states on disk; empty: they stay in memory
        *committed: Piece,
        name: str = "",  # of the run, for Ray's dashboard and logs
    ):
        fix_numerics()
        self._name = name
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        if self._device == "cuda":
            limit_to(_gpu_share())
        self._ids = ids
        self._backend = backend
        self._dataset = dataset
        self._folder = folder
        self.reset(plan)
        self.restore(*committed)

    def __repr__(self) -> str:
        """As Ray's dashboard and the run's log name this process."""
        return f"{self._name} {named(self._ids)}".strip()

    def reset(self, plan: Plan) -> None:
        """Begin a federation, this process's first or another: fresh states, the plan's shards of the same clients."""
        set_precision(plan.cfg.precision)
        shards = Shards(plan.dataset(self._dataset), plan.partition, self._ids)
        self._block = Block(plan, self._ids, shards, self._backend, self._device, self._folder)
        self._round = 0
        self._reply: Any = None

    def restore(self, *committed: Piece) -> None:
        """Take the private states that the hosted clients had, later pieces over earlier ones."""
        self._block.private.take(committed)
        self._reply = None

    def host(self, ids: Sequence[int], *committed: Piece) -> tuple[None, Piece]:
        """(None, committed states) of other clients, which this process hosts from now on instead of its own."""
        if tuple(ids) != tuple(self._ids):
            self._ids = ids
            self.reset(self._block.plan)
        self.restore(*committed)
        return None, self._block.private.piece(ids)()

    def load(self, saved: Saved) -> tuple[bool, Piece]:
        """(True, committed states) from a checkpoint; False where this machine does not see it."""
        seen = sees(saved.folder)
        if seen:
            self._block.private.load(saved)
            self._reply = None  # of a round that follows from other states
        return seen, self._block.private.piece(self._ids)()

    def train(
        self, round_number: int, ids: Sequence[int], down: Any, exponents: Sequence[int], commit: Sequence[int]
    ) -> tuple[TrainReply, Piece]:
        """(reply, states of ``commit``) of a round; asked again for the same round, it answers the same.

        With exponents, the units that the server expects, the reply has the partial sums over all who trained.
        """
        reply = self._trained(round_number, ids, down)
        piece = self._block.private.piece(commit)  # its numbers travel while the sums are formed
        if exponents and reply.ids:
            reply = reply._replace(sums=trees.to_numpy(self._block.add(reply.ids, exponents)))
        return reply, piece()

    def add(
        self, round_number: int, ids: Sequence[int], down: Any, chosen: Sequence[int], exponents: Sequence[int]
    ) -> Any:
        """Partial sums over ``chosen``, of a round that ends with them.

        A process that took over from one that died has not trained in this round yet: then it does.
        """
        self._trained(round_number, ids, down)
        return trees.to_numpy(self._block.add(chosen, exponents))

    def _trained(self, round_number: int, ids: Sequence[int], down: Any) -> TrainReply:
        """The reply of a round, which this process plays once."""
        if round_number != self._round or self._reply is None:
            reply = self._block.train(round_number, ids, trees.to_torch(down, self._device))
            self._round = round_number
            self._reply = trees.to_numpy(reply)
        return self._reply

    def evaluate(self, round_number: int, view: Any, spotlight: bool) -> EvalReply:
        """Evaluation sums of every hosted client."""
        view = trees.to_torch(view, self._device)
        return trees.to_numpy(evaluation.evaluate(self._block, round_number, view, spotlight))

    def class_losses(self, round_number: int, view: Any) -> ClassLosses:
        """Sums by class of the hosted personal models on the test examples of all clients, which are read here."""
        block = self._block
        view = trees.to_torch(view, self._device)
        return trees.to_numpy(loss_deviation.class_losses(block, round_number, view, block.plan.dataset(self._dataset)))

    def uncertainty(self, round_number: int, view: Any, far: Any) -> Uncertainty:
        """What the uncertainty of the hosted models is good for; test examples of other clients are read here."""
        block = self._block
        view, far = trees.to_torch((view, far), self._device)
        return trees.to_numpy(answers.uncertainty(block, round_number, view, block.plan.dataset(self._dataset), far))

    def probe(self, score: str, number: int, view: Any, message: Any) -> list[Tensor]:
        """The replies of the hosted clients in one stage of a score."""
        view, message = trees.to_torch((view, message), self._device)
        return [trees.to_numpy(reply) for reply in self._block.probe(score, number, view, message)]

    def snapshot(self) -> Any:
        """The private states of the hosted clients."""
        return leaving(self._block.states)()

    def save(self, folder: str) -> list[File] | None:
        """Write the hosted clients' private states into a folder; None where this machine does not see it."""
        return self._block.private.save(folder) if sees(folder) else None

    def clear(self) -> None:
        """Leave no states on this machine's disk."""
        self._block.private.clear()

    def hand_over(self) -> tuple[list[int], Any]:
        """(clients, states) of those hosted clients that have trained."""
        ids = self._block.private.trained
        return ids, leaving(rows(self._block.private, ids))() if ids else None

    def pid(self) -> int:
        """The process that hosts this actor."""
        return os.getpid()


def named(ids: Sequence[int]) -> str:
    """The clients of a block, in words."""
    return f"client {ids[0]}" if len(ids) == 1 else f"clients {ids[0]}-{ids[-1]}"


def _gpu_share() -> float:
    """The part of a GPU that Ray has given this process; all of it outside of an actor."""
    import ray

    resources = ray.get_runtime_context().get_assigned_resources() if ray.is_initialized() else {}
    return resources.get("GPU", 1.0)
