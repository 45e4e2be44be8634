"""The clients of a federation as Ray actors, with the recovery of those that die, hang or fail."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import ray
import torch
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError

from actors.client import ClientActor, named
from actors.cluster import Machine, machines
from actors.commits import Commits, inherited
from actors.placement import Layout
from actors.seats import Seat, doomed
from actors.spread import even
from fedray.arrays import trees
from fedray.federate import checkpoint_files
from fedray.federate.compiled.package import Backend
from fedray.federate.failures import RETRY, FailurePolicy, StageError
from fedray.federate.messages import ClassLosses, EvalReply, Failure, File, Saved, TrainReply
from fedray.federate.plan import Plan
from fedray.federate.states import Piece
from fedray.federate.uncertainty.reply import Uncertainty, together
from fedray.terminal import say
from fedray.types import Sums, first_line

PASSES = 20.0  # evaluations that take about as long as an uncertainty report
WATCH_SECONDS = 5.0  # between two looks at the machines of those who have not answered
START_SECONDS = 180.0  # that a new process may take before the clock of --round-timeout runs
LOST = (RayActorError, OutOfMemoryError, ObjectLostError)

Reply = TypeVar("Reply")


class ClientsLostError(Exception):
    """Clients are gone for good, perhaps with their states: the federation must go back to a checkpoint."""


@dataclass(frozen=True)
class Question(Generic[Reply]):
    """A question to some actors: the method to call, its arguments, and what to do with the answers."""

    method: Callable[..., Reply] | Callable[..., tuple[Reply, Piece]]  # of ClientActor
    args: Mapping[int, tuple[Any, ...]]  # of every actor that is asked, by its slot
    round_number: int = 0
    # Of every actor that returns states as a second value, to be committed by who asks: whose they are.
    commits: Mapping[int, Sequence[int]] = field(default_factory=dict)
    patience: float = 1.0  # factor of the time limit of an answer
    leave_out: Callable[[int, Failure], Reply] | None = None  # the reply for an actor that is given up; None: an error
    name: str = ""  # the stage in a failure; by default the name of the method

    @property
    def stage(self) -> str:
        """Where a failure of this question arises."""
        return self.name or self.method.__name__


class Pending(NamedTuple):
    """A call that an actor has not answered yet."""

    slot: int
    states: Any  # reference to the states that come with the reply
    deadline: float | None


class Newcomer(NamedTuple):
    """An actor that is to join a cohort once it is ready."""

    actor: Any
    seat: Seat
    block: tuple[int, ...]  # the clients that it is to host
    ready: Any  # reference to its first answer


class _Trained(NamedTuple):
    """What an actor was asked in a round, and its reply."""

    args: tuple[Any, ...]  # round, clients, reference to what was sent down
    reply: TrainReply


class RayCohort:
    """Client actors, one call per actor and round. It lives in the server actor, which owns them.

    With every training reply an actor also returns the new states of the clients that trained. These stay in the
    object store. The cohort holds only references, which the successor of an actor that dies starts from.
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        backend: Backend,
        dataset: Any = None,
        policy: FailurePolicy = RETRY,
        folder: str = "",
        seats: Sequence[Seat] = (),
        follows: bool = False,
        name: str = "",
    ):
        """``folder`` keeps the clients' states on the actors' disks; without one they stay in memory. ``name`` is the
        run's, by which Ray's dashboard shows the actors.

        Every actor has the seat of its slot; without seats Ray places them in the reservation of who asks. A cohort
        that ``follows`` its machines gives up at once where one of them is lost or about to go.
        """
        if dataset is None and plan.given is not None:
            dataset = ray.put(plan.given)
        self._plan = plan._replace(given=None)  # the actors get it as a reference
        self._plan_ref = ray.put(self._plan)
        self.layout = layout
        self.seats = list(seats)
        self._follows = follows
        self._backend = ray.put(backend)  # a package is 2 MB
        self._dataset = dataset  # reference to the loaded dataset; None: every actor loads it
        self._policy = policy
        self._folder = folder
        self._name = name
        self._committed = [Commits() for _ in layout.blocks]
        self._fresh = set(range(len(layout.blocks)))  # actors that have not answered yet
        self._failures: list[Failure] = []  # since the last take_failures
        self._held: dict[int, tuple[Sequence[int], Any]] = {}  # clients and their states, which are not committed yet
        self._trained: dict[int, _Trained] = {}  # by slot, until its sums are there
        self._units: tuple[int, ...] = ()  # exponents of the last round, which are those of most rounds after it
        self.lags: dict[str, float] = {}  # how many seconds after the first reply that of each actor came
        self.actors = [self._spawn(slot) for slot in range(len(layout.blocks))]

    def reset(self, plan: Plan, policy: FailurePolicy) -> None:
        """Begin another federation, of as many clients, in the same actors."""
        self._plan = plan._replace(given=None)
        self._policy = policy
        self._plan_ref = ray.put(self._plan)
        self._committed = [Commits() for _ in self.layout.blocks]
        self._units = ()
        self._ask(Question(ClientActor.reset, self._to_all(self._plan_ref)))

    def wait_until_ready(self) -> bool:
        if not self._fresh:
            return False
        self.pids()
        return True

    def invite(self, seat: Seat, block: tuple[int, ...]) -> Newcomer:
        """Start an actor that is to host these clients, beside those that do now."""
        actor = self._start(seat, block, [])
        return Newcomer(actor, seat, block, actor.pid.remote())

    def settle(self, kept: Sequence[int], newcomers: Sequence[Newcomer]) -> None:
        """Divide the clients evenly among the actors that are kept, by their slots, and newcomers; the others end.

        Who hosts a client that is new to it starts from the state that was committed, and commits it on its machine.
        """
        before, blocks = self.layout.blocks, even(self._plan.clients, len(kept) + len(newcomers))
        going = [actor for slot, actor in enumerate(self.actors) if slot not in kept]
        committed = [inherited(self._committed, block) for block in blocks]
        own = [before[slot] for slot in kept] + [()] * len(newcomers)
        self.layout = self.layout._replace(blocks=blocks)
        self.seats = [self.seats[slot] for slot in kept] + [newcomer.seat for newcomer in newcomers]
        self.actors = [self.actors[slot] for slot in kept] + [newcomer.actor for newcomer in newcomers]
        self._fresh = {new for new, slot in enumerate(kept) if slot in self._fresh}
        self._committed = committed
        self._trained, self.lags, self._held = {}, {}, {}
        moved = {slot: block for slot, block in enumerate(blocks) if block != own[slot]}
        args = {slot: (block, *committed[slot].refs) for slot, block in moved.items()}
        self._ask(Question(ClientActor.host, args, commits=moved))
        self._commit()
        for actor in going:  # until now their machines held the states
            ray.kill(actor)

    def hosted(self, there: Mapping[str, Machine]) -> dict[str, int]:
        """How many clients each machine hosts, by its name."""
        names = [there[seat.machine].name if seat.machine in there else "a lost one" for seat in self.seats]
        count = dict.fromkeys(names, 0)
        for name, block in zip(names, self.layout.blocks, strict=False):
            count[name] += len(block)
        return count

    def report(self, failure: Failure) -> None:
        """Note a failure that the cohort could go on after."""
        self._failures.append(failure)

    def restore(self, saved: Saved) -> None:
        """Every actor reads its own clients; one that does not see the folder gets them from here."""
        blocks = dict(enumerate(self.layout.blocks))
        seen = self._ask(Question[bool](ClientActor.load, self._to_all(saved), commits=blocks))
        self._commit()
        initial = self._plan.algorithm.client_init(self._plan.context, self._plan.initial_server())
        for slot in [slot for slot, done in enumerate(seen) if not done]:
            found = list(checkpoint_files.read_clients(saved, blocks[slot], initial))
            if found:
                ids, states = zip(*found, strict=True)
                ref = ray.put(Piece(ids, trees.to_numpy(trees.stack(states))))
                self._committed[slot].add(blocks[slot], ref)
                self._ask(Question(ClientActor.restore, {slot: (ref,)}))

    def close(self) -> None:
        """Stop the actors."""
        for actor in self.actors:
            ray.kill(actor)

    def train(self, round_number: int, ids: Sequence[int], down: Any) -> list[TrainReply]:
        wanted = set(ids)
        chosen = {slot: [i for i in block if i in wanted] for slot, block in enumerate(self.layout.blocks)}
        chosen = {slot: mine for slot, mine in chosen.items() if mine}
        downs = self._downs(down, ids, list(chosen.values()))
        args = {slot: (round_number, mine, ref) for (slot, mine), ref in zip(chosen.items(), downs, strict=True)}
        leave_out = partial(_left_out, round_number, chosen) if self._policy.skip else None
        adds = isinstance(self._plan.algorithm.aggregate, Sums) and not self._plan.adapting(round_number)
        # Whoever expects the right unit adds at once, which saves a call. With train_all fewer are added than train.
        units = () if self._plan.cfg.train_all or not adds else self._units
        commits = {slot: self._committed[slot].due(mine, self.layout.blocks[slot]) for slot, mine in chosen.items()}
        asked = {slot: (*given, units, commits[slot]) for slot, given in args.items()}
        replies = self._ask(Question(ClientActor.train, asked, round_number, commits=commits, leave_out=leave_out))
        if adds:
            trained = {slot: _Trained(args[slot], reply) for slot, reply in zip(sorted(args), replies, strict=True)}
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
        sums |= zip(sorted(asked), self._ask(Question(ClientActor.add, asked, round_number)), strict=True)
        self._units, self._trained = exponents, {}
        # Only now: until its sums are there, the successor of an actor that dies must train again.
        self._commit()
        return [sums[slot] for slot in sorted(sums)]

    def _commit(self) -> None:
        """From now on successors start from the states that came with the last answers."""
        for slot, (clients, states) in self._held.items():
            self._committed[slot].add(clients, states)
        self._held = {}

    def evaluate(self, round_number: int, view: Any, spotlight: bool) -> list[EvalReply]:
        args = self._to_all(round_number, ray.put(trees.to_numpy(view)), spotlight)
        return self._ask(Question(ClientActor.evaluate, args, round_number))

    def class_losses(self, round_number: int, view: Any) -> ClassLosses:
        args = self._to_all(round_number, ray.put(trees.to_numpy(view)))
        patience = self._plan.clients  # every actor predicts the test shards of all clients
        return trees.concatenate(self._ask(Question(ClientActor.class_losses, args, round_number, patience=patience)))

    def uncertainty(self, round_number: int, view: Any, far: torch.Tensor | None) -> Uncertainty:
        args = self._to_all(round_number, ray.put(trees.to_numpy(view)), ray.put(trees.to_numpy(far)))
        question = Question(ClientActor.uncertainty, args, round_number, patience=PASSES)
        return together(self._ask(question))

    def probe(self, score: str, number: int, view: Any, message: Any) -> Iterator[torch.Tensor]:
        args = self._to_all(score, number, ray.put(trees.to_numpy(view)), ray.put(trees.to_numpy(message)))
        return itertools.chain.from_iterable(self._ask(Question(ClientActor.probe, args)))

    def snapshot(self) -> Any:
        return trees.concatenate(self._ask(Question(ClientActor.snapshot, self._to_all())))

    def save(self, folder: str) -> list[File]:
        """Every actor writes its own clients; an actor that does not see the folder hands them over."""
        files: list[File] = []
        try:
            replies = self._ask(Question(ClientActor.save, self._to_all(folder)))
        except RayTaskError as error:
            raise error.cause from None  # the storage's own error, without the actor's trace
        for slot, written in enumerate(replies):
            if written is None:
                ((ids, states),) = self._ask(Question[tuple[list[int], Any]](ClientActor.hand_over, {slot: ()}))
                place = {i: k for k, i in enumerate(ids)}
                written = checkpoint_files.write_clients(
                    folder, ids, lambda some, all=states, at=place: trees.rows(all, [at[i] for i in some])
                )
            files += written
        return files

    def pids(self) -> list[int]:
        """The processes that host the clients, in client order; waits until all of them are up."""
        return self._ask(Question(ClientActor.pid, self._to_all(), name="start"))

    def take_failures(self) -> tuple[Failure, ...]:
        """The failures since this was last called."""
        taken = tuple(self._failures)
        self._failures = []
        return taken

    def _to_all(self, *args: Any) -> dict[int, tuple[Any, ...]]:
        """The same arguments for every actor."""
        return dict.fromkeys(range(len(self.actors)), args)

    def _downs(self, down: Any, ids: Sequence[int], blocks: Sequence[Sequence[int]]) -> list[Any]:
        """One reference to what is sent down for each block: the same for all, or its clients' rows."""
        if not self._plan.algorithm.down_per_client:
            return [ray.put(trees.to_numpy(down))] * len(blocks)
        place = {client: row for row, client in enumerate(ids)}
        return [ray.put(trees.to_numpy(trees.rows(down, [place[i] for i in block]))) for block in blocks]

    def _ask(self, question: Question[Reply]) -> list[Reply]:
        """Ask the actors and wait for all; one that dies, hangs or fails is replaced and asked again.

        Replies come back in slot order, which is client order; their memory is ours. Raises ClientsLostError for an
        actor that keeps failing, unless its clients may be left out.
        """
        replies: dict[int, Any] = {}
        attempts = dict.fromkeys(question.args, 1)
        pending = dict(self._submit(slot, question) for slot in question.args)
        first = math.inf
        while pending:
            for reply, trouble in self._wait(pending):
                call = pending.pop(reply)
                slot = call.slot
                answer = None
                if trouble is None:
                    answer, trouble = self._answer(reply, call, attempts[slot], question)
                if trouble is None:
                    replies[slot] = answer
                    first = min(first, time.monotonic())
                    if question.stage == "train":
                        self.lags[self._named(slot)] = time.monotonic() - first
                    continue
                trouble = trouble._replace(round=question.round_number, stage=trouble.stage or question.stage)
                stand_in = self._recover(slot, question, attempts[slot], trouble)
                if stand_in is not None:
                    replies[slot] = stand_in
                    continue
                attempts[slot] += 1
                again, call = self._submit(slot, question)
                pending[again] = call
        # Several replies are copied when they are joined; one alone must not alias the memory that Ray shares.
        own = trees.to_torch if len(replies) == 1 else trees.alias
        return [own(replies[slot]) for slot in sorted(replies)]

    def _submit(self, slot: int, question: Question[Any]) -> tuple[Any, Pending]:
        method = getattr(self.actors[slot], question.method.__name__)
        refs = method.options(num_returns=2 if question.commits else 1).remote(*question.args[slot])
        reply, states = refs if question.commits else (refs, None)
        return reply, Pending(slot, states, self._deadline(slot, question))

    def _deadline(self, slot: int, question: Question[Any]) -> float | None:
        """When an answer is overdue; None if there is no time limit."""
        if self._policy.timeout is None:
            return None
        start_up = START_SECONDS if slot in self._fresh else 0.0
        return time.monotonic() + (self._policy.timeout + start_up) * question.patience

    def _wait(self, pending: Mapping[Any, Pending]) -> list[tuple[Any, Failure | None]]:
        """The next reply that has arrived or, if none does in time, those that are overdue."""
        waits = [call.deadline - time.monotonic() for call in pending.values() if call.deadline is not None]
        waits += [WATCH_SECONDS] if self._follows else []
        ready, _ = ray.wait(list(pending), num_returns=1, timeout=max(0.0, min(waits)) if waits else None)
        if ready:
            return [(ready[0], None)]
        if self._follows:
            self._watch({self.seats[call.slot].machine for call in pending.values()})
        now = time.monotonic()
        late = Failure(0, "", "late", f"no answer within {self._policy.timeout or 0:g} s")
        return [(reply, late) for reply, call in pending.items() if call.deadline is not None and call.deadline <= now]

    def _answer(self, reply: Any, call: Pending, attempt: int, question: Question[Any]) -> tuple[Any, Failure | None]:
        """A reply that has arrived, or the failure that arrived instead."""
        try:
            answer = ray.get(reply)
        except LOST as error:
            return None, Failure(0, "", "lost", f"{type(error).__name__}: {first_line(error)}")
        except RayTaskError as error:
            if isinstance(error.cause, StageError):
                raise error.cause from None
            raise
        self._fresh.discard(call.slot)
        found = answer.failures if isinstance(answer, TrainReply) else ()
        failures = [failure for failure in found if not failure.action]  # the others were dealt with where they arose
        if failures and attempt == 1 and self._policy.attempts > 1:  # twice the same is no accident
            self._failures += [failure._replace(action="asked again") for failure in failures]
            return None, failures[0]
        if call.states is not None:
            self._held[call.slot] = question.commits[call.slot], call.states
        return answer, None

    def _recover(self, slot: int, question: Question[Reply], attempts: int, trouble: Failure) -> Reply | None:
        """Replace an actor by one that starts from its last committed state.

        Returns a reply in its place if it is given up, and None if it is to be asked again.
        """
        named = self._named(slot)
        given_up = attempts >= self._policy.attempts or (trouble.kind == "late" and question.leave_out is not None)
        if given_up and question.leave_out is None:
            raise ClientsLostError(
                f"the actor of {named} did not answer {attempts} times, last because: {trouble.reason}"
            )
        if self._follows:
            machine = machines().get(self.seats[slot].machine)
            if machine is None or not machine.stays:  # Ray would start nothing there
                raise ClientsLostError(f"the actor of {named} was lost, and its machine is gone or going")
        ray.kill(self.actors[slot])
        self.actors[slot] = self._spawn(slot)
        self._fresh.add(slot)
        if given_up and question.leave_out is not None:
            return question.leave_out(slot, trouble)
        if trouble.kind in ("lost", "late"):
            self._failures.append(trouble._replace(who=f"actor of {named}", action="replaced"))
            say(f"actor of {named}: {trouble.kind} in {trouble.stage} ({trouble.reason[:200]}); replaced")
        return None

    def _watch(self, used: Collection[str]) -> None:
        """Raise ClientsLostError where one of these machines, or the server's, may not last to the end of the round."""
        reason = doomed([*used, ray.get_runtime_context().get_node_id()], machines())
        if reason:
            raise ClientsLostError(reason)

    def _spawn(self, slot: int) -> Any:
        seat = self.seats[slot] if self.seats else None
        return self._start(seat, self.layout.blocks[slot], self._committed[slot].refs)

    def _start(self, seat: Seat | None, block: Sequence[int], committed: Sequence[Any]) -> Any:
        # Without a strategy the actor is captured by the placement group of the server (or of the Tune trial).
        where: dict[str, Any] = {"scheduling_strategy": seat.strategy} if seat else {}
        remote = ray.remote(num_cpus=self.layout.cpus, num_gpus=self.layout.gpus, max_restarts=0, **where)(ClientActor)
        given = (self._plan_ref, block, self._backend, self._dataset, self._folder, *committed)
        return remote.remote(*given, name=self._name)

    def _named(self, slot: int) -> str:
        return named(self.layout.blocks[slot])


def _left_out(round_number: int, chosen: Mapping[int, Sequence[int]], slot: int, trouble: Failure) -> TrainReply:
    """The reply of an actor that is given up: all of its clients have failed."""
    failures = tuple(trouble._replace(who=f"client {i}") for i in chosen[slot])
    return TrainReply(round_number, (), None, None, None, failures)
