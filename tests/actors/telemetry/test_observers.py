"""An observer on every machine that a federation uses, while it uses it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from unittest.mock import patch

import pytest
import ray
from ray import cloudpickle
from ray._private.state import actors as all_actors
from ray.cluster_utils import Cluster

from actors.federation import RayFederation
from actors.telemetry.observers import Observers
from fedray.config import Execution
from fedray.federate.in_process import LocalFederation
from fedray.running.published import system_metrics
from fedray.running.tracking import NullTracker
from tests.chaos.arena import QUICK
from tests.helpers import differing, small_plan

pytestmark = [pytest.mark.ray, pytest.mark.slow]
SECONDS = 300.0  # for anything that is waited for

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers know nothing of the tests


@pytest.fixture
def cluster():
    """Two raylets of one CPU each on this machine; unnoted, for other runs would join it unasked."""
    ray.shutdown()
    with patch("ray._private.utils.write_ray_address"):
        head = {"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK}
        made = Cluster(initialize_head=True, head_node_args=head)
    made.add_node(num_cpus=1)
    yield made
    ray.shutdown()
    made.shutdown()


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def observing() -> list[dict]:
    """The observers that live."""
    return [a for a in all_actors().values() if (a["ActorClassName"], a["State"]) == ("Observer", "ALIVE")]


class Seen(NullTracker):
    def __init__(self):
        self.samples: list[dict[str, float]] = []

    def sample(self, values):
        self.samples.append(dict(values))

    @property
    def machines(self):
        return {name.rpartition("/")[0] for sample in self.samples for name in sample}


def test_every_machine_of_a_federation_is_sampled_and_its_bits_stay(cluster: Cluster, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    seen, warned = Seen(), []
    plan = small_plan("pfedbayes")
    with RayFederation(plan, Execution(address=cluster.address, backend="loop")) as federation:
        names = set(federation.hosts().values())
        assert len(names) == 2
        with system_metrics.sampled(federation, seen, warned.append):
            assert len(list(federation)) == plan.rounds
            until(lambda: seen.machines == names)
        found = federation.snapshot()
        until(lambda: not observing())
    assert not warned
    with LocalFederation(plan, "loop") as alone:
        list(alone)
        assert differing(found, alone.snapshot()) == []


def test_observers_come_and_go_with_the_machines_and_one_that_fails_is_said_once(cluster: Cluster) -> None:
    ray.init(address=cluster.address, log_to_driver=False)
    first, second = (node["NodeID"] for node in ray.nodes())
    hosts, warned = {first: "first", second: "second"}, []

    def begin():
        return lambda: (ray.get_runtime_context().get_node_id(), os.getpid())

    observers = Observers(lambda: hosts, begin, warned.append)
    seen: dict[str, tuple[str, int]] = {}
    until(lambda: bool(seen.update(observers.look())) or len(seen) == 2)
    assert {name: machine for name, (machine, _) in seen.items()} == {"first": first, "second": second}
    hosts.pop(first)
    assert observers.look().keys() <= {"second"}
    until(lambda: not alive(seen["first"][1]))
    os.kill(seen["second"][1], 9)
    until(lambda: observers.look() == {} and bool(warned))
    assert len(warned) == 1
    assert warned[0].startswith("second: ")
    assert observers.look() == {}  # and no other takes its place
    observers.close()
    assert len(warned) == 1


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
