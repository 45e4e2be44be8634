"""The categorical likelihood and its gradient: the only place that needs automatic differentiation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedray.models import Model


def nll(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Weighted negative log-likelihood of a batch in nats: -Σ_b weight_b log softmax(logits_b)[y_b]."""
    log_p = torch.log_softmax(logits, -1)
    return -(log_p.gather(-1, y[:, None]).squeeze(-1) * weight).sum()


def fully_connected(model: Model) -> bool:
    """Whether a network is a chain of linear layers and ReLUs."""
    return all(isinstance(layer, nn.Linear | nn.ReLU | nn.Flatten) for layer in model.layers)


def nll_and_grad(model: Model, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted NLL of a batch at theta [P] and its gradient [P].

    Fully connected networks are differentiated by hand: under vmap, automatic differentiation costs these small
    networks several times their arithmetic. Others are differentiated with respect to their layers rather than the
    flat vector, because the backward of a slice would write P zeros for every layer.
    """
    if fully_connected(model):
        return _backpropagation(model, theta, x, y, weight)

    def loss(parts: Sequence[Tensor]) -> Tensor:
        return nll(model.forward(parts, x), y, weight)

    grads, value = torch.func.grad_and_value(loss)(model.split(theta))
    return value, model.join(grads)


def _backpropagation(model: Model, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """dL/dlogits = weight (softmax - onehot); dW = aᵀ g, db = Σ_b g, da = g Wᵀ where the ReLU was open."""
    parts, inputs, a = model.split(theta), [], x.flatten(1)
    weights, biases = parts[::2], parts[1::2]
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        a = a.relu() if i else a
        inputs.append(a)
        a = a @ w + b
    log_p = torch.log_softmax(a, -1)
    onehot = torch.zeros_like(log_p).scatter(-1, y[:, None], 1.0)
    g = (log_p.exp() - onehot) * weight[:, None]
    value = -((log_p * onehot).sum(-1) * weight).sum()
    grads: list[Tensor] = []
    for w, a in zip(weights[::-1], inputs[::-1], strict=True):
        grads = [a.t() @ g, g.sum(0), *grads]
        if len(grads) < len(parts):
            g = (g @ w.t()) * (a > 0)
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
