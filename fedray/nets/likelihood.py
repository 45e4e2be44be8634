"""The likelihood of a network's parameters and its gradient: the only place that needs automatic differentiation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedray.nets.convolutional import backpropagation, convolutional
from fedray.nets.fully_connected import Leaks, backward, forward, leaks_of
from fedray.nets.model import Model


def nll_and_grad(model: Model, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted NLL of a batch [...] at theta [..., P] in nats and its gradient; weight is [B], or [..., B] as theta.

    Fully connected networks and chains of convolutions are differentiated by hand. Others are differentiated with
    respect to their layers rather than the flat vector, because the backward of a slice would write P zeros for every
    layer.
    """
    leaks = leaks_of(model)
    if leaks is not None:
        return _backpropagation(model, leaks, theta, x, y, weight)

    def loss(parts: tuple[Sequence[Tensor], Tensor], weight: Tensor) -> Tensor:
        layers, noise = parts
        return model.density.nll(model.forward(layers, x), noise, y, weight)

    def one(theta: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        if convolutional(model):
            return backpropagation(model, theta, x, y, weight)
        grads, value = torch.func.grad_and_value(loss)((model.split(theta), model.noise(theta)), weight)
        return value, model.join(*grads)

    if theta.ndim == 1:
        return one(theta, weight)
    return torch.vmap(one, in_dims=(0, None if weight.ndim == 1 else 0))(theta, weight)


def _backpropagation(
    model: Model, leaks: Leaks, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient of a network that is fully connected, from g = dL/df of its outputs f."""
    parts = model.split(theta)
    a, inputs = forward(parts, leaks, x, noisy=model.density.noise > 0)
    fixed = model.classes - a.shape[-1]  # logits that are 0
    outputs = functional.pad(a, (fixed, 0)) if fixed else a
    value, slopes, noise = model.density.slopes(outputs, model.noise(theta), y, weight)
    return value, model.join(backward(parts, leaks, inputs, slopes[..., fixed:]), noise)


def nll_and_grad_local(
    model: Model, mu: Tensor, sd: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted NLL under local reparameterization and its gradients in μ [P] and σ [P]; noise [B, activations].

    For labels only: the density has no parameters of its own.
    """

    def loss(parts: tuple[Sequence[Tensor], Sequence[Tensor]]) -> Tensor:
        outputs = model.forward_local(*parts, x, noise)
        return model.density.nll(outputs, outputs.new_zeros(0), y, weight)

    (dmu, dsd), value = torch.func.grad_and_value(loss)((model.split(mu), model.split(sd)))
    return value, model.join(dmu), model.join(dsd)


def log_probs(model: Model, thetas: Tensor, x: Tensor) -> Tensor:
    """log p [M, B, C] of inputs x [B, ...] under each row of thetas [M, P]."""
    return torch.stack([torch.log_softmax(model.apply(theta, x), -1) for theta in thetas])


def predictive(model: Model, thetas: Tensor, x: Tensor) -> Tensor:
    """What the model says of inputs x [B, ...] under each row of thetas [M, P].

    log p [M, B, C] of the classes, or mean and log-variance [M, B, 2] of a real target.
    """
    return torch.stack([model.density.predict(model.apply(theta, x), model.noise(theta)) for theta in thetas])
