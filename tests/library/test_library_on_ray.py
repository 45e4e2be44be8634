"""On Ray a run from Python gives the bits of a single process, with what is the caller's own, and stopped early."""

from __future__ import annotations

import sys

import numpy as np
import pandas
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


@pytest.mark.ray
def test_a_run_on_ray_that_is_stopped_has_played_no_round_more(cluster):
    asked = {"rounds": 5, "local_steps": 2, "hidden": (8,), "clients": 2, "client_states": "disk"}
    stopping = {"callbacks": [lambda played: played.number == 2]}
    stopped = fedray.run("pfedbayes", runtime="ray", clients_per_actor=1, **asked, **stopping)
    alone = fedray.run("pfedbayes", **asked, **stopping)
    assert stopped.summary["rounds"] == 2
    assert stopped.summary["bytes_up"] == alone.summary["bytes_up"]
    tables = [pandas.read_csv(run.folder / "metrics.csv") for run in (stopped, alone)]
    assert [table["round"].tolist() for table in tables] == [[1, 2], [1, 2]]
    for name in ("global.safetensors", "personal/files.json"):
        assert (stopped.folder / name).read_bytes() == (alone.folder / name).read_bytes(), name
