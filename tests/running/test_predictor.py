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


def test_many_inputs_are_predicted_a_thousand_at_a_time():
    plan, sizes = small_plan("pfedbayes", {"rounds": 1}), []
    with LocalFederation(plan, "loop") as federation:
        list(federation)
        snapshot = federation.snapshot()

    def predict(ctx, model, x, noise):
        sizes.append(len(x))
        return plan.algorithm.predict_personal(ctx, model, x, noise)

    run = Predictor(plan._replace(algorithm=plan.algorithm._replace(predict_personal=predict)), snapshot)
    x = Stream(0, "x").normal([2100, *plan.model.input_shape])
    found = run.predict(x, 1)
    assert sizes == [1000, 1000, 100]
    assert found.draws.shape[1] == 2100
    assert torch.equal(found.draws[:, 2000:], run.predict(x[2000:], 1).draws)
    assert run.predict(x[:0], 1).probs.shape == (0, plan.model.classes)
