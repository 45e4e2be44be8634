"""The objective of a Gaussian held to another: its gradients against autograd, and where there are none."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn import functional
from torch.testing import assert_close

from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.bayes import variational
from fedray.bayes.gaussian import Gaussian, kl_and_grad_posterior, kl_and_grad_prior, sigma, sigma_and_slope
from fedray.bayes.variational import Objective
from tests.helpers import NETS, differing, examples

MODEL = NETS["mlp"]


def gaussian(seed, model=MODEL):
    """A Gaussian whose padding is that of a state: mean 0 and the initial deviation."""
    stream = Stream(seed, "gaussian")
    mu, rho = (model.pad(stream.normal([model.padded]).double()) for _ in range(2))
    return Gaussian(mu, rho - 2)


def noise(cfg):
    width = (MODEL.padded,) if cfg.estimator == "weights" else (9, MODEL.activations)
    return Stream(0, "noise").normal([cfg.mc_samples, *width]).double()


def batch(model=MODEL):
    """Nine rows, the last two of them padding, of a shard of 50."""
    full = examples(9, total=50)
    weight = (torch.arange(9) < 7).double()
    return full._replace(y=full.y % model.classes, weight=weight)


def objective(cfg, q, w, batch, eps, model=MODEL):
    """(Ω, mean nll) as eq. 27 has them, for autograd."""
    nll = torch.zeros(()).double()
    for e in eps * cfg.noise_sd:
        if cfg.estimator == "weights":
            logits = model.apply(q.mu + sigma(q.rho) * e, batch.x)
        else:
            logits = model.forward_local(model.split(q.mu), model.split(sigma(q.rho)), batch.x, e)
        nll = nll + functional.cross_entropy(logits[:7], batch.y[:7], reduction="sum") / len(eps)
    scale = {"shard": 50 / 7, "batch": 1, "mean": 1 / 7}[cfg.likelihood]
    return scale * nll + cfg.zeta * between(cfg, q, w), nll / 7


def between(cfg, q, w):
    """The divergence as torch has it."""
    one, other = (Normal(x.mu, sigma(x.rho)) for x in (q, w))
    return (kl_divergence(one, other) if cfg.kl == "qw" else kl_divergence(other, one)).sum()


@pytest.mark.parametrize("estimator", ["weights", "local"])
@pytest.mark.parametrize("kl", ["qw", "wq"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"mc_samples": 3}, {"likelihood": "batch"}, {"likelihood": "mean"}, {"noise_sd": 0.5}, {"zeta": 0.0}],
)
def test_the_gradient_of_the_objective_is_autograds(estimator, kl, settings):
    cfg, q, w = Objective(estimator=estimator, kl=kl, **{"zeta": 0.3} | settings), gaussian(0), gaussian(1)
    eps = noise(cfg)
    live = Gaussian(*(leaf.clone().requires_grad_() for leaf in q))
    value, mean = objective(cfg, live, w, batch(), eps)
    nll, grad = variational.objective_grad(cfg, MODEL, q, w.mu, sigma(w.rho), batch(), eps)
    assert_close(nll, mean.detach())
    assert_close(tuple(grad), torch.autograd.grad(value, live))
    assert grad.mu[MODEL.size :].count_nonzero() == 0


@pytest.mark.parametrize("kl", ["qw", "wq"])
def test_the_gradient_in_the_prior_is_autograds(kl):
    cfg, q, w = Objective(kl=kl), gaussian(0), gaussian(1)
    live = Gaussian(*(leaf.clone().requires_grad_() for leaf in w))
    expected = between(cfg, q, live)
    value, grad = variational.divergence_and_grad_prior(cfg, q, w, sigma_and_slope(w.rho))
    assert_close((value, variational.divergence(cfg, q, w)), (expected.detach(), expected.detach()))
    assert_close(tuple(grad), torch.autograd.grad(expected, live))


@pytest.mark.parametrize("kl", ["qw", "wq"])
def test_the_fused_gradient_of_the_divergence_is_that_of_the_closed_form(kl):
    """Which stands in bayes.gaussian: the part of the objective's gradient that ζ weighs."""
    q, w, eps = gaussian(0), gaussian(1), noise(Objective())
    grads = [
        variational.objective_grad(Objective(kl=kl, zeta=zeta), MODEL, q, w.mu, sigma(w.rho), batch(), eps)[1]
        for zeta in (1.0, 0.0)
    ]
    _, expected = kl_and_grad_posterior(q, w) if kl == "qw" else kl_and_grad_prior(w, q)
    assert_close(tuple(a - b for a, b in zip(*grads, strict=True)), tuple(expected))


@pytest.mark.parametrize("kl", ["qw", "wq"])
def test_where_posterior_and_prior_agree_the_divergence_moves_neither(kl):
    """To the bit, in float32, whatever ζ: Adam would turn a rounding error into a full step."""
    w, data = (
        trees.tree_map(lambda leaf: leaf.float() if leaf.is_floating_point() else leaf, tree)
        for tree in (gaussian(1), batch())
    )
    sd, slope = sigma_and_slope(w.rho)
    grads = []
    for zeta in (0.0, 1e6):
        cfg = Objective(kl=kl, zeta=zeta)
        grads.append(variational.objective_grad(cfg, MODEL, w, w.mu, sd, data, noise(cfg).float())[1])
        value, grad = variational.divergence_and_grad_prior(cfg, w, w, (sd, slope))
        assert value == variational.divergence(cfg, w, w) == 0
        assert torch.cat(grad).count_nonzero() == 0
    assert differing(*grads) == []
    assert grads[0].mu.count_nonzero() > 0
