"""Sums over clients that are the same to the last bit in any order and any grouping.

A sum of floats depends on its order, because every addition rounds. Here every term is rounded *before* it is added,
to a multiple of a unit that depends only on the largest term of all; sums of multiples of one unit are exact, so they
are associative. This is the pre-rounding of Demmel and Nguyen, "Parallel Reproducible Summation", IEEE Transactions
on Computers 2015: a term is cut at fixed binary places into LIMBS parts, the parts of one place are added in float64.

The units are u_j = 2^(WIDTH j) for whole j. A sum whose largest term lies in [u_j, u_{j+1}) keeps the places j, j-1 and
j-2; what a part of the sum knows of lower places is dropped when it meets a larger term, as if it had never been added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

WIDTH = 26  # bits of a place: a limb of float64 has room for the sum of 2^(53 - WIDTH - 1) terms
LIMBS = 3
LEAST = -1022 // WIDTH + LIMBS  # the place of sums whose terms are all (nearly) zero; below it units would be denormal
MOST_TERMS = 2 ** (52 - WIDTH)


class ExactSum(NamedTuple):
    """Σ_k round(x_k, u_low), exactly, u_low being the lowest place that is kept."""

    limbs: Tensor  # [LIMBS, ...] float64: multiples of u_top, u_{top-1}, ...
    top: int  # j of the highest place


def exact_sum(values: Tensor, weights: Tensor | None = None) -> ExactSum:
    """Σ_k a_k x_k of finite float32 values [K, ...] and whole weights [K] up to 2^29, all 1 if left out; K <= 2^26.

    Its error is at most K max_kp |a_k x_kp| 2^-53: what float64 would make of the largest element, in any order.
    """
    a = torch.ones(len(values)) if weights is None else weights
    a = a.double()
    largest = float((values.flatten(1).abs().amax(1) * a).max()) if values.numel() else 0.0
    top = _place(largest)
    limbs = torch.zeros(LIMBS, *values.shape[1:], dtype=torch.float64)
    # One row at a time, in buffers that stay in the cache: ten times as fast as the stack at once.
    rest = torch.empty(values.shape[1:], dtype=torch.float64)
    part = torch.empty_like(rest)
    for row, weight in zip(values, a, strict=True):
        rest.copy_(row).mul_(weight)  # in float64, hence exact: 24 + 29 bits
        for k, limb in enumerate(limbs):
            # Numbers near the shift are spaced by the unit: adding it rounds to a multiple, subtracting it is exact.
            shift = 1.5 * 2.0**52 * _unit(top - k)
            torch.add(rest, shift, out=part).sub_(shift)
            limb.add_(part)
            rest.sub_(part)
    return ExactSum(limbs, top)


def _unit(place: int) -> float:
    return 2.0 ** (WIDTH * place)


def _place(largest: float) -> int:
    """The j with u_j <= largest < u_{j+1}."""
    return max(LEAST, (math.frexp(largest)[1] - 1) // WIDTH) if largest else LEAST


def merged(sums: Sequence[ExactSum]) -> ExactSum:
    """The sum of the terms of all the sums; at most 2^26 terms altogether."""
    top = max(part.top for part in sums)
    limbs = torch.zeros_like(sums[0].limbs)
    for part in sums:
        lower = min(top - part.top, LIMBS)
        limbs[lower:] += part.limbs[: LIMBS - lower]
    return ExactSum(limbs, top)


def value(total: ExactSum) -> Tensor:
    """The sum as float64 [...]."""
    limbs = list(total.limbs)
    # Different limbs can stand for one number. Carrying leaves one choice: all but the first in [0, the unit above).
    for k in range(LIMBS - 1, 0, -1):
        unit = _unit(total.top - k + 1)
        carry = (limbs[k] / unit).floor() * unit
        limbs[k] = limbs[k] - carry
        limbs[k - 1] = limbs[k - 1] + carry
    return limbs[0] + (limbs[1] + limbs[2])
