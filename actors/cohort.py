"""The clients of a federation as Ray actors, with the recovery of those that die, hang or fail."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import ray
import torch
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError

from actors.client import ClientActor, named
from actors.commits import Commits
from actors.placement import Layout
from fedray.arrays import trees
from fedray.federate import checkpoint_files
from fedray.federate.compiled.package import Backend
from fedray.federate.failures import RETRY, FailurePolicy, StageError
from fedray.federate.messages import ClassLosses, EvalReply, Failure, File, Saved, TrainReply
from fedray.federate.plan import Plan
from fedray.federate.states import Piece
from fedray.terminal import say
from fedray.types import Sums, first_line

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
    # Of every actor that returns states as a second value, to be committed: whose they are.
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
        name: str = "",
    ):
        """``folder`` keeps the clients' states on the actors' disks; without one they stay in memory. ``name`` is the
        run's, by which Ray's dashboard shows the actors."""
        if dataset is None and plan.given is not None:
            dataset = ray.put(plan.given)
        self._plan = plan._replace(given=None)  # the actors get it as a reference
        self._plan_ref = ray.put(self._plan)
        self._layout = layout
        self._backend = ray.put(backend)  # a package is 2 MB
        self._dataset = dataset  # reference to the loaded dataset; None: every actor loads it
        self._policy = policy
        self._folder = folder
        self._name = name
        self._committed = [Commits() for _ in layout.blocks]
        self._fresh = set(range(len(layout.blocks)))  # actors that have not answered yet
        self._failures: list[Failure] = []  # since the last take_failures
        self._trained: dict[int, tuple[Any, ...]] = {}  # the last round's arguments of the actors that trained in it
        self.lags: dict[str, float] = {}  # how many seconds after the first reply that of each actor came
        self.actors = [self._spawn(slot) for slot in range(len(layout.blocks))]

    def reset(self, plan: Plan, policy: FailurePolicy) -> None:
        """Begin another federation, of as many clients, in the same actors."""
        self._plan = plan._replace(given=None)
        self._policy = policy
        self._plan_ref = ray.put(self._plan)
        self._committed = [Commits() for _ in self._layout.blocks]
        self._ask(Question(ClientActor.reset, self._to_all(self._plan_ref)))

    def wait_until_ready(self) -> bool:
        if not self._fresh:
            return False
        self.pids()
        return True

    def restore(self, saved: Saved) -> None:
        """Every actor reads its own clients; one that does not see the folder gets them from here."""
        blocks = dict(enumerate(self._layout.blocks))
        seen = self._ask(Question[bool](ClientActor.load, self._to_all(saved), commits=blocks))
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
        chosen = {slot: [i for i in block if i in wanted] for slot, block in enumerate(self._layout.blocks)}
        chosen = {slot: mine for slot, mine in chosen.items() if mine}
        downs = self._downs(down, ids, list(chosen.values()))
        args = {slot: (round_number, mine, ref) for (slot, mine), ref in zip(chosen.items(), downs, strict=True)}
        leave_out = partial(_left_out, round_number, chosen) if self._policy.skip else None
        adds = isinstance(self._plan.algorithm.aggregate, Sums) and not self._plan.adapting(round_number)
        # Where partial sums are to come, states are committed with them: who dies in between trains again.
        question = Question[TrainReply](ClientActor.train, args, round_number, leave_out=leave_out)
        if not adds:
            question = replace(question, method=ClientActor.train_and_commit, name="train")
            question = self._committing(question, chosen)
        replies = self._ask(question)
        if adds:
            self._trained = {slot: args[slot] for slot, reply in zip(sorted(args), replies, strict=True) if reply.ids}
        return replies

    def add(self, round_number: int, ids: Sequence[int], exponents: Sequence[int]) -> list[Any]:
        wanted = set(ids)
        args = {
            slot: (*trained, [i for i in self._layout.blocks[slot] if i in wanted], exponents)
            for slot, trained in self._trained.items()
        }
        trained = {slot: mine for slot, (_, mine, _) in self._trained.items()}
        return self._ask(self._committing(Question(ClientActor.add, args, round_number), trained))

    def _committing(self, question: Question[Reply], trained: Mapping[int, Sequence[int]]) -> Question[Reply]:
        """The same question, answered together with the states of clients that have trained."""
        commits = {slot: self._committed[slot].due(mine, self._layout.blocks[slot]) for slot, mine in trained.items()}
        args = {slot: (*given, commits[slot]) for slot, given in question.args.items()}
        return replace(question, args=args, commits=commits)

    def evaluate(self, round_number: int, view: Any, spotlight: bool) -> list[EvalReply]:
        args = self._to_all(round_number, ray.put(trees.to_numpy(view)), spotlight)
        return self._ask(Question(ClientActor.evaluate, args, round_number))

    def class_losses(self, round_number: int, view: Any) -> ClassLosses:
        args = self._to_all(round_number, ray.put(trees.to_numpy(view)))
        patience = self._plan.clients  # every actor predicts the test shards of all clients
        return trees.concatenate(self._ask(Question(ClientActor.class_losses, args, round_number, patience=patience)))

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
        deadlines = [call.deadline for call in pending.values() if call.deadline is not None]
        limit = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        ready, _ = ray.wait(list(pending), num_returns=1, timeout=limit)
        if ready:
            return [(ready[0], None)]
        now = time.monotonic()
        late = Failure(0, "", "late", f"no answer within {self._policy.timeout:g} s")
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
            self._committed[call.slot].add(question.commits[call.slot], call.states)
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
        ray.kill(self.actors[slot])
        self.actors[slot] = self._spawn(slot)
        self._fresh.add(slot)
        if given_up and question.leave_out is not None:
            return question.leave_out(slot, trouble)
        if trouble.kind in ("lost", "late"):
            self._failures.append(trouble._replace(who=f"actor of {named}", action="replaced"))
            say(f"actor of {named}: {trouble.kind} in {trouble.stage} ({trouble.reason[:200]}); replaced")
        return None

    def _spawn(self, slot: int) -> Any:
        # No scheduling strategy: the actor is captured by the placement group of the server (or of the Tune trial).
        remote = ray.remote(num_cpus=self._layout.cpus, num_gpus=self._layout.gpus, max_restarts=0)(ClientActor)
        return remote.remote(
            self._plan_ref,
            self._layout.blocks[slot],
            self._backend,
            self._dataset,
            self._folder,
            *self._committed[slot].refs,
            name=self._name,
        )

    def _named(self, slot: int) -> str:
        return named(self._layout.blocks[slot])


def _left_out(round_number: int, chosen: Mapping[int, Sequence[int]], slot: int, trouble: Failure) -> TrainReply:
    """The reply of an actor that is given up: all of its clients have failed."""
    failures = tuple(trouble._replace(who=f"client {i}") for i in chosen[slot])
    return TrainReply(round_number, (), None, None, None, failures)
