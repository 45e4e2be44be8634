"""Ask the cluster for what a run needs, and wait for it: its reservation is the demand that the autoscaler reads."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from actors.machines import autoscaler, boots, versions
from actors.machines.autoscaler import Starting
from actors.machines.cluster import here, nodes
from actors.machines.offer import MachineKind, Need, enlist
from actors.machines.placement import Node, Wish
from fedray.config import Execution
from fedray.config.execution import seconds
from fedray.terminal import span, waiting
from fedray.types import FedRayError

FREE_SECONDS = 120.0  # how long a cluster in use may take to free what fits it
START_SECONDS = 1200.0  # how long machines may take to start
LOOK_SECONDS = 1.0  # between two looks at a reservation
OTHERS_SECONDS = 15.0  # in which the autoscaler turns to another type of machine after one that it could not start


class Cluster(NamedTuple):
    """The machines that a run is planned for: those that run, and those that are to be started."""

    nodes: Sequence[Node]
    to_start: tuple[MachineKind, ...] = ()  # one for each machine
    name: str = ""  # of the cluster of an autoscaler; empty: it has none
    patience: float = FREE_SECONDS  # how long to wait for them, or for room on them


def wish(execution: Execution) -> Wish:
    """What the settings ask of a placement."""
    gpus, cpus = (None if amount == "auto" else amount for amount in (execution.gpus, execution.cpus))
    return Wish(execution.clients_per_actor, execution.gpus_per_client, gpus, cpus)


def survey(wanted: Need, patience: str = "") -> Cluster:
    """The cluster as it will be for a run that needs so much; raises FedRayError for what it can never have.

    ``patience``, such as '20m', is how long the run will wait for it; empty: the default.
    """
    running, offer = nodes(), autoscaler.offer()
    if offer is None:
        return Cluster(running, patience=seconds(patience) if patience else FREE_SECONDS)
    to_start = enlist(wanted, running, offer)
    planned = [*running, *(kind.node for kind in to_start)]
    return Cluster(planned, to_start, offer.cluster, seconds(patience) if patience else START_SECONDS)


def reserve(bundles: Sequence[Mapping[str, float]], cluster: Cluster) -> Any:
    """A placement group of all bundles, the server's first: everything or nothing.

    Waits for machines that start and for room on those that run, and says so. Where this is interrupted, the group is
    removed, and the demand withdrawn with it. So it is where FedRayError is raised: when the cluster's patience ends,
    or the provider refuses to start machines.
    """
    server, *clients = bundles
    watch = _Watch(cluster, autoscaler.look() if cluster.name else Starting())
    group = placement_group([dict(server) | here(), *map(dict, clients)], strategy="PACK")
    try:
        if not group.wait(LOOK_SECONDS):
            with waiting() as tell:
                while not group.wait(LOOK_SECONDS):
                    watch.look()
                    if reason := watch.refusal():
                        raise FedRayError(f"{reason}; the request is withdrawn")
                    if watch.took >= cluster.patience:
                        raise FedRayError(_too_late(watch, clients or [server], cluster.patience))
                    tell(watch.progress(), watch.took)
            watch.look()
    except BaseException:
        remove_placement_group(group)
        raise
    return group


def bring_up(bundles: Sequence[Mapping[str, float]], cluster: Cluster) -> None:
    """Wait until one reservation of these bundles finds room, for somebody who then makes such reservations himself.

    His own are the demand for more machines. Raises FedRayError as :func:`reserve` does, and for machines of other
    versions; where no machine is to be started, it does nothing.
    """
    if cluster.to_start:
        remove_placement_group(reserve(bundles, cluster))
        versions.check()  # of the new ones, too


class _Watch:
    """What the autoscaler does about a reservation."""

    def __init__(self, cluster: Cluster, before: Starting):
        self._cluster, self._before, self._now = cluster, before, before
        self._begun = time.monotonic()
        self._since: dict[str, float] = {}  # by type: when one was first seen to start, after so many seconds
        self._stuck: float | None = None  # since when only types that were refused are asked for again
        self._usual = boots.recall(cluster.name) if cluster.name else {}
        self.took = 0.0

    def look(self) -> None:
        """Look again, and remember how long machines took that have come."""
        self.took = time.monotonic() - self._begun
        if not self._cluster.name:
            return
        last, self._now = self._now, autoscaler.look()
        come = [kind for kind in self._since if self._now.running.get(kind, 0) > last.running.get(kind, 0)]
        if come:
            boots.remember(self._cluster.name, {kind: self.took - self._since[kind] for kind in come})
        for kind in set(come) - self._starting().keys():
            del self._since[kind]
        for kind in self._starting():
            self._since.setdefault(kind, self.took)
        others = self._starting().keys() - self._refused().keys()
        if others or not self._refused():
            self._stuck = None
        elif self._stuck is None:
            self._stuck = self.took

    def refusal(self) -> str:
        """Why no more machines will come; empty while they may."""
        if self._stuck is None or self.took - self._stuck < OTHERS_SECONDS:
            return ""
        reasons = (f"{kind}: {autoscaler.why_failed(kind, why)}" for kind, why in self._refused().items())
        return f"the provider does not start the machines that are needed ({'; '.join(reasons)})"

    def progress(self) -> str:
        """What is asked for, what is starting, and what a machine of its type took before."""
        asked = Counter(kind.name for kind in self._cluster.to_start)
        if not self._cluster.name:
            return "waiting for the cluster to free what the clients need"
        parts = [f"asked for {_machines(asked)}" if asked else "asked for room on machines that are in use"]
        parts.append(f"starting: {_machines(self._starting()) or 'none'}")
        kinds = sorted(asked.keys() | self._starting().keys())
        parts += [f"a {kind} took {span(self._usual[kind])} before" for kind in kinds if kind in self._usual]
        parts += [f"refused: {kind}" for kind in self._refused()]
        return "; ".join(parts)

    def _starting(self) -> dict[str, int]:
        return {kind: count for kind, count in self._now.starting.items() if count}

    def _refused(self) -> dict[str, str]:
        """The types of which a machine could not be started since we asked, with the last reason."""
        new = {key: why for key, why in self._now.failed.items() if key not in self._before.failed}
        return {kind: why for (kind, _), why in sorted(new.items())}


def _machines(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(counts.items()))


def _too_late(watch: _Watch, clients: Sequence[Mapping[str, float]], limit: float) -> str:
    free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}
    share = clients[0]
    return (
        f"within {span(limit)} the cluster did not have {len(clients)} x (CPU {share['CPU']:g}, "
        f"GPU {share.get('GPU', 0):g}) free, it has {free} ({watch.progress()}); the request is withdrawn; wait for "
        "other jobs, raise --start-timeout, or ask for less (--gpus, --cpus, --clients-per-actor)"
    )
