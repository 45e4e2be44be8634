"""What servers make of sums over clients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def total(values: Iterable[Tensor]) -> tuple[Tensor, int]:
    """Σ_k x_k in float64 and K, of tensors that come one after the other and need not be kept."""
    rest = iter(values)
    added = next(rest).to(torch.float64, copy=True)
    count = 1
    for value in rest:
        added.add_(value)
        count += 1
    return added, count


def average(total: Tensor, weight: float, like: Tensor) -> Tensor:
    """Σ_k a_k x_k / Σ_k a_k from both sums, in the dtype of ``like``."""
    return (total / weight).to(like.dtype)


def damped(old: Tensor, new: Tensor, beta: float) -> Tensor:
    """(1-β) old + β new; exactly ``new`` at β = 1."""
    return new if beta == 1 else torch.lerp(old, new, beta)


def increased(old: Tensor, increment: Tensor) -> Tensor:
    """old + δ, added in float64, in the dtype of ``old``."""
    return (old.double() + increment).to(old.dtype)
