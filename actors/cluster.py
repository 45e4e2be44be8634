"""Which Ray cluster a run plays on: one that is joined, or a local one that is started; and what it offers."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from actors.placement import Node
from fedray import registry
from fedray.types import FedRayError

START_ATTEMPTS = 3  # ray.init gives its own processes 30 s, too little on a machine that is busy
KNOCK_SECONDS = 5.0


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
            ray.init(address=address, runtime_env={"py_modules": _packages() + _plug_ins()}, **options)
            return False
        except (OSError, RuntimeError, ValueError, RayError) as error:
            if given:
                raise FedRayError(
                    f"--address {address}: no Ray cluster answers there ({str(error).strip().splitlines()[0]}); start "
                    "one with 'ray start --head' or 'ray up', or leave the address out for a local one"
                ) from None
    for attempt in range(START_ATTEMPTS):
        try:
            # Without plug-ins there is nothing to ship, and every process starts without an environment to set up.
            shipped = {"py_modules": _plug_ins()} if registry.plug_ins() else None
            ray.init(address="local", include_dashboard=False, runtime_env=shipped, **options)
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


def _plug_ins() -> list[str]:
    """The user's own plug-ins, to be shipped to every node: actors import them to unpickle a plan."""
    return [str(path) for path in registry.sources(registry.plug_ins())]


def nodes() -> list[Node]:
    """What the machines of the cluster offer."""
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Node(r.get("CPU", 0.0), r.get("GPU", 0.0)) for r in resources]


def here() -> dict[str, float]:
    """What ties a bundle to this machine, where checkpoints are kept by default; nothing if it offers no CPU."""
    me = ray.get_runtime_context().get_node_id()
    offered = next((node["Resources"] for node in ray.nodes() if node["NodeID"] == me), {})
    names = [name for name in offered if name.startswith("node:") and name != "node:__internal_head__"]
    return dict.fromkeys(names[:1], 0.001) if offered.get("CPU", 0.0) >= 1 else {}
