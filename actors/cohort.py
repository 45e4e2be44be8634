"""The clients of a federation as Ray actors, with the recovery of those that die, hang or fail."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import ray
import torch
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError

from actors.client import ClientActor
from actors.placement import Layout
from fedray.arrays import trees
from fedray.federate import checkpoint_files
from fedray.federate.checkpoint_files import File
from fedray.federate.messages import ClassLosses, EvalReply, Failure, TrainReply
from fedray.federate.plan import Plan

ATTEMPTS = 4  # times that one call is given to an actor before the cohort gives up
START_SECONDS = 180.0  # that a new process may take before the clock of --round-timeout runs
LOST = (RayActorError, OutOfMemoryError, ObjectLostError)


class Policy(NamedTuple):
    """What is done about a client that fails (retry, skip, abort), and when it counts as hanging (seconds)."""

    on_failure: str = "retry"
    timeout: float | None = None


class ClientsLostError(Exception):
    """Clients are gone for good, and with them perhaps their states: only a checkpoint can help."""


class Call(NamedTuple):
    """A call that an actor has not answered yet."""

    slot: int
    state: Any  # reference to the states that come with the reply
    deadline: float | None


class RayCohort:
    """Client actors, one call per actor and round; lives in the server actor, which owns them.

    With every training reply an actor also returns its clients' new states. These stay in the object store: the
    cohort holds the reference only, and gives it to the successor of an actor that dies.
    """

    def __init__(self, plan: Plan, layout: Layout, backend: str, dataset: Any = None, policy: Policy | None = None):
        if dataset is None and plan.given is not None:
            dataset = ray.put(plan.given)
        plan = plan._replace(given=None)  # the actors get it as a reference
        self._plan, self._plan_ref, self._layout, self._backend = plan, ray.put(plan), layout, backend
        self._dataset = dataset  # reference to the loaded dataset; None: every actor loads it
        self._policy = policy or Policy()
        self._attempts = 1 if self._policy.on_failure == "abort" else ATTEMPTS
        self._committed: list[Any] = [None] * len(layout.blocks)
        self._fresh = set(range(len(layout.blocks)))  # actors that have not answered yet
        self._failures: list[Failure] = []  # since they were last taken
        self.lags: dict[str, float] = {}  # seconds that every actor's last training reply came after the first
        self.actors = [self._spawn(slot) for slot in range(len(layout.blocks))]

    def reset(self, plan: Plan) -> None:
        """Begin another federation of the same number of clients in the same actors."""
        plan = plan._replace(given=None)
        self._plan, self._plan_ref = plan, ray.put(plan)
        self._committed = [None] * len(self._layout.blocks)
        self._ask_all("reset", self._plan_ref)

    def restore(self, round: int, clients: Any) -> None:
        """Give every client the private state [N, ...] that it had after a round."""
        for slot, block in enumerate(self._layout.blocks):
            self._committed[slot] = ray.put((round, trees.to_numpy(trees.rows(clients, block))))
        self._ask("restore", {slot: (ref,) for slot, ref in enumerate(self._committed)})

    def close(self) -> None:
        """Stop the actors."""
        for actor in self.actors:
            ray.kill(actor)

    def train(self, round: int, ids: Sequence[int], down: Any) -> list[TrainReply]:
        wanted = set(ids)
        chosen = [[i for i in block if i in wanted] for block in self._layout.blocks]
        slots = [slot for slot, mine in enumerate(chosen) if mine]
        downs = self._downs(down, ids, [chosen[slot] for slot in slots])
        calls = {slot: (round, chosen[slot], ref) for slot, ref in zip(slots, downs, strict=True)}
        return self._ask("train", calls)

    def evaluate(self, round: int, view: Any, spotlight: bool) -> list[EvalReply]:
        return self._ask_all("evaluate", round, ray.put(trees.to_numpy(view)), spotlight)

    def class_losses(self, round: int, view: Any) -> ClassLosses:
        return trees.concatenate(self._ask_all("class_losses", round, ray.put(trees.to_numpy(view))))

    def probe(self, score: str, stage: int, view: Any, message: Any) -> Iterator[torch.Tensor]:
        shared = ray.put(trees.to_numpy(view)), ray.put(trees.to_numpy(message))
        return itertools.chain.from_iterable(self._ask_all("probe", score, stage, *shared))

    def snapshot(self) -> Any:
        return trees.concatenate(self._ask_all("snapshot"))

    def save(self, folder: str) -> list[File]:
        """Every actor writes its own clients; those on machines that do not see the folder hand theirs over."""
        files: list[File] = []
        try:
            replies = self._ask_all("save", folder)
        except RayTaskError as error:
            raise error.cause from None  # what the storage said, without the actor's trace
        for slot, written in enumerate(replies):
            if written is None:
                (states,) = self._ask("snapshot", {slot: ()})
                written = checkpoint_files.write_clients(folder, self._layout.blocks[slot], states)
            files += written
        return files

    def pids(self) -> list[int]:
        """The processes that host the clients, in client order; waits until all of them are up."""
        return self._ask_all("pid")

    def take_failures(self) -> tuple[Failure, ...]:
        """What happened to actors since this was last asked."""
        taken, self._failures = tuple(self._failures), []
        return taken

    def _ask_all(self, method: str, *args: Any) -> list[Any]:
        return self._ask(method, dict.fromkeys(range(len(self.actors)), args))

    def _downs(self, down: Any, ids: Sequence[int], blocks: Sequence[Sequence[int]]) -> list[Any]:
        """One reference to what is sent down for each block: the same for all, or its clients' rows."""
        if not self._plan.algorithm.down_per_client:
            return [ray.put(trees.to_numpy(down))] * len(blocks)
        place = {client: row for row, client in enumerate(ids)}
        return [ray.put(trees.to_numpy(trees.rows(down, [place[i] for i in block]))) for block in blocks]

    def _ask(self, method: str, calls: dict[int, tuple[Any, ...]]) -> list[Any]:
        """Call every slot's actor and wait for all; one that dies, hangs or fails is replaced and asked again.

        Replies come back in slot order, which is client order, as tensors of our own. Raises ClientsLostError for a
        slot that cannot be helped, unless the policy leaves its clients out of the round.
        """
        replies: dict[int, Any] = {}
        attempts = dict.fromkeys(calls, 1)
        pending = dict(self._submit(slot, method, calls[slot]) for slot in calls)
        first = math.inf
        while pending:
            for reply, trouble in self._wait(pending):
                call = pending.pop(reply)
                slot, answer = call.slot, None
                if trouble is None:
                    answer, trouble = self._answer(reply, call, attempts[slot])
                if trouble is None:
                    replies[slot], first = answer, min(first, time.monotonic())
                    if method == "train":
                        self.lags[self._named(slot)] = time.monotonic() - first
                    continue
                leave = self._recover(slot, method, calls[slot], attempts[slot], trouble)
                if leave is not None:
                    replies[slot] = leave
                    continue
                attempts[slot] += 1
                again, call = self._submit(slot, method, calls[slot])
                pending[again] = call
        # Several replies are copied when they are joined; one alone must not alias the memory that Ray shares.
        own = trees.to_torch if len(replies) == 1 else trees.alias
        return [own(replies[slot]) for slot in sorted(replies)]

    def _submit(self, slot: int, method: str, args: tuple[Any, ...]) -> tuple[Any, Call]:
        two = method == "train"
        refs = getattr(self.actors[slot], method).options(num_returns=2 if two else 1).remote(*args)
        reply, state = refs if two else (refs, None)
        timeout = self._policy.timeout
        if timeout is not None and slot in self._fresh:
            timeout += START_SECONDS
        if timeout is not None and method == "class_losses":
            timeout *= self._plan.clients  # it predicts everybody's test shard, not one's own
        return reply, Call(slot, state, None if timeout is None else time.monotonic() + timeout)

    def _wait(self, pending: dict[Any, Call]) -> list[tuple[Any, Failure | None]]:
        """The next reply that is there, or those that are overdue."""
        deadlines = [call.deadline for call in pending.values() if call.deadline is not None]
        patience = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        ready, _ = ray.wait(list(pending), num_returns=1, timeout=patience)
        if ready:
            return [(ready[0], None)]
        now = time.monotonic()
        late = Failure(0, "", "late", f"no answer within {self._policy.timeout:g} s")
        return [(reply, late) for reply, call in pending.items() if call.deadline is not None and call.deadline <= now]

    def _answer(self, reply: Any, call: Call, attempt: int) -> tuple[Any, Failure | None]:
        """A reply that has come, or what kept it from coming."""
        try:
            answer = ray.get(reply)
        except LOST as error:
            return None, Failure(0, "", "lost", f"{type(error).__name__}: {_first_line(error)}")
        self._fresh.discard(call.slot)
        failures = answer.failures if isinstance(answer, TrainReply) else ()
        if failures and attempt == 1 and self._attempts > 1:  # twice the same is no accident
            self._failures += [failure._replace(action="asked again") for failure in failures]
            return None, failures[0]
        if call.state is not None:
            self._committed[call.slot] = call.state
        return answer, None

    def _recover(
        self, slot: int, method: str, args: tuple[Any, ...], attempts: int, trouble: Failure
    ) -> TrainReply | None:
        """Replace an actor by one that starts from its last committed state; a reply if it is not to be asked again."""
        named, number = self._named(slot), int(args[0]) if method == "train" else 0
        skip = method == "train" and self._policy.on_failure == "skip"
        last = attempts >= self._attempts or (trouble.kind == "late" and skip)
        if last and not skip:
            raise ClientsLostError(
                f"the actor of {named} did not answer {attempts} times, last because: {trouble.reason}"
            )
        ray.kill(self.actors[slot])
        self.actors[slot] = self._spawn(slot)
        self._fresh.add(slot)
        if last:
            failures = tuple(trouble._replace(round=number, who=f"client {i}") for i in args[1])
            return TrainReply(number, (), None, None, None, failures)
        if trouble.kind in ("lost", "late"):
            self._failures.append(trouble._replace(round=number, who=f"actor of {named}", action="replaced"))
            print(f"actor of {named}: {trouble.kind} ({trouble.reason[:200]}); replaced", file=sys.stderr)
        return None

    def _spawn(self, slot: int) -> Any:
        # No scheduling strategy: the actor is captured by the placement group of the server (or of the Tune trial).
        remote = ray.remote(num_cpus=self._layout.cpus, num_gpus=self._layout.gpus, max_restarts=0)(ClientActor)
        return remote.remote(
            self._plan_ref, self._layout.blocks[slot], self._backend, self._committed[slot], self._dataset
        )

    def _named(self, slot: int) -> str:
        block = self._layout.blocks[slot]
        return f"client {block[0]}" if len(block) == 1 else f"clients {block[0]}-{block[-1]}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no reason given").splitlines()[0]
