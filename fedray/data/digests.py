"""What stands behind a name: two runs may both say "given", or name one plug-in, and mean different things."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
from torch import nn

from fedray.data.partition import Partition
from fedray.data.readers import Dataset

EXAMPLES, OWNERS, LAYERS = "data.examples", "data.owners", "model.layers"
DIGITS = 12


def digests(examples: str, partition: Partition | None, layers: nn.Module | None, kept: str = "") -> Mapping[str, str]:
    """A digest of each that was given, beside the settings of the run: of ``examples`` it is known; ``kept`` says how
    the parameters of the network are, where not as its module has them."""
    found = {EXAMPLES: examples} if examples else {}
    if partition is not None:
        more = () if partition.relabel is None else (partition.relabel,)
        found[OWNERS] = digest((*partition.train, *partition.test, *partition.validation, *more))
    if layers is not None:
        found[LAYERS] = of_layers(layers, kept)
    return found


def of_layers(layers: nn.Module, kept: str) -> str:
    """The digest of a network: how it prints itself, with the shapes of its parameters, and how these are kept."""
    shapes = [(name, tuple(each.shape)) for name, each in layers.named_parameters()]
    return hashlib.sha256(f"{layers}{shapes}{kept}".encode()).hexdigest()[:DIGITS]


def of_program(source: str) -> str:
    """The digest of a program in Python, without its blank lines and those of comments alone."""
    lines = [line.rstrip() for line in source.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGITS]


def of_examples(dataset: Dataset) -> str:
    """The digest of the examples of a dataset, and of whose they are."""
    return digest((dataset.x, dataset.y, *(() if dataset.users is None else (dataset.users,))))


def digest(arrays: Iterable[np.ndarray]) -> str:
    """The first hex digits of the SHA-256 of arrays, their shapes and their types."""
    content = hashlib.sha256()
    for array in arrays:
        content.update(f"{array.dtype}{array.shape}".encode())
        content.update(np.ascontiguousarray(array).data)
    return content.hexdigest()[:DIGITS]
