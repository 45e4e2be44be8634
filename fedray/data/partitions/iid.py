"""Examples dealt at random."""

from __future__ import annotations

import numpy as np

from fedray.config import DataConfig
from fedray.data.partition import Partition, check_sizes, hold_out
from fedray.data.readers import Dataset
from fedray.data.records import DealSettings, PartitionRecord, Protocol


def iid(labels: np.ndarray, clients: int, test_fraction: float, rng: np.random.Generator) -> Partition:
    """Random shards whose sizes differ by at most one; labels [N]; raises FedRayError where N < 2·clients."""
    check_sizes(len(labels), clients)
    return hold_out(np.array_split(rng.permutation(len(labels)), clients), test_fraction, rng)


def deal(dataset: Dataset, settings: DealSettings, rng: np.random.Generator) -> Partition:
    """Deal the examples of a dataset; see :func:`iid`."""
    return iid(dataset.y, settings.clients, settings.test_fraction, rng)


def describe(cfg: DataConfig, protocol: Protocol) -> str:
    """The partition in words."""
    return "iid"


PARTITION = PartitionRecord(summary="examples at random", deal=deal, describe=describe, reads=(), real=True)
