"""The client actor: a process that holds the shards and posteriors of one or more clients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem

from fedray.arrays import trees
from fedray.data import loading
from fedray.federate import checkpoint_files, evaluation, loss_deviation
from fedray.federate.block import Block, fix_numerics
from fedray.federate.checkpoint_files import File
from fedray.federate.plan import Plan


class ClientActor:
    """Hosts a block of clients; wrapped by ``ray.remote`` where it is placed.

    Private data is loaded here and never returned: uploads, evaluation sums and the predictive of one test image
    leave, and the private states on the explicit request of a snapshot or to survive this process (a committed state
    stays in the object store of the node, owned by the server actor, until the next round replaces it; a checkpoint
    is a file that this process writes).
    """

    def __init__(
        self,
        plan: Plan,
        ids: Sequence[int],
        backend: str,
        committed: tuple[int, Any] | None = None,
        dataset: loading.Dataset | None = None,
    ):
        fix_numerics()
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._ids, self._backend, self._dataset = ids, backend, dataset
        self.reset(plan)
        if committed is not None:
            self.restore(committed)

    def reset(self, plan: Plan) -> None:
        """Begin a federation, this process's first or another: fresh states, the plan's shards of the same clients."""
        shards = loading.shards(self._load(plan), plan.partition, self._ids)
        self._block = Block(plan, self._ids, shards, self._backend, self._device)
        self._round, self._reply = 0, None

    def _load(self, plan: Plan) -> loading.Dataset:
        """The whole dataset: given to this process, or read from its files and kept no longer than it is used."""
        return plan.dataset(self._dataset)

    def restore(self, committed: tuple[int, Any]) -> None:
        """Take the private states that the hosted clients had after a round."""
        self._round, states = committed
        self._block.states, self._reply = trees.to_torch(states, self._device), None

    def train(self, round: int, ids: Sequence[int], down: Any) -> tuple[Any, tuple[int, Any]]:
        """(reply, committed state) of a round; asked again for the same round, it answers the same."""
        if round != self._round or self._reply is None:
            reply = self._block.train(round, ids, trees.to_torch(down, self._device))
            self._round, self._reply = round, trees.to_numpy(reply)
        return self._reply, (self._round, trees.to_numpy(self._block.states))

    def evaluate(self, round: int, view: Any, spotlight: bool) -> Any:
        """Evaluation sums of every hosted client."""
        return trees.to_numpy(evaluation.evaluate(self._block, round, trees.to_torch(view, self._device), spotlight))

    def class_losses(self, round: int, view: Any) -> Any:
        """Sums by class of the personal models, which stay here, on test examples of all clients that are read here."""
        block, view = self._block, trees.to_torch(view, self._device)
        return trees.to_numpy(loss_deviation.class_losses(block, round, view, self._load(block.plan)))

    def probe(self, score: str, stage: int, view: Any, message: Any) -> Any:
        """The replies of the hosted clients in a stage of a score."""
        view, message = trees.to_torch((view, message), self._device)
        return [trees.to_numpy(reply) for reply in self._block.probe(score, stage, view, message)]

    def snapshot(self) -> Any:
        """The private states of the hosted clients."""
        return trees.to_numpy(self._block.states)

    def save(self, folder: str) -> Sequence[File] | None:
        """Write the hosted clients' private states into a folder; None where this machine does not see it."""
        fs, path = fsspec.url_to_fs(folder)
        if isinstance(fs, LocalFileSystem) and not fs.exists(path):
            return None
        return checkpoint_files.write_clients(folder, self._ids, self._block.states)

    def pid(self) -> int:
        """The process that hosts this actor."""
        return os.getpid()
