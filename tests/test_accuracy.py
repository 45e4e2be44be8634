"""The published figures on real MNIST, as far as ten rounds show them (the public log: 93.5 / 84.0 at round 10)."""

from __future__ import annotations

import os

import pytest

from fedray.algorithms.bayesian import pfedbayes
from fedray.config import DataConfig, Experiment, override
from fedray.federate.in_process import LocalFederation
from fedray.federate.measures import metrics
from fedray.federate.planning import make_plan

unset = not os.environ.get("FEDRAY_DATA_ROOT")
pytestmark = [pytest.mark.data, pytest.mark.skipif(unset, reason="FEDRAY_DATA_ROOT names no folder with real datasets")]


@pytest.mark.parametrize(("preset", "personal", "global_"), [("", 0.91, 0.80), ("a_parity", 0.93, 0.83)])
def test_pfedbayes_on_mnist_medium_after_ten_rounds(preset: str, personal: float, global_: float) -> None:
    cfg = Experiment(
        algorithm=pfedbayes.PFedBayes(), data=DataConfig(name="mnist", size="medium"), rounds=10, eval_every=100
    )
    if preset:
        cfg = override(cfg, pfedbayes.ALGORITHM.presets[preset].overrides)
    *_, last = LocalFederation(make_plan(cfg))
    assert last.personal is not None
    assert last.global_ is not None
    assert metrics.summarize(metrics.pooled(last.personal)).accuracy >= personal
    assert metrics.summarize(metrics.pooled(last.global_)).accuracy >= global_
