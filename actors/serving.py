"""A run behind Ray Serve: replicas that keep the personal models last asked for, and the server in front of them."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import ray
from ray import serve
from ray.exceptions import RayTaskError
from ray.serve.config import HTTPOptions
from ray.serve.schema import LoggingConfig
from starlette.requests import Request

from actors.machines.cluster import connect, machines, this_node
from fedray.federate.device.cpu import fix_numerics
from fedray.terminal import same_handlers, say
from fedray.types import FedRayError, first_line

NAME = "fedray"
AT_ONCE = 16  # requests in a replica: one computes, the bodies of the others arrive
WAITING = 512  # requests in front of all replicas; more are refused (503)
SECONDS = 120.0  # after which a request is given up


class Service(Protocol):
    """What a replica needs of whom it serves."""

    def client(self, header: str, /) -> int | None:
        """The client that a header means."""
        ...

    def model(self, client: int) -> Any:
        """A client's model."""
        ...


Models = Callable[[str], Awaitable[Any]]  # the model of a client, by number or name as the header has it
Respond = Callable[[Any, Models, Any], Awaitable[Any]]  # service, models, request -> response


def application(opened: Callable[[], Service], respond: Respond, loaded: int, replicas: int) -> serve.Application:
    """The deployment of a service: each replica keeps at most ``loaded`` personal models, the last ones asked for."""

    class Replica:
        def __init__(self) -> None:
            fix_numerics()
            self.service = opened()

        @serve.multiplexed(max_num_models_per_replica=loaded)
        async def personal(self, client: str) -> Any:
            number = self.service.client(client)
            return None if number is None else self.service.model(number)

        async def __call__(self, request: Request) -> Any:
            return await respond(self.service, self.personal, request)  # type: ignore[arg-type]  # Serve's decorator

    return serve.deployment(
        name=NAME,
        num_replicas=replicas,
        max_ongoing_requests=AT_ONCE,
        max_queued_requests=WAITING,
        ray_actor_options={"num_cpus": 1},
        logging_config=LoggingConfig(enable_access_log=False),
    )(Replica).bind()


@contextlib.contextmanager
def running(app: serve.Application, replicas: int, address: str | None, host: str, port: int) -> Iterator[None]:
    """An application on a Ray cluster, joined or started here, that listens on host:port of this machine.

    Raises FedRayError where Ray or Serve does not start, where another program already serves on the cluster, and
    where a cluster started here has no CPU for each replica.
    """
    with same_handlers():
        own = connect(address)
    try:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        if serve.status().proxies:
            raise FedRayError(
                "another program serves on this Ray cluster, and has chosen its address; stop it (serve shutdown), or "
                "add this run to it: serve deploy (docs/serving.md)"
            )
        _check_room(replicas, own)
        try:
            _start(app, host, port)
            yield
        finally:
            if not own:
                serve.shutdown()
    finally:
        if own:
            ray.shutdown()


def _check_room(replicas: int, own: bool) -> None:
    """Raise FedRayError where the replicas will never have their CPUs, and say where they wait for them."""
    if own:
        room = int(this_node().cpus)
    else:  # a replica is on one machine
        room = sum(int(machine.free.cpus) for machine in machines().values() if machine.stays)
    if room >= replicas:
        return
    if own:
        raise FedRayError(f"--replicas {replicas}: each takes a CPU, and this machine has {room}; ask for fewer")
    say(f"--replicas {replicas}: each takes a CPU, and the cluster has {room} free; waiting for more (Ctrl-C stops it)")


def _start(app: serve.Application, host: str, port: int) -> None:
    """Return when the application answers; raises FedRayError."""
    options = HTTPOptions(host=host, port=port, request_timeout_s=SECONDS)
    try:
        _check_free(host, port)
        serve.start(proxy_location="HeadOnly", http_options=options)
        serve.run(app, name=NAME)
    except Exception as error:  # whichever Serve has
        reason = error.cause if isinstance(error, RayTaskError) else error  # whose own first line names a process
        raise FedRayError(
            f"Ray Serve did not start on {host}:{port} ({first_line(reason)}); choose another --host or --port, or see "
            "Ray's logs"
        ) from None


def _check_free(host: str, port: int) -> None:
    """Raise OSError where somebody listens on this machine: Serve's servers share a port, and answer by turns."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended do not count
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:  # another fault may be one of this machine alone, and not of the head
                raise
