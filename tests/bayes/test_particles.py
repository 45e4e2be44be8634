"""Particles on a network: scores, curvature, and the indicators KSD and HIP by their definitions."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedray.arrays import trees
from fedray.arrays.minibatches import spaced
from fedray.arrays.rng import Stream
from fedray.bayes.particles import ggn_diagonal, network, starts
from fedray.bayes.sites import BACKENDS, Natural, Past, Settings, regression
from fedray.bayes.stein import Descent, ksd, rbf, stein_matrix, v_statistic
from fedray.config import override
from fedray.federate import report
from fedray.federate.in_process import LocalCohort
from fedray.nets.densities import CATEGORICAL
from fedray.nets.network import given
from fedray.types import FedRayError
from tests.helpers import NETS, block, built, context, draws, examples, play, shard, small_plan

pytestmark = pytest.mark.usefixtures("one_thread")


def nll(logits, y, weight):
    return CATEGORICAL.nll(logits, logits[:0, 0], y, weight)


def test_scores_are_gradients_of_the_tempered_likelihood_of_the_whole_shard():
    model, batch, x = NETS["deep"], examples(9, total=36), Stream(0, "x").normal([3, NETS["deep"].padded]).double()
    value, s = network(model, batch, temperature=2.0)(x)
    for n in range(3):
        theta = x[n].clone().requires_grad_()
        whole = 36 / 9 * nll(model.apply(theta, batch.x), batch.y, batch.weight)
        (grad,) = torch.autograd.grad(-whole / 2, theta)
        assert_close(s[n], grad)
    assert_close(value, torch.stack([nll(model.apply(t, batch.x), batch.y, batch.weight) for t in x]).mean() / 9)


@pytest.mark.parametrize("name", ["svgd", "dsgld"])
def test_twice_the_examples_at_twice_the_temperature_are_the_same_likelihood(name):
    plan, ups = small_plan(name, {"algorithm.particles": 12}), []
    host, record, ids = block(plan), plan.algorithm, range(plan.facts.per_round)
    batch, eps = (trees.row(leaf, 1) for leaf in next(draws(host, 1, ids)))
    down = record.broadcast(plan.context, plan.initial_server(), ids)
    down = trees.row(down, 1) if record.down_per_client else down
    for factor in (1.0, 2.0):
        ctx = context(override(plan.cfg.algorithm, {"temperature": factor}), plan.model, plan.facts)
        data, part = (b._replace(total=factor * b.total) for b in (shard(host, 1), batch))
        local = trees.tree_map(torch.clone, record.begin(ctx, trees.row(host.states, 1), down, data))
        ups.append(record.finish(ctx, record.step(ctx, local, part, eps)[0], data)[1])
    assert_close(*ups, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mclr", "deep"])
def test_the_gauss_newton_diagonal(name):
    """Jᵀ (diag p - p pᵀ) J from the Jacobian; with logits linear in theta also the Hessian's diagonal."""
    model, batch = NETS[name], examples(7)
    weight, theta = torch.linspace(0, 2, 7).double(), Stream(0, "theta").normal([model.padded]).double()
    jacobian = torch.func.jacrev(lambda t: model.apply(t, batch.x))(theta)  # [B, C, P]
    p = torch.softmax(model.apply(theta, batch.x), -1)
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    expected = torch.einsum("b,bcp,bce,bep->p", weight, jacobian, middle, jacobian)
    found = ggn_diagonal(model, theta, batch.x, weight)
    assert_close(found, expected)
    if name == "mclr":
        hessian = torch.func.hessian(lambda t: nll(model.apply(t, batch.x), batch.y, weight))(theta)
        assert_close(found, hessian.diagonal())


def test_regression_clips_at_zero_and_survives_coordinates_that_do_not_vary():
    x = torch.tensor([[0.0, 1.0, 5.0], [1.0, 3.0, 5.0]]).double()
    s = torch.tensor([[1.0, 1.0, 2.0], [-2.0, 2.0, 3.0]]).double()
    assert torch.equal(regression(x, s), torch.tensor([[3.0, 0.0, 0.0]] * 2).double())


def test_every_visit_takes_the_next_place_of_a_history():
    history = BACKENDS["history"]
    settings = Settings(1, lambda x: -x, 1.0, 0.5, 3, Descent(0.1), 1)
    x = torch.zeros(2, 1)
    own = history.own(settings, x)
    for visit in range(3):
        cavity = Past(x + visit, torch.tensor(float(visit == 0)), own)
        new = history.renew(settings, own, cavity, x + visit + 0.5, None, None)
        assert history.share(own, new).visits == 1
        own = new
    assert own.before[:, 0, 0].tolist() == [0, 1, 2]
    assert own.after[:, 0, 0].tolist() == [0.5, 1.5, 2.5]
    assert own.first.tolist() == [1, 0, 0]
    assert own.filled.tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["dsvgd", "svgd", "dsgld"])
def test_a_prediction_averages_the_particles_whatever_the_number_of_draws(name):
    for settings in ({"predict_samples": 10}, {"predict_samples": 0}):
        plan = small_plan(name, settings | {"algorithm.particles": 12, "clients_per_round": 6})
        (last,) = plan.algorithm.predict_noise(plan.context, 10)
        assert last == 0
        assert report.protocol(plan, [1])["prediction"] == "average of 12 particles"
    alone = small_plan("dsvgd", {"algorithm.particles": 1})
    assert report.protocol(alone, [1])["prediction"] == "one prediction, without draws"
    server = plan.initial_server()
    x = Stream(0, "pixels").normal([3, 64])
    assert plan.algorithm.predict_global(plan.context, plan.view(server), x, None).shape == (12, 3, 10)


def probed(settings, score):
    """The scores by name of a federation with some history, and what they are made of at the global particles."""
    plan = small_plan("dsvgd", {"algorithm.particles": 5, "algorithm.lr": 0.02} | settings)
    cohort, cfg, model = LocalCohort(plan, block=block(plan)), plan.cfg.algorithm, plan.model
    server, _, _ = play(plan, [cohort.block])
    message = None
    for number, stage in enumerate(plan.algorithm.scores[score]):
        replies = cohort.probe(score, number, plan.view(server), message)
        message = stage.combine(plan.context, server, replies)
    own, followed = [], []
    for k in range(6):
        client, data = trees.row(cohort.block.states, k), shard(cohort.block, k)
        _, s = network(model, data)(server.x)
        cavity = Natural(server.sums.lam - client.site.lam, server.sums.eta - client.site.eta)
        own.append(s)
        followed.append(s - cfg.prior_precision * server.x + cavity.eta - cavity.lam * server.x)
    return message, server.x, torch.stack(own), torch.stack(followed), cfg, model


def test_ksd_scores_are_discrepancies_of_the_tilted_posteriors():
    for statistic in ("v", "u"):
        found, x, _, followed, _, model = probed({"algorithm.ksd": statistic}, "ksd")
        assert_close(found, torch.stack([ksd(x, s, rbf(x), model.size, statistic) for s in followed]))


@pytest.mark.parametrize("score", ["hip", "hip_two_phase"])
@pytest.mark.parametrize("form", ["paper", "first_order"])
def test_hip_scores_are_double_sums_in_one_phase_and_in_two(score, form):
    found, x, own, followed, cfg, model = probed({"algorithm.hip": form}, score)
    target = own.mean(0) if form == "paper" else own.sum(0) - cfg.prior_precision * x
    mine, kernel = own if form == "paper" else followed, rbf(x)
    expected = torch.stack([v_statistic(stein_matrix(x, s, target, kernel, model.size)) for s in mine])
    assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    if form == "paper":
        assert_close(found.sum(), 6 * ksd(x, target, kernel, model.size), rtol=1e-4, atol=0)
    rest, *_ = probed({"algorithm.hip": form, "algorithm.hip_offset": False}, score)
    assert_close(found - rest, (found - rest)[:1].expand(6))
    assert (found - rest).abs().min() > 0


def test_scores_on_a_part_of_the_shard_are_of_examples_at_equal_distances_and_stand_for_all():
    full, batch = (
        examples(9, total=9),
        examples(9, total=9)._replace(weight=torch.tensor([1.0] * 7 + [0.0] * 2).double()),
    )
    found = spaced(batch._replace(total=torch.tensor(7.0).double()), 4)
    assert found.place.tolist() == [0, 1, 3, 5]  # of seven; padding is not among them
    assert torch.equal(found.x, batch.x[[0, 1, 3, 5]])
    assert found.total == 7
    few = spaced(batch._replace(weight=batch.weight * (batch.place < 3)), 4)  # all three, none twice
    assert (few.place.tolist(), few.weight.tolist()) == ([0, 1, 2, 3], [1, 1, 1, 0])
    for count in (0, 9, 10):
        assert all(map(torch.equal, spaced(full, count), full))
    model, x = NETS["deep"], Stream(0, "x").normal([3, NETS["deep"].padded]).double()
    _, s = network(model, found)(x)
    _, each = network(model, found._replace(total=torch.tensor(4.0).double()))(x)
    assert_close(s, each * 7 / 4)


@pytest.mark.parametrize("score", ["ksd", "hip", "hip_two_phase"])
def test_clients_are_judged_by_that_part(score):
    whole, part = (probed({"algorithm.score_examples": count}, score)[0] for count in (0, 12))
    assert (whole - part).abs().min() > 0
    same = probed({"algorithm.score_examples": 1000}, score)[0]
    assert torch.equal(whole, same)


class Raw(nn.Module):
    """Parameters that nobody draws."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(6, 4))

    def forward(self, x):
        return x.flatten(1) @ self.w


def test_models_that_would_start_and_stay_the_same_are_refused():
    model = given(Raw(), (2, 3), 4)
    assert starts(model, Stream(0, "one"), 1).shape == (1, model.padded)
    with pytest.raises(FedRayError, match=r"network: all 3 models would start, and stay, the same.*reset_parameters"):
        starts(model, Stream(0, "three"), 3)
    assert len(torch.unique(starts(built("mclr", (2, 3), 4), Stream(0, "three"), 3), dim=0)) == 3
