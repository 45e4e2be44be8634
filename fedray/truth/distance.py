"""How far one distribution of parameters is from another, by their means and covariances.

Between Gaussians these are the distances themselves. Of particles, chains and draws they are those of the Gaussians of
equal mean and covariance.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from fedray.truth.posterior import MeanAndCovariance

LEVEL = 0.9  # of the central intervals


class Distance(NamedTuple):
    """A method's posterior q against the exact one p."""

    kl: float  # KL(q‖p), nats; infinite where q is a point
    w2: float  # 2-Wasserstein distance, in units of the parameters
    sd_ratio: float  # mean over the parameters of σ_q/σ_p
    error: float  # root mean square over the parameters of (μ_q - μ_p)/σ_p
    coverage: float  # mean over the parameters of the mass that p has in q's central 90 % interval


def distance(q: MeanAndCovariance, p: MeanAndCovariance) -> Distance:
    """All measures."""
    ratio, gap = q.sd / p.sd, (q.mean - p.mean) / p.sd
    half = norm.ppf((1 + LEVEL) / 2) * ratio
    mass = norm.cdf(gap + half) - norm.cdf(gap - half)
    error = math.sqrt(np.square(gap).mean())
    return Distance(kl(q, p), wasserstein(q, p), float(ratio.mean()), error, float(mass.mean()))


def mean(found: list[Distance]) -> Distance:
    """Every measure averaged over clients."""
    return Distance(*(float(np.mean(values)) for values in zip(*found, strict=True)))


def kl(q: MeanAndCovariance, p: MeanAndCovariance) -> float:
    """KL(q‖p) = ½ [tr(Σ_p⁻¹ Σ_q) + gᵀ Σ_p⁻¹ g - d + log det Σ_p - log det Σ_q], g = μ_q - μ_p, nats."""
    gap = q.mean - p.mean
    (sign, log_det), (_, other) = np.linalg.slogdet(q.cov), np.linalg.slogdet(p.cov)
    if sign <= 0:
        return math.inf
    traces = np.trace(np.linalg.solve(p.cov, q.cov)) + gap @ np.linalg.solve(p.cov, gap)
    return float(traces - len(gap) + other - log_det) / 2


def wasserstein(q: MeanAndCovariance, p: MeanAndCovariance) -> float:
    """W₂² = ‖μ_q - μ_p‖² + tr(Σ_q + Σ_p - 2 (Σ_p^½ Σ_q Σ_p^½)^½). Gelbrich 1990."""
    root = _root(p.cov)
    spread = np.trace(q.cov + p.cov - 2 * _root(root @ q.cov @ root))
    return math.sqrt(max(float(np.square(q.mean - p.mean).sum() + spread), 0))


def _root(cov: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(cov)
    return (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
