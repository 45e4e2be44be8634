"""Minibatches inside an algorithm: those of one step taken apart, and random ones of a shard, to fine-tune on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedray.types import Batch, Facts


def split(batch: Batch, count: int) -> tuple[Batch, ...]:
    """The ``count`` minibatches that a step's batch holds one after the other, each with its own padding."""
    if count == 1:
        return (batch,)
    size = len(batch.y) // count
    parts = zip(*(leaf.split(size) for leaf in (batch.x, batch.y, batch.weight, batch.place)), strict=True)
    return tuple(Batch(x, y, weight, place, batch.total) for x, y, weight, place in parts)


def tuning_noise(steps: int, facts: Facts) -> tuple[int, int, int]:
    """Shape of the noise of ``steps`` steps of :func:`fine_tune`: for each, [B, ⌈shard/B⌉], a number for every row."""
    return steps, facts.batch_size, -(-facts.shard // facts.batch_size)


def random_batch(data: Batch, noise: Tensor) -> Batch:
    """B examples of a shard, all different: those with the largest numbers in noise [B, ⌈shard/B⌉].

    Padding comes last, so a client with fewer examples gets all that it has, and padding of weight 0.
    """
    keys = torch.where(data.weight > 0, noise.flatten()[: len(data.y)], -torch.inf)
    at = keys.topk(min(len(noise), len(keys))).indices
    return Batch(data.x[at], data.y[at], data.weight[at], data.place[at], data.total)


def fine_tune(
    gradient: Callable[[Tensor, Batch], tuple[Tensor, Tensor]],
    theta: Tensor,
    data: Batch,
    rates: Sequence[float],
    noise: Tensor,
) -> Tensor:
    """θ [P] after one SGD step per learning rate, each on a random minibatch of its own; the argument stays as it is.

    ``gradient`` returns the mean NLL of a minibatch and its gradient; noise [steps, ...] is that of
    :func:`tuning_noise`. No prior and no proximal term (the "FT" of pFedBreD, section 6.2.2).
    """
    for rate, eps in zip(rates, noise, strict=True):
        theta = theta - rate * gradient(theta, random_batch(data, eps))[1]
    return theta


def filled(data: Batch) -> int:
    """How many rows of a padded shard hold examples; all rows of it in a stack of clients, where the number differs."""
    try:
        return int(data.total)
    except RuntimeError:  # of torch.vmap: a stacked tensor has no single value
        return len(data.y)


def spaced(data: Batch, count: int) -> Batch:
    """Examples at equal distances in a padded shard, all where it has fewer, and padding; 0, or too many: all."""
    if not 0 < count < len(data.weight):
        return data
    rows = (torch.arange(count, device=data.weight.device) * (data.weight.sum() / count).clamp_min(1)).long()
    return Batch(data.x[rows], data.y[rows], data.weight[rows], data.place[rows], data.total)
