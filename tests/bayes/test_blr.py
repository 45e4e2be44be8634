"""Bayesian logistic regression: its likelihood, curvature and gamma prior."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.particles import dsvgd
from fedray.algorithms.particles.dsvgd import DSVGD
from fedray.arrays.rng import Stream
from fedray.bayes import importance, particles
from fedray.bayes.kde import kde_gradient
from fedray.bayes.priors import PriorSettings
from fedray.bayes.sites import BACKENDS, VisitCount, visits_cavity, visits_pull, visits_site
from fedray.bayes.stein import Descent, descend, rbf, reference
from fedray.federate.device.cpu import numerics
from fedray.nets import likelihood
from fedray.nets.model import Model
from fedray.types import Batch, Facts, FedRayError
from tests.helpers import NETS, block, built, context, differing, play, small_plan

MODEL = built("blr", (5,), 2)


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
    with pytest.raises(FedRayError, match=r"^model.name blr: .*has 10; use `model.name=mclr`"):
        built("blr", (5,), 10)


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
    model = built("blr", (54,), 2)
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


@pytest.mark.parametrize("sites", BACKENDS)
def test_every_kind_of_site_sees_the_gamma_prior_once(sites):
    """A first visit of two steps is SVGD on p0 p_k."""
    cfg = DSVGD(prior="gamma", prior_rate=2.0, start="prior", sites=sites, mode="serial", particles=6, lr=0.05)
    server = dsvgd.server_init(context(cfg, MODEL, Facts(3, 1, 1, 2, 40, 40)), Stream(0, "server"))
    p0, rng, data = cfg.p0(7), Stream(0, "server"), batch()
    assert_close(server.x, torch.stack([p0.draw(rng, 64) for _ in range(6)]))
    data = Batch(data.x.float(), data.y, data.weight.float(), data.place, data.total.float())
    local = dsvgd.begin(context(cfg, MODEL), dsvgd.client_init(context(cfg, MODEL), server), server, data)
    for _ in range(2):
        local, _ = dsvgd.step(context(cfg, MODEL), local, data, torch.zeros(0))
    score = lambda x: particles.network(MODEL, data)(x)[1] + p0.score(x)  # noqa: E731
    assert_close(local.x, descend(Descent(0.05), server.x, score, 2), rtol=1e-4, atol=1e-4)


def test_history_divides_the_particles_of_others_by_the_gamma_prior():
    """At a client's first visit, after others have moved q away from the prior: pull = ∇log q - ∇log p0."""
    cfg = DSVGD(prior="gamma", prior_rate=2.0, sites="history")
    settings, x, q = cfg.site_settings(7), thetas(4), 0.1 * thetas(5)
    own = visits_site(settings, q)
    found = visits_pull(settings, visits_cavity(settings, VisitCount(torch.ones(())), own, q), x)
    assert_close(found, kde_gradient(x, q, settings.width, 7) - cfg.p0(7).score(x))


@pytest.mark.parametrize("form", ["paper", "first_order"])
def test_only_the_first_order_form_of_hip_sees_the_prior(form):
    cfg = DSVGD(prior="gamma", prior_rate=2.0, hip=form)
    x, replies = thetas(4), torch.stack([thetas(4).roll(k, 0) for k in range(3)]).double()
    found = importance.compared(context(cfg, MODEL), SimpleNamespace(x=x), iter(replies))
    x, target = x.double(), replies.mean(0)
    target = 3 * target + cfg.p0(7).score(x) if form == "first_order" else target
    expected = reference(x, target, rbf(x), 7)
    assert_close(found.phi, expected.phi)
    assert_close(found.offset, expected.offset)


def test_a_federation_with_a_gamma_prior_runs_as_a_loop_and_as_a_stack(tmp_path):
    stream = Stream(0, "federation")
    x, y = stream.normal([300, 30]).numpy(), (np.arange(300) % 2).astype(np.int64)
    np.savez(tmp_path / "two.npz", x=x + 0.5 * y[:, None], y=y)
    settings = {"prior": "gamma", "start": "prior", "lr": 0.05, "particles": 8}
    plan = small_plan(
        "dsvgd",
        {"data.name": str(tmp_path / "two.npz"), "model.name": "blr", "data.partition": "ratio", "data.majority": 3}
        | {f"algorithm.{name}": value for name, value in settings.items()},
    )
    with numerics():
        loop, stack = (play(plan, [block(plan, backend=backend)]) for backend in ("loop", "vmap"))
    assert differing(loop, stack) == []
    assert len(plan.initial_server().x[0]) == 64
    assert (loop[0].x[:, 32:] == 0).all()
    assert not torch.equal(loop[0].x[:, 31], plan.initial_server().x[:, 31])  # log ξ moves with the weights


def test_dsvgd_refuses_the_gamma_prior_without_a_precision():
    with pytest.raises(FedRayError, match=r"^prior gamma: .*`model.name=blr`"):
        small_plan("dsvgd", {"algorithm.prior": "gamma"})
