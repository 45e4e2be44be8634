"""Two classes 1:r at every client, and which of them is the frequent one changes from client to client.

Source: Yang, Liu and Kassab, "Client Selection for Federated Bayesian Learning", section IV-A. Which class is rare at
a client, and how many examples it has, is left open there and decided here.
"""

from __future__ import annotations

import bisect

import numpy as np

from fedray.config import DataConfig
from fedray.data.partition import Partition, checked, held_out
from fedray.data.readers import Dataset
from fedray.data.records import DealSettings, PartitionRecord, Protocol
from fedray.types import require

SPLIT = 42  # seed of the division into training and test examples, which is the same in every run


def ratio(
    labels: np.ndarray,
    clients: int,
    majority: int,
    test_fraction: float,
    rng: np.random.Generator,
    alternate: int = 2,
) -> Partition:
    """Two classes 1:r at every client; class 1 is the frequent one of every a-th client, class 0 of the others.

    r = ``majority``; a = ``alternate``, which is 2 in the paper: the classes take turns.

    All clients have the same number of examples, as many as the scarcer class allows, and the same ratio in training
    and in testing. labels [N] are 0 or 1. Raises FedRayError for other classes, or more clients than can be served,
    with their largest number.
    """
    classes = len(np.bincount(labels))
    remedy = "use `data.partition=shards`, dirichlet or iid"
    require(classes == 2, "data.partition", "ratio", f"it is for two classes, and the data have {classes}", remedy)
    split = np.random.default_rng(SPLIT)
    orders = [split.permutation(np.flatnonzero(labels == label)) for label in (0, 1)]
    cuts = [held_out(len(order), test_fraction) for order in orders]
    train = [rng.permutation(order[cut:]) for order, cut in zip(orders, cuts, strict=True)]
    test = [rng.permutation(order[:cut]) for order, cut in zip(orders, cuts, strict=True)]
    supply = [min(len(train[label]), len(test[label])) for label in (0, 1)]
    reason = f"there are {len(labels)} examples"
    require(majority < len(labels), "data.majority", majority, reason, "lower it")

    def too_many(n: int) -> bool:
        return bool((np.array(supply) < _units(n, majority, alternate).sum(0)).any())

    # More clients need more examples, and each of them one at least.
    most = bisect.bisect_left(range(1, min(clients, len(labels)) + 1), True, key=too_many)
    reason = f"classes of {len(orders[0])} and {len(orders[1])} examples serve {most} clients at 1:{majority}"
    require(clients == most, "clients", clients, reason, f"lower it to {most}" if most else "lower `data.majority`")
    units = _units(clients, majority, alternate)
    return checked(_cut(train, units, rng), _cut(test, units, rng))


def _units(clients: int, majority: int, alternate: int) -> np.ndarray:
    """[K, 2] how many parts of each class a client gets."""
    frequent = np.arange(clients) % alternate == alternate - 1
    return np.where(frequent[:, None] == np.arange(2), majority, 1)


def _cut(pools: list[np.ndarray], units: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Consecutive pieces of the two pools, the largest of equal sizes."""
    each = min(len(pool) // need for pool, need in zip(pools, units.sum(0), strict=True))
    stops = np.cumsum(units, 0) * each
    pieces = [np.split(pool, stop)[: len(units)] for pool, stop in zip(pools, stops.T, strict=True)]
    return [rng.permutation(np.concatenate(own)) for own in zip(*pieces, strict=True)]


def deal(dataset: Dataset, settings: DealSettings, rng: np.random.Generator) -> Partition:
    """Deal the examples of a dataset; see :func:`ratio`."""
    cfg = settings.cfg
    return ratio(dataset.y, settings.clients, cfg.majority, settings.test_fraction, rng, cfg.alternate)


def describe(cfg: DataConfig, protocol: Protocol) -> str:
    """The partition in words."""
    who = (
        "the frequent one alternating" if cfg.alternate == 2 else f"class 1 frequent at every {cfg.alternate}th client"
    )
    return f"two classes 1:{cfg.majority}, {who}"


PARTITION = PartitionRecord(
    summary="two classes 1:r, the frequent one alternating (client selection)",
    deal=deal,
    describe=describe,
    reads=("majority", "alternate"),
)
