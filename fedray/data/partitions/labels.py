"""A few classes per client and exact numbers of examples, as in the tables of pFedBayes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedray.config import DataConfig
from fedray.config.data import check_fraction
from fedray.data.partition import Partition, called, checked, held_out, owners
from fedray.data.readers import Dataset
from fedray.data.records import DealSettings, PartitionRecord, Protocol
from fedray.types import FedRayError, SettingError

FEW = 5  # examples of a class, on average: labels have more, and whole numbers that are measured may have fewer


def even_size(labels: np.ndarray, of: list[list[int]], test_fraction: float) -> tuple[int, int]:
    """(train, test) examples for each owner of a class, as many as the class with the least room allows.

    labels [N]; ``of`` from :func:`owners`. Never less than (1, 1), which :func:`label_shards` may yet refuse.
    """
    check_fraction(test_fraction)
    available = np.bincount(labels, minlength=len(of))
    each = max(2, min(int(available[c]) // len(holders) for c, holders in enumerate(of) if holders))
    test = held_out(each, test_fraction)
    return each - test, test


def label_shards(
    labels: np.ndarray,
    clients: int,
    labels_per_client: int,
    train: int,
    test: int,
    layout: str,
    rng: np.random.Generator,
    classes: int = 0,
    names: Sequence[str] = (),
) -> Partition:
    """Exactly ``train`` + ``test`` examples of each of its labels for every client (:func:`held_labels`).

    The shuffled examples of a class are cut in client order; labels [N] are 0..C-1, or ``classes`` of which the last
    may not occur. Raises SettingError where a class is too small for its owners, with the largest feasible --clients.
    Source: the tables of pFedBayes.
    """
    if train < 1 or test < 1:
        raise FedRayError(f"{train} train and {test} test examples per class: a client needs at least 1 of each")
    available = np.bincount(labels, minlength=classes)
    of = owners(clients, labels_per_client, len(available), layout)
    _check_supply(available, of, clients, train + test, names)
    parts_train: list[list[np.ndarray]] = [[] for _ in range(clients)]
    parts_test: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label, holders in enumerate(of):
        pool = rng.permutation(np.flatnonzero(labels == label))
        for client, start in zip(holders, range(0, len(pool), train + test), strict=False):
            parts_train[client].append(pool[start : start + train])
            parts_test[client].append(pool[start + train : start + train + test])
    # Shuffled once more, so that the first examples of a shard are not all of one class.
    mixed = ([rng.permutation(np.concatenate(p)) for p in parts] for parts in (parts_train, parts_test))
    return checked(*mixed)


def _check_supply(available: np.ndarray, of: list[list[int]], clients: int, need: int, names: Sequence[str]) -> None:
    short = [c for c, holders in enumerate(of) if len(holders) * need > available[c]]
    if not short:
        return
    room = {c: available[c] // len(holders) for c, holders in enumerate(of) if holders}
    scarcest = min(room, key=room.__getitem__)
    most = min(of[c][available[c] // need] for c in short)  # the first client that some class cannot serve
    count = len(of[scarcest])
    remedies = [f"lower `clients` to at most {most}"] if most else []
    remedies.append("choose `data.partition=dirichlet` or iid")
    if len(available) * FEW > available.sum():
        whole = f"y holds {len(available)} different whole numbers, and each is taken for a class"
        remedies.append(f"for a regression give y as floats that are not all whole ({whole})")
    name = called(scarcest, names)
    reason = f"class {name} has {available[scarcest]} examples, its {count} owners need {count} x {need}"
    raise SettingError("clients", clients, reason, ", or ".join(remedies))


def deal(dataset: Dataset, settings: DealSettings, rng: np.random.Generator) -> Partition:
    """Deal as many examples as the protocol's table says, else as many as the scarcest class allows."""
    cfg = settings.cfg
    holders = owners(settings.clients, settings.labels, dataset.classes, cfg.layout)
    table = settings.protocol.sizes
    if cfg.size in table:
        train, test = table[cfg.size]
    else:
        train, test = even_size(dataset.y, holders, settings.test_fraction)
    clients, held, names = settings.clients, settings.labels, dataset.names.classes
    return label_shards(dataset.y, clients, held, train, test, cfg.layout, rng, dataset.classes, names)


def describe(cfg: DataConfig, protocol: Protocol) -> str:
    """The partition in words."""
    size = f"{cfg.size}, " if cfg.size in protocol.sizes else ""
    return f"{size}{cfg.labels_per_client} labels per client, {cfg.layout} layout"


PARTITION = PartitionRecord(
    summary="a few classes per client, exact numbers of examples (pFedBayes)",
    deal=deal,
    describe=describe,
    reads=("layout", "size"),
    by_class=True,
)
