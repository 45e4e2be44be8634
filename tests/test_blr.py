"""Bayesian logistic regression: its likelihood, curvature and gamma prior."""

import pytest
import torch
from torch.testing import assert_close

from fedray import likelihood, networks, particles
from fedray.models import Model
from fedray.priors import PriorSettings
from fedray.rng import Stream
from fedray.stein import Descent, descend
from fedray.types import Batch, FedRayError
from tests.helpers import NETS, small_plan

MODEL = networks.build("blr", (), 0, (5,), 2)


def batch(n=40, total=None, d=5):
    stream = Stream(0, "blr", n)
    x, y = stream.normal([n, d]).double(), (2 * stream.uniform([n])).long()
    weight = (torch.arange(n) % 4 > 0).double()
    return Batch(x, y, weight, torch.arange(n), torch.tensor(float(total or n)).double())


def thetas(count, model=MODEL):
    return torch.stack([model.pad(Stream(2, "theta", m).normal([model.padded])) for m in range(count)]).double()


def log_lik(theta, data):
    """-Σ_b weight_b softplus(-t z), t = ±1, z = x·w + bias."""
    z, t = data.x @ theta[:5] + theta[5], 2 * data.y - 1
    return -(data.weight * torch.nn.functional.softplus(-t * z)).sum()


def test_its_parameters_are_weights_bias_and_a_precision_that_no_layer_reads():
    assert (MODEL.size, MODEL.padded, MODEL.extra) == (7, 64, 1)
    assert MODEL.init(Stream(0, "server"))[6:].count_nonzero() == 0  # ξ = 1 at first
    theta, data = thetas(1)[0], batch()
    changed = theta.clone()
    changed[6] += 3
    assert torch.equal(MODEL.apply(theta, data.x), MODEL.apply(changed, data.x))
    assert (MODEL.apply(theta, data.x)[:, 0] == 0).all()
    with pytest.raises(FedRayError, match=r"^--model.name blr: .*has 10; use --model.name mclr"):
        networks.build("blr", (), 0, (5,), 10)


def test_value_gradient_and_curvature_are_those_of_the_logistic_likelihood():
    data, x = batch(), thetas(3)
    value, grad = likelihood.nll_and_grad(MODEL, x, data.x, data.y, data.weight)
    diagonal = particles.ggn_diagonal(MODEL, x, data.x, data.weight)
    assert likelihood.fully_connected(MODEL)  # differentiated by hand
    for m in range(3):
        assert_close(value[m], -log_lik(x[m], data))
        assert_close(grad[m], -torch.func.grad(log_lik)(x[m], data))
        assert_close(diagonal[m], -torch.func.hessian(log_lik)(x[m], data).diagonal())
    assert grad[:, 6:].count_nonzero() == 0
    assert diagonal[:, :6].min() > 0


def test_another_padding_of_the_logits_is_left_to_automatic_differentiation():
    layers = torch.nn.Flatten(), torch.nn.Linear(5, 1), torch.nn.ConstantPad1d((0, 1), 0.0)
    model, data, theta = Model(torch.nn.Sequential(*layers), (5,), 2), batch(), thetas(1)[0]
    value, grad = likelihood.nll_and_grad(model, theta, data.x, data.y, data.weight)
    other, opposite = likelihood.nll_and_grad(MODEL, -theta, data.x, data.y, data.weight)
    assert_close(value, other)
    assert_close(grad[:6], -opposite[:6])


@pytest.mark.parametrize("model", [MODEL, *(NETS[name] for name in ("mclr", "deep", "leaky", "conv"))])
def test_a_stack_of_particles_is_each_of_them(model):
    x = torch.stack([model.init(Stream(2, "theta", m)) for m in range(5)]).double()
    stream = Stream(0, "x")
    data, y = stream.normal([9, *model.input_shape]).double(), (model.classes * stream.uniform([9])).long()
    weight = torch.linspace(0, 2, 9).double()
    found = likelihood.nll_and_grad(model, x, data, y, weight)
    for m in range(5):
        assert_close((found[0][m], found[1][m]), likelihood.nll_and_grad(model, x[m], data, y, weight))
    if likelihood.fully_connected(model):
        diagonals = particles.ggn_diagonal(model, x, data, weight)
        assert_close(diagonals, torch.stack([particles.ggn_diagonal(model, t, data, weight) for t in x]))


def test_one_client_has_bitwise_the_same_scores_alone_and_stacked():
    model = networks.build("blr", (), 0, (54,), 2)
    stream = Stream(0, "stacked")
    x, y = stream.normal([4, 100, 54]), (2 * stream.uniform([4, 100])).long()
    weight, total, theta = torch.ones(4, 100), torch.full([4], 100.0), stream.normal([4, 20, model.padded])

    def score(x, y, weight, total, theta):
        return particles.network(model, Batch(x, y, weight, torch.arange(100), total))(theta)

    stacked = torch.vmap(score)(x, y, weight, total, theta)
    for k in range(4):
        alone = score(x[k], y[k], weight[k], total[k], theta[k])
        assert all(map(torch.equal, alone, (leaf[k] for leaf in stacked)))


def test_svgd_on_the_gamma_posterior_of_a_mode_recovers_its_stationary_point():
    """One particle climbs to the mode of log p(y | w) + log p0(w, g): there the whole score is zero."""
    data, prior = batch(200), PriorSettings(prior="gamma", prior_rate=0.5).p0(7)
    score = lambda x: particles.network(MODEL, data)(x)[1] + prior.score(x)  # noqa: E731
    x = thetas(1)
    for lr in (0.05, 0.005, 0.0005):
        x = descend(Descent(lr), x, score, 400)
    w, g = x[0, :6], x[0, 6]
    slope = 3 + 1 - g.exp() * (0.5 + w.square().sum() / 2)  # d_w/2 + a - ξ (b + |w|²/2)
    assert abs(float(slope)) < 0.01
    assert float(g.exp()) == pytest.approx(4 / (0.5 + float(w.square().sum()) / 2), rel=0.01)
    gradient = torch.func.grad(log_lik)(x[0], data)[:6] * 200 / float(data.weight.sum())
    assert_close(gradient, g.exp() * w, rtol=0, atol=0.2)


def test_dsvgd_refuses_the_gamma_prior_without_a_precision():
    with pytest.raises(FedRayError, match=r"^--prior gamma: .*--model.name blr"):
        small_plan("dsvgd", {"algorithm.prior": "gamma"})
