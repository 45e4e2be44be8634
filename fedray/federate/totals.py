"""From uploads to the server's new state, where sums over the clients suffice: parts that any grouping adds alike.

It takes two steps, because the terms of a sum must share a unit (fedray/arrays/sums.py): every process finds the
largest term of each of its clients, and once the server knows the largest of all, each adds its own clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.arrays import sums, trees
from fedray.types import Context, Sums, whole_upload


class PendingTerms(NamedTuple):
    """The terms a_k t_k of some clients, which are added once the unit is known."""

    values: Any  # t_k, a tree stacked [K, ...]
    weights: Tensor  # [K] a_k
    largest: tuple[Tensor, ...]  # [K] max_p |a_k t_kp| of every leaf


def terms(ctx: Context[Any], how: Sums, ups: Any, n: Tensor) -> PendingTerms:
    """The terms of uploads stacked [K, ...] of clients that have n [K] training examples."""
    values = ups if how.terms is whole_upload else torch.vmap(partial(how.terms, ctx))(ups)
    weights = how.weigh(ctx, n.to(torch.float64))
    return PendingTerms(values, weights, tuple(sums.largest(leaf, weights).cpu() for leaf in trees.leaves(values)))


def boundless(held: PendingTerms) -> dict[int, str]:
    """Rows whose terms hold NaN or infinity, although the uploads do not, and the first field in which they do."""
    found: dict[int, str] = {}
    for (name, _), largest in zip(trees.named_leaves(held.values), held.largest, strict=True):
        found = dict.fromkeys((~torch.isfinite(largest)).nonzero().flatten().tolist(), name) | found
    return found


def units(largest: Sequence[Tensor], count: int) -> tuple[int, ...]:
    """The exponent of every leaf's unit, for ``count`` clients whose largest terms are given [K, ...] by leaf."""
    return tuple(sums.unit(float(leaf.max()), count) for leaf in largest)


def partial_sum(held: PendingTerms, rows: Sequence[int], exponents: Sequence[int]) -> Any:
    """Σ a_k t_k over the given rows, a tree of int64; sums of parts are added with +."""
    unit = iter(exponents)
    values, weights = trees.rows((held.values, held.weights), rows) if rows else _none(held)
    return trees.tree_map(lambda leaf: sums.fixed_sum(leaf, weights, next(unit)).cpu(), values)


def _none(held: PendingTerms) -> tuple[Any, Tensor]:
    return trees.tree_map(lambda leaf: leaf[:0], (held.values, held.weights))


def added(parts: Sequence[Any]) -> Any:
    """The sum of partial sums."""
    return parts[0] if len(parts) == 1 else trees.tree_map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts)


def absorbed(
    ctx: Context[Any], how: Sums, server: Any, parts: Sequence[Any], exponents: Sequence[int], n: Tensor
) -> Any:
    """The server's new state from the sums of all parts; n [K] are the numbers of training examples of all clients."""
    unit = iter(exponents)
    return how.absorb(ctx, server, trees.tree_map(lambda leaf: sums.value(leaf, next(unit)), added(parts)), n)
