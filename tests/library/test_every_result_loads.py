"""What a run of any method has written answers again, as the run itself did."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedray
from tests.helpers import ALGORITHMS

FAST = {"rounds": 1, "local_steps": 5, "predict_samples": 2, "figures": "none"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_result_is_loaded_and_predicts(name: str, tmp_path: Path) -> None:
    run = fedray.run(name, "digits", output=tmp_path / "run", **FAST)
    loaded = fedray.load(tmp_path / "run")
    client = 0 if loaded.plan.algorithm.predict_personal else None
    x = torch.rand(3, 1, 8, 8).numpy()
    found = loaded.predict(x, client=client).probs
    assert torch.equal(found, run.predict(x, client=client).probs)
    assert torch.allclose(found.sum(-1), torch.ones(3))
