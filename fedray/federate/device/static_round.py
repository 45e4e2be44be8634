"""The local steps of a stack on buffers that stay where they are, which a CUDA graph can replay.

A small step on a GPU is bound by its launches: some fifty kernels of a few microseconds each. A graph records them once
and launches them together. It replays addresses, not tensors. So whatever changes from step to step lies on the device
before the first step, and a counter there tells the steps apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.arrays import philox, trees
from fedray.data.shards import Kept


class Draws(NamedTuple):
    """What the R steps of K clients are given, besides the data: which examples, and the keys of their noise."""

    rows: Tensor  # [K] of the clients in the data
    at: Tensor  # [R, K, J B] places in the shard
    mask: Tensor  # [R, K, J B] 1 for an example, 0 for padding
    keys: Tensor  # [K, 4] of Philox; [0] where the noise is drawn on the host


class StaticRound:
    """The steps of a stack of K clients on static buffers; on a GPU a graph replays them from the second round on.

    The first round is played as it stands: kernels are chosen and compiled, and the memory that they need is seen.
    """

    def __init__(
        self, step: Callable[..., Any], data: Kept, local: Any, draws: Draws, noise_shape: tuple[int, ...]
    ) -> None:
        self._step = step
        self._data = data
        self._local = trees.tree_map(Tensor.clone, local)
        self._draws = trees.tree_map(Tensor.clone, draws)
        self._noise = torch.empty(len(draws.rows), *noise_shape, device=draws.rows.device)
        self._number = torch.zeros(1, dtype=torch.int64, device=draws.rows.device)
        self._infos: Any = None  # buffers [R, K], made by the first step
        self._graph: torch.cuda.CUDAGraph | None = None
        self._rounds = 0
        self.trouble = ""  # why there is no graph on a GPU

    def play(self, local: Any, draws: Draws, noise: Iterator[Tensor] | None) -> tuple[Any, Any]:
        """(local, infos [R, K]) after all steps; ``noise`` yields that of every step if the host draws it."""
        _write(self._local, local)
        _write(self._draws, draws)
        self._number.zero_()
        if self._rounds == 1 and self._number.is_cuda and torch.cuda.is_available():
            self._capture()
        self._rounds += 1
        run = self._once if self._graph is None else self._graph.replay
        for _ in range(len(draws.at)):
            if noise is not None:
                self._noise.copy_(next(noise))
            run()
        return trees.tree_map(Tensor.clone, (self._local, self._infos))

    def _once(self) -> None:
        """The next step, in operations on tensors only: nothing here may wait for the device."""
        number, draws = self._number, self._draws
        at, mask = (leaf.index_select(0, number)[0] for leaf in (draws.at, draws.mask))
        noise = self._noise
        if len(draws.keys) and noise.numel():
            shape = noise.shape[1:]
            noise = philox.draw(draws.keys, number, math.prod(shape)).view(-1, *shape)
        local, info = self._step(self._local, self._data.minibatch(draws.rows, at, mask), noise)
        _write(self._local, local)
        if self._infos is None:
            self._infos = trees.tree_map(lambda leaf: leaf.new_empty(len(draws.at), *leaf.shape), info)
        trees.tree_map(lambda kept, leaf: kept.index_copy_(0, number, leaf[None]), self._infos, info)
        number += 1

    def _capture(self) -> None:
        """Record a step; where that is not possible, the steps go on one kernel after the other."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._once()
            self._graph = graph
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.trouble = str(error).partition("\n")[0]


def _write(buffers: Any, values: Any) -> None:
    """Copy a tree into buffers; values that lie in another of these buffers are read before it is overwritten."""
    places = trees.leaves(buffers)
    storages = {_storage(place) for place in places}
    ready = []
    for place, value in zip(places, trees.leaves(values), strict=True):
        if _storage(value) == _storage(place) and _layout(value) == _layout(place):
            continue  # a step wrote it in place
        ready.append((place, value.clone() if _storage(value) in storages else value))
    for place, value in ready:
        place.copy_(value, non_blocking=True)


def _storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _layout(x: Tensor) -> tuple[Any, ...]:
    return x.storage_offset(), x.shape, x.stride()
