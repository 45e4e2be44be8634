"""What a run of any method has written answers again, as the run itself did."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

import fedray
from fedray import registry
from tests.helpers import ALGORITHMS

FAST = {"rounds": 1, "local_steps": 5, "predict_samples": 2, "figures": "none"}
NEED_DATA = {"fedavg", "fedprox", "per_fedavg", "fedem", "pfedgp"}  # their models train, or weigh, on the examples


def _without_data(name: str) -> bool:
    record = registry.algorithms()[name]
    return record.predict_personal is not None and name not in NEED_DATA and not record.pools


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if _without_data(name)])
def test_a_model_that_looks_at_no_examples_answers_without_them(name: str, tmp_path: Path) -> None:
    """They were given as arrays, so that nobody can read them again."""
    data = load_digits()
    run = fedray.run(name, (data.images.astype("float32") / 16, data.target), output=tmp_path / "run", **FAST)
    x = torch.rand(3, 8, 8).numpy()
    again = fedray.load(tmp_path / "run").predict(x, client=0)
    assert torch.equal(again.probs, run.predict(x, client=0).probs)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_result_is_loaded_and_predicts(name: str, tmp_path: Path) -> None:
    run = fedray.run(name, "digits", output=tmp_path / "run", **FAST)
    loaded = fedray.load(tmp_path / "run")
    client = 0 if loaded.plan.algorithm.predict_personal else None
    x = torch.rand(3, 1, 8, 8).numpy()
    found = loaded.predict(x, client=client).probs
    assert torch.equal(found, run.predict(x, client=client).probs)
    assert torch.allclose(found.sum(-1), torch.ones(3))
