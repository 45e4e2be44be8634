"""Errors, coverage and uncertainty of real targets as sums that add, in the targets' own units.

A prediction is the mixture p̄(y) = (1/M) Σ_m N(y; μ_m, σ_m²) of M draws, with mean μ̄ and variance mean(σ_m²) + var(μ_m):
what every draw calls noise (aleatoric), and how far the draws disagree (epistemic).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedray.types import LEVELS, RegressionStats


class TargetMixture(NamedTuple):
    """The predictive distribution of B real targets, in their own units."""

    mean: Tensor  # [B] μ̄
    aleatoric: Tensor  # [B] mean_m σ_m²
    epistemic: Tensor  # [B] var_m μ_m
    means: Tensor  # [M, B] μ_m
    log_variances: Tensor  # [M, B] log σ_m²


class RegressionSummary(NamedTuple):
    """Ratios of :class:`RegressionStats`; rmse and sds in the target's units, nll in nats of its density there.

    ``coverage`` is that of the central 90 % interval.
    """

    rmse: float
    nll: float
    coverage: float
    aleatoric_sd: float
    epistemic_sd: float


def mixture(predictions: Tensor, shift: float = 0.0, unit: float = 1.0) -> TargetMixture:
    """The mixture of draws [M, B, 2] of mean and log-variance, of which the target is ``shift`` + ``unit`` times."""
    means, log_variances = predictions.double().unbind(-1)
    means, log_variances = shift + unit * means, log_variances + 2 * math.log(unit)
    return TargetMixture(means.mean(0), log_variances.exp().mean(0), means.var(0, correction=0), means, log_variances)


def evaluate(predictions: Tensor, y: Tensor, unit: float = 1.0) -> RegressionStats:
    """Sums of one batch from draws [M, B, 2] and targets [B], which are in units of ``unit``.

    p̄(y) is formed in log space, so that it cannot underflow. The central interval of p̄ of a level has y in it where its
    distribution function F(y) = (1/M) Σ_m Φ((y - μ_m)/σ_m) lies between (1 - level)/2 and (1 + level)/2.
    """
    found = mixture(predictions, unit=unit)
    y = unit * y.double()
    z = (y - found.means) * (-found.log_variances / 2).exp()
    log_p = -(z.square() + found.log_variances + math.log(2 * math.pi)) / 2
    at = torch.special.ndtr(z).mean(0)
    widths = torch.tensor(LEVELS, dtype=torch.float64, device=y.device) / 2
    return RegressionStats(
        examples=torch.tensor(float(len(y)), dtype=torch.float64),
        squared_error=(y - found.mean).square().sum(),
        nll=-(torch.logsumexp(log_p, 0) - math.log(len(log_p))).sum(),
        covered=((at - 0.5).abs()[:, None] <= widths).double().sum(0),
        aleatoric=found.aleatoric.sum(),
        epistemic=found.epistemic.sum(),
    )


def summarize(stats: RegressionStats) -> RegressionSummary:
    """The ratios of sums without leading axes; pool first."""
    n = float(stats.examples)
    return RegressionSummary(
        rmse=math.sqrt(float(stats.squared_error) / n),
        nll=float(stats.nll) / n,
        coverage=float(stats.covered[-1]) / n,
        aleatoric_sd=math.sqrt(float(stats.aleatoric) / n),
        epistemic_sd=math.sqrt(float(stats.epistemic) / n),
    )


def worst_rmse(stats: RegressionStats) -> float:
    """Mean RMSE of the worst tenth of the clients (at least one) of stats stacked [K, ...]."""
    rmse = (stats.squared_error / stats.examples).sqrt().sort(descending=True).values
    return float(rmse[: math.ceil(len(rmse) / 10)].mean())
