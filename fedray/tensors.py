"""A state as bytes and as a file: safetensors of its leaves by field name, and nothing that could run code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError

from fedray import trees
from fedray.types import FedRayError


def pack(tree: Any) -> bytes:
    """The tensors of a state."""
    return pack_arrays({name: np.asarray(leaf, order="C") for name, leaf in trees.named_leaves(trees.to_numpy(tree))})


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays by name."""
    return safetensors.numpy.save(dict(arrays))


def unpack_arrays(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of :func:`pack_arrays`; raises ValueError for anything else."""
    try:
        return safetensors.numpy.load(content)
    except (SafetensorError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None


def unpack(content: bytes, template: Any) -> Any:
    """A state with the structure of ``template``; raises ValueError unless fields, shapes and types agree."""
    stored = unpack_arrays(content)
    expected = dict(trees.named_leaves(trees.to_numpy(template)))
    wrong = sorted(set(stored) ^ set(expected)) or [
        name for name, leaf in expected.items() if (stored[name].shape, stored[name].dtype) != (leaf.shape, leaf.dtype)
    ]
    if wrong:
        raise ValueError(f"other fields, shapes or types than expected: {', '.join(wrong)}")
    values = iter([torch.tensor(stored[name]) for name in expected])
    return trees.tree_map(lambda _: next(values), template)


def save_tree(path: Path, tree: Any) -> None:
    """Write a state to a file."""
    path.write_bytes(pack(tree))


def load_tree(path: Path, template: Any) -> Any:
    """A state with the structure of ``template`` from a file of :func:`save_tree`.

    Raises FedRayError for a file that is missing, damaged or of another run.
    """
    try:
        return unpack(path.read_bytes(), template)
    except OSError as error:
        raise FedRayError(f"{path} cannot be read ({error}); the result is damaged, run it again") from None
    except ValueError as error:
        raise FedRayError(
            f"{path} does not fit its config.json, or cannot be read ({error}); it is damaged or of another run"
        ) from None
