"""The objective of a Gaussian posterior q that is held to a Gaussian prior w, and its gradients in both.

Ω = data term + ζ KL, with E_q taken by K draws of the weights. With the log-likelihood of the whole shard, KL(q‖w)
and ζ = 1 it is the negative evidence lower bound; the other settings are those of published code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedray.bayes.gaussian import Gaussian, kl, kl_and_grad_posterior, kl_and_grad_prior, sigma_and_slope
from fedray.nets.likelihood import nll_and_grad, nll_and_grad_local
from fedray.nets.model import Model
from fedray.types import Batch, check_types, require


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Settings of Ω; the defaults are the negative evidence lower bound."""

    zeta: float = 1.0
    """Weight ζ of the divergence between q_i and w against the data term."""
    likelihood: Literal["shard", "batch", "mean"] = "shard"
    """Data term: the nll of the whole shard, (n/b) times the minibatch's, as in a posterior; that of the minibatch
    alone, b examples; or its mean over them. ζ weighs n/b times as much with the second, n times with the third."""
    kl: Literal["qw", "wq"] = "qw"
    """Divergence that q_i and w_i descend: qw: KL(q_i || w), the evidence lower bound's; wq: its arguments swapped."""
    mc_samples: int = 1
    """Monte Carlo draws K of the weights per step."""
    estimator: Literal["weights", "local"] = "weights"
    """Draw the weights, or by local reparameterization the pre-activations (less variance)."""
    noise_sd: float = 1.0
    """Standard deviation of the weight noise in units of σ; below 1 the result is not a posterior."""

    def __post_init__(self) -> None:
        check_types(self)
        require(self.zeta >= 0, "zeta", self.zeta, "a KL weight is not negative", "try 10")
        require(self.mc_samples >= 1, "mc_samples", self.mc_samples, "at least one is needed", "try 1")
        require(self.noise_sd >= 0, "noise_sd", self.noise_sd, "an sd is not negative", "use 1, the posterior's")


def divergence(cfg: Objective, q: Gaussian, w: Gaussian) -> Tensor:
    """KL(q‖w) or KL(w‖q) in nats."""
    return kl(q, w) if cfg.kl == "qw" else kl(w, q)


def divergence_and_grad_prior(
    cfg: Objective, q: Gaussian, w: Gaussian, known: tuple[Tensor, Tensor]
) -> tuple[Tensor, Gaussian]:
    """The divergence in nats and its gradient in (μ_w, ρ_w); ``known`` is sigma_and_slope of ρ_w."""
    return kl_and_grad_prior(q, w, known) if cfg.kl == "qw" else kl_and_grad_posterior(w, q, known)


def objective_grad(
    cfg: Objective, model: Model, q: Gaussian, prior_mu: Tensor, prior_sd: Tensor, batch: Batch, eps: Tensor
) -> tuple[Tensor, Gaussian]:
    """Mean nll of the minibatch in nats, and the gradient of Ω in (μ_q, ρ_q); eps [K, ...] drives K draws.

    Ω = (n/b)(1/K) Σ_j Σ_k nll_j(θ_k) + ζ KL(q‖w) (pFedBayes, eq. 27), prior_sd = σ_w [P]; n/b becomes 1 or 1/b with
    the other data terms. Of the likelihood: dμ = g, dσ = g ε.
    """
    size = batch.weight.sum()
    scale = batch.total / size if cfg.likelihood == "shard" else 1.0 if cfg.likelihood == "batch" else 1 / size
    weight = batch.weight * scale
    sd, slope = sigma_and_slope(q.rho)
    draws = []
    for e in eps if cfg.noise_sd == 1 else eps * cfg.noise_sd:
        if cfg.estimator == "weights":
            value, g = nll_and_grad(model, torch.addcmul(q.mu, sd, e), batch.x, batch.y, weight)
            draws.append((value, g, g * e))
        else:
            draws.append(nll_and_grad_local(model, q.mu, sd, batch.x, batch.y, weight, e))
    nll, dmu, dsd = draws[0] if len(draws) == 1 else (torch.stack(parts).mean(0) for parts in zip(*draws, strict=True))
    dmu, dsd = _add_kl_grad(cfg, dmu, dsd, q.mu, sd, prior_mu, prior_sd)
    return nll / (scale * size), Gaussian(dmu, dsd * slope)


def _add_kl_grad(
    cfg: Objective, dmu: Tensor, dsd: Tensor, mu: Tensor, sd: Tensor, prior_mu: Tensor, prior_sd: Tensor
) -> tuple[Tensor, Tensor]:
    """The likelihood's gradient in (μ_q, σ_q) -> the objective's.

    These are the gradients of fedray.bayes.gaussian, which returns the divergence too and starts from ρ. They are
    written again because a step needs neither: each is added to the likelihood's in one pass over memory, from the σ
    that drew the weights.

    Of KL(q‖w): dμ = (μ_q - μ_w)/σ_w², dσ = ((σ_q/σ_w)² - 1)/σ_q.
    Of KL(w‖q): dμ = (μ_q - μ_w)/σ_q², dσ = (1 - (σ_w² + (μ_q - μ_w)²)/σ_q²)/σ_q.
    A ratio of equal σ is exactly 1: Adam would turn a rounding error into a full step.
    """
    if cfg.kl == "qw":
        dmu = torch.addcdiv(dmu, mu - prior_mu, prior_sd * prior_sd, value=cfg.zeta)
        ratio = sd / prior_sd
        return dmu, torch.addcdiv(dsd, ratio * ratio - 1, sd, value=cfg.zeta)
    gap, ratio = (mu - prior_mu) / sd, prior_sd / sd
    dmu = torch.addcdiv(dmu, gap, sd, value=cfg.zeta)
    return dmu, torch.addcdiv(dsd, 1 - torch.addcmul(gap * gap, ratio, ratio), sd, value=cfg.zeta)
