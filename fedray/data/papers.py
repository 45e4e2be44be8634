"""The papers' federations: what an open setting means for a dataset, and how its examples are dealt."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedray.config import DataConfig, Experiment, override
from fedray.data import leaf, loading, skewed
from fedray.data import partition as parts
from fedray.data.lognormal import CIFAR10, MNIST, lognormal, skipped
from fedray.data.readers import Dataset
from fedray.types import require


class Protocol(NamedTuple):
    """A paper's federation for a dataset; a size is (train, test) examples per client and class."""

    clients: int | None  # None: every user of the dataset is one
    clients_per_round: int | None
    model: str
    small: tuple[int, int] | None = None  # None: as many examples as the scarcest class allows
    medium: tuple[int, int] | None = None
    large: tuple[int, int] | None = None
    labels: int = 5  # s, classes per client
    held_out: float = 0.25  # share of a client's examples for testing, where there are no sizes
    scaling: str = "auto"  # of inputs; auto: to [-1, 1], where their range is known


_MNIST = Protocol(10, 10, "mlp", (50, 950), (200, 800), (900, 300))
PFEDBAYES = {
    "digits": Protocol(10, 10, "mlp", (7, 27), (17, 17), (24, 10)),  # ours: 5 owners of 34 in a class of 174
    "mnist": _MNIST,
    "fashion_mnist": _MNIST,
    "cifar10": Protocol(20, 10, "vgg", (25, 475), (100, 400), (450, 150)),
}
LEAF = {  # pFedBreD's, users as clients, tested on as many examples as LEAF keeps for it
    "sent140": Protocol(10, 4, "lstm", held_out=0.1),
    "femnist": Protocol(198, 20, "dnn", scaling="unit", held_out=0.1),
}
PFEDBRED = {  # with lognormal sizes
    "mnist": Protocol(100, 20, "dnn", labels=3, scaling="feature"),
    "fashion_mnist": Protocol(100, 20, "dnn", labels=2, scaling="standard"),
    "cifar10": Protocol(20, 4, "cnn", labels=3),
}
# Of client selection, for the digits 0-8 (--data.classes 9), in the units of the public code of its DSVGD.
SHARDS = Protocol(27, 1, "mlp", labels=3, scaling="unit", held_out=1 / 7)
COVERTYPE = Protocol(30, 1, "blr", scaling="feature", held_out=0.2)  # likewise


def protocol(cfg: DataConfig) -> Protocol:
    """The federation of the paper that deals this dataset in this way; raises FedRayError for an unknown name.

    Sources: pFedBayes; pFedBreD for the lognormal partition and LEAF's datasets; the client-selection paper for shards
    and covertype. A file in LEAF's format has what it
    has: "auto" and None.
    """
    loading.check_name(cfg.name)
    if cfg.partition == "lognormal":
        return PFEDBRED.get(cfg.name, Protocol(100, 20, "mlp", labels=3))
    if cfg.partition == "shards":
        return SHARDS
    if cfg.name == "covertype":
        return COVERTYPE
    if cfg.name.endswith(leaf.SUFFIXES):
        return Protocol(None, None, "auto") if _kind(cfg) == "natural" else Protocol(10, 10, "auto")
    return (PFEDBAYES | LEAF).get(cfg.name, Protocol(10, 10, "mlp"))


def _kind(cfg: DataConfig) -> str:
    """The partition: by users where the dataset names them, of covertype by ratio, else by labels; or the chosen."""
    if cfg.name == "covertype" and cfg.partition == "auto":
        return "ratio"
    by_user = cfg.name in LEAF or cfg.name.endswith(leaf.SUFFIXES)
    return ("natural" if by_user else "labels") if cfg.partition == "auto" else cfg.partition


def resolve(cfg: DataConfig) -> DataConfig:
    """The same config with absolute paths, and with what was left to the protocol filled in."""
    own = protocol(cfg)
    settled = {
        "partition": _kind(cfg),
        "scaling": own.scaling if cfg.scaling == "auto" else cfg.scaling,
        "labels_per_client": own.labels if cfg.labels_per_client is None else cfg.labels_per_client,
        "test_fraction": own.held_out if cfg.test_fraction is None else cfg.test_fraction,
    }
    return override(loading.resolve(cfg), settled)


def settle(cfg: Experiment, dataset: Dataset) -> Experiment:
    """Fill in what only the data can tell: without a number of clients every user is one, and texts need the lstm."""
    network = "mlp" if dataset.vectors is None else "lstm"
    users = 0 if dataset.users is None else int(dataset.users.max()) + 1
    clients = users if cfg.clients is None else cfg.clients
    members = clients - cfg.novel_clients
    return override(
        cfg,
        {
            "clients": clients,
            "clients_per_round": members if cfg.clients_per_round is None else cfg.clients_per_round,
            "model.name": network if cfg.model.name == "auto" else cfg.model.name,
        },
    )


def deal(cfg: Experiment, dataset: Dataset, rng: np.random.Generator) -> parts.Partition:
    """Deal the examples to the clients; raises FedRayError where they are too few, or the settings do not fit."""
    own, clients, labels = resolve(cfg.data), cfg.clients, dataset.y
    assert clients is not None, "the number of clients is resolved before the data are dealt"
    assert own.labels_per_client is not None
    assert own.test_fraction is not None
    reason, remedy = "only the lognormal partition has seeds to mislabel", "leave it out, or --data.partition lognormal"
    require(own.partition == "lognormal" or not own.label_bug, "data.label_bug", own.label_bug, reason, remedy)
    if own.partition == "natural":
        reason, remedy = "the dataset does not say whose its examples are", "choose labels, dirichlet or iid"
        require(dataset.users is not None, "data.partition", "natural", reason, remedy)
        assert dataset.users is not None
        return parts.natural(dataset.users, clients, own.alpha, own.test_fraction, rng)
    if own.partition == "dirichlet":
        return parts.dirichlet(labels, clients, own.alpha, own.test_fraction, rng)
    if own.partition == "iid":
        return parts.iid(labels, clients, own.test_fraction, rng)
    if own.partition == "ratio":
        return skewed.ratio(labels, clients, own.majority, own.test_fraction, rng)
    if own.partition == "shards":
        return skewed.shards(labels, clients, own.labels_per_client, own.test_fraction, rng)
    if own.partition == "lognormal":
        sizes = CIFAR10 if own.name == "cifar10" else MNIST
        held = own.labels_per_client
        return lognormal(labels, clients, held, sizes, own.test_fraction, own.label_bug, rng)
    of = parts.owners(clients, own.labels_per_client, dataset.classes, own.layout)
    size = getattr(protocol(own), own.size) or parts.even_size(labels, of, own.test_fraction)
    return parts.label_shards(labels, clients, own.labels_per_client, size[0], size[1], own.layout, rng)


def describe(cfg: DataConfig) -> str:
    """The split in words."""
    cfg = resolve(cfg)
    if cfg.partition == "labels":
        size = f"{cfg.size}, " if getattr(protocol(cfg), cfg.size) else ""
        return f"{size}{cfg.labels_per_client} labels per client, {cfg.layout} layout"
    if cfg.partition == "lognormal":
        wrong = ", seeds mislabelled as published" if cfg.label_bug else ""
        return f"lognormal sizes, windows of {cfg.labels_per_client} labels{wrong}"
    if cfg.partition == "natural":
        return f"by user, groups of users with alpha {cfg.alpha:g}"
    if cfg.partition == "ratio":
        return f"two classes 1:{cfg.majority}, the frequent one alternating"
    if cfg.partition == "shards":
        return f"equal shards of classes, {cfg.labels_per_client} classes per client at random"
    return f"dirichlet, alpha {cfg.alpha:g}" if cfg.partition == "dirichlet" else "iid"


def remarks(cfg: DataConfig, dataset: Dataset, partition: parts.Partition) -> tuple[str, ...]:
    """What one must know of a partition before one quotes a number."""
    found = []
    if dataset.vectors is not None and cfg.embedding is None:
        found.append("without --data.embedding the words have random vectors: accuracies are lower than with GloVe's")
    if cfg.partition == "lognormal" and (missing := skipped(dataset.y, partition)):
        found.append(f"{missing} shares of a class that had run out were left out, as in the published protocol")
    if partition.relabel is not None:
        test, wrong = np.concatenate(partition.test), partition.relabel[:, 0]
        share = np.isin(wrong, test).sum() / len(test)
        found.append(
            f"--data.label-bug: {len(wrong)} examples carry a wrong label, {share:.1%} of those for testing; "
            "accuracies count them, and compare with others of that kind only"
        )
    return tuple(found)
