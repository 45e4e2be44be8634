"""A federation on Ray: join or start a cluster, reserve all of it or nothing, play, and leave nothing behind."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.cohort import ATTEMPTS, ClientsLostError, Policy
from actors.placement import Layout, Node, arrange
from actors.server import remote_options
from fedray import trees
from fedray.checkpoint import Checkpoint, Store, newest
from fedray.config import Execution
from fedray.plan import Plan
from fedray.rounds import Snapshot, State
from fedray.types import Failure, FedRayError, RoundMetrics, RunError

START_ATTEMPTS = 3  # ray.init gives its own processes 30 s, too little on a machine that is busy
KNOCK_SECONDS = 5.0
PLACEMENT_SECONDS = 120.0  # how long a cluster in use may take to free what fits it
WATCH_SECONDS = 5.0  # between two looks at a reservation
HOMELESS_SECONDS = 30.0  # a reservation that lost a machine may look for another
REBUILD_SECONDS = 900.0  # how long a cluster may take to replace what it lost


def connect(address: str | None) -> bool:
    """Join the cluster at the address, $RAY_ADDRESS or a running one, or start a local one; True if started here.

    Raises FedRayError where a given address does not answer.
    """
    if ray.is_initialized():
        return False
    given = address or os.environ.get("RAY_ADDRESS")
    address = given or _running()
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address != "local":
        try:
            _knock(address)
            ray.init(address=address, runtime_env={"py_modules": _packages()}, **options)
            return False
        except (OSError, RuntimeError, ValueError, RayError) as error:
            if given:
                raise FedRayError(
                    f"--address {address}: no Ray cluster answers there ({str(error).strip().splitlines()[0]}); start "
                    "one with 'ray start --head' or 'ray up', or leave the address out for a local one"
                ) from None
    for attempt in range(START_ATTEMPTS):
        try:
            ray.init(address="local", include_dashboard=False, **options)
            return True
        except Exception as error:
            ray.shutdown()
            if attempt + 1 == START_ATTEMPTS:
                raise FedRayError(
                    f"Ray did not start in {START_ATTEMPTS} attempts, last because: {str(error).splitlines()[0]}; free "
                    "memory or CPUs, or use --runtime local"
                ) from None
            time.sleep(1 + attempt)
    raise AssertionError


def _running() -> str:
    """Address of the cluster that `ray start` noted on this machine, or 'local'.

    Not `auto`, which also finds the private cluster of another run, and would lose it when that run ends.
    """
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    note = Path(folder) / "ray" / "ray_current_cluster"
    try:
        return note.read_text().strip() or "local"
    except OSError:
        return "local"


def _knock(address: str) -> None:
    """Raise ConnectionError where nothing listens at host:port, for which Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        with contextlib.closing(socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS)):
            pass


def _packages() -> list[str]:
    """Our own packages, to be shipped to the nodes of a cluster that was not started here."""
    root = Path(__file__).resolve().parent.parent
    return [str(root / name) for name in ("fedray", "actors", "tune")]


def nodes() -> list[Node]:
    """What the machines of the cluster offer."""
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Node(r.get("CPU", 0.0), r.get("GPU", 0.0)) for r in resources]


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
        while self._reached < self.plan.cfg.rounds:
            metrics = self._recovering(self._play)
            self._reached, self._rebuilt = metrics.round, 0
            failures, self._failures = tuple(self._failures), []
            yield metrics._replace(failures=failures + metrics.failures)

    def snapshot(self) -> Snapshot:
        """The server's and the clients' states now."""
        return trees.to_torch(self._recovering(lambda: self._get(self.server.snapshot.remote())))

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
        self.server = remote.remote(self.plan, self.layout, execution.backend, policy, self._store, begun, name)
        self._played, self._ahead = begun.state.round if begun else 0, None

    def _play(self) -> RoundMetrics:
        """The next round of the server, while it is sent into the one after it."""
        ahead, self._ahead = self._ahead or self.server.play.remote(), None
        metrics = trees.to_torch(self._get(ahead))
        self._played = metrics.round
        self._ahead = self.server.play.remote() if self._played < self.plan.cfg.rounds else None
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
    group = placement_group([server | _here(), *clients], strategy="PACK")
    if not group.wait(PLACEMENT_SECONDS):
        remove_placement_group(group)
        free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}
        raise FedRayError(
            f"the cluster did not free {len(layout.blocks)} x (CPU {layout.cpus:g}, GPU {layout.gpus:g}) within "
            f"{PLACEMENT_SECONDS:g} s, it has {free} free; wait for other jobs, or raise --clients-per-actor"
        )
    return group


def _here() -> dict[str, float]:
    """What ties a bundle to this machine, where checkpoints are kept by default; nothing if it offers no CPU."""
    me = ray.get_runtime_context().get_node_id()
    offered = next((node["Resources"] for node in ray.nodes() if node["NodeID"] == me), {})
    names = [name for name in offered if name.startswith("node:") and name != "node:__internal_head__"]
    return dict.fromkeys(names[:1], 0.001) if offered.get("CPU", 0.0) >= 1 else {}


def announce(layout: Layout, clients: int) -> None:
    """Say in one line how clients were packed, if they were."""
    if len(layout.blocks) < clients:
        print(
            f"{clients} clients share {len(layout.blocks)} actors ({len(layout.blocks[0])} each, "
            f"{layout.gpus:g} GPU per actor); results do not depend on it",
            file=sys.stderr,
        )
