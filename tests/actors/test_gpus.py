"""Placement on logical GPUs: five clients share two, each sees one, the server none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actors.federation import RayFederation
from actors.machines.placement import Node, arrange
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import Execution, Experiment
from fedray.federate.planning import make_plan

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_five_clients_on_two_gpus(own_cluster: Callable[..., None]) -> None:
    import ray

    own_cluster(num_cpus=6, num_gpus=2)
    plan = make_plan(Experiment(algorithm=FedAvg(), clients=5, rounds=1, local_steps=1))
    assert arrange(5, [Node(6, 2)]).gpus == 0.3333
    with RayFederation(plan, Execution()) as federation:
        assert [m.round for m in federation] == [1]
        assert ray.available_resources()["GPU"] == pytest.approx(2 - 5 * 0.3333)
