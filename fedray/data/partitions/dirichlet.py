"""Shares of every class, or of every tenth of real targets, drawn from a Dirichlet distribution."""

from __future__ import annotations

import numpy as np

from fedray.config import DataConfig
from fedray.data.partition import Partition, check_sizes, hold_out
from fedray.data.readers import Dataset
from fedray.data.records import DealSettings, PartitionRecord, Protocol
from fedray.types import SettingError

REDRAWS = 100  # attempts at a partition that gives every client at least two examples


def dirichlet(
    labels: np.ndarray, clients: int, alpha: float, test_fraction: float, rng: np.random.Generator
) -> Partition:
    """Each class is dealt in shares ~ Dir(alpha, ..., alpha); every client holds out a random test set.

    labels [N]. Raises FedRayError where no draw of ``REDRAWS`` gives every client at least two examples.
    Source: Hsu et al., arXiv:1909.06335 (here with the shares drawn per class).
    """
    check_sizes(len(labels), clients)
    available = np.bincount(labels)
    for _ in range(REDRAWS):
        shares = rng.dirichlet(np.full(clients, alpha), len(available))
        cuts = np.rint(np.cumsum(shares, axis=1)[:, :-1] * available[:, None]).astype(np.int64)
        counts = np.diff(cuts, axis=1, prepend=0, append=available[:, None])
        if counts.sum(axis=0).min() >= 2:
            break
    else:
        reason = f"{REDRAWS} draws left some of {clients} clients fewer than 2 examples"
        raise SettingError("data.alpha", alpha, reason, "choose a value nearer to 1, or lower `clients`")
    pieces = [np.split(rng.permutation(np.flatnonzero(labels == c)), cut) for c, cut in enumerate(cuts)]
    return hold_out([np.concatenate(parts) for parts in zip(*pieces, strict=True)], test_fraction, rng)


def deal(dataset: Dataset, settings: DealSettings, rng: np.random.Generator) -> Partition:
    """Deal the examples of a dataset; see :func:`dirichlet`."""
    return dirichlet(dataset.strata, settings.clients, settings.cfg.alpha, settings.test_fraction, rng)


def describe(cfg: DataConfig, protocol: Protocol) -> str:
    """The partition in words."""
    return f"dirichlet, alpha {cfg.alpha:g}"


PARTITION = PartitionRecord(
    summary="class shares of a client drawn from Dir(alpha); tenths of a real target count as classes",
    deal=deal,
    describe=describe,
    reads=("alpha",),
    real=True,
)
