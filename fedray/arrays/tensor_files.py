"""A state as bytes and as a file: safetensors of its leaves by field name, and nothing that could run code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError

from fedray.arrays import trees
from fedray.types import FedRayError

TYPES = {
    "float16": "F16", "float32": "F32", "float64": "F64", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def pieces(arrays: Mapping[str, Any]) -> list[bytes | memoryview]:
    """Arrays by name as the parts of a safetensors file, without copying them.

    The library's own writer copies everything twice, which for many clients is most of a checkpoint's cost.
    """
    header = {}
    offset = 0
    data = list[memoryview]()
    for name, leaf in arrays.items():
        array = np.asarray(leaf, order="C")
        end = offset + array.nbytes
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": array.shape, "data_offsets": [offset, end]}
        data.append(array.reshape(-1).view(np.uint8).data)
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *data]


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a state as arrays, by field name."""
    return dict(trees.named_leaves(trees.to_numpy(tree)))


def pack(tree: Any) -> bytes:
    """The tensors of a state."""
    return b"".join(pieces(named(tree)))


def unpack_arrays(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of :func:`pieces`; raises ValueError for anything else."""
    try:
        return safetensors.numpy.load(content)
    except (SafetensorError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None


def unpack(content: bytes, template: Any, surplus: bool = False) -> Any:
    """A state with the structure of ``template``; raises ValueError unless fields, shapes and types agree.

    With ``surplus`` fields that the template lacks are ignored.
    """
    stored = unpack_arrays(content)
    expected = named(template)
    _check_fields(stored, expected, surplus)
    values = iter([torch.tensor(stored[name]) for name in expected])
    return trees.tree_map(lambda _: next(values), template)


def map_tree(path: Path, template: Any, surplus: bool = False) -> Any:
    """The tensors of a file with the structure of ``template``, mapped into memory, only to be read.

    The system reads what is used of them, and may forget it again. With ``surplus`` fields that the template lacks are
    ignored. Raises OSError, and ValueError for other fields.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    names = [name for name, _ in trees.named_leaves(template)]
    if not (set(names) <= stored.keys() if surplus else set(names) == stored.keys()):
        raise ValueError(f"{path}: other fields than expected: {', '.join(sorted(stored))}")
    values = iter([stored[name] for name in names])
    return trees.tree_map(lambda _: next(values), template)


def _check_fields(stored: Mapping[str, Any], expected: Mapping[str, Any], surplus: bool) -> None:
    """Raise ValueError unless the stored arrays, or tensors, are the expected ones by name, shape and type."""
    wrong = expected.keys() - stored.keys() if surplus else expected.keys() ^ stored.keys()
    wrong = sorted(wrong) or [
        name for name, leaf in expected.items() if (stored[name].shape, stored[name].dtype) != (leaf.shape, leaf.dtype)
    ]
    if wrong:
        raise ValueError(f"other fields, shapes or types than expected: {', '.join(wrong)}")


def save_tree(path: Path, tree: Any) -> None:
    """Write a state to a file."""
    path.write_bytes(pack(tree))


def load_tree(path: Path, template: Any, mapped: bool = False) -> Any:
    """A state with the structure of ``template`` from a file of :func:`save_tree`, read whole or mapped into memory.

    Fields that the template lacks are ignored: an older version of the method may have kept more.

    Raises FedRayError for a file that is missing, damaged or of another run.
    """
    try:
        if not mapped:
            return unpack(path.read_bytes(), template, surplus=True)
        found = map_tree(path, template, surplus=True)
        _check_fields(dict(trees.named_leaves(found)), dict(trees.named_leaves(template)), True)
        return found
    except OSError as error:
        raise FedRayError(f"{path} cannot be read ({error}); the result is damaged, run it again") from None
    except ValueError as error:
        raise FedRayError(
            f"{path} does not fit its config.json, or cannot be read ({error}); it is damaged or of another run"
        ) from None
