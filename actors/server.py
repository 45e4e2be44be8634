"""The server actor: owns the client actors and plays the rounds."""

from __future__ import annotations

from typing import Any

import ray

from actors.cohort import RayCohort
from actors.placement import Layout
from fedray import trees
from fedray.federation import Snapshot, play_round, start
from fedray.local import numerics
from fedray.plan import Plan
from fedray.types import RoundMetrics


class ServerActor:
    """Holds the global state; wrapped by ``ray.remote`` where it is placed."""

    def __init__(self, plan: Plan, layout: Layout, backend: str):
        numerics().__enter__()  # for the life of the process
        self._plan, self._state = plan, start(plan)
        self._cohort = RayCohort(plan, layout, backend)

    def play(self) -> RoundMetrics:
        """Play the next round."""
        self._state, metrics = play_round(self._plan, self._state, self._cohort)
        return trees.to_numpy(metrics)

    def snapshot(self) -> Snapshot:
        """The server's state and every client's, on explicit request."""
        return trees.to_numpy(Snapshot(self._state.server, self._cohort.snapshot()))

    def client_pids(self) -> list[int]:
        """The processes that host the clients, in client order; waits until all of them are up."""
        return ray.get([actor.pid.remote() for actor in self._cohort.actors])


def remote_options(**options: Any) -> Any:
    """The actor class with its placement; clients are captured by the placement group that it is put in."""
    return ray.remote(max_restarts=0, **options)(ServerActor)
