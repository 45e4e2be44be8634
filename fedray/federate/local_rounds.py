"""How a process plays the local rounds of its clients: one after the other, by a compiled step, or stacked.

Algorithms are written for one client; here they are stacked from outside. Loop and vmap give bitwise the same result
on CPU for fully connected networks, because draws are keyed by client and round and parameter vectors are padded; to
a tolerance for convolutions, and for products of few multiplications, where PyTorch's kernels differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.arrays import philox, trees
from fedray.arrays.rng import LANES, Passes, Stream
from fedray.data.shards import Shards
from fedray.federate.compiled.package import Backend, Loaded, Package, load, obtain
from fedray.federate.compiled.unit import own
from fedray.federate.device.memory import Stack, gpu_memory
from fedray.federate.device.static_round import Draws, StaticRound
from fedray.federate.failures import no_graph, stage
from fedray.federate.messages import Failure
from fedray.federate.plan import Plan
from fedray.nets.model import linear, own_module
from fedray.types import Batch, require

BACKENDS = ("auto", "loop", "vmap", "graph", "compiled")
# On a CPU stacking saves calls, which matter less the larger the vectors of a client are, and in the end loses the
# cache; the arithmetic is the same, whatever the batch. Stacked convolutions are slower. See docs/performance.md.
SMALL, SMALL_CONVOLUTIONAL = 160_000, 40_000  # numbers in the longest vector of a client: up to here it pays
STACK, CHUNK = 1_300_000, 32  # numbers, and clients, stacked at a time on a CPU
TINY = 400  # multiplications of a product, below which PyTorch computes it in another order alone than in a stack
NO_BITS = torch.empty(0, 2, LANES, dtype=torch.int32)  # for a step without noise
KEPT = 2  # sizes of a stack for which static buffers are kept


class _Functions(NamedTuple):
    """begin, step and finish of a round, of one client or of a stack."""

    begin: Callable[..., Any]
    step: Callable[..., Any]
    finish: Callable[..., Any]


class LocalRounds:
    """The local rounds of the hosted clients, by the way of computing that was chosen for them."""

    def __init__(
        self, plan: Plan, ids: Sequence[int], shards: Shards, backend: Backend, device: torch.device, longest: int
    ):
        """``longest`` is the length of a client's longest vector, which decides whether stacks pay."""
        self._plan = plan
        self._context = plan.context
        self._ids = ids
        self._shards = shards
        self._device = device
        gpu = device.type == "cuda"
        if isinstance(backend, str):
            require(backend in BACKENDS, "backend", backend, "not a backend", f"choose from {BACKENDS}")
        given = obtain(plan) if backend == "compiled" and not gpu else backend
        self._compiled = load(given, plan) if isinstance(given, Package) and not gpu else None
        named = given if isinstance(given, str) and (gpu or given != "compiled") else "auto"  # without one that fits
        small = longest <= (SMALL if linear(plan.model) else SMALL_CONVOLUTIONAL)
        # Stacked, products of a caller's module may round otherwise: results would depend on how clients are packed.
        small = small and own_module(plan.model) is None
        best = "graph" if gpu else "vmap" if small else "loop"
        self.backend = "compiled" if self._compiled else best if named == "auto" else named
        self._static = self.backend == "graph" or (gpu and self.backend == "compiled")
        stacks = self._static or self.backend == "vmap"
        most = len(ids) if gpu else min(CHUNK, max(1, STACK // longest))
        self.stack = Stack(most, gpu_memory(device)) if stacks else Stack(1)
        self._least = 2 if named == "auto" and not gpu and _same_alone(plan) else 1  # clients that are worth a stack
        self._stacks = stacks
        cfg = plan.cfg
        self._rows = self._context.facts.batch_size
        self._passes = [Passes(cfg.seed, i, n, self._rows) for i, n in zip(ids, shards.sizes.tolist(), strict=True)]
        self._rounds: dict[tuple[int, bool], StaticRound] = {}  # by the size of the stack, and whether it adapts
        self.said: list[Failure] = []  # what went otherwise than it should, without harm

    def stacks(self, clients: int) -> bool:
        """Whether so many clients are computed as a stack."""
        return self._stacks and clients >= self._least

    def forget(self) -> None:
        """Free the buffers that were kept for the next round."""
        self._rounds.clear()

    def without_steps(self, round_number: int, client: Any, down: Any, data: Any) -> Any:
        """A round of one client without steps: (local, client, up)."""
        begin, _, finish = self._functions(round_number)
        local = begin(client, down, data)
        return local, *finish(local, data)

    def single(self, round_number: int, k: int, client: Any, down: Any, data: Batch) -> tuple[Any, Any, Any]:
        """(client, up, infos), each with a first axis of one, of the hosted client in row k."""
        functions = self._functions(round_number)
        if self._compiled and not self._plan.adapting(round_number):
            functions, noise = _compiled(functions, self._compiled), self._bits(round_number, k)
        else:
            noise = (drawn[0] for drawn in self._noise(round_number, [k]))
        place, weight = (picked[:, 0] for picked in self._picked(round_number, [k]))
        batches = self._shards.minibatches(k, place, weight)
        steps = partial(_in_turn, functions.step, zip(batches, noise, strict=True))
        result = self._play(functions, round_number, [k], steps, client, down, data)
        return trees.tree_map(lambda leaf: leaf[None], result)

    def stacked(
        self, round_number: int, index: Sequence[int], clients: Any, down: Any, data: Batch
    ) -> tuple[Any, Any, Any]:
        """(clients, ups, infos) of a stack of the hosted clients in the given rows [K, ...]."""
        stacked = _stacked(self._functions(round_number), self._plan.algorithm.down_per_client)
        if self._static:
            steps = partial(self._replayed, stacked.step, round_number, index)
        else:
            batches = self._shards.minibatches(index, *self._picked(round_number, index))
            noise = self._noise(round_number, index)
            steps = partial(_in_turn, stacked.step, zip(batches, noise, strict=True))
        kept, ups, infos = self._play(stacked, round_number, index, steps, clients, down, data)
        return kept, ups, trees.tree_map(lambda leaf: leaf.transpose(0, 1), infos)

    def _functions(self, round_number: int) -> _Functions:
        """Those of one client; a newcomer's step is of its personal factors alone."""
        algorithm, ctx = self._plan.algorithm, self._context
        # A plan does not hold clients out where there is nothing to adapt.
        step = algorithm.adapt if self._plan.adapting(round_number) and algorithm.adapt else algorithm.step
        return _Functions(partial(algorithm.begin, ctx), partial(step, ctx), partial(algorithm.finish, ctx))

    def _play(
        self,
        functions: _Functions,
        round_number: int,
        index: Sequence[int],
        steps: Callable[[Any], tuple[Any, Any]],
        client: Any,
        down: Any,
        data: Batch,
    ) -> tuple[Any, Any, Any]:
        """begin, every step, finish; a failure names the stage."""
        inside = partial(stage, who=f"client {self._ids[index[0]]}", round_number=round_number)
        with inside("begin"):
            local = own(functions.begin(client, down, data))  # steps may write into it
        with inside("step"):
            local, infos = steps(local)
        with inside("finish"):
            client, up = functions.finish(local, data)
        return client, up, infos

    def _replayed(
        self, step: Callable[..., Any], round_number: int, index: Sequence[int], local: Any
    ) -> tuple[Any, Any]:
        """(local, infos) after the steps of a stack on static buffers."""
        at, mask = (torch.from_numpy(array).to(self._device) for array in self._picked(round_number, index))
        streams = self._streams(round_number, index)
        on_device = bool(streams) and self._plan.cfg.noise_generator == "philox"
        keys = philox.keys(streams, self._device) if on_device else torch.empty(0, device=self._device)
        draws = Draws(torch.tensor(list(index), device=self._device), at, mask, keys)
        noise = None if on_device or not streams else self._noise(round_number, index)
        kind = len(index), self._plan.adapting(round_number)
        if kind not in self._rounds:
            if len(index) > max((size for size, _ in self._rounds), default=0):
                self._rounds.clear()  # the stack has grown: nobody asks for its smaller sizes again
            elif len(self._rounds) == KEPT:
                del self._rounds[next(iter(self._rounds))]
            step = torch.compile(step, dynamic=False) if self.backend == "compiled" else step
            shape = self._plan.algorithm.noise_shape(self._context)
            self._rounds[kind] = StaticRound(step, self._shards.kept(self._device), local, draws, shape)
        static = self._rounds[kind]
        result = static.play(local, draws, noise)
        if static.trouble:
            self.said.append(no_graph(round_number, len(index), static.trouble))
            static.trouble = ""
        return result

    def _streams(self, round_number: int, index: Sequence[int]) -> list[Stream]:
        """The streams of the noise of the given rows; none for a method without noise."""
        if 0 in self._plan.algorithm.noise_shape(self._context):
            return []
        return [self._plan.stream("noise", self._ids[k], round_number) for k in index]

    def _noise(self, round_number: int, index: Sequence[int]) -> Iterator[Tensor]:
        """The noise of every local step, stacked over the given rows."""
        shape, steps = self._plan.algorithm.noise_shape(self._context), self._plan.cfg.local_steps
        streams = self._streams(round_number, index)
        if streams and self._plan.cfg.noise_generator == "philox":
            yield from philox.steps(streams, steps, shape, self._device)
            return
        for _ in range(steps):
            noise = torch.empty(len(index), *shape)
            for stream, out in zip(streams, noise, strict=False):
                stream.fill_normal(out)
            yield noise.to(self._device)

    def _bits(self, round_number: int, k: int) -> Iterator[Tensor]:
        """The random bits of every local step of the client in row k, of which a compiled step makes normals."""
        count = math.prod(self._plan.algorithm.noise_shape(self._context))
        stream = self._plan.stream("noise", self._ids[k], round_number) if count else None
        for _ in range(self._plan.cfg.local_steps):
            yield stream.bits(count) if stream else NO_BITS

    def _picked(self, round_number: int, index: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The places [R, K, J B] of every local step in the shards of the given rows, J minibatches one after the
        other, and their weights."""
        cfg = self._plan.cfg
        steps, count = cfg.local_steps, self._plan.algorithm.minibatches(cfg.algorithm)
        first = (round_number - 1) * steps * count
        picked = np.zeros((steps * count, len(index), self._rows), np.int64)
        weight = np.zeros(picked.shape, np.float32)
        for row, k in enumerate(index):
            for place in range(steps * count):
                chosen = self._passes[k][first + place]
                picked[place, row, : len(chosen)] = chosen
                weight[place, row, : len(chosen)] = 1

        def by_step(array: np.ndarray) -> np.ndarray:
            apart = array.reshape(steps, count, len(index), self._rows)
            return apart.swapaxes(1, 2).reshape(steps, len(index), -1)

        return by_step(picked), by_step(weight)


def _compiled(functions: _Functions, step: Loaded) -> _Functions:
    """Those of one client around a compiled step, for which a state is a list of tensors."""
    return _Functions(
        lambda *args: step.flat(functions.begin(*args)),
        step.step,
        lambda local, data: functions.finish(step.tree(local), data),
    )


def _stacked(functions: _Functions, down_per_client: bool) -> _Functions:
    """Those of a stack, from those of one client."""
    begin, step, finish = functions
    down_axis = 0 if down_per_client else None
    return _Functions(torch.vmap(begin, in_dims=(0, down_axis, 0)), torch.vmap(step), torch.vmap(finish))


def _same_alone(plan: Plan) -> bool:
    """Whether a client's result is bitwise the same alone and in a stack: of linear layers alone that are not tiny."""
    products = [plan.facts.batch_size * math.prod(shape) for shape in plan.model.shapes[::2]]
    return linear(plan.model) and min(products) >= TINY and not plan.algorithm.own_products


def _in_turn(step: Callable[..., Any], draws: Iterator[Any], local: Any) -> tuple[Any, Any]:
    """(local, infos [R, ...]) after every step, on the minibatch and noise of each."""
    infos = []
    for batch, noise in draws:
        local, info = step(local, batch, noise)
        infos.append(info)
    return local, trees.stack(infos)
