"""The likelihood of a network's parameters and its gradient: the only place that needs automatic differentiation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedray.nets.convolutional import backpropagation, convolutional
from fedray.nets.model import Model


def fully_connected(model: Model) -> bool:
    """Whether the network is a chain of linear layers and ReLUs; the first class's logit may be fixed at 0."""
    leaks = _leaks(model)
    return leaks is not None and not any(leaks)


def nll_and_grad(model: Model, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted NLL of a batch [...] at theta [..., P] in nats and its gradient; weight is [B], or [..., B] as theta.

    Fully connected networks are differentiated by hand: under vmap, automatic differentiation costs these small
    networks several times their arithmetic. So are chains of convolutions (convolutional.py). Others are differentiated
    with respect to their layers rather than the flat vector, because the backward of a slice would write P zeros for
    every layer.
    """
    leaks = _leaks(model)
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


def _leaks(model: Model) -> list[float | None] | None:
    """The slope below zero of the (leaky) ReLU before each layer, None before the first.

    None in all for a network that is not a chain of flatten, linear, ReLU, linear, ReLU, ..., linear, and perhaps the
    padding by which the first class's logit is 0.
    """
    first, *chain = model.layers
    if chain and isinstance(chain[-1], nn.ConstantPad1d) and chain[-1].padding == (1, 0) and chain[-1].value == 0:
        chain.pop()
    linear, between = chain[::2], chain[1::2]
    if type(first) is not nn.Flatten or len(chain) % 2 == 0 or any(type(layer) is not nn.Linear for layer in linear):
        return None
    leaks: list[float | None] = [None]
    for layer in between:
        if type(layer) not in (nn.ReLU, nn.LeakyReLU):
            return None
        leak = layer.negative_slope if isinstance(layer, nn.LeakyReLU) else 0.0
        if leak < 0:  # its output does not tell the sign of its input
            return None
        leaks.append(leak)
    return leaks


def _backpropagation(
    model: Model, leaks: list[float | None], theta: Tensor, x: Tensor, y: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """g = dL/df of the outputs f; dW = aᵀ g, db = Σ_b g, da = g Wᵀ, times the leak where a ReLU is shut."""
    parts = model.split(theta)
    inputs = []
    a = x.flatten(1)
    weights, biases = parts[::2], parts[1::2]
    for w, b, leak in zip(weights, biases, leaks, strict=True):
        if leak is not None:
            a = functional.leaky_relu(a, leak) if leak else a.relu()
        inputs.append(a)
        alone = w.shape[-1] == 1 and (a.ndim == w.ndim or model.density.noise > 0)
        a = (column(a, w) if alone else product(a, w)) + b[..., None, :]
    fixed = model.classes - a.shape[-1]  # logits that are 0
    outputs = functional.pad(a, (fixed, 0)) if fixed else a
    value, slopes, noise = model.density.slopes(outputs, model.noise(theta), y, weight)
    g = slopes[..., fixed:]
    grads: list[Tensor] = []
    for w, a, leak in zip(weights[::-1], inputs[::-1], leaks[::-1], strict=True):
        grads = [product(a.mT, g), g.sum(-2), *grads]
        if leak is not None:
            g = g @ w.mT
            g = torch.where(a > 0, g, leak * g) if leak else g * (a > 0)
    return value, model.join(grads, noise)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b; one matrix [n, k] for a whole stack [M, k, m] is multiplied once, with the stack side by side [k, M m]."""
    if a.ndim == 2 and b.ndim == 3:
        return (a @ b.transpose(0, 1).flatten(1)).unflatten(1, b.shape[::2]).transpose(0, 1)
    return a @ b


def column(a: Tensor, b: Tensor) -> Tensor:
    """a @ b for one column b [..., k, 1], with the same bits alone and stacked, which a matrix product has not."""
    return (a * b.mT).sum(-1, keepdim=True)


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


def predictive(model: Model, thetas: Tensor, x: Tensor) -> Tensor:
    """What the model says of inputs x [B, ...] under each row of thetas [M, P].

    log p [M, B, C] of the classes, or mean and log-variance [M, B, 2] of a real target.
    """
    return torch.stack([model.density.predict(model.apply(theta, x), model.noise(theta)) for theta in thetas])
