"""Machines join, announce their end, and are lost, while a federation runs: its bits are those of one left alone."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION

from actors.federation import RayFederation
from actors.machines.seats import LEAVE_SECONDS
from fedray.config import Execution
from fedray.federate.in_process import LocalFederation
from fedray.federate.messages import RoundMetrics
from fedray.federate.plan import Plan
from fedray.federate.storage.checkpoint import CheckpointStore
from tests.chaos.arena import QUICK
from tests.helpers import differing, small_plan

pytestmark = [pytest.mark.ray, pytest.mark.slow]
SECONDS = 400.0  # for anything that is waited for
PAUSE = 0.1  # in every round on Ray, so that in process as many are soon played
NEVER = {"rounds": 100_000, "clients_per_round": 4}  # whoever plays it stops when it has seen enough

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers know nothing of the tests


class Machines:
    """A cluster of raylets on this machine, of which the first has the driver."""

    def __init__(self, first_cpus: int, workers: int):
        ray.shutdown()
        # Unnoted: a run that another test starts would join it unasked, and die when it ends.
        with patch("ray._private.utils.write_ray_address"):
            self._cluster = Cluster(
                initialize_head=True,
                head_node_args={"num_cpus": first_cpus, "include_dashboard": False, "_system_config": QUICK},
            )
        self.workers = [self.add() for _ in range(workers)]
        self.address = self._cluster.address

    def add(self):
        return self._cluster.add_node(num_cpus=1)

    def remove(self, node) -> None:
        """Gone without a word."""
        self._cluster.remove_node(node, allow_graceful=False)

    def announce(self, node, seconds: float = 600.0) -> None:
        """What the provider of a spot machine says before it takes it away."""
        deadline = int(1000 * (time.time() + seconds))
        client = ray._raylet.GcsClient(address=self.address)
        accepted, reason = client.drain_node(node.node_id, DRAIN_NODE_REASON_PREEMPTION, "spot", deadline)
        assert accepted, reason

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture
def cluster_of() -> Iterator[Callable[..., Machines]]:
    made: list[Machines] = []

    def start(first_cpus: int, workers: int) -> Machines:
        made.append(Machines(first_cpus, workers))
        return made[-1]

    yield start
    for machines in made:
        machines.close()


def federation_on(
    cluster: Machines, store: CheckpointStore | None = None, tickets: Path | None = None, **execution: Any
) -> RayFederation:
    """Six clients that stop for ever on a machine whose id is the name of a file in ``tickets``."""
    plan = small_plan("pfedbayes", NEVER)
    select, finish = plan.selection.select, plan.algorithm.finish

    def slowly(*state):
        time.sleep(PAUSE)
        return select(*state)

    def stopping(*args):
        if tickets is not None and (tickets / ray.get_runtime_context().get_node_id()).exists():
            (tickets / "stopped").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return finish(*args)

    algorithm, selection = plan.algorithm._replace(finish=stopping), plan.selection._replace(select=slowly)
    plan = plan._replace(algorithm=algorithm, selection=selection)
    return RayFederation(plan, Execution(address=cluster.address, backend="loop", **execution), store)


def apart(cluster: Machines, federation: RayFederation):
    """A worker that hosts clients only: on one host Ray cannot tie the server to the driver's machine."""
    return next(node for node in cluster.workers if node.node_id != server_of(federation))


def server_of(federation: RayFederation) -> str:
    """The machine of the server."""
    return ray.get(federation.server.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))


def until(
    rounds: Iterator[RoundMetrics], wanted: Callable[[RoundMetrics], bool]
) -> tuple[RoundMetrics, list[RoundMetrics]]:
    """Play until a round is as wanted; it, and all that were played."""
    deadline, played = time.monotonic() + SECONDS, []
    for metrics in rounds:
        played.append(metrics)
        if wanted(metrics):
            return metrics, played
        assert time.monotonic() < deadline, metrics.machines
    raise AssertionError("the rounds ended")


def ends_as_if_left_alone(federation: RayFederation) -> None:
    """Its states and measures now are those of as many rounds in one process."""
    history, snapshot = federation.history(), federation.snapshot()
    plan: Plan = small_plan("pfedbayes", NEVER)
    with LocalFederation(plan, "loop") as alone:
        assert len(list(itertools.islice(iter(alone), history.round))) == history.round
    assert differing(snapshot, alone.snapshot()) == []
    for ours, theirs in zip(history.rows, alone.history().rows, strict=True):
        assert {k: v for k, v in ours.items() if "time" not in k} == {
            k: v for k, v in theirs.items() if "time" not in k
        }


def test_a_federation_spreads_over_machines_that_join(cluster_of: Callable[..., Machines]) -> None:
    cluster = cluster_of(1, 0)
    with federation_on(cluster) as federation:
        rounds = iter(federation)
        assert list(next(rounds).machines.values()) == [6]
        cluster.add()
        cluster.add()
        spread, played = until(rounds, lambda metrics: len(metrics.machines) == 3)
        assert list(spread.machines.values()) == [2, 2, 2]
        moves = [move for metrics in played for move in metrics.moves]
        assert all(move.reason.startswith("spread to ") for move in moves)
        assert moves[-1].machines == spread.machines
        assert not any(metrics.failures for metrics in played)
        next(rounds)
        ends_as_if_left_alone(federation)


def test_clients_leave_a_machine_that_announces_its_end_before_it_goes(cluster_of: Callable[..., Machines]) -> None:
    cluster = cluster_of(1, 2)
    with federation_on(cluster) as federation:
        rounds = iter(federation)
        before = next(rounds).machines
        assert sorted(before.values()) == [2, 2, 2]
        going = apart(cluster, federation)
        cluster.announce(going)
        moved, played = until(rounds, lambda metrics: len(metrics.machines) == 2)
        (move,) = (move for metrics in played for move in metrics.moves)
        assert "announced the end" in move.reason
        assert sorted(moved.machines.values()) == [3, 3]
        cluster.remove(going)
        played += [next(rounds) for _ in range(5)]
        cluster.add()  # its successor takes the part of the reservation that fell free
        back, more = until(rounds, lambda metrics: len(metrics.machines) == 3)
        assert sorted(back.machines.values()) == [2, 2, 2]
        assert not any(metrics.failures for metrics in [*played, *more])  # nothing was lost, nothing played again
        ends_as_if_left_alone(federation)


def test_the_server_leaves_too_and_no_round_is_played_again(
    cluster_of: Callable[..., Machines], tmp_path: Path
) -> None:
    cluster = cluster_of(0, 2)  # the driver's machine has no CPU for it
    with federation_on(cluster, CheckpointStore(str(tmp_path), every=1000)) as federation:
        rounds = iter(federation)
        next(rounds)
        going = next(node for node in cluster.workers if node.node_id == server_of(federation))
        cluster.announce(going)
        moved, _ = until(rounds, lambda metrics: bool(metrics.failures))
        (failure,) = moved.failures
        assert "announced the end" in failure.reason
        assert failure.action == f"rebuilt from round {moved.round - 1}"
        assert len(moved.machines) == 1
        cluster.remove(going)
        assert not any(next(rounds).failures for _ in range(3))
        ends_as_if_left_alone(federation)


def test_what_a_federation_had_added_is_free_for_the_one_that_is_built_anew(
    cluster_of: Callable[..., Machines], tmp_path: Path
) -> None:
    cluster = cluster_of(0, 1)
    (going,) = cluster.workers
    with federation_on(cluster, CheckpointStore(str(tmp_path), every=1000)) as federation:
        rounds = iter(federation)
        next(rounds)
        cluster.add()
        cluster.add()
        until(rounds, lambda metrics: len(metrics.machines) == 3)
        cluster.announce(going)  # the server's machine; the others are full, with what was added
        elsewhere, _ = until(rounds, lambda metrics: bool(metrics.failures))
        assert sorted(elsewhere.machines.values()) == [3, 3]
        ends_as_if_left_alone(federation)


def test_a_round_that_does_not_end_in_time_is_begun_again_elsewhere(
    cluster_of: Callable[..., Machines], tmp_path: Path
) -> None:
    cluster = cluster_of(1, 2)
    with federation_on(cluster, CheckpointStore(str(tmp_path / "kept")), tmp_path) as federation:
        rounds = iter(federation)
        next(rounds)
        going = apart(cluster, federation)
        (tmp_path / going.node_id).touch()
        with ThreadPoolExecutor(1) as pool:
            playing = pool.submit(until, rounds, lambda metrics: bool(metrics.failures))
            while not (tmp_path / "stopped").exists() and not playing.done():
                time.sleep(0.05)
            cluster.announce(going, LEAVE_SECONDS / 2)  # this round will never end
            elsewhere, _ = playing.result()
        (failure,) = elsewhere.failures
        assert re.search(r"goes in \d+ s, before the round ends$", failure.reason)
        assert sorted(elsewhere.machines.values()) == [3, 3]
        ends_as_if_left_alone(federation)


def test_a_federation_goes_on_without_a_machine_that_is_lost(
    cluster_of: Callable[..., Machines], tmp_path: Path
) -> None:
    cluster = cluster_of(1, 2)
    with federation_on(cluster, CheckpointStore(str(tmp_path))) as federation:
        rounds = iter(federation)
        next(rounds)
        cluster.remove(apart(cluster, federation))
        smaller, played = until(rounds, lambda metrics: len(metrics.machines) == 2)
        assert sum(smaller.machines.values()) == 6
        (failure,) = (failure for metrics in played for failure in metrics.failures if failure.who == "server")
        assert failure.action.startswith("rebuilt from round")
        cluster.add()
        _, played = until(rounds, lambda metrics: len(metrics.machines) == 3)
        assert not any(metrics.failures for metrics in played)
        ends_as_if_left_alone(federation)


def test_told_to_keep_its_machines_it_waits_for_the_successor_of_a_lost_one(
    cluster_of: Callable[..., Machines], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.federation.HOMELESS_SECONDS", 2.0)
    cluster = cluster_of(1, 2)
    with federation_on(cluster, CheckpointStore(str(tmp_path)), elastic=False) as federation:
        rounds = iter(federation)
        next(rounds)
        cluster.remove(apart(cluster, federation))

        with ThreadPoolExecutor(1) as pool:
            playing = pool.submit(until, rounds, lambda metrics: bool(metrics.failures))
            while federation.server is not None and not playing.done():  # until it is to be built anew
                time.sleep(0.05)
            cluster.add()  # Ray starts machines in the main thread only
            _, played = playing.result()
        played.append(next(rounds))
        assert {tuple(metrics.machines.values()) for metrics in played} == {(2, 2, 2)}
        assert not any(metrics.moves for metrics in played)
        ends_as_if_left_alone(federation)
