"""The clients that one process hosts, and how it runs them: one after the other, stacked, or compiled.

Algorithms are written for one client; here they are stacked from outside. Loop and vmap give bitwise the same result
on CPU for fully connected networks, because draws are keyed by client and round and parameter vectors are padded; to
a tolerance for convolutions, and for products of few multiplications, where PyTorch's kernels differ.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.arrays import philox, trees
from fedray.arrays.fuse import check_compiler, fusing
from fedray.arrays.rng import Passes, Stream
from fedray.data.loading import Shard
from fedray.federate import totals
from fedray.federate.device.memory import Stack, gpu_memory
from fedray.federate.device.numbers import on_device
from fedray.federate.device.static_round import Draws, StaticRound, minibatch
from fedray.federate.failures import StageError, no_graph, out_of_memory, stage
from fedray.federate.messages import Failure, TrainReply
from fedray.federate.plan import Plan
from fedray.federate.totals import Terms
from fedray.federate.uploads import bad_rows, not_finite, payload_bytes
from fedray.nets.model import PARAMETRIC, Model
from fedray.types import Batch, Context, RunError, Sums, require

BACKENDS = ("auto", "loop", "vmap", "graph", "compiled")
# On a CPU stacking saves calls, which matter less the larger the vectors of a client are, and in the end loses the
# cache; the arithmetic is the same, whatever the batch. Stacked convolutions are slower. See docs/performance.md.
SMALL, SMALL_CONVOLUTIONAL = 160_000, 40_000  # numbers in the longest vector of a client: up to here it pays
STACK, CHUNK = 1_300_000, 32  # numbers, and clients, stacked at a time on a CPU
TINY = 400  # multiplications of a product, below which PyTorch computes it in another order alone than in a stack
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def fix_numerics() -> None:
    """Use one thread and flush denormals to zero for the rest of the process's life, as every actor does.

    Second moments that underflow would slow Adam's square root down thirtyfold.
    """
    _keep_freed_memory()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


@contextlib.contextmanager
def numerics() -> Iterator[None]:
    """The numerics of an actor within a process that has other work; restores the caller's thread count."""
    threads = torch.get_num_threads()
    fix_numerics()
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


@functools.cache
def _keep_freed_memory() -> None:
    """Have glibc reuse the memory of freed tensors instead of returning it to the system.

    Every temporary of 128 KB or more would otherwise be mapped, zeroed page by page and unmapped again, which costs
    as much as the arithmetic on it. Elsewhere than on glibc nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest that glibc takes
        mallopt(M_TRIM_THRESHOLD, 1 << 30)


class _Part(NamedTuple):
    """What became of a chunk of clients: the rows that succeeded with their (client, sent, info), and the failures."""

    rows: Sequence[int]
    result: Any
    failures: tuple[Failure, ...]
    up_bytes: int = 0  # of one client's upload


class Block:
    """The shards and private states of some clients; its methods are the whole of what a client can be asked."""

    def __init__(self, plan: Plan, ids: Sequence[int], shards: Sequence[Shard], backend: str, device: str = "cpu"):
        self.ids = tuple(ids)
        self.device = torch.device(device)
        gpu = self.device.type == "cuda"
        self.plan = plan = on_device(plan, gpu)
        require(backend in BACKENDS, "backend", backend, "not a backend", f"choose from {BACKENDS}")
        server = plan.initial_server()
        self.context = plan.context
        client = plan.algorithm.client_init(self.context, server)
        size = max([plan.model.padded, *(leaf.numel() for leaf in trees.leaves(client))])
        small = size <= (SMALL if _linear(plan.model) else SMALL_CONVOLUTIONAL)
        best = "graph" if gpu else "vmap" if small else "loop"
        self.backend = best if backend == "auto" else backend
        self._least = 2 if backend == "auto" and not gpu and _same_alone(plan) else 1  # clients that are worth a stack
        if self.backend == "compiled":
            check_compiler()
        self._static = self.backend == "graph" or (gpu and self.backend == "compiled")
        self._stacks = self._static or self.backend == "vmap"
        most = len(ids) if gpu else min(CHUNK, max(1, STACK // size))
        self.stack = Stack(most, gpu_memory(self.device)) if self._stacks else Stack(1)
        self._rounds: dict[tuple[int, bool], StaticRound] = {}  # by the size of the stack, and whether it adapts
        self._said: list[Failure] = []  # what this process has dealt with itself in a round
        self.n = [len(shard.train_y) for shard in shards]
        cfg = plan.cfg
        self._passes = [Passes(cfg.seed, i, n, cfg.batch_size) for i, n in zip(ids, self.n, strict=True)]
        # Where examples are pooled, the first client has all of them, and the others only evaluate.
        training = [padded(shard, self.context.facts.shard) for shard in shards if len(shard.train_y)]
        self.data: Any = trees.tree_map(lambda leaf: leaf.to(device), trees.stack(training)) if training else None
        self.test = [(shard.test_x.to(device), shard.test_y.to(device)) for shard in shards]
        self.validation = [trees.tree_map(lambda leaf: leaf.to(device), shard.validation) for shard in shards]
        # Fresh memory: a state must not alias the server's, nor be a broadcast view of one client.
        self.states = trees.tree_map(lambda leaf: leaf.to(device).clone(), trees.stack([client] * len(ids)))
        self._terms: tuple[tuple[int, ...], Terms | None] = ((), None)  # of the last round, and whose they are

    def train(self, round_number: int, ids: Sequence[int], down: Any) -> TrainReply:
        """Run the local steps of the given clients and keep their new private states.

        A client that fails, or whose upload is not finite, keeps the state that it had and is among the failures.
        """
        self._terms = ((), None)
        wanted = [self.ids.index(i) for i in ids]
        with fusing() if self.backend == "compiled" and not self._static else contextlib.nullcontext():
            parts = [
                part for first, rows in self._chunks(wanted) for part in self._attempt(round_number, rows, down, first)
            ]
        failures = (*(failure for part in parts for failure in part.failures), *self._said)
        self._said.clear()
        done = [part for part in parts if part.rows]
        if not done:
            return TrainReply(round_number, (), None, None, None, failures)
        index = [k for part in done for k in part.rows]
        clients, sent, infos = (trees.concatenate([part.result[i] for part in done]) for i in range(3))
        self.states = trees.replace_rows(self.states, index, clients)
        n = torch.tensor([self.n[k] for k in index])
        own = tuple(self.ids[k] for k in index)
        if self.plan.adapting(round_number):  # nobody else learns from a newcomer
            return TrainReply(round_number, own, None, n, infos, failures)
        if not isinstance(sent, Terms):
            return TrainReply(round_number, own, sent, n, infos, failures, up_bytes=done[0].up_bytes)
        self._terms = (own, sent)
        return TrainReply(round_number, own, None, n, infos, failures, sent.largest, done[0].up_bytes)

    def add(self, ids: Sequence[int], exponents: Sequence[int]) -> Any:
        """The partial sums over those of the clients ``ids`` that are hosted here, of the round just trained."""
        own, held = self._terms
        mine = [i for i in ids if i in self.ids]
        if held is None or not set(mine) <= set(own):
            raise RunError(f"clients {mine} are to be added, but {list(own)} have trained; this is a fault of FedRay")
        return totals.partial_sum(held, [own.index(i) for i in mine], exponents)

    def _chunks(self, wanted: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """(place of the first, rows) of what is computed at a time; the size may change on the way."""
        first = 0
        while first < len(wanted):
            rows = wanted[first : first + self.stack.size]
            yield first, rows
            first += len(rows)

    def _attempt(self, round_number: int, index: Sequence[int], down: Any, first: int) -> list[_Part]:
        """A chunk; where it fails, its clients one by one, so that each failure has its client.

        A stack that is too large for the memory is played in halves instead.
        """
        try:
            with stage("train", f"client {self.ids[index[0]]}", round_number), self.stack.watched(len(index)):
                clients, ups, infos = self._train_rows(round_number, index, down, first)
                with stage("terms", f"client {self.ids[index[0]]}", round_number):
                    result = clients, self._sent(round_number, index, ups), infos
        except StageError as error:
            failure = error.failure
            too_large = isinstance(error.__cause__, torch.OutOfMemoryError)
            if len(index) == 1:
                return [_Part([], None, (failure,))]
        else:
            return self._sorted_out(round_number, index, ups, result)
        # Outside of the handler: the exception would keep the memory of the stack that failed.
        again = enumerate([k] for k in index)
        if too_large:
            self._rounds.clear()
            self._said.append(out_of_memory(failure, len(index), self.stack.halve(len(index))))
            again = self._chunks(index)
        return [part for at, rows in again for part in self._attempt(round_number, rows, down, first + at)]

    def _sorted_out(self, round_number: int, index: Sequence[int], ups: Any, result: Any) -> list[_Part]:
        """The rows of a result whose upload is finite, and the failures of the others."""
        up_bytes = payload_bytes(trees.row(ups, 0), self.plan)
        bad = bad_rows(ups) or (totals.boundless(result[1]) if isinstance(result[1], Terms) else {})
        if not bad:
            return [_Part(index, result, (), up_bytes)]
        failures = tuple(not_finite(round_number, self.ids[index[row]], field) for row, field in sorted(bad.items()))
        good = [row for row in range(len(index)) if row not in bad]
        return [_Part([index[row] for row in good], trees.rows(result, good) if good else None, failures, up_bytes)]

    def _sent(self, round_number: int, index: Sequence[int], ups: Any) -> Any:
        """Stacked uploads as the server needs them: their terms where sums suffice."""
        how = self.plan.algorithm.aggregate
        if not isinstance(how, Sums) or self.plan.adapting(round_number):
            return ups
        n = torch.tensor([self.n[k] for k in index], device=self.device)
        return totals.terms(self.context, how, ups, n)

    def _train_rows(self, round_number: int, index: Sequence[int], down: Any, first: int) -> tuple[Any, Any, Any]:
        """One client (loop) or a stack of them; ``first`` is their place among the selected."""
        states, data = trees.rows(self.states, index), trees.rows(self.data, index)
        if self.plan.algorithm.down_per_client:
            down = trees.rows(down, range(first, first + len(index)))
        draws = self._draws(round_number, index)
        inside = partial(stage, who=f"client {self.ids[index[0]]}", round_number=round_number)
        if not self._stacks or len(index) < self._least:
            down = trees.row(down, 0) if self.plan.algorithm.down_per_client else down
            one = (trees.row(draw, 0) for draw in draws)
            plain = self._of(round_number, _plain(self.plan, self.context))
            steps = partial(_in_turn, plain[1], one)
            result = _local_round(plain, steps, trees.row(states, 0), down, trees.row(data, 0), inside)
            return trees.tree_map(lambda leaf: leaf[None], result)
        stacked = self._of(round_number, _stacked(self.plan, self.context))
        steps = partial(_in_turn, stacked[1], draws)
        if self._static:
            steps = partial(self._replayed, stacked[1], round_number, index)
        clients, ups, infos = _local_round(stacked, steps, states, down, data, inside)
        return clients, ups, trees.tree_map(lambda leaf: leaf.transpose(0, 1), infos)

    def _of(self, round_number: int, functions: tuple[Callable[..., Any], ...]) -> tuple[Callable[..., Any], ...]:
        """begin, step and finish of a round; a newcomer's step is of its personal factors alone."""
        begin, step, finish, adapt = functions
        return begin, adapt if self.plan.adapting(round_number) else step, finish

    def _replayed(
        self, step: Callable[..., Any], round_number: int, index: Sequence[int], local: Any
    ) -> tuple[Any, Any]:
        """(local, infos) after the steps of a stack on static buffers, kept for the last two sizes of a stack."""
        at, mask = (
            torch.from_numpy(np.stack(arrays)).to(self.device)
            for arrays in zip(*self._picked(round_number, index), strict=True)
        )
        streams = self._streams(round_number, index)
        on_device = self._philox and streams
        keys = philox.keys(streams, self.device) if on_device else torch.empty(0, device=self.device)
        draws = Draws(torch.tensor(list(index), device=self.device), at, mask, keys)
        noise = None if on_device or not streams else self._noise(round_number, index)
        kind = len(index), self.plan.adapting(round_number)
        if kind not in self._rounds:
            if len(index) > max((size for size, _ in self._rounds), default=0):
                self._rounds.clear()  # the stack has grown: nobody asks for its smaller sizes again
            elif len(self._rounds) == 2:
                del self._rounds[next(iter(self._rounds))]
            step = torch.compile(step, dynamic=False) if self.backend == "compiled" else step
            shape = self.plan.algorithm.noise_shape(self.context)
            self._rounds[kind] = StaticRound(step, self.data, local, draws, shape)
        static = self._rounds[kind]
        result = static.play(local, draws, noise)
        if static.trouble:
            self._said.append(no_graph(round_number, len(index), static.trouble))
            static.trouble = ""
        return result

    def _draws(self, round_number: int, index: Sequence[int]) -> Iterator[tuple[Batch, Tensor]]:
        """Minibatches and noise of every local step, stacked over the given rows."""
        return zip(self._batches(round_number, index), self._noise(round_number, index), strict=True)

    def _streams(self, round_number: int, index: Sequence[int]) -> list[Stream]:
        """The streams of the noise of the given rows; none for a method without noise."""
        if 0 in self.plan.algorithm.noise_shape(self.context):
            return []
        return [self.plan.stream("noise", self.ids[k], round_number) for k in index]

    @property
    def _philox(self) -> bool:
        return self.plan.cfg.noise_generator == "philox"

    def _noise(self, round_number: int, index: Sequence[int]) -> Iterator[Tensor]:
        """The noise of every local step, stacked over the given rows."""
        shape = self.plan.algorithm.noise_shape(self.context)
        streams = self._streams(round_number, index)
        if self._philox and streams:
            yield from philox.steps(streams, self.plan.cfg.local_steps, shape, self.device)
            return
        for _ in range(self.plan.cfg.local_steps):
            noise = torch.empty(len(index), *shape)
            for stream, out in zip(streams, noise, strict=False):
                stream.fill_normal(out)
            yield noise.to(self.device)

    def _batches(self, round_number: int, index: Sequence[int]) -> Iterator[Batch]:
        """The minibatches of every local step, stacked over the given rows."""
        for picked, weight in self._picked(round_number, index):
            at, mask = (torch.from_numpy(array).to(self.device) for array in (picked, weight))
            yield minibatch(self.data, torch.tensor(list(index), device=self.device), at, mask)

    def _picked(self, round_number: int, index: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Of every local step: the examples [K, J B] of the given rows, J minibatches one after the other, and their
        weights."""
        cfg = self.plan.cfg
        count = self.plan.algorithm.minibatches(cfg.algorithm)
        for step in range(cfg.local_steps):
            position = ((round_number - 1) * cfg.local_steps + step) * count
            picked = np.zeros((len(index), count, cfg.batch_size), np.int64)
            weight = np.zeros((len(index), count, cfg.batch_size), np.float32)
            for row, k in enumerate(index):
                for j in range(count):
                    chosen = self._passes[k][position + j]
                    picked[row, j, : len(chosen)] = chosen
                    weight[row, j, : len(chosen)] = 1
            yield picked.reshape(len(index), -1), weight.reshape(len(index), -1)

    def probe(self, score: str, number: int, view: Any, message: Any) -> Iterator[Tensor]:
        """The replies of the hosted clients in a stage of a score, each computed when it is asked for."""
        probe = self.plan.algorithm.scores[score][number].probe
        for k in range(len(self.ids)):
            client, data = trees.row(self.states, k), trees.row(self.data, k)
            with stage(f"probe of {score}", f"client {self.ids[k]}", 0):
                reply = probe(self.context, client, view, message, data).cpu()
            yield reply


def padded(shard: Shard, size: int) -> Batch:
    """A client's training shard as one batch of a length common to all clients."""
    n = len(shard.train_y)
    x = torch.zeros(size, *shard.train_x.shape[1:])
    y = torch.zeros(size, dtype=shard.train_y.dtype)
    x[:n], y[:n] = shard.train_x, shard.train_y
    weight = (torch.arange(size) < n).float()
    return Batch(x, y, weight, torch.arange(size), torch.tensor(float(n)))


def _linear(model: Model) -> bool:
    return all(isinstance(layer, nn.Linear) for layer in model.layers if isinstance(layer, PARAMETRIC))


def _same_alone(plan: Plan) -> bool:
    """Whether a client's result is bitwise the same alone and in a stack: of linear layers that are not tiny."""
    products = [plan.cfg.batch_size * math.prod(shape) for shape in plan.model.shapes[::2]]
    return _linear(plan.model) and min(products) >= TINY


def _plain(plan: Plan, ctx: Context[Any]) -> tuple[Callable[..., Any], ...]:
    algorithm = plan.algorithm
    adapt = algorithm.adapt or algorithm.step  # a plan does not hold clients out where there is nothing to adapt
    return tuple(partial(f, ctx) for f in (algorithm.begin, algorithm.step, algorithm.finish, adapt))


def _stacked(plan: Plan, ctx: Context[Any]) -> tuple[Callable[..., Any], ...]:
    begin, step, finish, adapt = _plain(plan, ctx)
    down_axis = 0 if plan.algorithm.down_per_client else None
    return torch.vmap(begin, in_dims=(0, down_axis, 0)), torch.vmap(step), torch.vmap(finish), torch.vmap(adapt)


def _in_turn(step: Callable[..., Any], draws: Iterator[Any], local: Any) -> tuple[Any, Any]:
    """(local, infos [R, ...]) after every step, on the minibatch and noise of each."""
    infos = []
    for batch, noise in draws:
        local, info = step(local, batch, noise)
        infos.append(info)
    return local, trees.stack(infos)


def _local_round(
    functions: tuple[Callable[..., Any], ...],
    steps: Callable[[Any], tuple[Any, Any]],
    client: Any,
    down: Any,
    data: Batch,
    inside: Callable[[str], contextlib.AbstractContextManager[None]],
) -> tuple[Any, Any, Any]:
    """begin, every step, finish: of one client or of a stack, as the functions are; each ``inside`` its stage."""
    begin, _, finish = functions
    with inside("begin"):
        local = trees.tree_map(Tensor.clone, begin(client, down, data))  # steps may write into it
    with inside("step"):
        local, infos = steps(local)
    with inside("finish"):
        client, up = finish(local, data)
    return client, up, infos
