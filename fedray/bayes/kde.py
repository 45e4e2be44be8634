"""Kernel density estimates of particles, by the gradient of their logarithm.

Centres c_n are particles [M, P] of which d entries are parameters; the kernel is N(c_n, λ² I) with width λ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedray.bayes.stein import bandwidth, squared_distances

KERNEL_FLOOR, DENSITY_FLOOR = 1e-9, 1e-10  # what DSVGD's public code adds to a kernel's value and to a density
LARGE = 600.0  # log of a scale that float64 holds, beside which the floor of the density is nothing


def kde_gradient(x: Tensor, centres: Tensor, width: float | Tensor, d: int) -> Tensor:
    """∇log (1/M) Σ_n N(x_i; c_n, λ² I) [N, P] = (softmax_n(-‖x_i - c_n‖²/2λ²) c - x_i)/λ²; finite at any distance."""
    logits = -squared_distances(x, centres) / (2 * width**2)
    return (torch.softmax(logits, 1).to(x.dtype) @ centres - x) / width**2


def code_gradient(x: Tensor, centres: Tensor, width: float | Tensor, d: int) -> Tensor:
    """∇log(q + 1e-10) [N, P] of the public code, whose M stands inside the power: it vanishes as soon as q does.

    q = (2πλ²M)^(-d/2) Σ_n [exp(-‖x - c_n‖²/2λ²) + 1e-9].
    """
    weights = torch.exp(-squared_distances(x, centres) / (2 * width**2))
    power = -d / 2 * math.log(len(centres) * 2 * math.pi * float(width) ** 2)
    scale = math.exp(min(power, LARGE))
    density = scale * (weights + KERNEL_FLOOR).sum(1, keepdim=True)
    share = (scale * weights / (density + DENSITY_FLOOR)).to(x.dtype)
    return (share @ centres - share.sum(1, keepdim=True) * x) / width**2


def median_width(x: Tensor) -> Tensor:
    """λ [] with λ² = h/2, h the median heuristic of the particles."""
    return (bandwidth(squared_distances(x)) / 2).sqrt().to(x.dtype)
