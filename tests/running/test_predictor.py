"""A loaded run's models are those that were evaluated, and its draws are each client's own."""

import pytest
import torch

from fedray.arrays.rng import Stream
from fedray.federate import evaluation
from fedray.federate.in_process import LocalFederation
from fedray.running.predictor import Predictor
from tests.helpers import differing, small_plan

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_model_that_trains_before_it_predicts_is_the_one_that_was_evaluated():
    """It takes the same minibatches: those of the last round."""
    plan = small_plan("per_fedavg")
    with LocalFederation(plan, "loop") as federation:
        list(federation)
        view = plan.view(federation.state.server)
        run, host = Predictor(plan, federation.snapshot()), federation.cohort.block
        for client in (0, 3):
            assert differing(run.model(client), evaluation.personal_model(host, client, plan.cfg.rounds, view)) == []


def test_clients_with_one_model_draw_from_it_each_for_itself():
    plan = small_plan("pfedbayes", {"rounds": 1})
    with LocalFederation(plan, "loop") as federation:
        list(federation)
        run = Predictor(plan, federation.snapshot())
    x, model = Stream(0, "x").normal([5, *plan.model.input_shape]), run.model(1)
    one, again, other = (run.predict(x, client, seed=7, model=model).draws for client in (1, 1, 3))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
