"""Bregman divergences against their definition, the proximal map against closed forms, the envelope by differences."""

import pytest
import torch
from torch.testing import assert_close

from fedray.arrays.rng import Stream
from fedray.bayes.bregman import SPHERICAL, envelope_gradient, gaussian, proximal

SIGMA = torch.tensor([0.25, 1.0, 3.0, 0.5], dtype=torch.float64)
ALL = {"spherical": SPHERICAL, "gaussian": gaussian(1.0), "diagonal": gaussian(SIGMA)}
every_family = pytest.mark.parametrize("name", ALL)
CONJUGATES = {  # g(s) and g*(x), written down apart from the code
    "spherical": (lambda s: s * s / 2, lambda x: x * x / 2),
    "gaussian": (lambda s: s * s / 2, lambda x: x * x / 2),
    "diagonal": (lambda s: SIGMA * s * s / 2, lambda x: x * x / (2 * SIGMA)),
}
PROX_OF_LINEAR = {  # argmin_θ c θ + λ D(θ, m), spec: shift = c/λ
    "spherical": lambda m, shift: m - shift,
    "gaussian": lambda m, shift: m - shift,
    "diagonal": lambda m, shift: m - SIGMA * shift,
}
A = torch.tensor([[2.0, 0.3, 0, 0], [0.3, 1.0, 0.2, 0], [0, 0.2, 0.5, 0.1], [0, 0, 0.1, 3.0]], dtype=torch.float64)
B = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)
EYE = torch.eye(4, dtype=torch.float64)


def points(seed=0):
    return 4 * Stream(seed, "points").uniform([4]).double() - 2


def divergence(name, x, mu):
    """D(x, μ) = g*(x) - g*(μ) - ⟨∇g*(μ), x-μ⟩ by its definition."""
    _, conjugate = CONJUGATES[name]
    return (conjugate(x) - conjugate(mu) - slope(conjugate, mu).detach() * (x - mu)).sum()


def slope(function, at):
    """The derivative of a function that acts on every coordinate by itself."""
    at = at.clone().requires_grad_()
    return torch.autograd.grad(function(at).sum(), at, create_graph=True)[0]


def quadratic(theta):
    """½ (θ-b)ᵀ A (θ-b) and its gradient."""
    return (theta - B) @ A @ (theta - B) / 2, A @ (theta - B)


def solved(name, mu, lam=2.0):
    """prox(μ) of the quadratic to machine precision, by many small steps."""
    return proximal(quadratic, ALL[name], lam, mu, mu, 0.01, 4000)[0]


@every_family
def test_the_maps_are_the_derivatives_of_the_conjugates_and_inverses_of_each_other(name):
    family, (g, conjugate), x = ALL[name], CONJUGATES[name], points()
    s = family.dual(x)
    assert_close(s, slope(conjugate, x).detach())
    assert_close(family.mean(s), slope(g, s).detach())
    assert_close(family.mean(s), x)
    v = Stream(1, "v").normal([4]).double()
    assert_close(family.hessian(x, v), slope(lambda at: slope(conjugate, at), x).detach() * v)


@every_family
@pytest.mark.parametrize("dual", [False, True])
def test_the_proximal_map_of_a_linear_function_is_the_closed_form(name, dual):
    mu, c, lam = points(), torch.tensor([0.5, -0.1, 0.2, 0.7], dtype=torch.float64), 4.0
    rate = 0.01
    theta, first = proximal(lambda at: (c @ at, c), ALL[name], lam, mu, mu, rate, 3000, dual)
    assert_close(theta, PROX_OF_LINEAR[name](mu, c / lam))
    assert_close(first, c @ mu)


def test_the_spherical_proximal_map_of_a_quadratic_contracts_to_the_closed_form():
    mu, start, lam, alpha = points(), points(1), 2.0, 0.07
    prox = torch.linalg.solve(A + lam * EYE, A @ B + lam * mu)
    for steps in (1, 5, 40):
        theta, _ = proximal(quadratic, SPHERICAL, lam, start, mu, alpha, steps)
        power = torch.linalg.matrix_power(EYE - alpha * (A + lam * EYE), steps)
        assert_close(theta - prox, power @ (start - prox), rtol=1e-10, atol=1e-12)
    envelope = quadratic(prox)[0] + lam * divergence("spherical", prox, mu)
    assert_close(envelope, (mu - B) @ torch.linalg.inv(torch.linalg.inv(A) + EYE / lam) @ (mu - B) / 2)


@every_family
def test_the_gradient_of_the_envelope_is_its_difference_quotient(name):
    """The Hessian is taken at μ, and the residual is μ - prox: with either changed, this fails."""
    family, mu, lam, h = ALL[name], points(), 2.0, 1e-5

    def envelope(at):
        prox = solved(name, at)
        return quadratic(prox)[0] + lam * divergence(name, prox, at)

    differences = torch.stack([(envelope(mu + h * e) - envelope(mu - h * e)) / (2 * h) for e in EYE])
    assert_close(envelope_gradient(family, lam, mu, solved(name, mu)), differences, rtol=1e-6, atol=1e-7)


@every_family
def test_a_heavy_prior_holds_the_personal_model_at_its_mean(name):
    family, mu, gaps = ALL[name], points(), []
    for lam in (1e2, 1e4, 1e6):
        steepest = family.hessian(mu, torch.ones(4, dtype=torch.float64)).max().item()
        theta, _ = proximal(quadratic, family, lam, mu, mu, 0.5 / (lam * steepest), 400)
        gaps.append(float((theta - mu).norm()))
    assert gaps[1] < gaps[0] / 50
    assert gaps[2] < gaps[1] / 50


@pytest.mark.parametrize("one", [1.0, torch.ones(4)])
@pytest.mark.parametrize("dual", [False, True])
def test_the_unit_gaussian_is_the_spherical_family_bit_for_bit(one, dual):
    mu, start = points().float(), points(1).float()

    def gradient(at):
        return at.sum(), A.float() @ at

    for family in (gaussian(one), SPHERICAL):
        theta, _ = proximal(gradient, family, 2.0, start, mu, 0.07, 7, dual)
        expected, _ = proximal(gradient, SPHERICAL, 2.0, start, mu, 0.07, 7)
        assert torch.equal(theta, expected)
        assert torch.equal(envelope_gradient(family, 2.0, mu, theta), envelope_gradient(SPHERICAL, 2.0, mu, theta))


def test_dual_steps_under_a_gaussian_are_preconditioned_by_its_variances():
    mu, start = points(), points(1)
    theta, _ = proximal(quadratic, ALL["diagonal"], 2.0, start, mu, 0.1, 1, dual=True)
    assert_close(theta, start - 0.1 * (SIGMA * (A @ (start - B)) + 2.0 * (start - mu)))


def test_the_arguments_of_a_proximal_map_stay_as_they_are():
    for family in ALL.values():
        mu, start = points(), points(1)
        kept = mu.clone(), start.clone()
        constant = torch.ones(4, dtype=torch.float64)
        for dual in (False, True):
            proximal(lambda at: (at.sum(), constant), family, 2.0, start, mu, 1e-3, 3, dual)  # noqa: B023
        assert torch.equal(constant, torch.ones_like(constant))
        assert all(map(torch.equal, (mu, start), kept))
