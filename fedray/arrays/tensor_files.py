"""A state as bytes and as a file: safetensors of its leaves by field name, and nothing that could run code.

A leaf [..., P] may lie in a file in parts: ``mu`` is then all tensors whose names begin with ``mu.``, each with the
leaf's leading axes, flattened behind them and put together in the order of the file. Every reader here knows that.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedray.arrays import trees
from fedray.types import FedRayError

TYPES = {
    "float16": "F16", "float32": "F32", "float64": "F64", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def pieces(arrays: Mapping[str, Any], words: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """Arrays by name, and words about them, as the pieces of a safetensors file; at most one array is copied at a time.

    The library's own writer copies everything twice, which for many clients is most of a checkpoint's cost.
    """
    header: dict[str, Any] = {"__metadata__": dict(words)} if words else {}
    offset = 0
    for name, leaf in arrays.items():
        array = np.asarray(leaf)
        end = offset + array.nbytes
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for leaf in arrays.values():
        yield np.asarray(leaf, order="C").reshape(-1).view(np.uint8).data


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a state as arrays, by field name."""
    return dict(trees.named_leaves(trees.to_numpy(tree)))


def pack(tree: Any) -> bytes:
    """The tensors of a state."""
    return b"".join(pieces(named(tree)))


def unpack_arrays(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of :func:`pieces`, in their order; raises ValueError for anything else."""
    try:
        found = safetensors.numpy.load(content)
        return {name: found[name] for name in _order(io.BytesIO(content))}
    except (SafetensorError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None


def unpack(content: bytes, template: Any, surplus: bool = False) -> Any:
    """A state with the structure of ``template``; raises ValueError unless fields, shapes and types agree.

    With ``surplus`` fields that the template lacks are ignored.
    """
    expected = named(template)
    found = _found(unpack_arrays(content), expected, surplus)
    values = iter([torch.tensor(_joined(found[name], leaf, np.concatenate)) for name, leaf in expected.items()])
    return trees.tree_map(lambda _: next(values), template)


class Rows(NamedTuple):
    """The states of N clients in a file that is mapped into memory, only to be read.

    The system reads what is used of them, and may forget it again.
    """

    parts: Mapping[str, Sequence[Tensor]]  # by field; [N, ...] each
    initial: Any  # of one client, of which only the structure counts

    def row(self, k: int) -> Any:
        """The state of one client, not to be written to; fields that lie in parts are put together in memory."""
        leaves = trees.named_leaves(self.initial)
        values = iter([_joined([part[k] for part in self.parts[name]], leaf, torch.cat) for name, leaf in leaves])
        return trees.tree_map(lambda _: next(values), self.initial)


def _order(file: IO[bytes]) -> list[str]:
    """The names in a safetensors file that the library has accepted, in the order of their data."""
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return sorted(header, key=lambda name: header[name]["data_offsets"])


def _found(stored: Mapping[str, Any], expected: Mapping[str, Any], surplus: bool) -> dict[str, list[Any]]:
    """Of each field the stored arrays, or tensors, that make it: one, or several parts.

    Raises ValueError unless the fields are the expected ones by name, shape and type.
    """
    found: dict[str, list[Any]] = {}
    known: set[str] = set()
    for field, leaf in expected.items():
        names = [field] if field in stored else [name for name in stored if name.startswith(f"{field}.")]
        parts = [stored[name] for name in names]
        known.update(names)
        whole = names == [field] and parts[0].shape == leaf.shape and parts[0].dtype == leaf.dtype
        if whole or (field not in names and _make(parts, leaf)):
            found[field] = parts
    wrong = sorted(expected.keys() - found.keys() | (set() if surplus else stored.keys() - known))
    if wrong:
        raise ValueError(f"other fields, shapes or types than expected: {', '.join(wrong)}")
    return found


def _make(parts: Sequence[Any], leaf: Any) -> bool:
    """Whether there are parts [..., *shape], and they put together are like a leaf [..., P]."""
    lead = len(leaf.shape) - 1
    alike = all(part.shape[:lead] == leaf.shape[:lead] and part.dtype == leaf.dtype for part in parts)
    return bool(parts) and lead >= 0 and alike and sum(math.prod(part.shape[lead:]) for part in parts) == leaf.shape[-1]


def _joined(parts: Sequence[Any], leaf: Any, concatenate: Callable[[list[Any], int], Any]) -> Any:
    """The leaf [..., P] that parts [..., *shape] make; a single part is returned as it is."""
    if len(parts) == 1:
        return parts[0].reshape(leaf.shape)
    lead = tuple(leaf.shape[:-1])
    return concatenate([part.reshape(*lead, math.prod(part.shape[len(lead) :])) for part in parts], -1)


def save_tree(path: Path, tree: Any) -> None:
    """Write a state to a file."""
    path.write_bytes(pack(tree))


def load_tree(path: Path, template: Any) -> Any:
    """A state with the structure of ``template`` from a file of :func:`save_tree`, or of named tensors.

    Fields that the template lacks are ignored: an older version of the method may have kept more.

    Raises FedRayError for a file that is missing, damaged or of another run.
    """
    with _result(path):
        return unpack(path.read_bytes(), template, surplus=True)


def load_rows(path: Path, initial: Any, clients: int) -> Rows:
    """The states of all clients, each with the structure of ``initial``, from such a file; errors as there."""
    with _result(path):
        try:
            with safetensors.safe_open(path, framework="pt") as file, path.open("rb") as raw:
                stored = {name: file.get_tensor(name) for name in _order(raw)}
        except SafetensorError as error:
            raise ValueError(str(error)) from None
        stacked = {name: leaf.expand(clients, *leaf.shape) for name, leaf in trees.named_leaves(initial)}
        return Rows(_found(stored, stacked, surplus=True), initial)


@contextlib.contextmanager
def _result(path: Path) -> Iterator[None]:
    """Say what is wrong with a file of a result."""
    try:
        yield
    except OSError as error:
        raise FedRayError(f"{path} cannot be read ({error}); the result is damaged, run it again") from None
    except ValueError as error:
        raise FedRayError(
            f"{path} does not fit its config.json, or cannot be read ({error}); it is damaged or of another run"
        ) from None
