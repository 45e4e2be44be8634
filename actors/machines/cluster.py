"""The Ray cluster of a run: join one or start a local one, and list its resources."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray._private.state import state as _state  # nothing public tells what a single machine has free, or that it goes

# Nothing public asks a cluster's head once; the compiled module has no stubs.
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
from ray.exceptions import AuthenticationError, RayError

from actors.machines import streams, versions
from actors.machines.autoscaler import HEAD
from actors.machines.placement import Node
from fedray import registry
from fedray.terminal import hangup_blocked, say
from fedray.types import FedRayError, first_line

START_SECONDS = 300.0  # for all attempts to start Ray: on a machine under load its processes miss their own limits
SILENT_SECONDS = 10.0  # a start that takes longer is announced
KNOCK_SECONDS = 5.0  # for a first sign of a cluster that is joined
LONG = "path length cannot exceed"  # as Ray says that its folder's path is too long for a socket in it
MISMATCH = "Version mismatch"  # as Ray says that a driver's Python or Ray is not the head's


def connect(address: str | None) -> bool:
    """Join the cluster at the address, $RAY_ADDRESS or a running one, or start a local one; True if started here.

    Raises FedRayError where a given address does not answer, and where machines have other versions than this one.
    """
    if ray.is_initialized():
        return False
    noted = os.environ.get("RAY_ADDRESS")
    given = f"--address {address}" if address else f"RAY_ADDRESS={noted}" if noted else ""
    address = address or noted or _running()
    if not given and address != "local":
        _show_token()
    if address != "local" and _join(address, given):
        return False
    say("starting Ray on this machine")
    _start()
    return True


def _join(address: str, given: str) -> bool:
    """Join a cluster; False where one that nobody asked for, by what is given, does not answer."""
    say(f"joining the Ray cluster at {address}")
    named = given or f"--address {address}"
    try:
        _knock(address)
        _init(address, _packages() + _plug_ins())
    except (OSError, RuntimeError, ValueError, RayError) as error:
        if MISMATCH in str(error):
            raise FedRayError(
                f"{named}: {' '.join(str(error).split())}; start the driver with the cluster's versions, "
                "or the cluster with the driver's"
            ) from None
        if isinstance(error, AuthenticationError):
            alone = "" if given else ", or play on this machine alone with --address local"
            raise FedRayError(
                f"{named}: the cluster asks for its token; set RAY_AUTH_MODE=token, with the token in "
                f"~/.ray/auth_token{alone}"
            ) from None
        if given:
            without = "leave the address out" if given.startswith("--") else "unset RAY_ADDRESS"
            raise FedRayError(
                f"{named}: no Ray cluster answers there ({first_line(error)}); start "
                f"one with 'ray start --head' or 'ray up', or {without} for a local one"
            ) from None
        return False
    try:
        versions.check()
    except BaseException:
        ray.shutdown()
        raise
    return True


def _init(address: str, shipped: list[str], **options: Any) -> None:
    """Start or join Ray, with code for its processes: each machine gets it once, and again only where it changes."""
    # What Python leaves beside the code would make other code of it. Nothing to ship is nothing to set up.
    code = {"py_modules": shipped, "excludes": ["__pycache__"]} if shipped else None
    with hangup_blocked():
        ray.init(address=address, runtime_env=code, log_to_driver=True, logging_level=logging.ERROR, **options)
    streams.listen()


def _show_token() -> None:
    """Let this process show the token that it may have to a cluster of `ray start` on this machine, which asks for it.

    Ray does so for the address `auto`, and for no other.
    """
    with contextlib.suppress(ImportError):
        from ray._private.authentication import authentication_token_setup as setup

        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _keep_token() -> None:
    """Have the token of local clusters, which Ray would write for every user of the machine to read, read by ours only.

    Whoever has it can run code in our name, for Ray listens at every address.
    """
    off = os.environ.get("RAY_AUTH_MODE", "token").lower() != "token"
    if off or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        return
    path = Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError):  # Ray says what is wrong
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
        except FileExistsError:
            if path.stat().st_uid == os.geteuid():
                path.chmod(0o600)


def _start() -> None:
    """Start a local cluster; raises FedRayError where Ray does not come up within START_SECONDS, or never will."""
    _keep_token()
    deadline = time.monotonic() + START_SECONDS
    pause = 1.0
    while True:
        try:
            with _announced(f"waiting for Ray's processes to start (at most {START_SECONDS:g} s)"):
                _init("local", _plug_ins(), include_dashboard=False)
            return
        except Exception as error:
            ray.shutdown()
            refused = isinstance(error, OSError) and error.errno in (
                errno.EACCES,
                errno.EPERM,
                errno.EROFS,
                errno.ENOTDIR,
            )
            if refused or LONG in str(error):  # time does not help
                raise FedRayError(
                    f"Ray did not start: {first_line(error)}; set HOME and RAY_TMPDIR to folders in which you may "
                    "write, the latter with a short path, or use --runtime local"
                ) from None
            left = deadline - time.monotonic()
            if left <= 0:
                raise FedRayError(
                    f"Ray did not start within {START_SECONDS:g} s, last because: {first_line(error)}; free memory or "
                    "CPUs, or use --runtime local"
                ) from None
            say(f"Ray did not start ({first_line(error)}); trying again for up to {left:.0f} s")
        time.sleep(pause)
        pause *= 2


@contextlib.contextmanager
def _announced(text: str) -> Iterator[None]:
    """Say the text on stderr if what is done takes longer than SILENT_SECONDS."""
    timer = threading.Timer(SILENT_SECONDS, say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _running() -> str:
    """Address of the cluster that our user's `ray start` noted on this machine, or 'local'.

    Not `auto`, which also finds the private cluster of another run, and would lose it when that run ends. Nor what
    another user noted: it is shown our token.
    """
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    note = Path(folder) / "ray" / "ray_current_cluster"
    try:
        return (note.read_text().strip() if note.stat().st_uid == os.geteuid() else "") or "local"
    except OSError:
        return "local"


def _knock(address: str) -> None:
    """Raise OSError or RayError where no cluster listens at host:port, for which Ray itself would wait for an hour."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        with contextlib.closing(socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS)):
            pass
        GcsClient(address=address)  # another server, such as a dashboard, listens too; 40 s, which ray.init repeats


def _packages() -> list[str]:
    """Our own packages, to be shipped to the nodes of a cluster that was not started here."""
    root = Path(__file__).resolve().parents[2]
    return [str(root / name) for name in ("fedray", "actors", "tune")]


def _plug_ins() -> list[str]:
    """The user's own plug-ins, to be shipped to every node: actors import them to unpickle a plan."""
    return [str(path) for path in registry.sources(registry.plug_ins())]


class Machine(NamedTuple):
    """A machine of the cluster as it is now."""

    name: str
    free: Node  # what nobody has reserved
    stays: bool = True  # False: it has announced its end
    leaves: float = math.inf  # when, Unix time in seconds; inf if it has not said


def machines() -> dict[str, Machine]:
    """The machines of the cluster, by Ray's id of each."""
    alive = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    free = _state.available_resources_per_node()
    going = _state.get_draining_nodes()
    shared = {name for name, count in Counter(alive.values()).items() if count > 1}
    return {
        node: Machine(
            f"{name}/{node[:4]}" if name in shared else name,
            _offer(free.get(node, {})),
            node not in going,
            going.get(node, 0) / 1000 or math.inf,
        )
        for node, name in alive.items()
    }


def nodes() -> list[Node]:
    """What those machines of the cluster offer that have not announced their end."""
    going = _state.get_draining_nodes()
    return [_offer(node["Resources"]) for node in ray.nodes() if node["Alive"] and node["NodeID"] not in going]


def _offer(resources: Mapping[str, float]) -> Node:
    return Node(resources.get("CPU", 0.0), resources.get("GPU", 0.0))


def _resources() -> dict[str, float]:
    """What this machine offers, whoever has reserved it."""
    me = ray.get_runtime_context().get_node_id()
    return next((node["Resources"] for node in ray.nodes() if node["NodeID"] == me), {})


def this_node() -> Node:
    """This machine as a node of the cluster."""
    return _offer(_resources())


def here() -> dict[str, float]:
    """What ties a bundle to this machine, where checkpoints are kept by default; nothing if it offers no CPU."""
    offered = _resources()
    names = [name for name in offered if name.startswith("node:") and name != HEAD]
    return dict.fromkeys(names[:1], 0.001) if offered.get("CPU", 0.0) >= 1 else {}
