"""Bregman divergences of exponential families, their proximal map, and the gradient of their envelope.

A prior with natural parameter s and mean μ = ∇g(s) has the density ∝ exp(-λ D(θ, μ)), where D is the Bregman
divergence of g*, the conjugate of the log-normalizer g, and s = ∇g*(μ). Everything is in mean coordinates and one
coordinate at a time. Source: pFedBreD, eqs. 3-6 and Appendix B.2, whose Table 2 mixes mean and natural parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedray.types import require


class Family(NamedTuple):
    """An exponential family, as functions of tensors of any one shape."""

    domain: str  # of θ and μ, in words
    inside: Callable[[Tensor], Tensor]  # x -> whether it lies in the domain
    dual: Callable[[Tensor], Tensor]  # ∇g*: mean -> natural parameter
    mean: Callable[[Tensor], Tensor]  # ∇g, its inverse
    hessian: Callable[[Tensor, Tensor], Tensor]  # μ, v -> ∇²g*(μ) v
    gap: Callable[[Tensor, Tensor], Tensor]  # x, μ -> D(x, μ) of every coordinate


def gaussian(variance: float | Tensor) -> Family:
    """N(μ, Σ) with the diagonal Σ = variance: D(x, μ) = ½ (x-μ)ᵀ Σ⁻¹ (x-μ)."""
    return SPHERICAL._replace(
        dual=lambda x: x / variance,
        mean=lambda s: s * variance,
        hessian=lambda mu, v: v / variance,
        gap=lambda x, mu: (x - mu).square() / (2 * variance),
    )


SPHERICAL = Family(
    domain="all real numbers",
    inside=torch.isfinite,
    dual=lambda x: x,
    mean=lambda s: s,
    hessian=lambda mu, v: v,
    gap=lambda x, mu: (x - mu).square() / 2,
)
BERNOULLI = Family(
    domain="(0, 1)",
    inside=lambda x: (x > 0) & (x < 1),
    dual=torch.logit,
    mean=torch.sigmoid,
    hessian=lambda mu, v: v / (mu * (1 - mu)),
    gap=lambda x, mu: torch.xlogy(x, x / mu) + torch.xlogy(1 - x, (1 - x) / (1 - mu)),
)
POISSON = Family(
    domain="(0, ∞)",
    inside=lambda x: x > 0,
    dual=torch.log,
    mean=torch.exp,
    hessian=lambda mu, v: v / mu,
    gap=lambda x, mu: torch.xlogy(x, x / mu) - x + mu,
)
EXPONENTIAL = Family(
    domain="(0, ∞)",
    inside=lambda x: x > 0,
    dual=lambda x: -1 / x,
    mean=lambda s: -1 / s,
    hessian=lambda mu, v: v / mu.square(),
    gap=lambda x, mu: x / mu - (x / mu).log() - 1,
)
FAMILIES: Mapping[str, Family] = {
    "spherical": SPHERICAL,
    "gaussian": gaussian(1.0),
    "bernoulli": BERNOULLI,
    "poisson": POISSON,
    "exponential": EXPONENTIAL,
}


def check_domain(name: str, x: Tensor) -> None:
    """Raise FedRayError unless all weights x lie in the domain of the family of that name."""
    family = FAMILIES[name]
    outside = int((~family.inside(x)).sum())
    reason = f"{outside} of {x.numel()} initial weights lie outside its domain {family.domain}"
    require(outside == 0, "prior", name, reason, "use spherical or gaussian, which hold any weight")


def divergence(family: Family, x: Tensor, mu: Tensor) -> Tensor:
    """D(x, μ) = g*(x) - g*(μ) - ⟨∇g*(μ), x-μ⟩ >= 0 of vectors [P], a scalar; 0 only where they agree."""
    return family.gap(x, mu).sum()


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
    the natural parameter, θ ← ∇g(∇g*(θ) - α (...)), which cannot leave the domain of the Bernoulli and Poisson
    families; the exponential's natural parameters are negative, so there α must be small enough all the same. Stable
    for α (L + λ) < 2, L the curvature of f (spherical).
    """
    theta, natural, first = start, family.dual(mu), None
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
