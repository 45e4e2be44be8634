"""Every class is cut into equal shards, and every client gets shards of distinct classes at random.

Source: Yang, Liu and Kassab, "Client Selection for Federated Bayesian Learning", section IV-A. How many examples a
client has, and who holds which classes, is left open there and decided here.
"""

from __future__ import annotations

import math

import numpy as np

from fedray.config import DataConfig
from fedray.data.partition import Partition, checked, held_labels, held_out
from fedray.data.readers import Dataset
from fedray.data.records import DealSettings, PartitionRecord, Protocol
from fedray.types import require


def shards(labels: np.ndarray, clients: int, held: int, test_fraction: float, rng: np.random.Generator) -> Partition:
    """Each class is cut into K s/C shards of one size, and every client gets shards of s = ``held`` distinct classes.

    Training and test examples of a shard are in the same proportion everywhere. labels [N] are 0..C-1. Raises
    FedRayError where the shards do not come out even, or a class is too small for them.
    """
    available = np.bincount(labels)
    classes = len(available)
    held_labels(0, held, classes, "window")
    step = classes // math.gcd(classes, held)
    reason = f"{clients} x {held} shards cannot be cut evenly from {classes} classes"
    remedy = f"choose a multiple of {step}, or another `data.classes` or `data.labels_per_client`"
    require(clients >= 1 and clients % step == 0, "clients", clients, reason, remedy)
    count = clients * held // classes
    scarce = int(available.argmin())
    most = int(available[scarce]) // 2 * classes // held // step * step
    reason = f"class {scarce} has {available[scarce]} examples for {count} shards, which need 2 each"
    require(available[scarce] >= 2 * count, "clients", clients, reason, f"lower it to at most {most}")
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    cut = [iter(pool[: len(pool) // count * count].reshape(count, -1)) for pool in pools]
    train, test = [], []
    for own in dealt(clients, held, classes, rng):
        pieces = [next(cut[label]) for label in own]
        tests = [held_out(len(piece), test_fraction) for piece in pieces]
        train.append(rng.permutation(np.concatenate([piece[k:] for piece, k in zip(pieces, tests, strict=True)])))
        test.append(rng.permutation(np.concatenate([piece[:k] for piece, k in zip(pieces, tests, strict=True)])))
    return checked(train, test)


def dealt(clients: int, held: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """[K, s] the classes of each client, distinct, each class being held by K s/C clients.

    One client after the other takes the s classes of which most shards are left, at random among equals: no class
    ever has more shards left than there are clients without, so the deal ends. Then the clients change places.
    """
    left = np.full(classes, clients * held // classes)
    hands = np.empty((clients, held), np.int64)
    for hand in hands:
        hand[:] = np.lexsort((rng.random(classes), -left))[:held]
        left[hand] -= 1
    return rng.permutation(hands)


def deal(dataset: Dataset, settings: DealSettings, rng: np.random.Generator) -> Partition:
    """Deal the examples of a dataset; see :func:`shards`."""
    return shards(dataset.y, settings.clients, settings.labels, settings.test_fraction, rng)


def describe(cfg: DataConfig, protocol: Protocol) -> str:
    """The partition in words."""
    return f"equal shards of classes, {cfg.labels_per_client} classes per client at random"


PARTITION = PartitionRecord(
    summary="equal shards of classes, some of distinct classes to every client (client selection)",
    deal=deal,
    describe=describe,
    # For the digits 0-8 (--data.classes 9), in the units of the public code of DSVGD; tested on MNIST's official share.
    protocol=Protocol(27, 1, "mlp", labels=3, scaling="unit", held_out=1 / 7),
    reads=(),
    by_class=True,
)
