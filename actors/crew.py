"""Actors that are asked together, each in a slot of its own, with the recovery of those that die, hang or fail."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import ray
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayError, RayTaskError

from actors.machines.cluster import machines
from actors.machines.seats import Seat, doomed
from fedray.arrays import trees
from fedray.federate.failures import ClientsLostError, FailurePolicy, StageError
from fedray.federate.messages import Failure, TrainReply
from fedray.federate.storage.states import Piece
from fedray.terminal import say
from fedray.types import FedRayError, RunError, first_line

WATCH_SECONDS = 5.0  # between two looks at the machines of those who have not answered
START_SECONDS = 180.0  # that a new process may take before the clock of --round-timeout runs
LOST = (RayActorError, OutOfMemoryError, ObjectLostError)

Reply = TypeVar("Reply")


def refusal(error: RayError) -> str:
    """What our own code refused as an actor started, which no other start would change; empty for anything else.

    Of such an error Ray passes on the printed traceback only.
    """
    kind, _, reason = str(error).rstrip().rpartition("\n")[2].partition(": ")
    return reason if isinstance(error, RayActorError) and kind.startswith(f"{FedRayError.__module__}.") else ""


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


class Recruit(NamedTuple):
    """An actor that is to join a cohort once it is ready."""

    actor: Any
    seat: Seat
    block: tuple[int, ...]  # the clients that it is to host
    ready: Any  # reference to its first answer


class Held(NamedTuple):
    """States that came with an answer."""

    clients: Sequence[int]
    states: Any  # reference to them


class Crew:
    """The actors of a cohort, by their slots."""

    def __init__(
        self,
        start: Callable[[int, Seat | None], Any],
        named: Callable[[int], str],
        size: int,
        seats: Sequence[Seat],
        policy: FailurePolicy,
        follows: bool,
    ):
        """``start`` makes the actor of a slot, on its seat, and ``named`` says in words what it hosts.

        Without seats Ray places actors in the reservation of who asks. A crew that ``follows`` its machines gives up at
        once where one of them is lost or about to go.
        """
        self._start = start
        self._named = named
        self._follows = follows
        self.policy = policy
        self.seats = list(seats)
        self._held: dict[int, Held] = {}  # by slot, since the last release
        self.lags: dict[str, float] = {}  # how many seconds after the first reply that of each actor came
        self._fresh = set(range(size))  # actors that have not answered yet
        self._failures: list[Failure] = []  # since the last take_failures
        self.actors = [self._spawn(slot) for slot in range(size)]

    @property
    def ready(self) -> bool:
        """Whether every actor has answered since it was started."""
        return not self._fresh

    def reset(self, policy: FailurePolicy) -> None:
        """Begin another federation: the states, failures and times of the last one are none of its own."""
        self.policy = policy
        self._held, self._failures, self.lags = {}, [], {}

    def report(self, failure: Failure) -> None:
        """Note a failure that the federation could go on after."""
        self._failures.append(failure)

    def take_failures(self) -> tuple[Failure, ...]:
        """The failures since this was last called."""
        taken = tuple(self._failures)
        self._failures = []
        return taken

    def release(self) -> dict[int, Held]:
        """The states that came with the last answers, which are not kept any longer."""
        held, self._held = self._held, {}
        return held

    def rearrange(self, kept: Sequence[int], recruits: Sequence[Recruit]) -> list[Any]:
        """Keep the actors of some slots, in this order, and recruits behind them; returns the others, still alive."""
        going = [actor for slot, actor in enumerate(self.actors) if slot not in kept]
        self.seats = [self.seats[slot] for slot in kept] + [recruit.seat for recruit in recruits]
        self.actors = [self.actors[slot] for slot in kept] + [recruit.actor for recruit in recruits]
        self._fresh = {new for new, slot in enumerate(kept) if slot in self._fresh}
        self._held, self.lags = {}, {}
        return going

    def close(self) -> None:
        """Stop the actors."""
        for actor in self.actors:
            ray.kill(actor)

    def ask(self, question: Question[Reply]) -> list[Reply]:
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
        if self.policy.timeout is None:
            return None
        start_up = START_SECONDS if slot in self._fresh else 0.0
        return time.monotonic() + (self.policy.timeout + start_up) * question.patience

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
        late = Failure(0, "", "late", f"no answer within {self.policy.timeout or 0:g} s")
        return [(reply, late) for reply, call in pending.items() if call.deadline is not None and call.deadline <= now]

    def _answer(self, reply: Any, call: Pending, attempt: int, question: Question[Any]) -> tuple[Any, Failure | None]:
        """A reply that has arrived, or the failure that arrived instead."""
        try:
            answer = ray.get(reply)
        except LOST as error:
            if refused := refusal(error):
                raise FedRayError(f"the actor of {self._named(call.slot)} could not start: {refused}") from None
            return None, Failure(0, "", "lost", f"{type(error).__name__}: {first_line(error)}")
        except RayTaskError as error:
            if isinstance(error.cause, StageError) and attempt == 1 and self.policy.attempts > 1:
                self._failures.append(error.cause.failure._replace(action="asked again"))
                return None, error.cause.failure
            if isinstance(error.cause, RunError):
                raise error.cause from None
            raise
        self._fresh.discard(call.slot)
        found = answer.failures if isinstance(answer, TrainReply) else ()
        failures = [failure for failure in found if not failure.action]  # the others were dealt with where they arose
        if failures and attempt == 1 and self.policy.attempts > 1:  # twice the same is no accident
            self._failures += [failure._replace(action="asked again") for failure in failures]
            return None, failures[0]
        if call.states is not None:
            self._held[call.slot] = Held(question.commits[call.slot], call.states)
        return answer, None

    def _recover(self, slot: int, question: Question[Reply], attempts: int, trouble: Failure) -> Reply | None:
        """Replace an actor by one that starts from its last committed state.

        Returns a reply in its place if it is given up, and None if it is to be asked again.
        """
        named = self._named(slot)
        given_up = attempts >= self.policy.attempts or (trouble.kind == "late" and question.leave_out is not None)
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
        return self._start(slot, self.seats[slot] if self.seats else None)
