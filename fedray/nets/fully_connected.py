"""Chains of linear layers and ReLUs, differentiated by hand.

Under vmap, automatic differentiation costs these small networks several times their arithmetic. PyTorch's compiler
cannot record it either: a step whose gradients are written out can be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedray.nets.model import Model

Leaks = list[float | None]


def fully_connected(model: Model) -> bool:
    """Whether the network is a chain of linear layers and ReLUs; the first class's logit may be fixed at 0."""
    leaks = leaks_of(model)
    return leaks is not None and not any(leaks)


def leaks_of(model: Model) -> Leaks | None:
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
    leaks: Leaks = [None]
    for layer in between:
        if type(layer) not in (nn.ReLU, nn.LeakyReLU):
            return None
        leaks.append(layer.negative_slope if isinstance(layer, nn.LeakyReLU) else 0.0)
    return leaks


def forward(parts: Sequence[Tensor], leaks: Leaks, x: Tensor, noisy: bool = False) -> tuple[Tensor, list[Tensor]]:
    """What the last layer gives of inputs x [B, ...], and the inputs of every layer; ``parts`` are weights and biases.

    A density with noise of its own (``noisy``) has one output, which is then the same, to the bit, alone and stacked.
    """
    a, inputs = x.flatten(1), []
    for w, b, leak in zip(parts[::2], parts[1::2], leaks, strict=True):
        if leak is not None:
            a = functional.leaky_relu(a, leak) if leak else a.relu()
        inputs.append(a)
        alone = w.shape[-1] == 1 and (a.ndim == w.ndim or noisy)
        a = (column(a, w) if alone else product(a, w)) + b[..., None, :]
    return a, inputs


def backward(parts: Sequence[Tensor], leaks: Leaks, inputs: Sequence[Tensor], g: Tensor) -> list[Tensor]:
    """The gradients of ``parts`` from that of the outputs, g; ``inputs`` are those of :func:`forward`.

    dW = aᵀ g, db = Σ_b g, da = g Wᵀ, times the leak where a ReLU is shut.
    """
    grads: list[Tensor] = []
    for w, a, leak in zip(parts[::2][::-1], inputs[::-1], leaks[::-1], strict=True):
        grads = [product(a.mT, g), g.sum(-2), *grads]
        if leak is not None:
            g = g @ w.mT
            g = torch.where(a > 0, g, leak * g) if leak else g * (a > 0)
    return grads


def features_and_pullback(model: Model, theta: Tensor, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """What the head is given before the activation, [B, D], and the function from its gradient to that of theta [P].

    Any network; those that are fully connected are differentiated by hand.
    """
    parts = model.split(theta)
    leaks = leaks_of(model)
    if leaks is None:
        h, pullback, *_ = torch.func.vjp(lambda parts: model.features(parts, x).flatten(1), parts)
        return h, lambda g: model.join(*pullback(g))
    *body, weights, biases = parts
    h, inputs = forward(body, leaks[:-1], x)
    head = [torch.zeros_like(weights), torch.zeros_like(biases)]
    return h, lambda g: model.join([*backward(body, leaks[:-1], inputs, g), *head])


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b; one matrix [n, k] for a whole stack [M, k, m] is multiplied once, with the stack side by side [k, M m]."""
    if a.ndim == 2 and b.ndim == 3:
        return (a @ b.transpose(0, 1).flatten(1)).unflatten(1, b.shape[::2]).transpose(0, 1)
    return a @ b


def column(a: Tensor, b: Tensor) -> Tensor:
    """a @ b for one column b [..., k, 1], with the same bits alone and stacked, which a matrix product has not."""
    return (a * b.mT).sum(-1, keepdim=True)
