"""How a federation fits a cluster: clients per actor, shares of CPUs and GPUs; what cannot fit is refused."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple

from fedray.types import FedRayError

SERVER_CPUS = 0.01  # the server waits most of the time
ACTORS_PER_GPU = 8  # each has a CUDA context of its own (hundreds of MB); beyond this, clients are packed
TRIALS_PER_GPU = 2
RESOLUTION = 10_000  # Ray counts shares in units of 1/10,000


class Layout(NamedTuple):
    """Which clients share an actor, and what every actor asks for."""

    blocks: tuple[tuple[int, ...], ...]  # client ids, consecutive and ascending
    cpus: float
    gpus: float
    inside: bool = False  # the only block is in the server's process, which asks for what both need

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Resources of the whole federation, the server's first."""
        if self.inside:
            return [{"CPU": SERVER_CPUS + self.cpus}]
        client = {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})
        return [{"CPU": SERVER_CPUS}] + [client] * len(self.blocks)

    @property
    def device(self) -> str:
        """What the clients compute on; the machine that places them may not see the GPUs."""
        return "GPU" if self.gpus else "cpu"

    def first(self, clients: int) -> Layout:
        """That of the first so many clients only, within the same resources."""
        kept = (tuple(i for i in block if i < clients) for block in self.blocks)
        return self._replace(blocks=tuple(block for block in kept if block))


class Node(NamedTuple):
    """What a machine offers."""

    cpus: float
    gpus: float


class Wish(NamedTuple):
    """What was asked of a placement; None: what fits."""

    clients_per_actor: int | None = None
    gpus_per_client: float | None = None
    gpus: int | None = None  # that all clients share; 0 for CPUs
    cpus: int | None = None  # that all clients share, without GPUs

    @property
    def no_gpus(self) -> bool:
        """Whether the clients are to run on CPUs, whatever else there is."""
        return self.gpus == 0 or self.gpus_per_client == 0 or self.cpus is not None


ANYTHING = Wish()


def arrange(clients: int, nodes: Sequence[Node], wish: Wish = ANYTHING) -> Layout:
    """The layout of a federation on a cluster.

    One client per actor while every actor can have a CPU (and at most eight share a GPU); else more, evenly. A GPU is
    shared as 1/ceil(actors/GPUs): clients/GPUs itself would deadlock wherever it does not divide evenly.
    Raises FedRayError where the cluster cannot hold it.
    """
    clients_per_actor, gpus_per_client = wish.clients_per_actor, wish.gpus_per_client
    cpus, gpus = _shared(nodes, wish)
    if gpus_per_client and not gpus:
        raise FedRayError(
            f"--gpus-per-client {gpus_per_client:g}: {clients} clients need {clients * gpus_per_client:g} GPUs, "
            "the cluster has 0 GPU; leave the option out, use 0 to run on CPUs, or start Ray with GPUs"
        )
    if clients_per_actor is None:
        room = max(1, math.floor(min(cpus, gpus * ACTORS_PER_GPU) if gpus else cpus))
        clients_per_actor = math.ceil(clients / room)
        if gpus_per_client:  # an actor's share may not exceed a GPU
            clients_per_actor = min(clients_per_actor, max(1, math.floor(1 / gpus_per_client)))
    blocks = _blocks(clients, clients_per_actor)
    share = _gpu_share(len(blocks), gpus, wish, clients_per_actor)
    _check_gpus(share, len(blocks), nodes)
    cpu_share = _cpu_share(len(blocks), share, nodes, 1, wish)
    if cpu_share <= 0:
        raise FedRayError(
            f"{len(blocks)} client actors do not fit the {cpus:g} CPUs of the cluster; raise --clients-per-actor "
            f"above {clients_per_actor} or give Ray more CPUs"
        )
    return Layout(blocks, cpu_share, share)


def arrange_trials(
    clients: int,
    trials: int,
    nodes: Sequence[Node],
    concurrency: int | None = None,
    wish: Wish = ANYTHING,
    apart: bool = False,
) -> tuple[Layout, int]:
    """The layout of every trial of a sweep, and how many of them run at a time.

    By default one trial per CPU (two per GPU where there are GPUs), the clients of each packed into its share of the
    cluster; with an explicit concurrency, packed so that as many fit. Clients that fit into one process without a GPU
    share that of their server, unless they must be ``apart`` from it.
    Raises FedRayError where the cluster could not hold even one such trial, or not as many as were asked for.
    """
    clients_per_actor = wish.clients_per_actor
    cpus, gpus = _shared(nodes, wish)
    wanted = concurrency or max(1, min(trials, math.floor(cpus), TRIALS_PER_GPU * math.floor(gpus) if gpus else trials))
    if clients_per_actor is None:
        actors = max(1, math.floor((min(cpus, gpus) if gpus else cpus) / wanted))
        clients_per_actor = math.ceil(clients / min(actors, clients))
    blocks = _blocks(clients, clients_per_actor)
    share = _gpu_share(wanted * len(blocks), gpus, wish, clients_per_actor)
    cpu_share = _cpu_share(wanted * len(blocks), share, nodes, wanted, wish)
    layout = Layout(blocks, cpu_share, share, inside=len(blocks) == 1 and not share and not apart)
    room = _room(layout, nodes, wanted) if cpu_share > 0 else 0
    if room < (concurrency or 1):
        asked = f"--concurrency {concurrency}: {concurrency} trials" if concurrency else "a trial"
        raise FedRayError(
            f"{asked} of {len(blocks)} client actor(s) with {max(cpu_share, 0):g} CPU and {share:g} GPU each cannot be "
            f"placed: the cluster has {cpus:g} CPU and {gpus:g} GPU, room for {room}; lower --concurrency or "
            f"--gpus-per-client, or raise --clients-per-actor above {clients_per_actor}"
        )
    return layout, room


def _shared(nodes: Sequence[Node], wish: Wish) -> tuple[float, float]:
    """The CPUs and GPUs that the clients share: those of the cluster, or as many of them as were asked for.

    Raises FedRayError where it has fewer.
    """
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    for option, asked, there in (("gpus", wish.gpus, gpus), ("cpus", wish.cpus, cpus)):
        if asked and asked > there:
            raise FedRayError(
                f"--{option} {asked}: the cluster has {there:g} {option[:-1].upper()}; lower it, or start Ray with more"
            )
    return (wish.cpus or cpus), 0.0 if wish.no_gpus else (wish.gpus or gpus)


def _gpu_share(actors: int, gpus: float, wish: Wish, clients_per_actor: int) -> float:
    """The share of a GPU that each actor has: what was asked for, or an even one of the GPUs that they share."""
    if wish.gpus_per_client is not None:
        return _whole_or_part(wish.gpus_per_client * clients_per_actor, wish.gpus_per_client, clients_per_actor)
    return _floor(1 / max(1, math.ceil(actors / gpus))) if gpus else 0.0


def _cpu_share(actors: int, gpu_share: float, nodes: Sequence[Node], servers: int, wish: Wish) -> float:
    """The largest share of a CPU, at most 1, at which the machines one by one hold all actors; 0 where none does.

    Each machine keeps room for the servers, since these may be on any. CPUs that were asked for are shared evenly.
    """
    free = [
        (node.cpus - servers * SERVER_CPUS, _per_gpus(node.gpus, gpu_share) if gpu_share else math.inf)
        for node in nodes
    ]

    def too_many(share: int) -> bool:
        return sum(min(most, max(0, math.floor(cpus * RESOLUTION / share + 1e-9))) for cpus, most in free) < actors

    fits = bisect.bisect_left(range(1, RESOLUTION + 1), True, key=too_many) / RESOLUTION
    return min(fits, _floor(wish.cpus / actors)) if wish.cpus else fits


def _per_gpus(gpus: float, share: float) -> int:
    """How many actors with a share of a GPU, or with whole ones, the GPUs of one machine hold."""
    return math.floor(gpus) * math.floor(1 / share) if share <= 1 else math.floor(math.floor(gpus) / share)


def seats_in(layout: Layout, node: Node) -> int:
    """How many more actors of a layout what a machine has free can hold."""
    by_cpus = math.floor(node.cpus / layout.cpus + 1e-9)
    return min(by_cpus, _per_gpus(node.gpus, layout.gpus)) if layout.gpus else by_cpus


def _room(layout: Layout, nodes: Sequence[Node], most: int) -> int:
    """How many such federations fit at once, first fit; a GPU share never spans two GPUs."""
    free = [(node.cpus, [1.0] * math.floor(node.gpus)) for node in nodes]
    for placed in range(most):
        for bundle in layout.bundles:
            cpu = bundle["CPU"]
            gpu = bundle.get("GPU", 0.0)
            for at, (cpus, cards) in enumerate(free):
                left = _take(cards, gpu)
                if cpus + 1e-9 >= cpu and left is not None:
                    free[at] = cpus - cpu, left
                    break
            else:
                return placed
    return most


def _take(cards: list[float], share: float) -> list[float] | None:
    """What is left of a node's GPUs after a share of one, or whole ones; None where it does not fit."""
    left = list(cards)
    wanted = max(1, math.ceil(share)) if share else 0
    for at, card in enumerate(left):
        if wanted and card + 1e-9 >= min(share, 1.0):
            left[at] = card - min(share, 1.0)
            wanted -= 1
    return None if wanted else left


def _blocks(clients: int, size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(i, min(i + size, clients))) for i in range(0, clients, size))


def _floor(share: float) -> float:
    return math.floor(share * RESOLUTION) / RESOLUTION


def _whole_or_part(share: float, per_client: float, clients_per_actor: int) -> float:
    if share <= 1:
        return _floor(share)
    if share == int(share):
        return share
    raise FedRayError(
        f"--gpus-per-client {per_client:g}: {clients_per_actor} clients per actor make {share:g} GPUs, and Ray gives "
        "an actor a part of one GPU or whole ones; lower it or change --clients-per-actor"
    )


def _check_gpus(share: float, actors: int, nodes: Sequence[Node]) -> None:
    """An actor's share never spans two GPUs, nor two nodes."""
    if share == 0:
        return
    room = sum(_per_gpus(node.gpus, share) for node in nodes)
    if room < actors:
        raise FedRayError(
            f"{actors} client actors of {share:g} GPU each cannot be placed: the cluster has "
            f"{sum(node.gpus for node in nodes):g} GPU, room for {room} of them; lower --gpus-per-client (0 runs on "
            "CPUs), raise --clients-per-actor, or start Ray with more GPUs"
        )
