"""The clients that one process hosts: their shards, their private states, and what they can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.arrays import trees
from fedray.data.shards import Shards
from fedray.federate import totals
from fedray.federate.compiled.package import Backend
from fedray.federate.device.numbers import on_device
from fedray.federate.failures import StageError, out_of_memory, stage
from fedray.federate.local_rounds import LocalRounds
from fedray.federate.messages import Failure, TrainReply
from fedray.federate.plan import Plan
from fedray.federate.storage.states import ClientStates, InMemory, OnDisk, rows
from fedray.federate.totals import PendingTerms
from fedray.federate.uploads import bad_rows, not_finite, payload_bytes
from fedray.types import Batch, RunError, Sums


class _Part(NamedTuple):
    """What became of a chunk of clients: the rows that succeeded with their (client, sent, info), and the failures."""

    rows: Sequence[int]
    result: Any
    failures: tuple[Failure, ...]
    up_bytes: int = 0  # of one client's upload


class Block:
    """The shards and private states of some clients; its methods are the whole of what a client can be asked."""

    def __init__(
        self,
        plan: Plan,
        ids: Sequence[int],
        shards: Shards,
        backend: Backend,
        device: str = "cpu",
        folder: str = "",
    ):
        """``folder`` keeps the clients' states on disk; without one they stay in memory."""
        self.ids = tuple(ids)
        self.device = torch.device(device)
        self.plan = plan = on_device(plan, self.device.type == "cuda")
        self.context = plan.context
        client = plan.algorithm.client_init(self.context, plan.initial_server())
        if self.device.type != "cpu":
            shards.convert(self.device)
        self.shards = shards
        self.n: list[int] = shards.sizes.tolist()
        self._row = {i: k for k, i in enumerate(self.ids)}
        longest = max([plan.model.padded, *(leaf.numel() for leaf in trees.leaves(client))])
        self.rounds = LocalRounds(plan, self.ids, shards, backend, self.device, longest)
        # Fresh memory: a state must not alias the server's.
        client = trees.tree_map(lambda leaf: leaf.to(device, copy=True), client)
        where = (client, self.ids, self.device)
        self.private: ClientStates = OnDisk(*where, folder) if folder else InMemory(*where)
        self._terms: list[
            tuple[Sequence[int], PendingTerms]
        ] = []  # of the last round: in rows whose they are, and they
        self._seen: dict[str, int] = {}  # how much of a shard a function of the algorithm looks at, by its name
        self._said: list[Failure] = []  # what this process has dealt with itself in a round

    @property
    def states(self) -> Any:
        """The private states of all hosted clients, stacked [K, ...]: a copy."""
        return rows(self.private, self.ids)

    def data(self, index: Sequence[int], name: str, look: Callable[[Any], object]) -> Batch:
        """The padded training shards of the clients in the given rows, without examples if nobody looks at them.

        Most methods never do, and to gather whole shards costs as much as their small networks. ``look`` calls the
        function of that name on a shard that has nothing but its size.
        """
        if name not in self._seen:
            total = torch.tensor(float(self.n[index[0]]), device=self.device)
            self._seen[name] = self.context.facts.shard if _looks(look, total) else 0
        return self.shards.padded(index, self._seen[name])

    def train(self, round_number: int, ids: Sequence[int], down: Any) -> TrainReply:
        """Run the local steps of the given clients and keep their new private states.

        A client that fails, or whose upload or state is not finite, keeps the state that it had and is a failure.
        """
        self._terms = []
        wanted = [self._row[i] for i in ids]
        parts = [part for at, rows in self._chunks(wanted) for part in self._attempt(round_number, rows, down, at)]
        failures = (*(failure for part in parts for failure in part.failures), *self._said, *self.rounds.said)
        self._said.clear()
        self.rounds.said.clear()
        done = [part for part in parts if part.rows]
        if not done:
            return TrainReply(round_number, (), None, None, None, failures)
        index = [k for part in done for k in part.rows]
        for part in done:
            self.private.replace(round_number, [self.ids[k] for k in part.rows], part.result[0])
        infos = trees.concatenate([part.result[2] for part in done])
        n = torch.tensor([self.n[k] for k in index])
        own = tuple(self.ids[k] for k in index)
        if self.plan.adapting(round_number):  # nobody else learns from a newcomer
            return TrainReply(round_number, own, None, n, infos, failures)
        if not isinstance(self.plan.algorithm.aggregate, Sums):
            ups = trees.concatenate([part.result[1] for part in done])
            return TrainReply(round_number, own, ups, n, infos, failures, up_bytes=done[0].up_bytes)
        self._terms = [(part.rows, part.result[1]) for part in done]
        largest = trees.concatenate([terms.largest for _, terms in self._terms])
        return TrainReply(round_number, own, None, n, infos, failures, largest, done[0].up_bytes)

    def add(self, ids: Sequence[int], exponents: Sequence[int]) -> Any:
        """The partial sums over those of the clients ``ids`` that are hosted here, of the round just trained."""
        wanted = {self._row[i] for i in ids if i in self._row}
        trained = {k for rows, _ in self._terms for k in rows}
        if not self._terms or not wanted <= trained:
            asked, own = (sorted(self.ids[k] for k in some) for some in (wanted, trained))
            raise RunError(f"clients {asked} are to be added, but {own} have trained; this is a fault of FedRay")
        parts = [(terms, [j for j, k in enumerate(rows) if k in wanted]) for rows, terms in self._terms]
        return totals.added([totals.partial_sum(terms, index, exponents) for terms, index in parts])

    def probe(self, score: str, number: int, view: Any, message: Any) -> Iterator[Tensor]:
        """The replies of the hosted clients in a stage of a score, each computed when it is asked for."""
        probe = self.plan.algorithm.scores[score][number].probe
        shard = self.context.facts.shard
        for k in range(len(self.ids)):
            client, data = self.private.row(self.ids[k]), trees.row(self.shards.padded([k], shard), 0)
            with stage(f"probe of {score}", f"client {self.ids[k]}", 0):
                reply = probe(self.context, client, view, message, data).cpu()
            yield reply

    def _chunks(self, wanted: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """(place of the first, rows) of what is computed at a time; the size may change on the way."""
        first = 0
        while first < len(wanted):
            rows = wanted[first : first + self.rounds.stack.size]
            yield first, rows
            first += len(rows)

    def _attempt(self, round_number: int, index: Sequence[int], down: Any, first: int) -> list[_Part]:
        """A chunk; where it fails, its clients one by one, so that each failure has its client.

        A stack that is too large for the memory is played in halves instead.
        """
        who, stack = f"client {self.ids[index[0]]}", self.rounds.stack
        try:
            with stage("train", who, round_number), stack.watched(len(index)):
                clients, ups, infos = self._train_rows(round_number, index, down, first)
                with stage("terms", who, round_number):
                    result = clients, self._sent(round_number, index, ups), infos
        except StageError as error:
            failure = error.failure
            too_large = isinstance(error.__cause__, torch.OutOfMemoryError)
            if len(index) == 1:
                return [_Part([], None, (failure,))]
        else:
            return [self._sorted_out(round_number, index, ups, result)]
        # Outside of the handler: the exception would keep the memory of the stack that failed.
        again = enumerate([k] for k in index)
        if too_large:
            self.rounds.forget()
            self._said.append(out_of_memory(failure, len(index), stack.halve(len(index))))
            again = self._chunks(index)
        return [part for at, rows in again for part in self._attempt(round_number, rows, down, first + at)]

    def _train_rows(self, round_number: int, index: Sequence[int], down: Any, first: int) -> tuple[Any, Any, Any]:
        """One client, or a stack of them; ``first`` is their place among the selected."""
        if self.plan.algorithm.down_per_client:
            down = trees.rows(down, range(first, first + len(index)))
        single = trees.row(down, 0) if self.plan.algorithm.down_per_client else down
        state = self.private.row(self.ids[index[0]])
        alone = partial(self.rounds.without_steps, round_number, state, single)
        data = self.data(index, "train", alone)
        if self.rounds.stacks(len(index)):
            states = rows(self.private, [self.ids[k] for k in index])
            return self.rounds.stacked(round_number, index, states, down, data)
        return self.rounds.single(round_number, index[0], state, single, trees.row(data, 0))

    def _sent(self, round_number: int, index: Sequence[int], ups: Any) -> Any:
        """Stacked uploads as the server needs them: their terms where sums suffice."""
        how = self.plan.algorithm.aggregate
        if not isinstance(how, Sums) or self.plan.adapting(round_number):
            return ups
        n = torch.tensor([self.n[k] for k in index], device=self.device)
        return totals.terms(self.context, how, ups, n)

    def _sorted_out(self, round_number: int, index: Sequence[int], ups: Any, result: Any) -> _Part:
        """The rows of a result whose upload and state are finite, and the failures of the others."""
        up_bytes = payload_bytes(trees.row(ups, 0), self.plan)
        clients, sent, _ = result
        # Terms that are the whole upload are looked at once.
        bad = {} if isinstance(sent, PendingTerms) and sent.values is ups else bad_rows(ups)
        if isinstance(sent, PendingTerms):
            bad = totals.boundless(sent) | bad
        kept = bad_rows(clients)  # more than the upload, which of a newcomer and of a control says nothing
        if not bad and not kept:
            return _Part(index, result, (), up_bytes)
        found = {row: (field, "private state") for row, field in kept.items()}
        found |= {row: (field, "upload") for row, field in bad.items()}
        failures = tuple(not_finite(round_number, self.ids[index[row]], *what) for row, what in sorted(found.items()))
        good = [row for row in range(len(index)) if row not in found]
        return _Part([index[row] for row in good], trees.rows(result, good) if good else None, failures, up_bytes)


def _looks(function: Callable[[Any], Any], total: Tensor) -> bool:
    """Whether a function looks at more of a shard than its size, the only thing in this one, or hands it on."""
    try:
        result = function(SimpleNamespace(total=total))
    except Exception:  # as it may come of what is missing; if not, it comes again
        return True
    return not all(isinstance(leaf, Tensor) for leaf in trees.leaves(result))
