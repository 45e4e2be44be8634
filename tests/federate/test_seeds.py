"""A run's seed reaches everything that is drawn: with another one the examples, the start and every draw are others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedray.arrays import trees
from fedray.federate.in_process import LocalFederation
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from tests.helpers import block, draws, experiment, small_plan


def plan(seed: int, partition=None, validation=0.0) -> Plan:
    """A round has not all clients, and evaluations neither."""
    settings = {"seed": seed, "clients_per_round": 2, "eval_clients": 3, "data.validation": validation, "rounds": 6}
    return make_plan(experiment("pfedbayes", settings), partition=partition)


@pytest.fixture(scope="module")
def dealt():
    """Shards that are given, so that with them only what is drawn later can differ."""
    return small_plan().partition


def parts(shards) -> np.ndarray:
    return np.concatenate([*shards.train, *shards.test])


DRAWN = {
    "the shards": lambda seed, dealt: parts(plan(seed).partition),
    "the validation examples": lambda seed, dealt: np.concatenate(plan(seed, dealt, 0.2).partition.validation),
    "the first weights": lambda seed, dealt: trees.leaves(plan(seed, dealt).initial_server())[0],
    "the noise": lambda seed, dealt: plan(seed, dealt).normals("noise", 1, 2, (8,)),
    "who is evaluated": lambda seed, dealt: [sorted(plan(seed, dealt).evaluated(number)) for number in range(1, 7)],
    "who trains": lambda seed, dealt: _participants(plan(seed, dealt)),
    "the minibatches": lambda seed, dealt: _minibatches(plan(seed, dealt)),
}


def _participants(plan: Plan) -> list[list[int]]:
    with LocalFederation(plan) as federation:
        return [sorted(metrics.participants) for metrics in federation]


def _minibatches(plan: Plan) -> torch.Tensor:
    """The labels of the minibatches of a client's first round, its shard being the same."""
    host = block(plan)
    return torch.cat([batch.y for batch, _ in draws(host, 1, [1])], -1)


def _equal(a, b) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(np.array_equal(a, b))


@pytest.mark.parametrize("drawn", DRAWN.values(), ids=DRAWN)
def test_another_seed_draws_otherwise_and_the_same_one_again(drawn, dealt):
    assert _equal(drawn(1, dealt), drawn(1, dealt))
    assert not _equal(drawn(0, dealt), drawn(1, dealt))
