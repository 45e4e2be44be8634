"""The priors of particle methods: what their score is, and how initial particles are drawn from them.

gaussian  every parameter ~ N(0, 1/precision).
gamma     theta = [w, g] of logistic regression, g = log ξ the last parameter: w | ξ ~ N(0, I/ξ), ξ ~ Gamma(shape a,
          rate b). Liu and Wang, "Stein Variational Gradient Descent", NeurIPS 2016, section 5.
noise     theta = [w, g] under a Gaussian likelihood, g = log γ the last parameter, γ the precision of the noise: w as
          with gaussian, γ ~ Gamma(1, rate 0.1), as in the same paper's regression and in the public code of DSVGD.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.arrays.rng import Stream
from fedray.nets.model import Model
from fedray.types import check_types, require

LARGEST = 15.0  # |log ξ| and |log γ| beyond which these precisions are held
NOISE_SHAPE, NOISE_RATE = 1.0, 0.1  # of the prior of the noise's precision γ


class Prior(NamedTuple):
    """A prior of vectors that hold d parameters and zero padding."""

    score: Callable[[Tensor], Tensor]  # x [..., P] -> ∇log p0(x) [..., P], zero in the padding
    draw: Callable[[Stream, int], Tensor]  # stream, P -> x [P] ~ p0, zero in the padding


@dataclass(frozen=True, kw_only=True)
class PriorSettings:
    """The prior of every method whose particles or chains have one."""

    prior: Literal["gaussian", "gamma", "noise"] = "gaussian"
    """gaussian: N(0, 1/precision) of every parameter, log γ of a Gaussian likelihood included; noise: the same, but γ ~
    Gamma(1, rate 0.1); gamma: of logistic regression (--model.name blr), w | ξ ~ N(0, I/ξ) with ξ ~ Gamma(shape, rate),
    log ξ being a parameter."""
    prior_precision: float = math.e
    """Precision of the gaussian prior; e in the public code."""
    prior_shape: float = 1.0
    """Shape of the gamma prior."""
    prior_rate: float = 100.0
    """Rate of the gamma prior, E ξ = shape/rate. The papers write Gamma(1, 0.01) without saying which of the two 0.01
    is: a scale, as both public codes draw it and one differentiates it (rate 100), or the rate (0.01)."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("prior_precision", "prior_shape", "prior_rate"):
            value = getattr(self, name)
            require(value > 0, name, value, "it is positive", "leave it out")

    def p0(self, d: int) -> Prior:
        """The prior of vectors with d parameters."""
        precision = self.prior_precision
        if self.prior == "noise":
            return Prior(partial(noise_score, d, precision), partial(noise_draw, d, precision))
        if self.prior == "gaussian":
            return Prior(partial(gaussian_score, precision), partial(gaussian_draw, d, precision))
        settings = d, self.prior_shape, self.prior_rate
        return Prior(partial(gamma_score, *settings), partial(gamma_draw, *settings))

    def check_prior(self, model: Model) -> None:
        """Raise FedRayError for a prior of a parameter that the network does not have."""
        reason = "it needs log ξ among the parameters, which this network does not have"
        ok = self.prior != "gamma" or model.extra == 1
        require(ok, "prior", self.prior, reason, "add `model.name=blr`, or use `prior=gaussian`")
        reason = "it is of the noise's precision, which this likelihood does not have"
        ok = self.prior != "noise" or model.density.noise == 1
        require(ok, "prior", self.prior, reason, "add `model.likelihood=gaussian`, or use `prior=gaussian`")


def gaussian_score(precision: float, x: Tensor) -> Tensor:
    """-precision x [..., P]."""
    return -precision * x


def gaussian_draw(d: int, precision: float, rng: Stream, padded: int) -> Tensor:
    """x [P] ~ N(0, I/precision)."""
    x = rng.normal([padded]) / math.sqrt(precision)
    return torch.cat([x[:d], x.new_zeros(padded - d)])


def noise_score(d: int, precision: float, x: Tensor) -> Tensor:
    """-precision w of the weights, a - b γ of log γ [..., P]: its density is that of γ ~ Gamma(a, rate b) times γ."""
    gamma = x.clamp(-LARGEST, LARGEST).exp()
    return torch.where(
        torch.arange(x.shape[-1], device=x.device) == d - 1, NOISE_SHAPE - NOISE_RATE * gamma, -precision * x
    )


def noise_draw(d: int, precision: float, rng: Stream, padded: int) -> Tensor:
    """x [P] = [w, log γ]: w ~ N(0, I/precision), γ ~ Gamma(a, rate b), log γ held in ±15."""
    w = gaussian_draw(d, precision, rng, padded)
    g = float(np.clip(np.log(rng.numpy.gamma(NOISE_SHAPE) / NOISE_RATE), -LARGEST, LARGEST))
    return w.index_fill(0, torch.tensor([d - 1]), g)


def gamma_score(d: int, shape: float, rate: float, x: Tensor) -> Tensor:
    """∂w = -ξ w, ∂g = d_w/2 + a - ξ (b + ‖w‖²/2) [..., P], d_w = d - 1, the Jacobian of g = log ξ included.

    Of the density log p(w, g) = (d_w/2 + a) g - e^g (b + ‖w‖²/2). Where |g| > 15, ξ is that of ±15 in these formulas,
    so that nothing overflows and ∂g keeps its sign: the gradient of a clamped g would be 0, and g would never return.
    """
    at = torch.arange(x.shape[-1], device=x.device)
    w = torch.where(at < d - 1, x, 0)
    xi = x[..., d - 1 : d].clamp(-LARGEST, LARGEST).exp()
    slope = (d - 1) / 2 + shape - xi * (rate + w.square().sum(-1, keepdim=True) / 2)
    return torch.where(at == d - 1, slope, -xi * w)


def gamma_draw(d: int, shape: float, rate: float, rng: Stream, padded: int) -> Tensor:
    """x [P] = [w, g]: g = log ξ, ξ ~ Gamma(a, rate b), held in ±15; w ~ N(0, I/ξ)."""
    g = float(np.clip(np.log(rng.numpy.gamma(shape) / rate), -LARGEST, LARGEST))
    w = rng.normal([padded]) * math.exp(-g / 2)
    return torch.cat([w[: d - 1], w.new_tensor([g]), w.new_zeros(padded - d)])
