"""The clients of a federation as Ray actors: what these are asked, and the states that a successor starts from."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from actors.client import ClientActor, named
from actors.commits import Commits, inherited
from actors.crew import Crew, Question, Recruit
from actors.hosted import Hosted
from actors.machines.cluster import Machine
from actors.machines.seats import Seat
from actors.machines.spread import even
from fedray.arrays import trees
from fedray.federate.messages import ClassLosses, EvalReply, Failure, File, Saved, TrainReply
from fedray.federate.storage import checkpoint_files
from fedray.federate.storage.states import Piece
from fedray.federate.uncertainty.reply import Uncertainty, together
from fedray.types import Sums

CLEAR_SECONDS = 10.0  # for actors to remove what they have on disk

PASSES = 20.0  # evaluations that take about as long as an uncertainty report


class _Asked(NamedTuple):
    """What an actor was asked in a round, and its reply."""

    args: tuple[Any, ...]  # round, clients, reference to what was sent down
    reply: TrainReply


class RayCohort:
    """Client actors, one call per actor and round. It lives in the server actor, which owns them.

    With every training reply an actor also returns the new states of the clients that trained. These stay in the
    object store. The cohort holds only references, which the successor of an actor that dies starts from.
    """

    def __init__(self, hosted: Hosted, folder: str = "", seats: Sequence[Seat] = (), follows: bool = False):
        """``folder`` keeps the clients' states on the actors' disks; without one they stay in memory.

        Every actor has the seat of its slot; without seats Ray places them in the reservation of who asks. A cohort
        that ``follows`` its machines gives up at once where one of them is lost or about to go.
        """
        self._plan = hosted.plan._replace(given=None)  # the actors get the examples as a reference
        self._plan_ref = ray.put(self._plan)
        self.layout = hosted.layout
        self._backend = ray.put(hosted.backend)  # a package is 2 MB
        self._dataset = hosted.dataset
        self._folder = folder
        self._name = hosted.name
        self._committed = [Commits() for _ in self.layout.blocks]
        self._trained: dict[int, _Asked] = {}  # by slot, until its sums are there
        self._units: tuple[int, ...] = ()  # exponents of the last round, which are those of most rounds after it
        self.crew = Crew(self._spawn, self._named, len(self.layout.blocks), seats, hosted.policy, follows)

    def reset(self, hosted: Hosted) -> None:
        """Begin another federation, of as many clients, in the same actors."""
        self._plan = hosted.plan._replace(given=None)
        self.crew.reset(hosted.policy)
        self._plan_ref = ray.put(self._plan)
        self._committed, self._trained = [Commits() for _ in self.layout.blocks], {}
        self._units = ()
        self.crew.ask(Question(ClientActor.reset, self._to_all(self._plan_ref)))

    def wait_until_ready(self) -> bool:
        if self.crew.ready:
            return False
        self.pids()
        return True

    def invite(self, seat: Seat, block: tuple[int, ...]) -> Recruit:
        """Start an actor that is to host these clients, beside those that do now."""
        actor = self._start(seat, block, [])
        return Recruit(actor, seat, block, actor.pid.remote())

    def settle(self, kept: Sequence[int], recruits: Sequence[Recruit]) -> None:
        """Divide the clients evenly among the actors that are kept, by their slots, and recruits; the others end.

        Who hosts a client that is new to it starts from the state that was committed, and commits it on its machine.
        """
        before, blocks = self.layout.blocks, even(self._plan.clients, len(kept) + len(recruits))
        committed = [inherited(self._committed, block) for block in blocks]
        own = [before[slot] for slot in kept] + [()] * len(recruits)
        self.layout = self.layout._replace(blocks=blocks)
        going = self.crew.rearrange(kept, recruits)
        self._committed, self._trained = committed, {}
        moved = {slot: block for slot, block in enumerate(blocks) if block != own[slot]}
        args = {slot: (block, *committed[slot].refs) for slot, block in moved.items()}
        self.crew.ask(Question(ClientActor.host, args, commits=moved))
        self._commit()
        for actor in going:  # until now their machines held the states
            ray.kill(actor)

    @property
    def seats(self) -> Sequence[Seat]:
        """Where each actor is, by its slot; empty where Ray places them."""
        return self.crew.seats

    @property
    def lags(self) -> Mapping[str, float]:
        """How many seconds after the first reply of a round that of each actor came."""
        return self.crew.lags

    def hosted(self, there: Mapping[str, Machine]) -> dict[str, int]:
        """How many clients each machine hosts, by its name."""
        names = [there[seat.machine].name if seat.machine in there else "a lost one" for seat in self.seats]
        count = dict.fromkeys(names, 0)
        for name, block in zip(names, self.layout.blocks, strict=False):
            count[name] += len(block)
        return count

    def report(self, failure: Failure) -> None:
        """Note a failure that the cohort could go on after."""
        self.crew.report(failure)

    def take_failures(self) -> tuple[Failure, ...]:
        """The failures since this was last called."""
        return self.crew.take_failures()

    def restore(self, saved: Saved) -> None:
        """Every actor reads its own clients; one that does not see the folder gets them from here."""
        blocks = dict(enumerate(self.layout.blocks))
        seen = self.crew.ask(Question[bool](ClientActor.load, self._to_all(saved), commits=blocks))
        self._commit()
        initial = self._plan.algorithm.client_init(self._plan.context, self._plan.initial_server())
        for slot in [slot for slot, done in enumerate(seen) if not done]:
            found = list(checkpoint_files.read_clients(saved, blocks[slot], initial))
            if found:
                ids, states = zip(*found, strict=True)
                ref = ray.put(Piece(ids, trees.to_numpy(trees.stack(states))))
                self._committed[slot].add(blocks[slot], ref)
                self.crew.ask(Question(ClientActor.restore, {slot: (ref,)}))

    def close(self) -> None:
        """Stop the actors; states that they keep on their machines' disks go with them, of all that answer in time."""
        if self._folder:
            with contextlib.suppress(RayError):
                ray.wait([actor.clear.remote() for actor in self.crew.actors], num_returns=len(self.crew.actors),
                         timeout=CLEAR_SECONDS)  # fmt: skip
        self.crew.close()

    def train(self, round_number: int, ids: Sequence[int], down: Any) -> list[TrainReply]:
        wanted = set(ids)
        chosen = {slot: [i for i in block if i in wanted] for slot, block in enumerate(self.layout.blocks)}
        chosen = {slot: mine for slot, mine in chosen.items() if mine}
        downs = self._downs(down, ids, list(chosen.values()))
        args = {slot: (round_number, mine, ref) for (slot, mine), ref in zip(chosen.items(), downs, strict=True)}
        leave_out = partial(_left_out, round_number, chosen) if self.crew.policy.skip else None
        adds = isinstance(self._plan.algorithm.aggregate, Sums) and not self._plan.adapting(round_number)
        # Whoever expects the right unit adds at once, which saves a call. With train_all fewer are added than train.
        units = () if self._plan.cfg.train_all or not adds else self._units
        commits = {slot: self._committed[slot].due(mine, self.layout.blocks[slot]) for slot, mine in chosen.items()}
        asked = {slot: (*given, units, commits[slot]) for slot, given in args.items()}
        replies = self.crew.ask(Question(ClientActor.train, asked, round_number, commits=commits, leave_out=leave_out))
        if adds:
            trained = {slot: _Asked(args[slot], reply) for slot, reply in zip(sorted(args), replies, strict=True)}
            self._trained = {slot: found for slot, found in trained.items() if found.reply.ids}
        else:
            self._commit()
        return replies

    def add(self, round_number: int, ids: Sequence[int], exponents: tuple[int, ...]) -> list[Any]:
        wanted = set(ids)
        sums: dict[int, Any] = {}
        asked: dict[int, tuple[Any, ...]] = {}
        for slot, (args, reply) in self._trained.items():
            chosen = [i for i in self.layout.blocks[slot] if i in wanted]
            if exponents == self._units and chosen == list(reply.ids) and reply.sums is not None:
                sums[slot] = reply.sums
            else:
                asked[slot] = (*args, chosen, exponents)
        sums |= zip(sorted(asked), self.crew.ask(Question(ClientActor.add, asked, round_number)), strict=True)
        self._units, self._trained = exponents, {}
        # Only now: until its sums are there, the successor of an actor that dies must train again.
        self._commit()
        return [sums[slot] for slot in sorted(sums)]

    def _commit(self) -> None:
        """From now on successors start from the states that came with the last answers."""
        for slot, (clients, states) in self.crew.release().items():
            self._committed[slot].add(clients, states)

    def evaluate(self, round_number: int, view: Any, spotlight: bool) -> list[EvalReply]:
        args = self._to_all(round_number, ray.put(trees.to_numpy(view)), spotlight)
        return self.crew.ask(Question(ClientActor.evaluate, args, round_number))

    def class_losses(self, round_number: int, view: Any) -> ClassLosses:
        args = self._to_all(round_number, ray.put(trees.to_numpy(view)))
        patience = self._plan.clients  # every actor predicts the test shards of all clients
        return trees.concatenate(
            self.crew.ask(Question(ClientActor.class_losses, args, round_number, patience=patience))
        )

    def uncertainty(self, round_number: int, view: Any, far: torch.Tensor | None) -> Uncertainty:
        args = self._to_all(round_number, ray.put(trees.to_numpy(view)), ray.put(trees.to_numpy(far)))
        question = Question(ClientActor.uncertainty, args, round_number, patience=PASSES)
        return together(self.crew.ask(question))

    def probe(self, score: str, number: int, view: Any, message: Any) -> Iterator[torch.Tensor]:
        args = self._to_all(score, number, ray.put(trees.to_numpy(view)), ray.put(trees.to_numpy(message)))
        return itertools.chain.from_iterable(self.crew.ask(Question(ClientActor.probe, args)))

    def snapshot(self) -> Any:
        return trees.concatenate(self.crew.ask(Question(ClientActor.snapshot, self._to_all())))

    def save(self, folder: str) -> list[File]:
        """Every actor writes its own clients; an actor that does not see the folder hands them over."""
        files: list[File] = []
        try:
            replies = self.crew.ask(Question(ClientActor.save, self._to_all(folder)))
        except RayTaskError as error:
            raise error.cause from None  # the storage's own error, without the actor's trace
        for slot, written in enumerate(replies):
            if written is None:
                ((ids, states),) = self.crew.ask(Question[tuple[list[int], Any]](ClientActor.hand_over, {slot: ()}))
                written = _write(folder, ids, states)
            files += written
        return files

    def pids(self) -> list[int]:
        """The processes that host the clients, in client order; waits until all of them are up."""
        return self.crew.ask(Question(ClientActor.pid, self._to_all(), name="start"))

    def _to_all(self, *args: Any) -> dict[int, tuple[Any, ...]]:
        """The same arguments for every actor."""
        return dict.fromkeys(range(len(self.crew.actors)), args)

    def _downs(self, down: Any, ids: Sequence[int], blocks: Sequence[Sequence[int]]) -> list[Any]:
        """One reference to what is sent down for each block: the same for all, or its clients' rows."""
        if not self._plan.algorithm.down_per_client:
            return [ray.put(trees.to_numpy(down))] * len(blocks)
        place = {client: row for row, client in enumerate(ids)}
        return [ray.put(trees.to_numpy(trees.rows(down, [place[i] for i in block]))) for block in blocks]

    def _spawn(self, slot: int, seat: Seat | None) -> Any:
        return self._start(seat, self.layout.blocks[slot], self._committed[slot].refs)

    def _start(self, seat: Seat | None, block: Sequence[int], committed: Sequence[Any]) -> Any:
        # Without a strategy the actor is captured by the placement group of the server (or of the Tune trial).
        where: dict[str, Any] = {"scheduling_strategy": seat.strategy} if seat else {}
        remote = ray.remote(num_cpus=self.layout.cpus, num_gpus=self.layout.gpus, max_restarts=0, **where)(ClientActor)
        given = (self._plan_ref, block, self._backend, self._dataset, self._folder, *committed)
        return remote.remote(*given, name=self._name)

    def _named(self, slot: int) -> str:
        return named(self.layout.blocks[slot])


def _write(folder: str, ids: Sequence[int], states: Any) -> list[File]:
    """Write states of some clients, a row for each, into a folder."""
    place = {i: row for row, i in enumerate(ids)}
    return checkpoint_files.write_clients(folder, ids, lambda some: trees.rows(states, [place[i] for i in some]))


def _left_out(round_number: int, chosen: Mapping[int, Sequence[int]], slot: int, trouble: Failure) -> TrainReply:
    """The reply of an actor that is given up: all of its clients have failed."""
    failures = tuple(trouble._replace(who=f"client {i}") for i in chosen[slot])
    return TrainReply(round_number, (), None, None, None, failures)
