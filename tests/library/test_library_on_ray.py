"""What is the caller's own reaches the actors, and gives the bits of a single process."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import ray
from sklearn.datasets import load_digits
from torch import nn

import fedray

DIGITS = load_digits()


class Net(nn.Module):
    """A network that is no chain."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(nn.functional.silu(self.body(x.flatten(1))))


def surest(probs, labels):
    return probs.max()


@pytest.mark.ray
@pytest.mark.slow
def test_own_data_network_and_metric_on_ray(cluster):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as what a notebook defines is
    asked = {
        "data": (DIGITS.images, DIGITS.target),
        "partition": {name: np.arange(100 * k, 100 * (k + 1)) for k, name in enumerate(("ann", "bob", "cy"))},
        "model": Net(),
        "metrics": {"surest": surest},
        "scaling": "standard",
        "rounds": 2,
        "local_steps": 3,
    }
    alone, on_ray = fedray.run("fedper", **asked), fedray.run("fedper", runtime="ray", **asked)
    assert on_ray.clients.equals(alone.clients)
    assert on_ray.clients.name.tolist() == ["ann", "bob", "cy"]
    columns = [name for name in alone.rounds if not name.startswith("time/")]
    assert on_ray.rounds[columns].equals(alone.rounds[columns])
