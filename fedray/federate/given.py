"""What a caller gave in the place of a name: two runs may both say "given", and have been given different things."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
from torch import nn

from fedray.config import DataConfig, differing
from fedray.data import loading, own
from fedray.data.partition import Partition
from fedray.data.readers import Dataset
from fedray.types import require

EXAMPLES, OWNERS, LAYERS = "data.examples", "data.owners", "model.layers"
DIGITS = 12


def digests(examples: str, partition: Partition | None, layers: nn.Module | None) -> Mapping[str, str]:
    """A digest of each that was given, beside the settings of the run: of ``examples`` it is known, of a network it is
    that of how it prints itself, with the shapes of its parameters."""
    found = {EXAMPLES: examples} if examples else {}
    if partition is not None:
        more = () if partition.relabel is None else (partition.relabel,)
        found[OWNERS] = digest((*partition.train, *partition.test, *partition.validation, *more))
    if layers is not None:
        shapes = [(name, tuple(each.shape)) for name, each in layers.named_parameters()]
        found[LAYERS] = hashlib.sha256(f"{layers}{shapes}".encode()).hexdigest()[:DIGITS]
    return found


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


def check_no_files(cfg: DataConfig) -> None:
    """Raise FedRayError for settings that decide which examples of a file there are: the caller's are all taken."""
    usual = loading.absolute_paths(DataConfig(name=own.GIVEN))  # root is among the settings of a finished run
    for name in differing(loading.files(loading.absolute_paths(cfg)), usual):
        remedy = "leave it out with data of your own"
        require(False, f"data.{name}", getattr(cfg, name), "is for data in files", remedy)
