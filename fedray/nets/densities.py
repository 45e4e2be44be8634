"""The density of a target given a network's outputs f, and the parameters that it has of its own.

categorical  labels: p(y = c) = softmax(f)_c.
gaussian     real targets: y ~ N(f, 1/γ). log γ, the log-precision of the noise, is the last parameter of the network.
known noise  real targets: the same, with a γ that is given.
one-hot      labels as vectors e_y ~ N(f, I/γ), as "Client Selection for Federated Bayesian Learning" trains classifiers
             (section IV-A). Of all one-hot vectors e_y then has the probability softmax(γ f)_y.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

LOG_TAU = math.log(2 * math.pi)


class Density(NamedTuple):
    """A likelihood of examples with outputs f [..., B, C], own parameters g [..., noise] and weights [B] or [..., B].

    ``nll`` is Σ_b weight_b (-log p(y_b)) [...] in nats, and ``slopes`` returns it with its derivatives in f and in g.
    ``predict`` returns what a prediction consists of: log p of every class, or mean and log-variance of a real target.
    ``fisher`` returns the Fisher information Σ_b weight_b I_b: of f as vectors c [..., K, B, C] with I = Σ_k c_k c_kᵀ,
    and of g [..., noise]; between the two there is none.
    """

    noise: int  # the number of own parameters g, at the end of the network's
    nll: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # f, g, y [B], weight
    slopes: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    predict: Callable[[Tensor, Tensor], Tensor]  # f [B, C], g -> [B, C] or [B, 2]
    fisher: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # f, g, weight


def categorical_nll(f: Tensor, g: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """-Σ_b weight_b log softmax(f_b)[y_b]."""
    log_p = torch.log_softmax(f, -1)
    return -(log_p.gather(-1, y[:, None]).squeeze(-1) * weight).sum()


def categorical_slopes(f: Tensor, g: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """df = weight (softmax - onehot)."""
    log_p = torch.log_softmax(f, -1)
    onehot = _one_hot(f, y)
    return -((log_p * onehot).sum(-1) * weight).sum(-1), (log_p.exp() - onehot) * weight[..., None], g


def categorical_predict(f: Tensor, g: Tensor) -> Tensor:
    """log softmax(f)."""
    return torch.log_softmax(f, -1)


def categorical_fisher(f: Tensor, g: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """diag(p) - p pᵀ = Σ_c p_c (e_c - p)(e_c - p)ᵀ."""
    p = torch.softmax(f, -1)
    scale = (weight[..., None] * p).sqrt()  # [..., B, C]
    off = torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)[:, None] - p[..., None, :, :]
    return off * scale.mT[..., None], g


def _one_hot(f: Tensor, y: Tensor) -> Tensor:
    return (y[:, None] == torch.arange(f.shape[-1], device=y.device)).to(f.dtype)


def gaussian_nll(f: Tensor, g: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Σ_b weight_b ½ (γ ‖f_b - y_b‖² + C (log 2π - g)), g = log γ; y_b is real, or the one-hot vector of a label."""
    return gaussian_slopes(f, g, y, weight)[0]


def gaussian_slopes(f: Tensor, g: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """df = weight γ (f - y); dg = Σ_b weight_b ½ (γ ‖f_b - y_b‖² - C)."""
    outputs = f.shape[-1]
    away = f - (y[:, None] if y.is_floating_point() else _one_hot(f, y))
    pull = g.exp()[..., None] * away  # [..., B, C]
    slope = (((pull * away).sum(-1) - outputs) * weight).sum(-1, keepdim=True) / 2
    value = slope.squeeze(-1) + outputs / 2 * weight.sum(-1) * (1 + LOG_TAU - g.squeeze(-1))
    return value, pull * weight[..., None], slope


def gaussian_fisher(f: Tensor, g: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """γ I of the mean, and C/2 of log γ."""
    outputs = f.shape[-1]
    each = torch.eye(outputs, dtype=f.dtype, device=f.device)[:, None]  # [K, 1, C]
    scale = (g.exp()[..., None, None] * weight[..., None, :, None]).sqrt()  # [..., 1, B, 1]
    return each * scale, (outputs / 2 * weight.sum(-1, keepdim=True)).expand(g.shape)


def mean_and_log_variance(f: Tensor, g: Tensor) -> Tensor:
    """(f, -log γ)."""
    return torch.cat([f, -g.expand(f.shape)], -1)


def log_share(f: Tensor, g: Tensor) -> Tensor:
    """log softmax(γ f): N(e_c; f, I/γ) of every class, divided by their sum."""
    return torch.log_softmax(g.exp() * f, -1)


CATEGORICAL = Density(0, categorical_nll, categorical_slopes, categorical_predict, categorical_fisher)
GAUSSIAN = Density(1, gaussian_nll, gaussian_slopes, mean_and_log_variance, gaussian_fisher)
ONE_HOT = Density(1, gaussian_nll, gaussian_slopes, log_share, gaussian_fisher)


def known_noise(sd: float) -> Density:
    """y ~ N(f, sd²), sd in units of the target: a Gaussian density that has no parameters of its own."""
    g = -2 * math.log(sd)
    return Density(
        0, partial(_known_nll, g), partial(_known_slopes, g), partial(_known_predict, g), partial(_known_fisher, g)
    )


def _log_gamma(g: float, f: Tensor) -> Tensor:
    """log γ [..., 1] for outputs f [..., B, C]."""
    return f.new_full((*f.shape[:-2], 1), g)


def _known_nll(g: float, f: Tensor, _: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return gaussian_nll(f, _log_gamma(g, f), y, weight)


def _known_slopes(g: float, f: Tensor, none: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value, slope, _ = gaussian_slopes(f, _log_gamma(g, f), y, weight)
    return value, slope, none


def _known_predict(g: float, f: Tensor, _: Tensor) -> Tensor:
    return mean_and_log_variance(f, _log_gamma(g, f))


def _known_fisher(g: float, f: Tensor, none: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return gaussian_fisher(f, _log_gamma(g, f), weight)[0], none
