"""The categorical likelihood at particles: weight vectors x [M, P] whose scores and curvature are taken together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedray.likelihood import fully_connected, nll_and_grad
from fedray.models import Model
from fedray.priors import Prior, PriorSettings
from fedray.rng import Stream
from fedray.types import Batch, require

TOGETHER = 32  # particles that are stacked; the activations of all on a whole shard might not fit

Likelihood = Callable[[Tensor], tuple[Tensor, Tensor]]  # x [M, P] -> nll [] per example in nats, s = ∇log p_k(x) [M, P]


@dataclass(frozen=True, kw_only=True)
class ParticleSettings(PriorSettings):
    """What every method with particles or chains is told."""

    particles: int = 20
    """Number M of particles, or of chains."""
    temperature: float = 1.0
    """α in p_k = exp(-L_k/α)."""
    start: Literal["network", "prior"] = "network"
    """Particles at first: the network's usual initial weights, or draws of the prior."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.particles >= 1, "particles", self.particles, "at least one is needed", "try 20")
        require(self.temperature > 0, "temperature", self.temperature, "it is positive", "leave it out")

    def initial(self, model: Model, rng: Stream) -> Tensor:
        """Particles [M, P] at first. Raises FedRayError for a prior that the network does not go with."""
        self.check_prior(model)
        return initial(model, rng, self.particles, self.p0(model.size) if self.start == "prior" else None)


def initial(model: Model, rng: Stream, count: int, prior: Prior | None = None) -> Tensor:
    """Particles [M, P] at first: the network's usual initial weights, or draws of the prior."""
    draws = (model.init(rng) if prior is None else prior.draw(rng, model.padded) for _ in range(count))
    return torch.stack(list(draws))


def network(model: Model, batch: Batch, temperature: float = 1.0) -> Likelihood:
    """log p_k = -(n_k/αb) Σ_b nll_b, as a minibatch of a client estimates it, or its whole shard has it."""
    weight = batch.weight / batch.weight.sum()

    def likelihood(x: Tensor) -> tuple[Tensor, Tensor]:
        def one(theta: Tensor) -> tuple[Tensor, Tensor]:
            return nll_and_grad(model, theta, batch.x, batch.y, weight)

        nll, grad = torch.vmap(one, chunk_size=TOGETHER)(x)
        return nll.mean(), -(batch.total / temperature) * grad

    return likelihood


def curvature(model: Model, batch: Batch, x: Tensor, temperature: float = 1.0) -> Tensor:
    """Mean over particles [M, P] of the Gauss-Newton diagonal of -log p_k [P]."""
    diagonals = torch.vmap(lambda theta: ggn_diagonal(model, theta, batch.x, batch.weight), chunk_size=TOGETHER)(x)
    return diagonals.mean(0) * (batch.total / batch.weight.sum() / temperature)


def check_layers(model: Model, setting: str, value: str) -> None:
    """Raise FedRayError for a network whose Gauss-Newton diagonal is not written here."""
    reason = "the Gauss-Newton diagonal is written for fully connected networks only"
    require(fully_connected(model), setting, value, reason, "choose regression, or --model.name mlp")


def ggn_diagonal(model: Model, theta: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Σ_b weight_b diag(Jᵀ (diag(p) - p pᵀ) J) [P] at theta [P], nats; J the logits' Jacobian, p the softmax.

    diag(p) - p pᵀ = Σ_c p_c (e_c - p)(e_c - p)ᵀ: each class is a cotangent, and a layer's diagonal is the product of
    squared inputs with the sum of squared cotangents. It is also the Fisher information, never negative, and the
    Hessian's diagonal exactly where the logits are linear in theta. Martens, "New Insights and Perspectives on the
    Natural Gradient Method", JMLR 2020, section 8.
    """
    parts, inputs, a = model.split(theta), [], x.flatten(1)
    weights, biases = parts[::2], parts[1::2]
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        a = a.relu() if i else a
        inputs.append(a)
        a = a @ w + b
    p = torch.softmax(a, -1)
    scale = (weight[:, None] * p).sqrt()  # [B, C]
    cotangents = (torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)[:, None] - p) * scale.t()[:, :, None]
    found: list[Tensor] = []
    for w, a in zip(weights[::-1], inputs[::-1], strict=True):
        squares = cotangents.square().sum(0)
        found = [a.square().t() @ squares, squares.sum(0), *found]
        if len(found) < len(parts):
            cotangents = (cotangents @ w.t()) * (a > 0)
    return model.join(found)
