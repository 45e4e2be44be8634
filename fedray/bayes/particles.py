"""The likelihood at particles: weight vectors x [M, P] whose scores and curvature are taken together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedray.arrays.rng import Stream
from fedray.bayes.priors import PriorSettings
from fedray.nets.likelihood import fully_connected, nll_and_grad, product
from fedray.nets.model import Model, own_module
from fedray.types import Batch, FedRayError, require

TOGETHER = 32  # particles that are stacked; the activations of all on a whole shard might not fit

Likelihood = Callable[[Tensor], tuple[Tensor, Tensor]]  # x [M, P] -> nll [] per example in nats, s = ∇log p_k(x) [M, P]


@dataclass(frozen=True, kw_only=True)
class ParticleSettings(PriorSettings):
    """Settings of every method with particles or chains."""

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
        if self.start == "network":
            return starts(model, rng, self.particles)
        prior = self.p0(model.size)
        return torch.stack([prior.draw(rng, model.padded) for _ in range(self.particles)])


def starts(model: Model, rng: Stream, count: int) -> Tensor:
    """Usual initial weights of ``count`` networks [M, P]. Raises FedRayError where a caller's module has only one
    start: networks that are equal would stay equal."""
    found = torch.stack([model.init(rng) for _ in range(count)])
    if count > 1 and own_module(model) is not None and bool((found == found[0]).all()):
        raise FedRayError(
            f"network: all {count} models would start, and stay, the same, as it draws no initial weights; give its "
            "modules that hold parameters a method reset_parameters"
        )
    return found


def network(model: Model, batch: Batch, temperature: float = 1.0) -> Likelihood:
    """log p_k = -(n_k/αb) Σ_b nll_b, as a minibatch of a client estimates it, or its whole shard has it."""
    weight = batch.weight / batch.weight.sum()

    def likelihood(x: Tensor) -> tuple[Tensor, Tensor]:
        found = [nll_and_grad(model, thetas, batch.x, batch.y, weight) for thetas in x.split(TOGETHER)]
        nll, grad = (torch.cat(parts) for parts in zip(*found, strict=True))
        return nll.mean(), -(batch.total / temperature) * grad

    return likelihood


def curvature(model: Model, batch: Batch, x: Tensor, temperature: float = 1.0) -> Tensor:
    """The Gauss-Newton diagonal of -log p_k at particles [M, P]."""
    diagonals = torch.cat([ggn_diagonal(model, thetas, batch.x, batch.weight) for thetas in x.split(TOGETHER)])
    return diagonals * (batch.total / batch.weight.sum() / temperature)


def check_layers(model: Model) -> None:
    """Raise FedRayError for a network whose Gauss-Newton diagonal is not written here."""
    reason = "the Gauss-Newton diagonal is written for chains of linear layers and ReLUs only"
    require(fully_connected(model), "curvature", "ggn", reason, "choose regression, or `model.name=mlp`")


def ggn_diagonal(model: Model, theta: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Σ_b weight_b diag(Jᵀ I J) [..., P] at theta [..., P], nats; J the outputs' Jacobian, I their Fisher information.

    Of logits it is diag(p) - p pᵀ, of a real target's mean γ. With I = Σ_c v_c v_cᵀ each v_c is a cotangent, and a
    layer's diagonal is the product of squared inputs with the sum of squared cotangents. It is also the Fisher
    information of theta, never negative, and the Hessian's diagonal exactly where logits are linear in theta. Martens,
    "New Insights and Perspectives on the Natural Gradient Method", JMLR 2020, section 8.
    """
    parts = model.split(theta)
    inputs = []
    a = x.flatten(1)
    weights, biases = parts[::2], parts[1::2]
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        a = a.relu() if i else a
        inputs.append(a)
        a = product(a, w) + b[..., None, :]
    fixed = model.classes - a.shape[-1]  # logits that are 0, whatever the parameters
    cotangents, noise = model.density.fisher(functional.pad(a, (fixed, 0)), model.noise(theta), weight)
    cotangents = cotangents[..., fixed:]  # [..., C, B, outputs]
    found: list[Tensor] = []
    for w, a in zip(weights[::-1], inputs[::-1], strict=True):
        squares = cotangents.square().sum(-3)
        found = [product(a.square().mT, squares), squares.sum(-2), *found]
        if len(found) < len(parts):
            cotangents = (cotangents @ w.mT[..., None, :, :]) * (a > 0)[..., None, :, :]
    return model.join(found, noise)
