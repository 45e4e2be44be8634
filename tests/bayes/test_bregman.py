"""Bregman divergences against their definition, the proximal map against closed forms, the envelope by differences."""

import pytest
import torch
from torch.testing import assert_close

from fedray.arrays.rng import Stream
from fedray.bayes import bregman
from fedray.bayes.bregman import FAMILIES, SPHERICAL, divergence, envelope_gradient, gaussian, proximal
from fedray.types import FedRayError

SIGMA = torch.tensor([0.25, 1.0, 3.0, 0.5], dtype=torch.float64)
ALL = dict(FAMILIES) | {"diagonal": gaussian(SIGMA)}
every_family = pytest.mark.parametrize("name", ALL)
CONJUGATES = {  # g(s) and g*(x), written down apart from the code
    "spherical": (lambda s: s * s / 2, lambda x: x * x / 2),
    "gaussian": (lambda s: s * s / 2, lambda x: x * x / 2),
    "diagonal": (lambda s: SIGMA * s * s / 2, lambda x: x * x / (2 * SIGMA)),
    "bernoulli": (lambda s: (1 + s.exp()).log(), lambda x: x * x.log() + (1 - x) * (1 - x).log()),
    "poisson": (torch.exp, lambda x: x * x.log() - x),
    "exponential": (lambda s: -(-s).log(), lambda x: -x.log() - 1),
}
PROX_OF_LINEAR = {  # argmin_θ c θ + λ D(θ, m), spec: shift = c/λ
    "spherical": lambda m, shift: m - shift,
    "gaussian": lambda m, shift: m - shift,
    "diagonal": lambda m, shift: m - SIGMA * shift,
    "bernoulli": lambda m, shift: torch.sigmoid((m / (1 - m)).log() - shift),
    "poisson": lambda m, shift: m * (-shift).exp(),
    "exponential": lambda m, shift: 1 / (1 / m + shift),
}
A = torch.tensor([[2.0, 0.3, 0, 0], [0.3, 1.0, 0.2, 0], [0, 0.2, 0.5, 0.1], [0, 0, 0.1, 3.0]], dtype=torch.float64)
B = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)
EYE = torch.eye(4, dtype=torch.float64)


def points(name, seed=0):
    """A vector in the family's domain."""
    uniform = Stream(seed, "points").uniform([4]).double()
    return {"bernoulli": 0.1 + 0.8 * uniform, "poisson": 0.2 + 3 * uniform, "exponential": 0.2 + 3 * uniform}.get(
        name, 4 * uniform - 2
    )


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
    family, (g, conjugate), x = ALL[name], CONJUGATES[name], points(name)
    s = family.dual(x)
    assert_close(s, slope(conjugate, x).detach())
    assert_close(family.mean(s), slope(g, s).detach())
    assert_close(family.mean(s), x)
    v = Stream(1, "v").normal([4]).double()
    assert_close(family.hessian(x, v), slope(lambda at: slope(conjugate, at), x).detach() * v)


@every_family
def test_the_divergence_is_its_definition_and_that_of_the_dual(name):
    family, (g, conjugate), x, mu = ALL[name], CONJUGATES[name], points(name), points(name, 1)
    found = divergence(family, x, mu)
    assert_close(found, (conjugate(x) - conjugate(mu) - slope(conjugate, mu) * (x - mu)).sum().detach())
    s, t = family.dual(mu), family.dual(x)  # D_g*(x, μ) = D_g(s, ∇g*(x))
    assert_close(found, (g(s) - g(t) - slope(g, t) * (s - t)).sum().detach())


@every_family
def test_the_divergence_vanishes_where_the_two_agree_and_only_there(name):
    family, mu = ALL[name], points(name)
    assert divergence(family, mu, mu).abs() < 1e-15
    for k in range(4):
        for step in (-1e-3, 1e-3, 0.05):
            assert divergence(family, mu + step * EYE[k], mu) > 1e-8


def test_only_quadratic_divergences_are_symmetric():
    for name, family in ALL.items():
        x, y = points(name), points(name, 1)
        same = torch.isclose(divergence(family, x, y), divergence(family, y, x))
        assert same == (name in ("spherical", "gaussian", "diagonal"))
    assert_close(divergence(SPHERICAL, x, y), (x - y).square().sum() / 2)


@every_family
@pytest.mark.parametrize("dual", [False, True])
def test_the_proximal_map_of_a_linear_function_is_the_closed_form(name, dual):
    mu, c, lam = points(name), torch.tensor([0.5, -0.1, 0.2, 0.7], dtype=torch.float64), 4.0
    rate = 0.01
    theta, first = proximal(lambda at: (c @ at, c), ALL[name], lam, mu, mu, rate, 3000, dual)
    assert_close(theta, PROX_OF_LINEAR[name](mu, c / lam))
    assert_close(first, c @ mu)


@pytest.mark.parametrize("name", ["bernoulli", "poisson"])
def test_dual_steps_cannot_leave_the_domain(name):
    """One step on cθ that is far too large for θ itself."""
    mu, c, family = points(name), torch.full((4,), 90.0, dtype=torch.float64), ALL[name]
    inside = [bool(family.inside(proximal(lambda at: (c @ at, c), family, 1.0, mu, mu, 0.1, 1, dual)[0]).all())
              for dual in (False, True)]  # fmt: skip
    assert inside == [False, True]


def test_the_spherical_proximal_map_of_a_quadratic_contracts_to_the_closed_form():
    mu, start, lam, alpha = points("spherical"), points("spherical", 1), 2.0, 0.07
    prox = torch.linalg.solve(A + lam * EYE, A @ B + lam * mu)
    for steps in (1, 5, 40):
        theta, _ = proximal(quadratic, SPHERICAL, lam, start, mu, alpha, steps)
        power = torch.linalg.matrix_power(EYE - alpha * (A + lam * EYE), steps)
        assert_close(theta - prox, power @ (start - prox), rtol=1e-10, atol=1e-12)
    envelope = quadratic(prox)[0] + lam * divergence(SPHERICAL, prox, mu)
    assert_close(envelope, (mu - B) @ torch.linalg.inv(torch.linalg.inv(A) + EYE / lam) @ (mu - B) / 2)


@every_family
def test_the_gradient_of_the_envelope_is_its_difference_quotient(name):
    """The Hessian is taken at μ, and the residual is μ - prox: with either changed, this fails."""
    family, mu, lam, h = ALL[name], points(name), 2.0, 1e-5

    def envelope(at):
        prox = solved(name, at)
        return quadratic(prox)[0] + lam * divergence(family, prox, at)

    differences = torch.stack([(envelope(mu + h * e) - envelope(mu - h * e)) / (2 * h) for e in EYE])
    assert_close(envelope_gradient(family, lam, mu, solved(name, mu)), differences, rtol=1e-6, atol=1e-7)


@every_family
def test_a_heavy_prior_holds_the_personal_model_at_its_mean(name):
    family, mu, gaps = ALL[name], points(name), []
    for lam in (1e2, 1e4, 1e6):
        steepest = family.hessian(mu, torch.ones(4, dtype=torch.float64)).max().item()
        theta, _ = proximal(quadratic, family, lam, mu, mu, 0.5 / (lam * steepest), 400)
        gaps.append(float((theta - mu).norm()))
    assert gaps[1] < gaps[0] / 50
    assert gaps[2] < gaps[1] / 50


@pytest.mark.parametrize("one", [1.0, torch.ones(4)])
@pytest.mark.parametrize("dual", [False, True])
def test_the_unit_gaussian_is_the_spherical_family_bit_for_bit(one, dual):
    mu, start = points("spherical").float(), points("spherical", 1).float()

    def gradient(at):
        return at.sum(), A.float() @ at

    for family in (gaussian(one), SPHERICAL):
        theta, _ = proximal(gradient, family, 2.0, start, mu, 0.07, 7, dual)
        expected, _ = proximal(gradient, SPHERICAL, 2.0, start, mu, 0.07, 7)
        assert torch.equal(theta, expected)
        assert torch.equal(envelope_gradient(family, 2.0, mu, theta), envelope_gradient(SPHERICAL, 2.0, mu, theta))
        assert torch.equal(divergence(family, theta, mu), divergence(SPHERICAL, theta, mu))


def test_dual_steps_under_a_gaussian_are_preconditioned_by_its_variances():
    mu, start = points("spherical"), points("spherical", 1)
    theta, _ = proximal(quadratic, ALL["diagonal"], 2.0, start, mu, 0.1, 1, dual=True)
    assert_close(theta, start - 0.1 * (SIGMA * (A @ (start - B)) + 2.0 * (start - mu)))


def test_the_arguments_of_a_proximal_map_stay_as_they_are():
    for name, family in ALL.items():
        mu, start = points(name), points(name, 1)
        kept = mu.clone(), start.clone()
        constant = torch.ones(4, dtype=torch.float64)
        for dual in (False, True):
            proximal(lambda at: (at.sum(), constant), family, 2.0, start, mu, 1e-3, 3, dual)  # noqa: B023
        assert torch.equal(constant, torch.ones_like(constant))
        assert all(map(torch.equal, (mu, start), kept))


def test_weights_outside_of_the_domain_are_refused():
    weights = torch.tensor([0.5, -0.1, 0.2, 1.5])
    for name in ("spherical", "gaussian"):
        bregman.check_domain(name, weights)
    for name, outside, domain in (("bernoulli", 2, r"\(0, 1\)"), ("poisson", 1, r"\(0, ∞\)")):
        with pytest.raises(FedRayError, match=rf"^--prior {name}: {outside} of 4 initial weights .* {domain}; use sph"):
            bregman.check_domain(name, weights)
        bregman.check_domain(name, weights[[0, 2]])
    with pytest.raises(FedRayError, match=r"^--prior exponential: 1 of 4"):
        bregman.check_domain("exponential", weights)
