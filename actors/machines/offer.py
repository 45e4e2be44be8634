"""What a cluster could start, and which of it a run needs: arithmetic only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from actors.machines.placement import ACTORS_PER_GPU, TRIALS_PER_GPU, Node, Wish
from fedray.types import FedRayError


class MachineKind(NamedTuple):
    """A type of machine that the cluster can start."""

    name: str
    node: Node
    more: int  # how many can be started beside those that run


class Offer(NamedTuple):
    """What the cluster's autoscaler can start."""

    cluster: str  # its name
    kinds: tuple[MachineKind, ...]
    more: int  # machines of all types together


class Need(NamedTuple):
    """How much the clients of a run need, or those of all trials of a sweep."""

    gpus: float  # 0: they run on CPUs
    cpus: float  # where they do
    asked: str = ""  # the option that asks for exactly so much; empty: less will do


def need(clients: int, wish: Wish) -> Need:
    """What a federation needs: what was asked for, or a GPU for every eight actors, or a CPU for each."""
    size = wish.clients_per_actor or 1
    actors = math.ceil(clients / size)
    if wish.no_gpus:
        return Need(0, wish.cpus or actors, f"--cpus {wish.cpus}" if wish.cpus else "")
    if wish.gpus:
        return Need(wish.gpus, 0, f"--gpus {wish.gpus}")
    if wish.gpus_per_client:
        share = wish.gpus_per_client * size
        gpus = actors * share if share > 1 else math.ceil(actors / math.floor(1 / share + 1e-9))
        return Need(gpus, 0, f"--gpus-per-client {wish.gpus_per_client:g}")
    return Need(math.ceil(actors / ACTORS_PER_GPU), actors)


def need_of_trials(clients: int, at_once: int, wish: Wish) -> Need:
    """What so many trials at a time need: what was asked for, or half a GPU or a CPU for each."""
    if wish.gpus_per_client:
        return need(clients, wish)  # of one trial: more of them run where there is room
    found = need(at_once, wish._replace(clients_per_actor=None))
    return found if found.asked or not found.gpus else found._replace(gpus=math.ceil(at_once / TRIALS_PER_GPU))


def enlist(wanted: Need, nodes: Sequence[Node], offer: Offer) -> tuple[MachineKind, ...]:
    """The machines to start beside those that run: a kind for each of them.

    Clients run on GPUs where machines have some or could have some. For clients on CPUs no machine with GPUs is
    started. What was not asked for exactly is had as far as the offer goes. Raises FedRayError for what can never be
    had.
    """
    on_gpus = wanted.gpus and (
        wanted.asked or any(node.gpus for node in nodes) or any(kind.more and kind.node.gpus for kind in offer.kinds)
    )
    if on_gpus:
        unit, amount, have = "GPU", wanted.gpus, sum(node.gpus for node in nodes)
        sizes = {kind: kind.node.gpus for kind in offer.kinds if kind.node.gpus}
    else:
        unit, amount, have = "CPU", wanted.cpus, sum(node.cpus for node in nodes)
        sizes = {kind: kind.node.cpus for kind in offer.kinds if kind.node.cpus and not kind.node.gpus}
    picked = _pick(amount - have, sizes, offer.more)
    reached = have + sum(sizes[kind] for kind in picked)
    if wanted.asked and reached < amount:
        types = ", ".join(f"{k.more} more of {k.name} (CPU {k.node.cpus:g}, GPU {k.node.gpus:g})" for k in offer.kinds)
        raise FedRayError(
            f"{wanted.asked}: the cluster can never have {amount:g} {unit}: it has {have:g}, and may start "
            f"{offer.more} more machines, {types or 'of no type'}; ask for less, or raise max_workers in its file"
        )
    return picked


def _pick(missing: float, sizes: dict[MachineKind, float], most: int) -> tuple[MachineKind, ...]:
    """Kinds, one for every machine, with little to spare: the largest that is needed whole, else the smallest."""
    left = {kind: kind.more for kind in sizes}
    picked: list[MachineKind] = []
    while missing > 1e-9 and len(picked) < most and any(left.values()):
        free = [kind for kind, count in left.items() if count]
        whole = [kind for kind in free if sizes[kind] <= missing]
        kind = max(whole, key=sizes.__getitem__) if whole else min(free, key=sizes.__getitem__)
        left[kind] -= 1
        missing -= sizes[kind]
        picked.append(kind)
    for kind in sorted(picked, key=sizes.__getitem__):  # what the last one has made superfluous
        if sizes[kind] <= -missing + 1e-9:
            missing += sizes[kind]
            picked.remove(kind)
    return tuple(picked)
