"""Which examples belong to which client: labels -> one list of train and one of test indices per client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedray.types import FedRayError, require

LEAST = 10  # users of a client, where there are as many
REDRAWS = 100  # attempts at a Dirichlet partition that gives every client its two examples


class Partition(NamedTuple):
    """Positions in the pooled dataset, one int64 array per client; no example occurs twice."""

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    relabel: np.ndarray | None = None  # [k, 2] positions that the protocol mislabels, and the label it gives them


def held_labels(client: int, labels_per_client: int, classes: int, layout: str) -> np.ndarray:
    """The labels of a client, [s]: (s·u + j) mod C for 'cluster', (u + j) mod C for 'window', j < s.

    For s = 5, C = 10 that is two kinds of client, or ten. Source: the codes of pFedBayes and of pFedMe.
    Raises FedRayError where s is not in 1..C or the layout is unknown.
    """
    held, strides = labels_per_client, {"cluster": labels_per_client, "window": 1}
    reason = f"the dataset has {classes} classes"
    require(1 <= held <= classes, "data.labels_per_client", held, reason, f"choose 1 to {classes}")
    require(layout in strides, "data.layout", layout, "not a layout", f"choose from {', '.join(strides)}")
    return (strides[layout] * client + np.arange(labels_per_client)) % classes


def owners(clients: int, labels_per_client: int, classes: int, layout: str) -> list[list[int]]:
    """The clients that hold each class, [C] ascending lists; raises as :func:`held_labels`."""
    _check_clients(clients)
    of: list[list[int]] = [[] for _ in range(classes)]
    for client in range(clients):
        for label in held_labels(client, labels_per_client, classes, layout):
            of[label].append(client)
    return of


def even_size(labels: np.ndarray, of: list[list[int]], test_fraction: float) -> tuple[int, int]:
    """(train, test) examples for each owner of a class, as many as the class with the least room allows.

    labels [N]; ``of`` from :func:`owners`. Never less than (1, 1), which :func:`label_shards` may yet refuse.
    """
    _check_fraction(test_fraction)
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
) -> Partition:
    """Exactly ``train`` + ``test`` examples of each of its labels for every client (:func:`held_labels`).

    The shuffled examples of a class are cut in client order; labels [N] are 0..C-1. Raises FedRayError where
    a class is too small for its owners, with the largest feasible --clients. Source: the tables of pFedBayes.
    """
    if train < 1 or test < 1:
        raise FedRayError(f"{train} train and {test} test examples per class: a client needs at least 1 of each")
    available = np.bincount(labels)
    of = owners(clients, labels_per_client, len(available), layout)
    _check_supply(available, of, clients, train + test)
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


def _check_supply(available: np.ndarray, of: list[list[int]], clients: int, need: int) -> None:
    short = [c for c, holders in enumerate(of) if len(holders) * need > available[c]]
    if not short:
        return
    room = {c: available[c] // len(holders) for c, holders in enumerate(of) if holders}
    scarcest = min(room, key=room.__getitem__)
    most = min(of[c][available[c] // need] for c in short)  # the first client that some class cannot serve
    count, each = len(of[scarcest]), room[scarcest]
    fewer = f"lower --clients to at most {most}, " if most else ""
    smaller = f"choose a --data.size of at most {each} per client and class, " if each > 1 else ""
    raise FedRayError(
        f"--clients {clients}: class {scarcest} has {available[scarcest]} examples, its {count} owners need "
        f"{count} x {need}; {fewer}{smaller}or --data.partition dirichlet or iid"
    )


def dirichlet(
    labels: np.ndarray, clients: int, alpha: float, test_fraction: float, rng: np.random.Generator
) -> Partition:
    """Each class is dealt in shares ~ Dir(alpha, ..., alpha); every client holds out a random test set.

    labels [N]. Raises FedRayError where no draw of ``REDRAWS`` gives every client at least two examples.
    Source: Hsu et al., arXiv:1909.06335 (here with the shares drawn per class).
    """
    _check_sizes(len(labels), clients)
    require(0 < alpha < np.inf, "data.alpha", alpha, "not a concentration", "choose a positive number, e.g. 0.5")
    available = np.bincount(labels)
    for _ in range(REDRAWS):
        shares = rng.dirichlet(np.full(clients, alpha), len(available))
        cuts = np.rint(np.cumsum(shares, axis=1)[:, :-1] * available[:, None]).astype(np.int64)
        counts = np.diff(cuts, axis=1, prepend=0, append=available[:, None])
        if counts.sum(axis=0).min() >= 2:
            break
    else:
        raise FedRayError(
            f"--data.alpha {alpha}: {REDRAWS} draws left some of {clients} clients fewer than 2 examples; "
            "choose an --data.alpha nearer to 1 or lower --clients"
        )
    pieces = [np.split(rng.permutation(np.flatnonzero(labels == c)), cut) for c, cut in enumerate(cuts)]
    return hold_out([np.concatenate(parts) for parts in zip(*pieces, strict=True)], test_fraction, rng)


def iid(labels: np.ndarray, clients: int, test_fraction: float, rng: np.random.Generator) -> Partition:
    """Random shards whose sizes differ by at most one; labels [N]; raises FedRayError where N < 2·clients."""
    _check_sizes(len(labels), clients)
    return hold_out(np.array_split(rng.permutation(len(labels)), clients), test_fraction, rng)


def natural(users: np.ndarray, clients: int, alpha: float, test_fraction: float, rng: np.random.Generator) -> Partition:
    """Users are clients; fewer clients are groups of them, with shares of the users ~ Dir(alpha, ..., alpha).

    users [N] are 0..U-1. A client's users are consecutive, and ten at least (as many as there are, where U < 10 N).
    Raises FedRayError for more clients than users, or a client with less than two examples. Source: pFedBreD's
    Sent140, where the rest that rounding leaves is dealt at random too.
    """
    _check_clients(clients)
    count, remedy = int(users.max()) + 1, "choose a positive number, e.g. 0.5"
    require(clients <= count, "clients", clients, f"the dataset has {count} users", f"lower it to at most {count}")
    require(0 < alpha < np.inf, "data.alpha", alpha, "not a concentration", remedy)
    least = min(LEAST, count // clients)
    sizes = least + (rng.dirichlet(np.full(clients, alpha)) * (count - least * clients)).astype(np.int64)
    sizes += np.bincount(rng.integers(clients, size=count - sizes.sum()), minlength=clients)
    owner = np.repeat(np.arange(clients), sizes)[users]
    shards = [np.flatnonzero(owner == client) for client in range(clients)]
    poor = min(range(clients), key=lambda client: len(shards[client]))
    reason = f"client {poor} has {len(shards[poor])} example of its {sizes[poor]} users; it needs one to test on"
    require(len(shards[poor]) >= 2, "clients", clients, reason, "lower it, so that users are grouped")
    return hold_out(shards, test_fraction, rng)


def hold_out(shards: Sequence[np.ndarray], test_fraction: float, rng: np.random.Generator) -> Partition:
    """Shuffle each client's examples and keep a share of them for testing, but at least one on either side."""
    _check_fraction(test_fraction)
    train, test = [], []
    for shard in shards:
        order = rng.permutation(shard)
        held = held_out(len(order), test_fraction)
        train.append(order[held:])
        test.append(order[:held])
    return checked(train, test)


def held_out(n: int, test_fraction: float) -> int:
    """How many of n >= 2 examples are for testing: round(n·f), but at least one on either side."""
    return int(np.clip(round(n * test_fraction), 1, n - 1))


def check_disjoint(partition: Partition) -> None:
    """Raise FedRayError if an example occurs twice: at two clients, or in training and in testing."""
    indices = np.sort(np.concatenate([*partition.train, *partition.test]))
    twice = indices[1:][indices[1:] == indices[:-1]]
    if len(twice):
        raise FedRayError(f"example {twice[0]} occurs twice in the partition; no example may be shared")


def checked(train: Iterable[np.ndarray], test: Iterable[np.ndarray]) -> Partition:
    """A partition of these index lists; raises as :func:`check_disjoint`."""
    partition = Partition(tuple(train), tuple(test))
    check_disjoint(partition)
    return partition


def _check_clients(clients: int) -> None:
    require(clients >= 1, "clients", clients, "a federation needs clients", "choose at least 1")


def _check_fraction(f: float) -> None:
    require(0 < f < 1, "data.test_fraction", f, "not a share", "choose between 0 and 1, e.g. 0.25")


def _check_sizes(examples: int, clients: int) -> None:
    _check_clients(clients)
    reason = f"{examples} examples give not each one to train and one to test on"
    require(examples >= 2 * clients, "clients", clients, reason, f"lower it to at most {examples // 2}")


def save(path: str | Path, partition: Partition) -> None:
    """Write a partition as .npz without pickle: flat indices, the 2N + 1 offsets of train, then test, and relabel."""
    parts = [*partition.train, *partition.test]
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    relabel = np.empty((0, 2), np.int64) if partition.relabel is None else partition.relabel
    with open(path, "wb") as file:  # given a name, numpy would add .npz to it
        np.savez_compressed(file, indices=np.concatenate(parts), offsets=offsets, relabel=relabel)


def load(path: str | Path) -> Partition:
    """The inverse of :func:`save`; raises FedRayError naming the path where the file is missing or bad."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            indices, offsets = archive["indices"], archive["offsets"]
            relabel = archive["relabel"] if "relabel" in archive.files else np.empty((0, 2), np.int64)  # older runs
        if indices.dtype != np.int64 or offsets.dtype != np.int64 or indices.ndim != 1 or offsets.ndim != 1:
            raise ValueError("not flat int64 arrays")
        if len(offsets) < 3 or len(offsets) % 2 == 0 or offsets[0] != 0 or offsets[-1] != len(indices):
            raise ValueError("offsets and indices do not match")
        if (np.diff(offsets) < 1).any() or (indices < 0).any():
            raise ValueError("a client without examples, or a negative index")
        if relabel.dtype != np.int64 or relabel.shape[1:] != (2,) or (relabel < 0).any():
            raise ValueError("relabel does not hold pairs of a position and a label")
        parts = np.split(indices, offsets[1:-1])
        clients = len(parts) // 2
        return checked(parts[:clients], parts[clients:])._replace(relabel=relabel if len(relabel) else None)
    except Exception as error:  # zipfile, zlib and numpy raise whatever the damage leads them to
        raise FedRayError(f"{path}: not a readable partition ({error}); start the run anew") from error
