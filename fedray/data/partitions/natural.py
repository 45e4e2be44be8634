"""Clients are the users that the dataset names, or groups of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedray.config import DataConfig
from fedray.data.partition import Partition, check_clients, checked_users, hold_out
from fedray.data.readers import Dataset
from fedray.data.records import DealSettings, PartitionRecord, Protocol
from fedray.types import require

LEAST = 10  # users of a client, where there are as many


def natural(
    users: np.ndarray,
    clients: int,
    alpha: float,
    test_fraction: float,
    rng: np.random.Generator,
    names: Sequence[str] = (),
) -> Partition:
    """Users are clients; fewer clients are groups of them, with shares of the users ~ Dir(alpha, ..., alpha).

    users [N] are 0..U-1. A client's users are consecutive, and ten at least (as many as there are, where U < 10 N).
    Raises FedRayError for more clients than users, or a client with less than two examples. Source: pFedBreD's
    Sent140, where the rest that rounding leaves is dealt at random too.
    """
    check_clients(clients)
    count = int(users.max()) + 1
    require(clients <= count, "clients", clients, f"the dataset has {count} users", f"lower it to at most {count}")
    least = min(LEAST, count // clients)
    sizes = least + (rng.dirichlet(np.full(clients, alpha)) * (count - least * clients)).astype(np.int64)
    sizes += np.bincount(rng.integers(clients, size=count - sizes.sum()), minlength=clients)
    owner = np.repeat(np.arange(clients), sizes)[users]
    ends = np.bincount(owner, minlength=clients).cumsum()
    shards = np.split(np.argsort(owner, kind="stable"), ends[:-1])
    poor = min(range(clients), key=lambda client: len(shards[client]))
    who = f"client {names[poor]}" if names and clients == count else f"client {poor}"
    reason = f"{who} has {len(shards[poor])} example, and needs one to train and one to test on"
    remedy = "leave that one out, or ask for fewer clients, so that users are grouped"
    require(len(shards[poor]) >= 2, "clients", clients, reason, remedy)
    return hold_out(shards, test_fraction, rng)


def deal(dataset: Dataset, settings: DealSettings, rng: np.random.Generator) -> Partition:
    """Deal the examples of a dataset by user; see :func:`natural`. Raises FedRayError for one without users."""
    users = checked_users(dataset.users, settings.cfg.partition)
    return natural(users, settings.clients, settings.cfg.alpha, settings.test_fraction, rng, dataset.names.users)


def describe(cfg: DataConfig, protocol: Protocol) -> str:
    """The partition in words."""
    return f"by user, groups of users with alpha {cfg.alpha:g}"


PARTITION = PartitionRecord(
    summary="clients are users, or groups of users with sizes drawn from Dir(alpha)",
    deal=deal,
    describe=describe,
    reads=("alpha",),
    real=True,
)
