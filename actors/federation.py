"""A federation on Ray: join or start a cluster, reserve all of it or nothing, play, and leave nothing behind."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.placement import Layout, Node, arrange
from actors.server import remote_options
from fedray import trees
from fedray.config import Execution
from fedray.federation import Snapshot
from fedray.plan import Plan
from fedray.types import FedRayError, RoundMetrics

START_ATTEMPTS = 3  # ray.init gives its own processes 30 s, too little on a machine that is busy
KNOCK_SECONDS = 5.0
PLACEMENT_SECONDS = 120.0  # how long a cluster in use may take to free what fits it


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


class RayFederation:
    """A federation whose server and clients are Ray actors: iterate over its rounds, then take the snapshot.

    Use as a context manager: on the way out, actors and reservation are gone, whatever happened.
    """

    def __init__(self, plan: Plan, execution: Execution):
        self.plan, self._rounds_left = plan, plan.cfg.rounds
        self._own_cluster = connect(execution.address)
        self._group: Any = None
        self.server: Any = None
        try:
            self.layout = arrange(plan.clients, nodes(), execution.clients_per_actor, execution.gpus_per_client)
            self._group = _reserve(self.layout)
            strategy = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
            )
            remote = remote_options(num_cpus=self.layout.bundles[0]["CPU"], num_gpus=0, scheduling_strategy=strategy)
            self.server = remote.remote(plan, self.layout, execution.backend)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RayFederation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[RoundMetrics]:
        """Rounds as they end; the next one is already under way while the caller deals with the last."""
        ahead = self.server.play.remote() if self._rounds_left else None
        while ahead is not None:
            metrics = trees.to_torch(_get(ahead))
            self._rounds_left -= 1
            ahead = self.server.play.remote() if self._rounds_left else None
            yield metrics

    def snapshot(self) -> Snapshot:
        """The server's and the clients' states now."""
        return trees.to_torch(_get(self.server.snapshot.remote()))

    def client_pids(self) -> list[int]:
        """The processes that host the clients, in client order."""
        return _get(self.server.client_pids.remote())

    def close(self) -> None:
        """Stop the actors, free the reservation, and stop Ray if it was started here."""
        if self.server is not None:
            ray.kill(self.server)
        if self._group is not None:
            remove_placement_group(self._group)
        self.server = self._group = None
        if self._own_cluster:
            ray.shutdown()


def _reserve(layout: Layout) -> Any:
    group = placement_group(layout.bundles, strategy="PACK")
    if not group.wait(PLACEMENT_SECONDS):
        remove_placement_group(group)
        free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}
        raise FedRayError(
            f"the cluster did not free {len(layout.blocks)} x (CPU {layout.cpus:g}, GPU {layout.gpus:g}) within "
            f"{PLACEMENT_SECONDS:g} s, it has {free} free; wait for other jobs, or raise --clients-per-actor"
        )
    return group


def _get(ref: Any) -> Any:
    """The value of a reference; what our own code refused in an actor is raised here as it was there."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ray.get(ref)
    except RayTaskError as error:
        if isinstance(error.cause, FedRayError):
            raise error.cause from None
        raise
    except RayError as error:
        raise FedRayError(
            f"the server actor was lost: {str(error).strip().splitlines()[0]}; the run cannot go on, start it again"
        ) from error


def announce(layout: Layout, clients: int) -> None:
    """Say in one line how clients were packed, if they were."""
    if len(layout.blocks) < clients:
        print(
            f"{clients} clients share {len(layout.blocks)} actors ({len(layout.blocks[0])} each, "
            f"{layout.gpus:g} GPU per actor); results do not depend on it",
            file=sys.stderr,
        )
