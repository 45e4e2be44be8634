"""Label windows with lognormal sizes: the partition of pFedMe's public code, which the tables of pFedBreD use.

Client u holds the classes (u + j) mod C of its slots j < s. It gets ten examples of each, then x more, where x comes
from shares of the class that are drawn per class, client and slot, but read at client u // (N // 10): among N/10
clients after each other, those that hold a class in the same slot have the same share. An x that its class cannot
serve any more is left out, and the client keeps its ten. The examples are then shuffled, and 75% are for training.

With the random numbers of the published generators this gives their 59,229 examples of MNIST and 54,572 of CIFAR-10
exactly; with ours, the sizes agree in distribution. They scale each pixel of MNIST by its mean and sd over training and
test examples alike; here these are of the clients' training shards, unless `data.moments=all` asks for theirs.
"""

from __future__ import annotations

import numpy as np

from fedray.config import DataConfig
from fedray.data.partition import Partition, hold_out, owners
from fedray.data.readers import Dataset
from fedray.data.records import DealSettings, LognormalSizes, PartitionRecord, Protocol
from fedray.types import require

SEEDS = 10  # examples of each of its classes that every client has
GROUPS = 10  # of clients that read the same shares
SIGMA = 2.0  # sd of the logarithm of a share
DOUBLED = 20  # clients up to whose number x is doubled


def draw_sizes(
    available: np.ndarray, clients: int, held: int, sizes: LognormalSizes, rng: np.random.Generator
) -> np.ndarray:  # [N, s]
    """How many examples each client is to get for each of its slots, beside its seeds; available [C] is the supply.

    share_luj = (n_l - reserve) z_luj / Σ_uj z_luj with log z ~ N(0, 2²), l the class, u the client, j the slot.
    """
    z = rng.lognormal(0, SIGMA, (len(available), clients, held))
    shares = (available - sizes.reserve)[:, None, None] * z / z.sum((1, 2), keepdims=True)
    client = np.arange(clients)[:, None]
    slot = np.arange(held)
    share = shares[(client + slot) % len(available), client // (clients // GROUPS), slot].astype(np.int64)
    factor, extra = (rng.integers(low, high + 1, share.shape) for low, high in (sizes.factor, sizes.extra))
    return (share * factor + extra) * (2 if clients <= DOUBLED else 1)


def lognormal(
    labels: np.ndarray,
    clients: int,
    held: int,
    sizes: LognormalSizes,
    test_fraction: float,
    label_bug: bool,
    rng: np.random.Generator,
) -> Partition:
    """The partition of the module's docstring, for s = ``held``; labels [N] are 0..C-1.

    With ``label_bug`` the ten seeds of slot j carry the label j, as the public generator for MNIST has it. Raises
    FedRayError for less than ten clients, or classes too small for the protocol.
    """
    available = np.bincount(labels)
    _check(available, clients, held, sizes)
    wanted = draw_sizes(available, clients, held, sizes, rng)
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(len(available))]
    slots = [(u, j, (u + j) % len(available)) for u in range(clients) for j in range(held)]
    taken = np.zeros(len(available), np.int64)
    examples: list[list[np.ndarray]] = [[] for _ in range(clients)]
    relabel = []
    for client, slot, label in slots:
        seeds = pools[label][taken[label] : taken[label] + SEEDS]
        examples[client].append(seeds)
        taken[label] += SEEDS
        relabel += [(seed, slot) for seed in seeds if slot != label]
    for client, slot, label in slots:
        stop = taken[label] + wanted[client, slot]
        if stop < available[label]:
            examples[client].append(pools[label][taken[label] : stop])
            taken[label] = stop
    partition = hold_out([np.concatenate(own) for own in examples], test_fraction, rng)
    return partition._replace(relabel=np.array(relabel)) if label_bug else partition


def skipped(labels: np.ndarray, partition: Partition) -> int:
    """How many shares were left out because their class had run out: those clients have only the seeds of it."""
    owned = (np.concatenate(parts) for parts in zip(partition.train, partition.test, strict=True))
    return sum(int((np.bincount(labels[own]) == SEEDS).sum()) for own in owned)


def _check(available: np.ndarray, clients: int, held: int, sizes: LognormalSizes) -> None:
    counts = [len(of) for of in owners(clients, held, len(available), "window")]
    reason = f"{GROUPS} groups of clients share their draws"
    require(clients >= GROUPS, "clients", clients, reason, f"choose at least {GROUPS}, or another `data.partition`")
    label = int(available.argmin())
    other = "choose `data.partition=labels`, dirichlet or iid"
    reason = f"class {label} has {available[label]} examples, of which this protocol sets {sizes.reserve} aside"
    require(available[label] > sizes.reserve, "data.partition", "lognormal", reason, other)
    for label, (supply, count) in enumerate(zip(available, counts, strict=True)):
        reason = f"class {label} has {supply} examples, its {count} owners get {SEEDS} each"
        require(count * SEEDS <= supply, "clients", clients, reason, "lower it")


def deal(dataset: Dataset, settings: DealSettings, rng: np.random.Generator) -> Partition:
    """Deal the examples of a dataset; see :func:`lognormal`."""
    sizes = settings.protocol.lognormal
    bug = settings.cfg.label_bug
    return lognormal(dataset.y, settings.clients, settings.labels, sizes, settings.test_fraction, bug, rng)


def describe(cfg: DataConfig, protocol: Protocol) -> str:
    """The partition in words."""
    wrong = ", seeds mislabelled as published" if cfg.label_bug else ""
    return f"lognormal sizes, windows of {cfg.labels_per_client} labels{wrong}"


def remarks(dataset: Dataset, partition: Partition) -> tuple[str, ...]:
    """How many shares are missing, if any."""
    missing = skipped(dataset.y, partition)
    text = f"{missing} shares of a class that had run out were left out, as in the published protocol"
    return (text,) if missing else ()


PARTITION = PartitionRecord(
    summary="windows of classes with lognormal sizes (pFedMe, pFedBreD)",
    deal=deal,
    describe=describe,
    protocol=Protocol(100, 20, "mlp", labels=3),
    remarks=remarks,
    reads=("label_bug",),
    by_class=True,
)
