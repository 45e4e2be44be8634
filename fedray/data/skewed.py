"""The label skews of client selection: two classes 1:9, or the shards of three classes, dealt exactly.

Source: Yang, Liu and Kassab, "Client Selection for Federated Bayesian Learning", section V. Which class is rare at a
client, how many examples it has, and who holds which digits, is left open there and decided here.
"""

from __future__ import annotations

import math

import numpy as np

from fedray.data.partition import Partition, checked, held_labels, held_out
from fedray.types import require

SPLIT = 42  # seed of the division into training and test examples, which is the same in every run


def ratio(labels: np.ndarray, clients: int, majority: int, test_fraction: float, rng: np.random.Generator) -> Partition:
    """Two classes 1:r at every client, class k mod 2 being the frequent one of client k; r = ``majority``.

    All clients have the same number of examples, as many as the scarcer class allows, and the same ratio in training
    and in testing. labels [N] are 0 or 1. Raises FedRayError for other classes, or more clients than can be served,
    with their largest number.
    """
    classes, remedy = len(np.bincount(labels)), "use --data.partition shards, dirichlet or iid"
    require(classes == 2, "data.partition", "ratio", f"it is for two classes, and the data have {classes}", remedy)
    require(majority >= 1, "data.majority", majority, "the frequent class has no less", "use 9, as the paper")
    split = np.random.default_rng(SPLIT)
    orders = [split.permutation(np.flatnonzero(labels == label)) for label in (0, 1)]
    cuts = [held_out(len(order), test_fraction) for order in orders]
    train = [rng.permutation(order[cut:]) for order, cut in zip(orders, cuts, strict=True)]
    test = [rng.permutation(order[:cut]) for order, cut in zip(orders, cuts, strict=True)]
    supply = [min(len(train[label]), len(test[label])) for label in (0, 1)]
    most = next((n for n in range(clients, 0, -1) if (np.array(supply) >= _units(n, majority).sum(0)).all()), 0)
    reason = f"classes of {len(orders[0])} and {len(orders[1])} examples serve {most} clients at 1:{majority}"
    require(clients == most, "clients", clients, reason, f"lower it to {most}" if most else "lower --data.majority")
    return checked(_cut(train, clients, majority, rng), _cut(test, clients, majority, rng))


def _units(clients: int, majority: int) -> np.ndarray:
    """[K, 2] how many parts of each class a client gets."""
    frequent = np.arange(clients)[:, None] % 2 == np.arange(2)
    return np.where(frequent, majority, 1)


def _cut(pools: list[np.ndarray], clients: int, majority: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Consecutive pieces of the two pools, the largest of equal sizes."""
    units = _units(clients, majority)
    each = min(len(pool) // need for pool, need in zip(pools, units.sum(0), strict=True))
    stops = np.cumsum(units, 0) * each
    pieces = [np.split(pool, stop)[:clients] for pool, stop in zip(pools, stops.T, strict=True)]
    return [rng.permutation(np.concatenate(own)) for own in zip(*pieces, strict=True)]


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
    remedy = f"choose a multiple of {step}, or another --data.classes or --data.labels-per-client"
    require(clients >= 1 and clients % step == 0, "clients", clients, reason, remedy)
    count, scarce = clients * held // classes, int(available.argmin())
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
