"""The categorical likelihood and its gradient: the only place that needs automatic differentiation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedray.models import Model


def nll(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Weighted negative log-likelihood of a batch in nats: -Σ_b weight_b log softmax(logits_b)[y_b]."""
    log_p = torch.log_softmax(logits, -1)
    return -(log_p.gather(-1, y[:, None]).squeeze(-1) * weight).sum()


def fully_connected(model: Model) -> bool:
    """Whether the network is a chain of linear layers and ReLUs."""
    leaks = _leaks(model)
    return leaks is not None and not any(leaks)


def nll_and_grad(model: Model, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted NLL of a batch at theta [P] and its gradient [P].

    Fully connected networks are differentiated by hand: under vmap, automatic differentiation costs these small
    networks several times their arithmetic. Others are differentiated with respect to their layers rather than the
    flat vector, because the backward of a slice would write P zeros for every layer.
    """
    leaks = _leaks(model)
    if leaks is not None:
        return _backpropagation(model, leaks, theta, x, y, weight)

    def loss(parts: Sequence[Tensor]) -> Tensor:
        return nll(model.forward(parts, x), y, weight)

    grads, value = torch.func.grad_and_value(loss)(model.split(theta))
    return value, model.join(grads)


def _leaks(model: Model) -> list[float | None] | None:
    """The slope below zero of the (leaky) ReLU before each layer, None before the first.

    None in all for a network that is not a chain of flatten, linear, ReLU, linear, ReLU, ..., linear.
    """
    first, *chain = model.layers
    linear, between = chain[::2], chain[1::2]
    if type(first) is not nn.Flatten or len(chain) % 2 == 0 or any(type(layer) is not nn.Linear for layer in linear):
        return None
    leaks: list[float | None] = [None]
    for layer in between:
        if type(layer) not in (nn.ReLU, nn.LeakyReLU):
            return None
        leaks.append(layer.negative_slope if isinstance(layer, nn.LeakyReLU) else 0.0)
    return leaks


def _backpropagation(
    model: Model, leaks: list[float | None], theta: Tensor, x: Tensor, y: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """dL/dlogits = weight (softmax - onehot); dW = aᵀ g, db = Σ_b g, da = g Wᵀ, times the leak where a ReLU is shut."""
    parts, inputs, a = model.split(theta), [], x.flatten(1)
    weights, biases = parts[::2], parts[1::2]
    for w, b, leak in zip(weights, biases, leaks, strict=True):
        if leak is not None:
            a = functional.leaky_relu(a, leak) if leak else a.relu()
        inputs.append(a)
        a = a @ w + b
    log_p = torch.log_softmax(a, -1)
    onehot = torch.zeros_like(log_p).scatter(-1, y[:, None], 1.0)
    g = (log_p.exp() - onehot) * weight[:, None]
    value = -((log_p * onehot).sum(-1) * weight).sum()
    grads: list[Tensor] = []
    for w, a, leak in zip(weights[::-1], inputs[::-1], leaks[::-1], strict=True):
        grads = [a.t() @ g, g.sum(0), *grads]
        if leak is not None:
            g = g @ w.t()
            g = torch.where(a > 0, g, leak * g) if leak else g * (a > 0)
    return value, model.join(grads)


def nll_and_grad_local(
    model: Model, mu: Tensor, sd: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted NLL under local reparameterization and its gradients in μ [P] and σ [P]; noise [B, activations]."""

    def loss(parts: tuple[Sequence[Tensor], Sequence[Tensor]]) -> Tensor:
        return nll(model.forward_local(*parts, x, noise), y, weight)

    (dmu, dsd), value = torch.func.grad_and_value(loss)((model.split(mu), model.split(sd)))
    return value, model.join(dmu), model.join(dsd)


def log_probs(model: Model, thetas: Tensor, x: Tensor) -> Tensor:
    """log p [M, B, C] of inputs x [B, ...] under each row of thetas [M, P]."""
    return torch.stack([torch.log_softmax(model.apply(theta, x), -1) for theta in thetas])
