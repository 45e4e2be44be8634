"""Which examples belong to which client, what the partitions share, and how a partition is kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedray.config.data import check_fraction
from fedray.types import FedRayError, require


class Partition(NamedTuple):
    """Positions in the pooled dataset, one int64 array per client; no example occurs twice."""

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    relabel: np.ndarray | None = None  # [k, 2] positions that the protocol mislabels, and the label it gives them
    validation: tuple[np.ndarray, ...] = ()  # taken out of train, to choose settings by; empty: nothing was


def pooled(partition: Partition) -> Partition:
    """All training examples at the first client, none at the others; every client keeps its test examples."""
    nothing = np.empty(0, np.int64)
    train = (np.concatenate(partition.train), *[nothing] * (len(partition.train) - 1))
    return partition._replace(train=train)


def called(label: int, names: Sequence[str]) -> str:
    """A class as the user calls it; without names by its number."""
    return names[label] if names else str(label)


def held_labels(client: int, labels_per_client: int, classes: int, layout: str) -> np.ndarray:
    """The labels of a client, [s]: (s·u + j) mod C for 'cluster', (u + j) mod C for 'window', j < s.

    For s = 5, C = 10 that is two kinds of client, or ten. Source: the codes of pFedBayes and of pFedMe.
    Raises FedRayError where s is not in 1..C or the layout is unknown.
    """
    held = labels_per_client
    strides = {"cluster": labels_per_client, "window": 1}
    reason = f"the dataset has {classes} classes"
    require(1 <= held <= classes, "data.labels_per_client", held, reason, f"choose 1 to {classes}")
    require(layout in strides, "data.layout", layout, "not a layout", f"choose from {', '.join(strides)}")
    return (strides[layout] * client + np.arange(labels_per_client)) % classes


def owners(clients: int, labels_per_client: int, classes: int, layout: str) -> list[list[int]]:
    """The clients that hold each class, [C] ascending lists; raises as :func:`held_labels`."""
    check_clients(clients)
    of: list[list[int]] = [[] for _ in range(classes)]
    for client in range(clients):
        for label in held_labels(client, labels_per_client, classes, layout):
            of[label].append(client)
    return of


def hold_out(shards: Sequence[np.ndarray], test_fraction: float, rng: np.random.Generator) -> Partition:
    """Shuffle each client's examples and keep a share of them for testing, but at least one on either side."""
    check_fraction(test_fraction)
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


def hold_out_validation(
    partition: Partition, share: float, labels: np.ndarray, rng_of: Callable[[int], np.random.Generator]
) -> Partition:
    """Move a share of every client's training examples to its validation examples; the rest keeps its order.

    Of n examples, m = :func:`held_out` (n, share) are drawn: the shuffled examples are sorted by label, and every
    (n/m)-th is taken from a random start (systematic sampling). So each is drawn with probability m/n, and a class of
    k examples gives km/n, rounded up or down. ``rng_of`` gives the generator of a client.

    Raises FedRayError where a client has one training example only, or where validation examples are held out already.
    """
    reason = "the partition holds out validation examples of its own"
    require(not partition.validation, "data.validation", share, reason, "leave it out")
    train, validation = [], []
    for client, shard in enumerate(partition.train):
        n = len(shard)
        remedy = "deal every client two or more, or use `data.validation=0` (in a sweep with --metric test/...)"
        require(n >= 2, "data.validation", share, f"client {client} has one training example, which it needs", remedy)
        rng = rng_of(client)
        order = rng.permutation(n)
        order = order[np.argsort(labels[shard[order]], kind="stable")]
        held = held_out(n, share)
        drawn = order[(np.arange(held) * n + rng.integers(n)) // held]
        validation.append(shard[np.sort(drawn)])
        train.append(np.delete(shard, drawn))
    return partition._replace(train=tuple(train), validation=tuple(validation))


def check_disjoint(partition: Partition) -> None:
    """Raise FedRayError if an example occurs twice: at two clients, or in training and in testing."""
    if reason := _shared(partition):
        raise FedRayError(f"{reason}; no example may be shared")


def _shared(partition: Partition) -> str:
    """Which example occurs twice; empty where none does."""
    indices = np.sort(np.concatenate([*partition.train, *partition.test, *partition.validation]))
    twice = indices[1:][indices[1:] == indices[:-1]]
    return f"example {twice[0]} occurs twice in the partition" if len(twice) else ""


def checked(
    train: Iterable[np.ndarray], test: Iterable[np.ndarray], validation: Iterable[np.ndarray] = ()
) -> Partition:
    """A partition of these index lists; raises as :func:`check_disjoint`."""
    partition = Partition(tuple(train), tuple(test), validation=tuple(validation))
    check_disjoint(partition)
    return partition


def check_given(partition: Partition, clients: int | None, examples: int) -> None:
    """Raise FedRayError unless a caller's own partition deals existing examples to this number of clients."""
    if reason := fault(partition, examples):
        remedy = "give each client its own examples: {client: positions}, or Partition(train, test) of int64 arrays"
        raise FedRayError(f"partition: {reason}; {remedy}")
    require(
        clients == len(partition.train), "clients", clients, f"the partition has {len(partition.train)}", "leave it out"
    )


def fault(partition: Partition, examples: int) -> str:
    """Why a partition does not deal some of that many examples, each once; empty where it does."""
    if not isinstance(partition, Partition) or len(partition.train) != len(partition.test):
        return "it has not one list for training and one for testing per client"
    if len(partition.validation) not in (0, len(partition.train)):
        return "it has validation examples of some clients only"
    lists = {"train": partition.train, "test": partition.test, "validate": partition.validation}
    for use, parts in lists.items():
        for client, part in enumerate(parts):
            if not isinstance(part, np.ndarray) or part.dtype != np.int64 or part.ndim != 1:
                return "it holds something else than flat int64 arrays"
            if len(part) == 0:
                return f"a list is empty: client {client} has no examples to {use}"
            if part.min() < 0 or part.max() >= examples:
                wrong = part.min() if part.min() < 0 else part.max()
                return f"client {client} has example {wrong} to {use}, and the examples are 0 to {examples - 1}"
    return _shared(partition) if partition.train else "it has no clients"


def check_clients(clients: int) -> None:
    """Raise FedRayError for a federation without clients."""
    require(clients >= 1, "clients", clients, "a federation needs clients", "choose at least 1")


def checked_users(users: np.ndarray | None, partition: str) -> np.ndarray:
    """The owner of every example [N]; raises FedRayError where the partition needs them and the dataset has none."""
    reason, remedy = "the dataset does not say whose its examples are", "choose another, such as dirichlet or iid"
    require(users is not None, "data.partition", partition, reason, remedy)
    assert users is not None
    return users


def check_sizes(examples: int, clients: int) -> None:
    """Raise FedRayError where the clients cannot have two examples each."""
    check_clients(clients)
    reason = f"{examples} examples give not each one to train and one to test on"
    require(examples >= 2 * clients, "clients", clients, reason, f"lower it to at most {examples // 2}")


def save(path: str | Path, partition: Partition) -> None:
    """Write a partition as .npz without pickle: flat indices, their offsets, and relabel.

    The offsets are those of N training lists, N test lists and, if there are any, N validation lists; ``lists`` is
    their number per client, 2 or 3.
    """
    parts = [*partition.train, *partition.test, *partition.validation]
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    relabel = np.empty((0, 2), np.int64) if partition.relabel is None else partition.relabel
    with open(path, "wb") as file:  # given a name, numpy would add .npz to it
        lists = np.array(len(parts) // len(partition.train))
        np.savez_compressed(file, indices=np.concatenate(parts), offsets=offsets, relabel=relabel, lists=lists)


def load(path: str | Path) -> Partition:
    """The inverse of :func:`save`; raises FedRayError naming the path where the file is missing or bad."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            indices, offsets = archive["indices"], archive["offsets"]
            # Older runs have neither.
            relabel = archive["relabel"] if "relabel" in archive.files else np.empty((0, 2), np.int64)
            lists = int(archive["lists"]) if "lists" in archive.files else 2
        if indices.dtype != np.int64 or offsets.dtype != np.int64 or indices.ndim != 1 or offsets.ndim != 1:
            raise ValueError("not flat int64 arrays")
        clients, left = divmod(len(offsets) - 1, lists) if lists in (2, 3) else (0, 0)
        if clients < 1 or left or offsets[0] != 0 or offsets[-1] != len(indices):
            raise ValueError("offsets and indices do not match")
        training, *held = np.split(np.diff(offsets), lists)  # by client: of training, of testing, of validation
        at_one_place = training[0] > 0 and not training[1:].any()
        if ((training < 1).any() and not at_one_place) or any((n < 1).any() for n in held) or (indices < 0).any():
            raise ValueError("a client without examples, or a negative index")
        if relabel.dtype != np.int64 or relabel.shape[1:] != (2,) or (relabel < 0).any():
            raise ValueError("relabel does not hold pairs of a position and a label")
        parts = np.split(indices, offsets[1:-1])
        dealt = checked(parts[:clients], parts[clients : 2 * clients], parts[2 * clients :])
        return dealt._replace(relabel=relabel if len(relabel) else None)
    except Exception as error:  # zipfile, zlib and numpy raise whatever the damage leads them to
        raise FedRayError(f"{path}: not a readable partition ({error}); start the run anew") from error
