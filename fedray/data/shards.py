"""The examples of the clients that one process hosts: kept once, as the dataset stores them, and tensors where asked.

A shard is a range of positions in these examples. Nothing is padded or stacked before somebody trains on it, so memory
follows the number of examples, not the largest shard times the number of clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.data.partition import Partition
from fedray.data.readers import Dataset
from fedray.types import Batch

CONVERTED_BYTES = 2**28  # of examples as a network's floats: more of them are converted when they are used
FLOAT_BYTES = 4
GATHERED = 2**20  # numbers of minibatches that are gathered at a time

Examples = tuple[Tensor, Tensor]  # x [B, ...], y [B]


class Kept(NamedTuple):
    """The training examples of some clients on one device, one shard after the other."""

    x: Tensor  # [N, ...]
    y: Tensor  # [N]
    start: Tensor  # [K] where each client's begin
    total: Tensor  # [K] n_i

    def minibatch(self, index: Tensor, place: Tensor, weight: Tensor) -> Batch:
        """The examples at the places [K, B] of the clients in the given rows [K], with weights [K, B]."""
        at = self.start[index][:, None] + place
        return Batch(self.x[at], self.y[at], weight, place, self.total[index])


class Shards:
    """The shards of the clients ``ids``, in a network's units; the k-th is that of the k-th client.

    x is float32 and normalised, words replaced by their vectors; y is int64, or float32 and standardised. Labels are
    the dataset's, but where the partition says otherwise.
    """

    def __init__(self, dataset: Dataset, partition: Partition, ids: Sequence[int]):
        dataset = relabelled(dataset, partition)
        parts = [part for part in (partition.train, partition.test, partition.validation) if part]
        lists = [part[i] for part in parts for i in ids]
        positions = np.concatenate(lists)
        ends = np.cumsum([len(positions) for positions in lists], dtype=np.int64).reshape(len(parts), len(ids))
        self._starts = np.concatenate([[0], ends.flatten()[:-1]]).reshape(ends.shape)
        self._ends = ends
        # Advanced indexing copies: of the dataset, which other processes may share, only these examples stay.
        self._raw = dataset._replace(x=dataset.x[positions], y=dataset.y[positions], users=None)
        self._ready: Examples | None = None  # all of them, converted
        if len(positions) * np.prod(dataset.input_shape) * FLOAT_BYTES <= CONVERTED_BYTES:
            self.convert()

    def convert(self, device: torch.device | str = "cpu") -> None:
        """Convert all examples now and keep them on a device, so that nobody has to do it again."""
        x, y = self._ready or examples(self._raw, np.arange(len(self._raw.y)))
        self._ready = x.to(device), y.to(device)
        self._raw = self._raw._replace(x=self._raw.x[:0].copy(), y=self._raw.y[:0].copy())

    @property
    def sizes(self) -> np.ndarray:
        """n_i [K], the numbers of training examples."""
        return self._ends[0] - self._starts[0]

    def labels(self, k: int) -> Tensor:
        """y [n] of the k-th client's training examples, whose inputs are not converted for it."""
        some = slice(int(self._starts[0, k]), int(self._ends[0, k]))
        return _targets(self._raw, self._raw.y[some]) if self._ready is None else self._ready[1][some]

    def test(self, k: int) -> Examples:
        """The k-th client's test examples."""
        return self._part(1, k)

    def validation(self, k: int) -> Examples | None:
        """The k-th client's validation examples; None where nothing is held out."""
        return self._part(2, k) if len(self._ends) > 2 else None

    def padded(self, index: Sequence[int], size: int) -> Batch:
        """Training shards as one batch [K, size, ...] of a length common to all clients, ends filled with zeros.

        ``size`` 0 gives batches without examples, of which only ``total`` n_i can be read.
        """
        rows = np.asarray(index)  # a tuple would index several axes
        n = self.sizes[rows]
        if not size:  # as most methods want it, for every client and round
            return self._none(n)
        place = np.broadcast_to(np.arange(size), (len(n), size))
        weight = place < n[:, None]
        x, y = self._at(self._starts[0, rows][:, None] + np.where(weight, place, 0))
        real = torch.from_numpy(weight).to(x.device)
        x[~real], y[~real] = 0, 0
        at, total = torch.from_numpy(place.copy()), torch.from_numpy(n).float()
        return Batch(x, y, real.float(), at.to(x.device), total.to(x.device))

    def minibatches(self, index: Sequence[int] | int, place: np.ndarray, weight: np.ndarray) -> Iterator[Batch]:
        """The training examples at the places [R, K, B] of the clients in the given rows, with weights [R, K, B]: one
        minibatch after the other. Without the axis K where ``index`` is the row of one client."""
        rows = np.asarray(index)
        device = "cpu" if self._ready is None else self._ready[0].device
        mask, at, total = (torch.as_tensor(array).to(device) for array in (weight, place, self.sizes[rows]))
        total = total.float()
        positions = self._starts[0, rows][..., None] + place
        # Of several steps at a time, for a call costs as much as a small minibatch.
        size = max(1, GATHERED // (math.prod(place.shape[1:]) * math.prod(self._raw.input_shape)))
        for first in range(0, len(place), size):
            some = slice(first, first + size)
            for x, y, real, own in zip(*self._at(positions[some]), mask[some], at[some], strict=True):
                yield Batch(x, y, real, own, total)

    def kept(self, device: torch.device | str) -> Kept:
        """All examples converted, for who picks minibatches on the device."""
        self.convert(device)
        assert self._ready is not None
        start, total = (torch.from_numpy(array.copy()).to(device) for array in (self._starts[0], self.sizes))
        return Kept(*self._ready, start, total.float())

    def _part(self, part: int, k: int) -> Examples:
        first, end = int(self._starts[part, k]), int(self._ends[part, k])
        if self._ready is None:
            return examples(self._raw, np.arange(first, end))
        x, y = self._ready
        return x[first:end], y[first:end]

    def _at(self, positions: np.ndarray) -> Examples:
        """The examples at positions [...] in what is kept here, as memory of the caller's own."""
        if self._ready is None:
            return examples(self._raw, positions)
        x, y = self._ready
        at = torch.from_numpy(positions).to(x.device)
        picked = (part.index_select(0, at.flatten()) for part in (x, y))  # in half the time of x[at]
        x, y = (part.view(*at.shape, *part.shape[1:]) for part in picked)
        return x, y

    def _none(self, n: np.ndarray) -> Batch:
        """Batches without examples of clients that have n [K] training examples."""
        x, y = self._at(np.empty(0, np.int64))
        nothing = torch.zeros(len(n), 0, device=x.device)
        total = torch.from_numpy(n).to(x.device).float()
        return Batch(x.new_empty(len(n), 0, *x.shape[1:]), y.new_empty(len(n), 0), nothing, nothing.long(), total)


def relabelled(dataset: Dataset, partition: Partition) -> Dataset:
    """The dataset with the labels of the partition's protocol, where they are not its own."""
    if partition.relabel is None:
        return dataset
    y = dataset.y.copy()
    y[partition.relabel[:, 0]] = partition.relabel[:, 1]
    return dataset._replace(y=y)


def examples(dataset: Dataset, indices: np.ndarray) -> Examples:
    """The examples of the given positions, x normalised."""
    raw = dataset.x[indices]  # advanced indexing copies: the dataset stays as it is
    x = torch.from_numpy(raw if dataset.vectors is None else dataset.vectors[raw]).float()
    x = x if dataset.scaling is None else dataset.scaling.apply(x)
    return x, _targets(dataset, dataset.y[indices])


def _targets(dataset: Dataset, raw: np.ndarray) -> Tensor:
    y = torch.from_numpy(raw)
    return y if dataset.target is None else dataset.target.apply(y).float()
