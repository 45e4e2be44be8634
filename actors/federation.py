"""A federation on Ray: join or start a cluster, reserve all of it or nothing, play, and leave nothing behind."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.cluster import connect, here, nodes
from actors.cohort import ATTEMPTS, ClientsLostError, Policy
from actors.placement import Layout, arrange
from actors.server import remote_options
from fedray.arrays import trees
from fedray.config import Execution
from fedray.federate.checkpoint import Store, newest
from fedray.federate.checkpoint_files import Checkpoint
from fedray.federate.messages import ClassLosses, Failure, RoundMetrics
from fedray.federate.plan import Plan
from fedray.federate.rounds import Snapshot, State
from fedray.types import FedRayError, RunError

PLACEMENT_SECONDS = 120.0  # how long a cluster in use may take to free what fits it
WATCH_SECONDS = 5.0  # between two looks at a reservation
HOMELESS_SECONDS = 30.0  # a reservation that lost a machine may look for another
REBUILD_SECONDS = 900.0  # how long a cluster may take to replace what it lost


class LostError(Exception):
    """The server actor is gone, or stands without its clients."""


class RayFederation:
    """A federation whose server and clients are Ray actors: iterate over its rounds, then take the snapshot.

    It begins at a checkpoint, if one is given, and keeps its own in the store. Where the server is lost, or clients
    are with their states, all of it is built again on what the cluster still has, from the last checkpoint or the
    start, and silently plays up to where it was. Use as a context manager: on the way out, actors and reservation are
    gone, whatever happened.
    """

    def __init__(self, plan: Plan, execution: Execution, store: Store | None = None, begun: Checkpoint | None = None):
        self.plan, self._execution, self._store = plan, execution, store
        self._played = self._reached = begun.state.round if begun else 0  # by the server; of what was yielded
        self._failures: list[Failure] = []  # not yet reported
        self._rebuilt = 0  # times, since the last new round
        self._group: Any = None
        self.server: Any = None
        self._ahead: Any = None
        self._own_cluster = connect(execution.address)
        try:
            self._dataset = [] if plan.given is None else [ray.put(plan.given)]
            self._build(begun)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RayFederation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[RoundMetrics]:
        """Rounds as they end; the next one is already under way while the caller deals with the last."""
        while self._reached < self.plan.rounds:
            metrics = self._recovering(self._play)
            self._reached, self._rebuilt = metrics.round, 0
            failures, self._failures = tuple(self._failures), []
            yield metrics._replace(failures=failures + metrics.failures)

    def snapshot(self) -> Snapshot:
        """The server's and the clients' states now."""
        return trees.to_torch(self._recovering(lambda: self._get(self.server.snapshot.remote())))

    def class_losses(self) -> ClassLosses:
        """What the loss deviation is made of, of the personal models now."""
        return trees.to_torch(self._recovering(lambda: self._get(self.server.class_losses.remote())))

    def history(self) -> State:
        """The server's state with the measures of the rounds so far."""
        return trees.to_torch(self._recovering(lambda: self._get(self.server.history.remote())))

    def server_pid(self) -> int:
        """The process that hosts the server."""
        return self._recovering(lambda: self._get(self.server.pid.remote()))

    def client_pids(self) -> list[int]:
        """The processes that host the clients, in client order."""
        return self._recovering(lambda: self._get(self.server.client_pids.remote()))

    def close(self) -> None:
        """Stop the actors, free the reservation, and stop Ray if it was started here."""
        self._tear_down()
        if self._own_cluster:
            ray.shutdown()

    def _build(self, begun: Checkpoint | None) -> None:
        execution = self._execution
        self.layout = arrange(self.plan.clients, nodes(), execution.clients_per_actor, execution.gpus_per_client)
        self._group = _reserve(self.layout)
        strategy = PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
        remote = remote_options(num_cpus=self.layout.bundles[0]["CPU"], num_gpus=0, scheduling_strategy=strategy)
        policy = Policy(execution.on_failure, execution.round_timeout)
        name = execution.name or "fedray"
        plan = self.plan._replace(given=None)
        self.server = remote.remote(
            plan, self.layout, execution.backend, policy, self._store, begun, name, self._dataset
        )
        self._played, self._ahead = begun.state.round if begun else 0, None

    def _play(self) -> RoundMetrics:
        """The next round of the server, while it is sent into the one after it."""
        ahead, self._ahead = self._ahead or self.server.play.remote(), None
        metrics = trees.to_torch(self._get(ahead))
        self._played = metrics.round
        self._ahead = self.server.play.remote() if self._played < self.plan.rounds else None
        return metrics

    def _recovering(self, act: Callable[[], Any]) -> Any:
        """What ``act`` returns, of a federation that has played as far as it ever had."""
        while True:
            try:
                while self._played < self._reached:
                    self._play()
                return act()
            except LostError as error:
                self._rebuild(str(error))

    def _rebuild(self, reason: str) -> None:
        """Build the federation again from its last checkpoint, when the cluster has room for it."""
        self._rebuilt += 1
        if self._rebuilt >= ATTEMPTS or self._execution.on_failure == "abort":
            raise RunLostError(f"{reason}; given up after round {self._reached}")
        self._tear_down()
        begun = newest(self._store, self.plan, _say) if self._store else None
        action = f"rebuilt from round {begun.state.round if begun else 0}"
        self._failures.append(Failure(self._reached + 1, "server", "lost", reason, action))
        _say(f"{reason}; the federation is {action}")
        deadline = time.monotonic() + REBUILD_SECONDS
        while True:
            try:
                return self._build(begun)
            except (FedRayError, RayError) as error:
                self._tear_down()
                if time.monotonic() > deadline:
                    raise RunLostError(f"{reason}; the cluster has no room to go on ({error})") from None
                time.sleep(WATCH_SECONDS)

    def _tear_down(self) -> None:
        with contextlib.suppress(RayError):
            if self.server is not None:
                ray.kill(self.server)
            if self._group is not None:
                remove_placement_group(self._group)
        self.server = self._group = self._ahead = None

    def _get(self, ref: Any) -> Any:
        """The value of a reference; what our own code refused in an actor is raised here as it was there.

        Raises LostError where the server is, or where its reservation has been without a machine for too long.
        """
        homeless = None
        while not ray.wait([ref], timeout=WATCH_SECONDS)[0]:
            whole = placement_group_table(self._group).get("state") == "CREATED"
            homeless = None if whole else homeless or time.monotonic()
            if homeless and time.monotonic() - homeless > HOMELESS_SECONDS:
                raise LostError("a machine was lost, and its part of the reservation found no other")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ray.get(ref)
        except RayTaskError as error:
            if isinstance(error.cause, FedRayError):
                raise error.cause from None
            if isinstance(error.cause, ClientsLostError | RayError):
                raise LostError(_line(error.cause)) from None
            raise
        except RayError as error:
            raise LostError(f"the server actor was lost ({_line(error)})") from None


class RunLostError(RunError):
    """The federation cannot be kept going on this cluster."""


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _reserve(layout: Layout) -> Any:
    server, *clients = layout.bundles
    group = placement_group([server | here(), *clients], strategy="PACK")
    if not group.wait(PLACEMENT_SECONDS):
        remove_placement_group(group)
        free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}
        raise FedRayError(
            f"the cluster did not free {len(layout.blocks)} x (CPU {layout.cpus:g}, GPU {layout.gpus:g}) within "
            f"{PLACEMENT_SECONDS:g} s, it has {free} free; wait for other jobs, or raise --clients-per-actor"
        )
    return group


def announce(layout: Layout, clients: int) -> None:
    """Say in one line how clients were packed, if they were."""
    if len(layout.blocks) < clients:
        print(
            f"{clients} clients share {len(layout.blocks)} actors ({len(layout.blocks[0])} each, "
            f"{layout.gpus:g} GPU per actor); results do not depend on it",
            file=sys.stderr,
        )
