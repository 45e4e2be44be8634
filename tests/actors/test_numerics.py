"""Every actor computes with one thread and without denormals, as a federation in one process does."""

from __future__ import annotations

import sys

import pytest
import ray
import torch
from ray import cloudpickle
from ray import tune as ray_tune

from actors.cohort import RayCohort
from actors.hosted import Hosted
from actors.machines.placement import Layout
from actors.server import ServerActor, remote_options
from fedray.federate.device.cpu import numerics
from tests.helpers import experiment, small_plan
from tune.trial import CommonToTrials, Trial

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers know nothing of the tests
LAYOUT = Layout((tuple(range(6)),), 0.1, 0.0)
EXPECTED = (True, 1)


def found(_: object = None) -> tuple[bool, int]:
    """(whether a denormal number is flushed to zero, the number of threads) of this process."""
    return bool((torch.tensor(1e-40) * torch.ones(1) == 0).all()), torch.get_num_threads()


class Observed(Trial):
    """A trial that reports the numerics of its own process and of its client actor."""

    def step(self) -> dict[str, object]:
        client = ray.get(self._server._cohort.crew.actors[0].__ray_call__.remote(found))
        return super().step() | {"own": found(), "client": client}


def test_the_processes_of_a_federation() -> None:
    with numerics():
        assert found() == EXPECTED
    assert not found()[0]

    def client(server: ServerActor) -> tuple[bool, int]:
        cohort = server._cohort
        assert isinstance(cohort, RayCohort)
        return ray.get(cohort.crew.actors[0].__ray_call__.remote(found))

    server = remote_options(num_cpus=0.1).remote(Hosted(small_plan(), LAYOUT, "loop"))
    assert ray.get(server.__ray_call__.remote(found)) == EXPECTED
    assert ray.get(server.__ray_call__.remote(client)) == EXPECTED
    ray.kill(server)


def test_the_processes_of_a_trial(tmp_path: object) -> None:
    common = CommonToTrials(experiment(settings={"rounds": 1}), LAYOUT, "loop", "global/accuracy", (), None)
    analysis = ray_tune.run(
        ray_tune.with_parameters(Observed, common=common),
        config={"seed": 0},
        resources_per_trial=ray_tune.PlacementGroupFactory(LAYOUT.bundles),
        storage_path=str(tmp_path),
        verbose=0,
    )
    (trial,) = analysis.trials
    assert (trial.last_result["own"], trial.last_result["client"]) == (EXPECTED, EXPECTED)
