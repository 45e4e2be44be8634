"""What a file in ``datasets/`` or ``partitions/`` defines: one record, which the registry finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from fedray.config import DataConfig
from fedray.data.partition import Partition
from fedray.data.readers import Dataset


class LognormalSizes(NamedTuple):
    """Settings of the lognormal partition: a share of a class becomes int(share)·r + e examples.

    r and e are whole numbers, drawn uniformly from their ranges, ends included.
    """

    reserve: int = 1000  # examples of a class that are not shared out
    factor: tuple[int, int] = (1, 10)  # r
    extra: tuple[int, int] = (10, 200)  # e


class Protocol(NamedTuple):
    """The federation of a paper: the defaults that apply where the user leaves a setting open."""

    clients: int | None = 10  # None: every user of the dataset is a client
    clients_per_round: int | None = 10
    network: str = "mlp"  # auto: mlp, or lstm for texts
    labels: int = 5  # s, classes per client
    held_out: float = 0.25  # share of a client's examples kept for testing
    scaling: str = "auto"  # of inputs; auto: to [-1, 1] where their range is known
    # Labels partition: --data.size -> (train, test) examples per client and class. Without an entry for the size, as
    # many as the scarcest class allows.
    sizes: Mapping[str, tuple[int, int]] = {}
    lognormal: LognormalSizes = LognormalSizes()


def no_owners(cfg: DataConfig) -> bool:
    """This dataset's usual partition does not depend on the file."""
    return False


class DatasetRecord(NamedTuple):
    """A dataset, or a file format for datasets.

    ``load(cfg, classes)`` returns the pooled examples. It gets the data settings with absolute paths. ``classes`` is
    the number of classes that a trained model has, or None: then a file of the user's own has as many classes as occur
    in it. It raises FedRayError with the file, the reason and the remedy where a file is missing or damaged.
    """

    summary: str  # one line for --help
    load: Callable[[DataConfig, int | None], Dataset]
    protocol: Protocol = Protocol()
    protocols: Mapping[str, Protocol] = {}  # by partition, where a paper deals this dataset in that way
    partition: str = "labels"  # what --data.partition auto means
    shape: tuple[int, ...] | None = None  # of an example as a network sees it; None: only the files tell
    classes: int | None = None  # likewise
    tables: tuple[str, ...] = ()  # of a family of datasets: --data.name is then its name, a hyphen, and one of these
    owned: Callable[[DataConfig], bool] = no_owners  # of a file: whether its examples have owners, who are the clients
    floored: bool = False  # float inputs are standardised as published, with FLOOR; False: they may have any units
    suffixes: tuple[str, ...] = ()  # of a file format: --data.name is then the path of a file that ends so


class DealSettings(NamedTuple):
    """What a partition gets beside the dataset, with every open setting filled in."""

    clients: int  # N
    labels: int  # s, classes per client
    test_fraction: float
    cfg: DataConfig  # the other settings
    protocol: Protocol


def no_remarks(dataset: Dataset, partition: Partition) -> tuple[str, ...]:
    """Nothing needs to be said about this partition."""
    return ()


# Settings that not every partition reads.
PARTICULAR = ("majority", "alternate", "layout", "label_bug", "size", "alpha")


class PartitionRecord(NamedTuple):
    """A way to deal the examples of a dataset to clients.

    ``deal(dataset, settings, rng)`` returns the examples of every client. All randomness comes from ``rng``. It raises
    FedRayError with the value, the reason and the remedy where the examples cannot be dealt so.
    """

    summary: str  # one line for --help
    deal: Callable[[Dataset, DealSettings, np.random.Generator], Partition]
    describe: Callable[[DataConfig, Protocol], str]  # the settings in words, for the summary of a run
    protocol: Protocol | None = None  # of the partition's paper, for datasets that have no protocol for this partition
    remarks: Callable[[Dataset, Partition], tuple[str, ...]] = no_remarks  # what to know before quoting a number
    real: bool = False  # whether it deals examples with real targets, too
    reads: tuple[str, ...] | None = None  # of PARTICULAR; who changes another is told. None: it does not say
    by_class: bool = False  # whether every client holds --data.labels-per-client classes
