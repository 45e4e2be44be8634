"""Simulation-based calibration: where the true parameters lie in the posteriors of simulated data sets.

If θ ~ p(θ), D ~ p(D|θ) and the draws θ_1 ... θ_L are exact posterior draws given D, the rank of θ among them is uniform
on 0 ... L. Talts, Betancourt, Simpson, Vehtari and Gelman, "Validating Bayesian Inference Algorithms with
Simulation-Based Calibration", 2018, Theorem 1. Each bin of a histogram of S ranks then has a binomial count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import binom, binomtest

BINS = 10
ALPHA = 0.01  # of a verdict: how often a calibrated method is called something else, at most


class Calibration(NamedTuple):
    """Ranks of true parameters."""

    ranks: np.ndarray  # [S, d] of each parameter in S posteriors, 0 ... L
    draws: int  # L


class Band(NamedTuple):
    """The counts that a bin may have."""

    low: np.ndarray  # [B]
    high: np.ndarray  # [B]


def rank(theta: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """How many of the draws [L, d] lie below the true parameters [d]."""
    return (draws < theta).sum(0)


def position(found: Calibration) -> np.ndarray:
    """Ranks as numbers in (0, 1) [S, d]: the middles of L + 1 equal intervals."""
    return (found.ranks + 0.5) / (found.draws + 1)


def counts(found: Calibration) -> np.ndarray:
    """How many ranks lie in each bin [d, BINS]."""
    places = np.floor(position(found) * BINS).astype(int)
    return np.stack([np.bincount(column, minlength=BINS) for column in places.T])


def band(found: Calibration, level: float = 0.99) -> Band:
    """The central interval of a bin's exact binomial distribution, Bin(S, the share of the L + 1 ranks in it)."""
    every = np.arange(found.draws + 1)
    shares = counts(Calibration(every[:, None], found.draws))[0] / len(every)
    low, high = binom.interval(level, len(found.ranks), shares)
    return Band(low, high)


def coverage(found: Calibration, level: float = 0.9) -> float:
    """The share of true parameters in the central interval of a level."""
    return float((np.abs(position(found) - 0.5) < level / 2).mean())


def verdict(found: Calibration) -> str:
    """calibrated, too narrow, too wide or shifted, by exact binomial tests of each parameter.

    One counts the ranks in the middle half, which are too few where σ is too small; the other those below the middle.
    The level of each is α over their number, so that a calibrated method is called calibrated with probability 1 - α.
    """
    at = position(found)
    every = position(Calibration(np.arange(found.draws + 1), found.draws))
    level = ALPHA / (2 * at.shape[1])

    def off(inside: np.ndarray, share: float) -> np.ndarray:
        """[d] the excess of those inside over the expected share; 0 where it may be chance."""
        tests = [binomtest(int(column.sum()), len(column), share) for column in inside.T]
        return np.array([test.statistic - share if test.pvalue < level else 0.0 for test in tests])

    width = off(np.abs(at - 0.5) < 0.25, float((np.abs(every - 0.5) < 0.25).mean()))
    shift = off(at < 0.5, float((every < 0.5).mean()))
    if width.any():
        return "too narrow" if width.sum() < 0 else "too wide"
    return "shifted" if shift.any() else "calibrated"
