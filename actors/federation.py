"""A federation on Ray: join or start a cluster, reserve all of it or nothing, play, and leave nothing behind."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from actors.crew import refusal
from actors.hosted import Hosted
from actors.machines import demand, versions
from actors.machines.cluster import connect, machines, nodes
from actors.machines.demand import Cluster
from actors.machines.offer import need
from actors.machines.placement import Layout, Node, arrange
from actors.machines.seats import added_to, reserved
from actors.server import remote_options
from fedray.arrays import trees
from fedray.config import Execution
from fedray.federate.compiled.package import Backend, Package, obtain
from fedray.federate.device.numbers import on_device
from fedray.federate.failures import ClientsLostError, failure_policy
from fedray.federate.messages import ClassLosses, Failure, File, RoundMetrics
from fedray.federate.plan import Plan
from fedray.federate.rounds import Snapshot, State
from fedray.federate.storage.checkpoint import CheckpointStore, newest
from fedray.federate.storage.checkpoint_files import Checkpoint
from fedray.federate.uncertainty.reply import Uncertainty
from fedray.terminal import say
from fedray.types import FedRayError, RunError, first_line

CLOSE_SECONDS = 15.0  # for the server to end its clients
WATCH_SECONDS = 5.0  # between two looks at a reservation
HOMELESS_SECONDS = 30.0  # a reservation that lost a machine may look for another
REBUILD_SECONDS = 900.0  # how long a cluster may take to replace what it lost


class LostError(Exception):
    """The server actor is gone, or stands without its clients."""


class RayFederation:
    """A federation whose server and clients are Ray actors: iterate over its rounds, then take the snapshot.

    It starts from the checkpoint ``begun`` if one is given, and writes its own to the store. If the server is lost, or
    clients together with their states, the federation is rebuilt on what is left of the cluster, from the last
    checkpoint or from the start, and silently replays the rounds up to where it was. Use it as a context manager: on
    exit, its actors and its reservation are gone, whatever happened.
    """

    def __init__(
        self,
        plan: Plan,
        execution: Execution,
        store: CheckpointStore | None = None,
        begun: Checkpoint | None = None,
        package: Package | None = None,  # the compiled step to train with
        ahead: bool = True,  # whether the next round is under way while the caller deals with the last
    ):
        self.plan = plan
        self._execution = execution
        self._store = store
        self._policy = failure_policy(plan.cfg, execution.round_timeout)
        self._begun = begun
        self._reached = begun.state.round if begun else 0  # the last round that was yielded
        self._played = self._reached  # the last round that the server has played
        self._failures: list[Failure] = []  # not yet reported
        self._rebuilt = 0  # times, since the last new round
        self._group: Any = None
        self.server: Any = None
        self._runs_ahead = ahead
        self._ahead: Any = None  # the reference to the round that is under way
        self._package = package
        self._own_cluster = connect(execution.address)
        try:
            self._dataset = None if plan.given is None else ray.put(plan.given)
            wanted = need(plan.clients, demand.wish(execution))
            self._build(begun, demand.survey(wanted, execution.start_timeout))
        except BaseException:
            self.close()
            raise

    @property
    def device(self) -> str:
        """What its clients compute on."""
        return self.layout.device

    def __enter__(self) -> RayFederation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[RoundMetrics]:
        """Rounds as they end."""
        while self._reached < self.plan.rounds:
            metrics = self._recovering(self._play)
            self._reached = metrics.round
            self._rebuilt = 0
            for move in metrics.moves:
                say(move.line)
            failures = (*self._failures, *metrics.failures)
            self._failures.clear()
            yield metrics._replace(failures=failures)

    def snapshot(self) -> Snapshot:
        """The server's and the clients' states now."""
        return trees.to_torch(self._recovering(lambda: self._get(self.server.snapshot.remote())))

    def save(self, folder: str) -> list[File]:
        """Write the clients' states into a folder, and list the files."""
        return self._recovering(lambda: self._get(self.server.save.remote(folder)))

    def class_losses(self) -> ClassLosses:
        """What the loss deviation is made of, of the personal models now."""
        return trees.to_torch(self._recovering(lambda: self._get(self.server.class_losses.remote())))

    def uncertainty(self, far: Tensor | None = None) -> Uncertainty:
        """What the uncertainty of the members' models now is good for; ``far`` are examples of another dataset."""
        examples = trees.to_numpy(far)
        return trees.to_torch(self._recovering(lambda: self._get(self.server.uncertainty.remote(examples))))

    def history(self) -> State:
        """The server's state with the measures of the rounds so far."""
        return trees.to_torch(self._recovering(lambda: self._get(self.server.history.remote())))

    def server_pid(self) -> int:
        """The process that hosts the server."""
        return self._recovering(lambda: self._get(self.server.pid.remote()))

    def client_pids(self) -> list[int]:
        """The processes that host the clients, in client order."""
        return self._recovering(lambda: self._get(self.server.client_pids.remote()))

    def hosts(self) -> dict[str, str]:
        """The machines on which it has reserved room now, by Ray's id: the name of each."""
        group = self._group
        groups = [] if group is None else [group, *added_to(group)]
        used = {seat.machine for each in groups for seat in reserved(each)}
        return {machine: found.name for machine, found in machines().items() if machine in used}

    def close(self) -> None:
        """Stop the actors, free the reservation, and stop Ray if it was started here."""
        if self.server is not None and self._store and self._store.states:
            with contextlib.suppress(RayError):
                ray.get(self.server.close.remote(), timeout=CLOSE_SECONDS)
        self._tear_down()
        if self._own_cluster:
            ray.shutdown()

    def _build(self, begun: Checkpoint | None, cluster: Cluster, before: Layout | None = None) -> None:
        execution = self._execution
        self.layout = self._arrange(cluster.nodes, before)
        self.plan = on_device(self.plan, self.layout.gpus > 0)
        backend = self._backend()
        self._group = demand.reserve(self.layout.bundles, cluster)
        if not self._own_cluster:
            versions.check()  # some machines may be there only since something was reserved
        strategy = PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
        remote = remote_options(num_cpus=self.layout.bundles[0]["CPU"], num_gpus=0, scheduling_strategy=strategy)
        plan, name = self.plan._replace(given=None), execution.name or "fedray"
        hosted = Hosted(plan, self.layout, backend, self._policy, self._dataset, self._store, begun, name)
        self.server = remote.remote(hosted, self._most())
        self._played = begun.state.round if begun else 0
        self._ahead = None

    def _arrange(self, there: Sequence[Node], before: Layout | None) -> Layout:
        """The layout on the given machines: on GPUs if it was on GPUs before, since bits differ otherwise.

        Raises FedRayError where they cannot hold it.
        """
        if before is not None and not self._execution.elastic:
            return before
        wish = demand.wish(self._execution)
        if before is not None and not before.gpus:
            wish = wish._replace(gpus=0)
        layout = arrange(self.plan.clients, there, wish)
        if before is not None and before.gpus and not layout.gpus:
            raise FedRayError("no machine with a GPU is left; start one, or go on later with --resume")
        return layout

    def _backend(self) -> Backend:
        """How the clients of the layout train: a package is for CPUs, and made once."""
        if self.layout.gpus:
            return self._execution.backend
        if self._execution.backend == "compiled":
            self._package = self._package or obtain(self.plan)
        return self._package or self._execution.backend

    def _most(self) -> int:
        """The actors that the federation may grow to; 0: it keeps its machines."""
        if not self._execution.elastic:
            return 0
        wish = demand.wish(self._execution)
        most = math.ceil(self.plan.clients / (wish.clients_per_actor or 1))
        asked, share = (wish.gpus, self.layout.gpus) if self.layout.gpus else (wish.cpus, self.layout.cpus)
        return min(most, max(len(self.layout.blocks), math.floor(asked / share + 1e-9))) if asked else most

    def _play(self) -> RoundMetrics:
        """The next round of the server, which is sent into the one after it where it runs ahead."""
        ahead = self._ahead or self.server.play.remote()
        self._ahead = None
        metrics = trees.to_torch(self._get(ahead))
        self._played = metrics.round
        if self._runs_ahead and self._played < self.plan.rounds:
            self._ahead = self.server.play.remote()
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
        if self._rebuilt >= self._policy.attempts:
            raise RunLostError(f"{reason}; given up after round {self._reached}")
        self._tear_down()
        # Not from a round whose metrics were lost with the server: it is played again, and yielded then.
        begun = newest(self._store, self.plan, say, self._reached) if self._store else None
        begun = begun or self._begun
        action = f"rebuilt from round {begun.state.round if begun else 0}"
        self._failures.append(Failure(self._reached + 1, "server", "lost", reason, action))
        say(f"{reason}; the federation is {action}")
        deadline = time.monotonic() + REBUILD_SECONDS
        while True:
            try:
                # As the cluster is now: nothing is started for what was lost.
                return self._build(begun, Cluster(nodes()), self.layout)
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
                for group in [self._group, *added_to(self._group)]:
                    remove_placement_group(group)
        self.server = self._group = self._ahead = None

    def _get(self, ref: Any) -> Any:
        """The value of a reference; what our own code refused in an actor is raised here as it was there.

        Raises LostError where the server is, or where its reservation has been without a machine for too long.
        """
        homeless = None
        while not ray.wait([ref], timeout=WATCH_SECONDS)[0]:
            whole = self._placed()
            homeless = None if whole else homeless or time.monotonic()
            if homeless and time.monotonic() - homeless > HOMELESS_SECONDS:
                raise LostError("a machine was lost, and its part of the reservation found no other")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ray.get(ref)
        except RayTaskError as error:
            if isinstance(error.cause, FedRayError | OSError):
                raise error.cause from None
            if isinstance(error.cause, ClientsLostError | RayError):
                raise LostError(first_line(error.cause)) from None
            raise
        except RayError as error:
            if refused := refusal(error):
                raise FedRayError(f"the server actor could not start: {refused}") from None
            raise LostError(f"the server actor was lost ({first_line(error)})") from None

    def _placed(self) -> bool:
        """Whether the reservation has all its machines; where clients may move, the server's alone.

        The machines of clients are watched by the server then.
        """
        if self._execution.elastic:
            return bool(reserved(self._group)[0].machine)
        return placement_group_table(self._group).get("state") == "CREATED"


class RunLostError(RunError):
    """The federation cannot be kept going on this cluster."""


def announce(layout: Layout, clients: int) -> None:
    """Say in one line how clients were packed, if they were."""
    if len(layout.blocks) < clients:
        say(
            f"{clients} clients share {len(layout.blocks)} actors ({len(layout.blocks[0])} each, "
            f"{layout.gpus:g} GPU per actor); results depend on it by rounding at most"
        )
