"""Gaussians: closed forms against torch.distributions and autograd, and moment matching as pFedBayes's Lemma A.2."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from fedray.arrays.rng import Stream
from fedray.bayes import gaussian as gaussian_module
from fedray.bayes.gaussian import Gaussian, sigma


def gaussian(seed, *shape):
    stream = Stream(seed, "gaussian")
    return Gaussian(stream.normal(shape).double(), stream.normal(shape).double() - 1)


def normal(q):
    return Normal(q.mu, sigma(q.rho))


@pytest.mark.parametrize(("dtype", "low", "rtol"), [(torch.float32, 1e-6, 5e-6), (torch.float64, 1e-12, 2e-10)])
def test_inverse_sigma_is_the_inverse_of_sigma(dtype, low, rtol):
    """To the precision of PyTorch's softplus, which is the identity above 20."""
    sd = torch.logspace(torch.log10(torch.tensor(low)), 1.5, 200, dtype=dtype)
    assert_close(sigma(gaussian_module.inverse_sigma(sd)), sd, rtol=rtol, atol=0)


def test_sigma_and_its_slope_are_softplus_and_its_derivative():
    rho = torch.linspace(-30, 30, 601, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(sigma(rho).sum(), rho)
    sd, slope = gaussian_module.sigma_and_slope(rho.detach())
    assert_close(sd, sigma(rho).detach(), rtol=2e-10, atol=0)
    assert_close(slope, grad, rtol=3e-9, atol=0)


def test_a_draw_is_mean_plus_deviations():
    q = gaussian(0, 3)
    assert torch.equal(gaussian_module.draw(q, torch.zeros(2, 3)), q.mu.expand(2, 3))
    assert_close(gaussian_module.draw(q, torch.full((3,), -2.0)), q.mu - 2 * sigma(q.rho))


def test_kl_and_entropy_are_those_of_torch_distributions():
    q, w = gaussian(0, 4, 33), gaussian(1, 4, 33)
    expected = kl_divergence(normal(q), normal(w)).sum(-1)
    assert_close(gaussian_module.kl(q, w), expected)
    for function in (gaussian_module.kl_and_grad_prior, gaussian_module.kl_and_grad_posterior):
        assert_close(function(q, w)[0], expected)


def test_kl_is_zero_only_between_equals():
    q = gaussian(0, 33)
    gradients = (gaussian_module.kl_and_grad_prior, gaussian_module.kl_and_grad_posterior)
    for divergence in (gaussian_module.kl, *(lambda q, w, f=f: f(q, w)[0] for f in gradients)):
        assert divergence(q, q).abs() < 1e-14
        for shift in (-0.01, 0.01):
            assert divergence(q, q._replace(mu=q.mu + shift)) > 1e-4
            assert divergence(q, q._replace(rho=q.rho + shift)) > 1e-5
    assert all(grad.count_nonzero() == 0 for f in gradients for grad in f(q, q)[1])  # Adam would enlarge a rounding


def test_the_gradients_in_the_prior_and_in_the_posterior_are_autograds():
    q, w = (Gaussian(*(leaf.requires_grad_() for leaf in gaussian(seed, 33))) for seed in (0, 1))
    expected = torch.autograd.grad(kl_divergence(normal(q), normal(w)).sum(), (*q, *w))
    assert_close(tuple(gaussian_module.kl_and_grad_posterior(q, w)[1]), expected[:2])
    assert_close(tuple(gaussian_module.kl_and_grad_prior(q, w)[1]), expected[2:])
    known = gaussian_module.sigma_and_slope(q.rho)
    assert_close(tuple(gaussian_module.kl_and_grad_posterior(q, w, known)[1]), expected[:2])
