"""The clients of a federation as Ray actors, with the recovery of those that die."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import ray
import torch
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError

from actors.client import ClientActor
from actors.placement import Layout
from fedray import trees
from fedray.plan import Plan
from fedray.types import EvalReply, FedRayError, TrainReply

ATTEMPTS = 4  # times that one call is given to an actor before the run gives up
LOST = (RayActorError, OutOfMemoryError, ObjectLostError)


class RayCohort:
    """Client actors, one call per actor and round; lives in the server actor, which owns them.

    With every training reply an actor also returns its clients' new states. These stay in the object store: the
    cohort holds the reference only, and gives it to the successor of an actor that dies.
    """

    def __init__(self, plan: Plan, layout: Layout, backend: str, dataset: Any = None):
        self._plan, self._plan_ref, self._layout, self._backend = plan, ray.put(plan), layout, backend
        self._dataset = dataset  # reference to the loaded dataset; None: every actor loads it
        self._committed: list[Any] = [None] * len(layout.blocks)
        self.actors = [self._spawn(slot) for slot in range(len(layout.blocks))]

    def reset(self, plan: Plan) -> None:
        """Begin another federation of the same number of clients in the same actors."""
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
        return self._ask("train", calls, returns=2)

    def evaluate(self, round: int, view: Any, spotlight: bool) -> list[EvalReply]:
        return self._ask_all("evaluate", round, ray.put(trees.to_numpy(view)), spotlight)

    def probe(self, score: str, stage: int, view: Any, message: Any) -> torch.Tensor:
        shared = ray.put(trees.to_numpy(view)), ray.put(trees.to_numpy(message))
        return torch.cat(self._ask_all("probe", score, stage, *shared))

    def snapshot(self) -> Any:
        return trees.concatenate(self._ask_all("snapshot"))

    def _ask_all(self, method: str, *args: Any) -> list[Any]:
        return self._ask(method, dict.fromkeys(range(len(self.actors)), args))

    def _downs(self, down: Any, ids: Sequence[int], blocks: Sequence[Sequence[int]]) -> list[Any]:
        """One reference to what is sent down for each block: the same for all, or its clients' rows."""
        if not self._plan.algorithm.down_per_client:
            return [ray.put(trees.to_numpy(down))] * len(blocks)
        place = {client: row for row, client in enumerate(ids)}
        return [ray.put(trees.to_numpy(trees.rows(down, [place[i] for i in block]))) for block in blocks]

    def _ask(self, method: str, calls: dict[int, tuple[Any, ...]], returns: int = 1) -> list[Any]:
        """Call every slot's actor and wait for all; a dead actor is replaced and asked again.

        Replies come back in slot order, which is client order, as tensors of our own.
        """
        replies: dict[int, Any] = {}
        attempts = dict.fromkeys(calls, 0)
        pending: dict[Any, tuple[int, Any]] = {}

        def submit(slot: int) -> None:
            attempts[slot] += 1
            refs = getattr(self.actors[slot], method).options(num_returns=returns).remote(*calls[slot])
            reply, state = refs if returns == 2 else (refs, None)
            pending[reply] = slot, state

        for slot in calls:
            submit(slot)
        while pending:
            (ready,), _ = ray.wait(list(pending), num_returns=1)
            slot, state = pending.pop(ready)
            try:
                replies[slot] = ray.get(ready)
            except LOST as error:
                self._recover(slot, attempts[slot], error)
                submit(slot)
                continue
            if state is not None:
                self._committed[slot] = state
        # Several replies are copied when they are joined; one alone must not alias the memory that Ray shares.
        own = trees.to_torch if len(replies) == 1 else trees.alias
        return [own(replies[slot]) for slot in sorted(replies)]

    def _spawn(self, slot: int) -> Any:
        # No scheduling strategy: the actor is captured by the placement group of the server (or of the Tune trial).
        remote = ray.remote(num_cpus=self._layout.cpus, num_gpus=self._layout.gpus, max_restarts=0)(ClientActor)
        return remote.remote(
            self._plan_ref, self._layout.blocks[slot], self._backend, self._committed[slot], self._dataset
        )

    def _recover(self, slot: int, attempts: int, error: Exception) -> None:
        """Replace a lost actor by one that starts from its last committed state."""
        block = self._layout.blocks[slot]
        named = f"client{'s' if len(block) > 1 else ''} {', '.join(map(str, block))}"
        if attempts >= ATTEMPTS:
            raise FedRayError(
                f"the actor of {named} was lost {attempts} times in a row, last because: {_first_line(error)}; "
                "look for memory or driver trouble on its node, or lower --clients-per-actor"
            ) from None
        print(
            f"actor of {named} was lost ({type(error).__name__}); restarting it from its last round",
            file=sys.stderr,
        )
        ray.kill(self.actors[slot])
        self.actors[slot] = self._spawn(slot)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
