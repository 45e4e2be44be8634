"""Sums over clients that are the same to the last bit in any order and any grouping: fixed point in int64.

A sum of floats depends on its order, because every addition rounds. Here every term is rounded once, to a multiple of a
unit that all terms share, before it is added; integers add exactly, so any tree over processes and machines gives the
same sum. Who adds must therefore know the largest term of all beforehand: :func:`largest` of each part, their maximum,
then :func:`unit`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BITS = 51  # of a rounded term: what the mantissa of a float64 has beside the two leading bits of the shift
CACHE, WIDE = 2**16, 2**24  # numbers that are worked on at a time, on a CPU and on a GPU, which likes few launches
LEAST = -900  # exponent of the smallest unit; smaller terms than a float32 can hold do not matter


def largest(terms: Tensor, weights: Tensor) -> Tensor:
    """max_p |a_k x_kp| [K] in float64, of finite terms [K, ...] and weights a [K]; 0 where there are none."""
    if terms.numel() == 0:
        return torch.zeros(len(terms), dtype=torch.float64, device=terms.device)
    flat = terms.unsqueeze(-1).flatten(1)
    # Two passes, for PyTorch's aminmax of rows takes twenty times as long.
    return torch.maximum(flat.amax(1), -flat.amin(1)).double() * weights.double().abs()


def unit(most: float, count: int) -> int:
    """The exponent e of the unit 2^e for ``count`` terms of which none is larger than ``most``.

    The sum of the rounded terms fits into 63 bits, and each of them into BITS.
    """
    bits = min(BITS, 62 - max(1, count - 1).bit_length())
    return max(LEAST, math.frexp(most)[1] - bits) if most else LEAST


def fixed_sum(terms: Tensor, weights: Tensor, exponent: int) -> Tensor:
    """Σ_k round(a_k x_k / 2^e) as int64, of terms [K, ...] and weights a [K]. Sums of parts are added with +.

    Each of the K terms errs by at most 2^(e-1), which is max |a x| 2^-51 for up to 2^11 terms; then it doubles with K.
    """
    flat = terms.unsqueeze(-1).flatten(1)
    a = weights.double()[:, None]
    shift = torch.tensor(1.5 * 2.0 ** (exponent + 52), dtype=torch.float64)
    total = torch.empty(flat.shape[1], dtype=torch.int64, device=terms.device)
    width = max(1, (CACHE if terms.device.type == "cpu" else WIDE) // max(1, len(terms)))
    for part, out in zip(flat.split(width, 1), total.split(width), strict=True):
        # Floats near the shift are spaced by 2^e, so adding it rounds, and the bits of the result count in units.
        torch.sum(part.to(torch.float64, copy=True).mul_(a).add_(shift).view(torch.int64), 0, out=out)
    total -= len(terms) * shift.view(torch.int64)  # both wrap around 2^64 alike
    return total.view(terms.shape[1:])


def value(total: Tensor, exponent: int) -> Tensor:
    """The sum as float64."""
    return torch.ldexp(total.double(), torch.tensor(float(exponent), dtype=torch.float64))
