"""Proximal maps of Bregman divergences, and the gradient of their envelope.

A prior with natural parameter s and mean μ = ∇g(s) has the density ∝ exp(-λ D(θ, μ)), where g is the log-normalizer of
an exponential family, g* its conjugate, s = ∇g*(μ), and D(θ, μ) = g*(θ) - g*(μ) - ⟨∇g*(μ), θ-μ⟩ the Bregman divergence
of g*. All functions take mean coordinates, each coordinate by itself. Source: pFedBreD, eqs. 3-6 and Appendix B.2,
whose Table 2 mixes mean and natural parameters. Its Bernoulli, Poisson and exponential families are not here: they hold
weights in (0, 1) or above 0 only, and a network's initial weights have both signs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Family(NamedTuple):
    """An exponential family, as functions of tensors of any one shape."""

    dual: Callable[[Tensor], Tensor]  # ∇g*: mean -> natural parameter
    mean: Callable[[Tensor], Tensor]  # ∇g, its inverse
    hessian: Callable[[Tensor, Tensor], Tensor]  # μ, v -> ∇²g*(μ) v


SPHERICAL = Family(dual=lambda x: x, mean=lambda s: s, hessian=lambda mu, v: v)  # D(x, μ) = ½ ‖x-μ‖²


def gaussian(variance: float | Tensor) -> Family:
    """N(μ, Σ) with the diagonal Σ = variance: D(x, μ) = ½ (x-μ)ᵀ Σ⁻¹ (x-μ)."""
    return Family(
        dual=lambda x: x / variance,
        mean=lambda s: s * variance,
        hessian=lambda mu, v: v / variance,
    )


def proximal(
    gradient: Callable[[Tensor], tuple[Tensor, Tensor]],
    family: Family,
    lam: float,
    start: Tensor,
    mu: Tensor,
    rate: float,
    steps: int,
    dual: bool = False,
) -> tuple[Tensor, Tensor]:
    """K >= 1 gradient steps from ``start`` [P] towards prox(μ) = argmin_θ f(θ) + λ D(θ, μ): (θ_K, f(start)).

    θ ← θ - α (∇f(θ) + λ (∇g*(θ) - ∇g*(μ))), where ``gradient`` returns f and ∇f. With ``dual`` the step is taken in
    the natural parameter, θ ← ∇g(∇g*(θ) - α (...)): mirror descent. Stable for α (L + λ) < 2, L the curvature of f
    (spherical).
    """
    theta = start
    natural = family.dual(mu)
    first = None
    for _ in range(steps):
        value, slope = gradient(theta)
        first = value if first is None else first
        own = family.dual(theta)
        # One vector written twice, as these passes over memory are what a step costs beside the gradient.
        moved = (own if dual else theta).sub(slope, alpha=rate).sub_(own - natural, alpha=rate * lam)
        theta = family.mean(moved) if dual else moved
    assert first is not None
    return theta, first


def envelope_gradient(family: Family, lam: float, mu: Tensor, prox: Tensor) -> Tensor:
    """∇env(μ) = λ ∇²g*(μ) (μ - prox(μ)), the gradient of env(μ) = min_θ f(θ) + λ D(θ, μ) (eq. 4)."""
    return lam * family.hessian(mu, mu - prox)
