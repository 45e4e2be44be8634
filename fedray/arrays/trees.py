"""States are NamedTuples of tensors, nested at will: stack them, take rows, and move them between libraries.

PyTorch's own tree functions take any container; ours know only tuples, lists and None, and cost a tenth: with many
small clients the walk over their states is what a round consists of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """A tree of the same structure with ``function`` applied to its leaves (and those of ``others`` beside them)."""
    if isinstance(tree, tuple | list):
        parts = [tree_map(function, *branches) for branches in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return None if tree is None else function(tree, *others)


def named_leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(name, leaf) in order, with field names joined by dots: 'q.mu'."""
    if isinstance(tree, tuple | list):
        for field, branch in zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True):
            yield from named_leaves(branch, f"{name}.{field}" if name else str(field))
    elif tree is not None:
        yield name, tree


def leaves(tree: Any) -> list[Any]:
    """The leaves of a tree, in order."""
    if isinstance(tree, tuple | list):
        return [leaf for branch in tree for leaf in leaves(branch)]
    return [] if tree is None else [tree]


def stack(trees: Sequence[Any]) -> Any:
    """K trees -> one tree with a leading axis of K clients."""
    return tree_map(lambda *parts: torch.stack(parts), *trees)


def concatenate(trees: Sequence[Any]) -> Any:
    """Join trees along their leading axis; a single tree is returned as it is."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *parts: torch.cat(parts), *trees)


def rows(tree: Any, index: Sequence[int]) -> Any:
    """The given rows of a stacked tree; consecutive ones cost no copy."""
    index = list(index)
    first = index[0]
    size = len(index)
    if index == list(range(first, first + size)):
        return tree_map(lambda leaf: leaf[first : first + size], tree)
    return tree_map(lambda leaf: leaf[index], tree)


def row(tree: Any, k: int) -> Any:
    """One row of a stacked tree."""
    return tree_map(lambda leaf: leaf[k], tree)


def to_numpy(tree: Any) -> Any:
    """Tensors as NumPy arrays, which Ray ships without a copy."""
    return tree_map(lambda leaf: leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf, tree)


def to_torch(tree: Any, device: torch.device | str = "cpu") -> Any:
    """NumPy arrays as tensors of our own.

    Always a copy: an array that Ray delivers is an alias of memory shared with every other process of the node.
    """
    return tree_map(
        lambda leaf: torch.tensor(leaf, device=device) if isinstance(leaf, np.ndarray | np.generic) else leaf, tree
    )


def alias(tree: Any) -> Any:
    """NumPy arrays as tensors over the same memory, only to be read: for what is copied next anyway."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return tree_map(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)
