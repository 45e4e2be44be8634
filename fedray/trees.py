"""States are NamedTuples of tensors, nested at will: stack them, take rows, and move them between libraries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

tree_map = pytree.tree_map


def leaves(tree: Any) -> list[Any]:
    """The tensors of a tree, in order."""
    return pytree.tree_leaves(tree)


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """(name, tensor) with field names joined by dots: 'q.mu'."""
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        yield ".".join(str(getattr(key, "name", getattr(key, "idx", key))) for key in path), leaf


def stack(trees: Sequence[Any]) -> Any:
    """K trees -> one tree with a leading axis of K clients."""
    return tree_map(lambda *parts: torch.stack(parts), *trees)


def concatenate(trees: Sequence[Any]) -> Any:
    """Join trees along their leading axis; a single tree is returned as it is."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *parts: torch.cat(parts), *trees)


def rows(tree: Any, index: Sequence[int]) -> Any:
    """The given rows of a stacked tree; consecutive ones cost no copy."""
    first, size = index[0], len(index)
    if list(index) == list(range(first, first + size)):
        return tree_map(lambda leaf: leaf[first : first + size], tree)
    return tree_map(lambda leaf: leaf[list(index)], tree)


def row(tree: Any, k: int) -> Any:
    """One row of a stacked tree."""
    return tree_map(lambda leaf: leaf[k], tree)


def replace_rows(tree: Any, index: Sequence[int], values: Any) -> Any:
    """A copy of a stacked tree with the given rows replaced."""

    def put(leaf: Tensor, new: Tensor) -> Tensor:
        if list(index) == list(range(len(leaf))):
            return new
        return leaf.index_copy(0, torch.tensor(list(index), device=leaf.device), new)

    return tree_map(put, tree, values)


def to_numpy(tree: Any) -> Any:
    """Tensors as NumPy arrays, which Ray ships without a copy."""
    return tree_map(lambda leaf: leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf, tree)


def to_torch(tree: Any, device: torch.device | str = "cpu") -> Any:
    """NumPy arrays as tensors of our own.

    Always a copy: an array that Ray delivers is an alias of memory shared with every other process of the node.
    """
    return tree_map(
        lambda leaf: torch.tensor(leaf, device=device) if isinstance(leaf, np.ndarray | np.generic) else leaf,
        tree,
    )
