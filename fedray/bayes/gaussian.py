"""Mean-field Gaussian posteriors N(μ, σ²), σ = softplus(ρ), with their divergence and its gradients in closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Gaussian(NamedTuple):
    """q(θ) = Π_p N(θ_p; μ_p, σ_p²) with σ = softplus(ρ) = log(1 + e^ρ)."""

    mu: Tensor  # [P]
    rho: Tensor  # [P]


def where(condition: Tensor, a: Gaussian, b: Gaussian) -> Gaussian:
    """a where the condition [] holds, else b."""
    return Gaussian(torch.where(condition, a.mu, b.mu), torch.where(condition, a.rho, b.rho))


def sigma(rho: Tensor) -> Tensor:
    """Standard deviation σ = softplus(ρ)."""
    return torch.nn.functional.softplus(rho)


def inverse_sigma(sd: Tensor) -> Tensor:
    """ρ with softplus(ρ) = σ, for σ > 0."""
    return sd + torch.log(-torch.expm1(-sd))


def sigma_and_slope(rho: Tensor) -> tuple[Tensor, Tensor]:
    """σ = log(1 + e^ρ) and dσ/dρ = e^ρ/(1 + e^ρ), from one exponential.

    log1p(e) as log(u) + (e - (u - 1))/u with u = 1 + e rounded: exact to an ulp, and several times faster than log1p,
    which is not vectorized.
    """
    e = rho.exp()
    u = e + 1
    inverse = u.reciprocal()
    return torch.addcmul(u.log(), e - (u - 1), inverse), e * inverse


def draw(q: Gaussian, noise: Tensor) -> Tensor:
    """θ = μ + σ ε: draws [..., P] from standard normal noise [..., P]."""
    return q.mu + sigma(q.rho) * noise


def kl(q: Gaussian, w: Gaussian) -> Tensor:
    """KL(q‖w) in nats: ½ Σ [log(σ_w²/σ_q²) + (σ_q² + (μ_q - μ_w)²)/σ_w² - 1] (pFedBayes, eq. 8)."""
    sq, sw = sigma(q.rho), sigma(w.rho)
    return (torch.log(sw / sq) + (sq.square() + (q.mu - w.mu).square()) / (2 * sw.square()) - 0.5).sum(-1)


def kl_and_grad_prior(q: Gaussian, w: Gaussian, known: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Gaussian]:
    """KL(q‖w) in nats and its gradient with respect to the prior's (μ_w, ρ_w).

    dμ_w = (μ_w - μ_q)/σ_w²; dσ_w = 1/σ_w - (σ_q² + (μ_q - μ_w)²)/σ_w³; dρ_w = dσ_w sigmoid(ρ_w).
    ``known`` is :func:`sigma_and_slope` of ρ_w, where the caller has it.
    """
    (sq, _) = sigma_and_slope(q.rho)
    (sw, slope) = known or sigma_and_slope(w.rho)
    inverse = sw.reciprocal()
    # 0 and 1 exactly where q = w, so that rounding cannot move w
    gap = (w.mu - q.mu) * inverse
    ratio = sq / sw
    moment = torch.addcmul(gap * gap, ratio, ratio)  # E_q[(θ - μ_w)²]/σ_w²
    divergence = (0.5 * (moment - 1) - torch.log(ratio)).sum(-1)
    return divergence, Gaussian(gap * inverse, (1 - moment) * inverse * slope)


def kl_and_grad_posterior(
    q: Gaussian, w: Gaussian, known: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Gaussian]:
    """KL(q‖w) in nats and its gradient with respect to the posterior's (μ_q, ρ_q).

    dμ_q = (μ_q - μ_w)/σ_w²; dσ_q = ((σ_q/σ_w)² - 1)/σ_q; dρ_q = dσ_q sigmoid(ρ_q).
    ``known`` is :func:`sigma_and_slope` of ρ_q, where the caller has it.
    """
    (sq, slope) = known or sigma_and_slope(q.rho)
    (sw, _) = sigma_and_slope(w.rho)
    gap, ratio = (q.mu - w.mu) / sw, sq / sw  # 0 and 1 exactly where q = w
    square = ratio * ratio
    divergence = (0.5 * (gap * gap + (square - 1)) - torch.log(ratio)).sum(-1)
    return divergence, Gaussian(gap / sw, (square - 1) / sq * slope)
