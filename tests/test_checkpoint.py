"""A federation that goes on from its checkpoint is the one that never stopped, and damage is noticed."""

import pytest
import torch

from fedray import checkpoint, trees
from fedray.federation import LocalCohort, play_round, start
from fedray.types import FedRayError
from tests.helpers import ALGORITHMS, differing, small_plan

SETTINGS = {"rounds": 4, "eval_every": 2}


def played(plan, state, cohort, rounds):
    for _ in range(rounds):
        state, metrics = play_round(plan, state, cohort)
    return state, metrics


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_federation_goes_on_bitwise_from_a_checkpoint(name, tmp_path):
    plan = small_plan(name, SETTINGS)
    first = LocalCohort(plan, "loop")
    state, _ = played(plan, start(plan), first, 2)
    checkpoint.save(tmp_path, state, first.snapshot(), [{"round": 1, "x": 0.1}])
    whole, expected = played(plan, state, first, 2)
    second = LocalCohort(plan, "loop")
    found = checkpoint.load(tmp_path, plan)
    assert found.rows == [{"round": 1, "x": 0.1}]
    second.block.states = trees.tree_map(torch.clone, found.clients)
    again, metrics = played(plan, found.state, second, 2)
    assert again.round == whole.round == 4
    assert differing((again.server, second.snapshot()), (whole.server, first.snapshot())) == []
    assert metrics.participants == expected.participants
    for kind in ("personal", "global_"):
        assert (getattr(metrics, kind) is None) == (getattr(expected, kind) is None)
        assert getattr(metrics, kind) is None or differing(getattr(metrics, kind), getattr(expected, kind)) == []


@pytest.mark.parametrize("file", ["state.json", "server.safetensors", "clients.safetensors", "selection.safetensors"])
def test_a_missing_or_torn_file_is_named(file, tmp_path):
    plan = small_plan("fedavg")
    cohort = LocalCohort(plan, "loop")
    checkpoint.save(tmp_path, start(plan), cohort.snapshot(), [])
    whole = (tmp_path / file).read_bytes()
    for rest in (whole[: len(whole) // 2], None):
        (tmp_path / file).unlink() if rest is None else (tmp_path / file).write_bytes(rest)
        with pytest.raises(FedRayError, match=file):
            checkpoint.load(tmp_path, plan)


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    plan = small_plan("fedavg")
    checkpoint.save(tmp_path, start(plan), LocalCohort(plan, "loop").snapshot(), [])
    with pytest.raises(FedRayError, match="does not fit"):
        checkpoint.load(tmp_path, small_plan("fedavg", {"model.hidden": (9,)}))
