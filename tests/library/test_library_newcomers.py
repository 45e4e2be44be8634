"""Newcomers of a run from Python: what is said of them, and which model answers for them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss

import fedray

QUICK = {"rounds": 2, "local_steps": 2, "hidden": (8,)}
DIGITS = load_digits()
X, Y = DIGITS.images.astype(np.float32), DIGITS.target


def test_a_run_that_stops_before_its_newcomers_says_so():
    run = fedray.run("fedper", novel_clients=1, play=False, **QUICK)
    next(iter(run))
    said = "1 clients held out with 85 training and 85 test examples, and stopped before they adapted"
    assert run.stop().summary["protocol"]["novel"] == said
    assert run.summary["novel"] is None


@pytest.mark.parametrize("rounds", [3, 4])
def test_a_newcomer_is_predicted_for_by_the_model_that_was_evaluated(rounds):
    """Also where its adaptation was stopped; its model takes steps on its examples before it predicts."""
    settings = {"novel_clients": 1, "adapt_rounds": 2, "ft": 2, "batch_size": 10, "eval_every": 1}
    run = fedray.run("fedper", play=False, **settings, **QUICK)
    for _ in zip(range(rounds), run, strict=False):
        pass
    run.stop()
    x, y = (values[run.plan.partition.test[9]] for values in (X[:, None], Y))
    found = run.predict(x, client=9).probs.double()
    assert log_loss(y, found / found.sum(-1, keepdim=True), labels=range(10)) == pytest.approx(
        run.clients["novel_nll"][9], rel=1e-5
    )
