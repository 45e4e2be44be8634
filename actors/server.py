"""The server actor: owns the client actors and plays the rounds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group

from actors.cohort import RayCohort
from actors.hosted import Hosted
from actors.inside import InsideCohort
from actors.machines.cluster import machines
from actors.machines.seats import reserved
from actors.moves import LeaveError, Mover
from actors.telemetry.gauges import Gauges
from fedray.arrays import trees
from fedray.federate.device.cpu import fix_numerics
from fedray.federate.failures import ClientsLostError
from fedray.federate.in_process import play_and_keep
from fedray.federate.messages import ClassLosses, File, Move, RoundMetrics
from fedray.federate.rounds import Snapshot, State, last_common, start
from fedray.federate.storage import checkpoint
from fedray.federate.storage.checkpoint import prepared
from fedray.federate.storage.checkpoint_files import Checkpoint
from fedray.federate.uncertainty.reply import Uncertainty


class ServerActor:
    """Holds the global state; wrapped by ``ray.remote`` where it is placed, or in the process of a trial."""

    def __init__(self, hosted: Hosted, most: int = 0):
        """``most`` is the number of actors that it may spread over, where it follows its cluster; 0: it stays."""
        fix_numerics()
        folder = prepared(hosted.store)
        self._cohort: RayCohort | InsideCohort
        self._mover: Mover | None = None
        self._machines: Mapping[str, int] = {}
        if hosted.layout.inside:
            self._cohort = InsideCohort(hosted, folder)
        else:
            group = get_current_placement_group()
            seats = reserved(group)[1:] if group else []  # the first is this actor's
            cohort = RayCohort(hosted, folder, seats, follows=most > 0)
            self._cohort = cohort
            self._mover = Mover(cohort, group, most, bool(folder)) if most else None
            self._machines = cohort.hosted(machines()) if group else {}
        self._begin(hosted)

    def _begin(self, hosted: Hosted) -> None:
        self._plan, self._policy, self._store = hosted.plan, hosted.policy, hosted.store
        self._state = start(hosted.plan)
        self._name = hosted.name
        self._gauges = Gauges(hosted.label or hosted.name)
        if hosted.begun:
            self.restore(hosted.begun)

    def reset(self, hosted: Hosted) -> None:
        """Begin another federation, of as many clients, in the same processes; its states stay in memory."""
        self._cohort.reset(hosted)
        self._begin(hosted)

    def restore(self, begun: Checkpoint) -> None:
        """Go on from a checkpoint."""
        self._state = begun.state
        self._cohort.restore(begun.clients)

    def close(self) -> None:
        """Stop the client actors."""
        self._cohort.close()

    @property
    def state(self) -> State:
        """The server's state with the measures of the rounds so far, for who shares its process."""
        return self._state

    def __repr__(self) -> str:
        """As Ray's dashboard and the run's log name this process."""
        return f"{self._name} server"

    def play(self) -> RoundMetrics:
        """Play the next round, wherever its clients are to be by now."""
        move = self._follow()
        self._machines = move.machines if move else self._machines
        self._state, metrics = play_and_keep(self._plan, self._state, self._cohort, self._policy, self._store)
        metrics = metrics._replace(
            failures=metrics.failures + self._cohort.take_failures(),
            machines=self._machines,
            moves=(move,) if move else (),
        )
        self._report(metrics)
        return trees.to_numpy(metrics)

    def _follow(self) -> Move | None:
        """What moved before the next round; raises ClientsLostError where all of it has to begin anew elsewhere."""
        if self._mover is None:
            return None
        try:
            return self._mover.follow(self._state.round + 1)
        except LeaveError as error:
            played = 0 < self._state.round < self._plan.cfg.rounds  # none is kept of the rounds of newcomers
            if self._store and played and not self._store.wants(self._plan, self._state.round):
                checkpoint.keep(self._store, self._plan, self._state, self._cohort)
            raise ClientsLostError(str(error)) from None

    def snapshot(self) -> Snapshot:
        """The server's state and every client's, on explicit request."""
        return trees.to_numpy(Snapshot(self._state.server, self._cohort.snapshot()))

    def save(self, folder: str) -> list[File]:
        """Write the clients' states into a folder, and list the files."""
        return self._cohort.save(folder)

    def class_losses(self) -> ClassLosses:
        """What the loss deviation is made of, of the personal models now."""
        return trees.to_numpy(self._cohort.class_losses(self._state.round, self._plan.view(self._state.server)))

    def uncertainty(self, far: Any = None) -> Uncertainty:
        """What the uncertainty of the members' models now is good for; ``far`` are examples of another dataset."""
        view = self._plan.view(self._state.server)
        number = last_common(self._plan, self._state)
        return trees.to_numpy(self._cohort.uncertainty(number, view, trees.to_torch(far)))

    def history(self) -> State:
        """The server's state with the measures of the rounds so far."""
        return trees.to_numpy(self._state)

    def _report(self, metrics: RoundMetrics) -> None:
        self._gauges.round(metrics)
        for failure in metrics.failures:
            self._gauges.failure(failure.kind)
        for clients, seconds in self._cohort.lags.items():
            self._gauges.lag(clients, seconds)

    def pid(self) -> int:
        """The process that hosts this actor."""
        return os.getpid()

    def client_pids(self) -> list[int]:
        """The processes that host the clients, in client order; waits until all of them are up."""
        return self._cohort.pids()


def remote_options(**options: Any) -> Any:
    """The actor class with its placement; its client actors land in the same placement group."""
    return ray.remote(max_restarts=0, **options)(ServerActor)
