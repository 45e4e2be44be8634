"""From a dataset's own units to a network's: (v - shift) / divisor, by constants or by moments of examples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

FLOOR = 0.001  # added to an sd, in the dataset's own units; published generators do so, and a pixel may be constant
# An sd below this share of the mean needs float64, of targets; or is of the rounding of float64 sums.
ROUNDED, ROUNDED_64 = 1e-6, 1e-14


class Scaling(NamedTuple):
    """An affine map of examples, of one number or one per input; float32, or float64 of targets that this rounds."""

    shift: np.ndarray  # [] or [...] as an example
    divisor: np.ndarray

    def apply(self, x: Tensor) -> Tensor:
        """(x - shift) / divisor of raw float inputs x [B, ...], in place."""
        return x.sub_(torch.from_numpy(self.shift)).div_(torch.from_numpy(self.divisor))


def within(top: float) -> Scaling:
    """Values in [0, top] to [-1, 1]: constants, so that no test data leak."""
    return Scaling(np.array([top / 2], np.float32), np.array([top / 2], np.float32))


def unit(spread: Scaling) -> Scaling:
    """To [0, 1] what ``spread`` brings to [-1, 1]."""
    return Scaling(spread.shift - spread.divisor, 2 * spread.divisor)


def converted(scaling: Scaling, own: Scaling, other: Scaling) -> Scaling:
    """The same map for inputs that ``other`` brings to [-1, 1], where ``own`` brings those that it is of."""
    ratio = own.divisor / other.divisor  # x is own.shift + ratio (x - other.shift) in the units of the map
    return Scaling(other.shift + (scaling.shift - own.shift) / ratio, scaling.divisor / ratio)


def moments(x: np.ndarray, each: bool) -> Scaling:
    """To mean 0 and sd 1 over the given examples x [N, ...], together or each input by itself.

    The sums of whole numbers are exact, so that every machine has the same moments, unless their squares pass int64.
    """
    axes = 0 if each else None
    n = len(x) if each else x.size
    whole = x.dtype.kind in "iu"
    if whole and x.dtype.itemsize > 2 and np.square(x, dtype=np.float64).sum(axes).max() >= 2**62:
        first, sd = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
    else:
        wide = np.int64 if whole else np.float64
        squares = np.square(x, dtype=np.int32 if x.dtype == np.uint8 else wide)
        first, second = x.sum(axes, dtype=wide) / n, squares.sum(axes, dtype=wide) / n
        sd = np.sqrt(np.maximum(second - first**2, 0))
    return Scaling(np.asarray(first, np.float32), np.asarray(sd + FLOOR, np.float32))


def standard(x: np.ndarray, each: bool = True) -> Scaling:
    """To mean 0 and sd 1 over examples x [n, ...] in any units, each input by itself or all; constants become 0."""
    axes = 0 if each else None
    first, sd = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
    moves = sd > ROUNDED_64 * np.abs(first)
    return Scaling(np.asarray(first, np.float32), np.asarray(np.where(moves, sd, 1), np.float32))


def of_targets(y: np.ndarray) -> Scaling:
    """To mean 0 and sd 1 over real targets y [n], float64; the map is float64 where their offset needs the digits."""
    mean, sd = y.mean(), y.std()
    if sd > ROUNDED * abs(mean):
        return standard(y)
    return Scaling(np.asarray(mean), np.asarray(sd if sd > ROUNDED_64 * abs(mean) else 1.0))


def to_json(scaling: Scaling | None) -> Any:
    """Plain lists, or null for inputs that are used as they are."""
    return scaling and {"shift": scaling.shift.tolist(), "divisor": scaling.divisor.tolist()}


def from_json(content: Any) -> Scaling | None:
    """The inverse of :func:`to_json`; raises KeyError and TypeError for other content."""
    return content and Scaling(*(_narrow(np.asarray(content[name], np.float64)) for name in Scaling._fields))


def _narrow(numbers: np.ndarray) -> np.ndarray:
    """The numbers as float32 where that is exact."""
    with np.errstate(over="ignore"):
        short = numbers.astype(np.float32)
    return short if np.array_equal(short, numbers, equal_nan=True) else numbers
