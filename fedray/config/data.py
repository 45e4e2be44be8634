"""What the data and the network are: the settings of an experiment that a dataset decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedray.types import added, check_types, require


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The dataset and how its examples are dealt to the clients."""

    name: str = "digits"
    """A dataset of the list above, or the path of a file: .npz with arrays x [N, ...] and y [N], labels of any kind or
    real targets (floats, not all whole); .csv or .parquet with a column y; .json as LEAF's; .jsonl with a user, text
    and label per line (.gz of the last two). docs/add-a-dataset.md says how they are read."""
    root: str | Path | None = None
    """Folder that holds the dataset in torchvision's layout, or sent140/ or femnist/ with LEAF's train and test
    folders, or covertype/covertype.npz with X [N, 54] and y [N] in 1..7 (an excerpt: covertype_subset.npz), or
    uci_regression/NAME.npz with X [N, d] and y [N]; by default $FEDRAY_DATA_ROOT or ~/.cache/fedray."""
    download: bool = False
    """Let torchvision, or scikit-learn for covertype, download the dataset into the root when it is missing."""
    embedding: str | Path | None = None
    """File of frozen word vectors for texts: a word and its numbers per line, such as glove.6B.50d.txt. By default
    every word has random numbers of its own, which know nothing of its meaning: accuracies are lower."""
    scaling: Literal["auto", "range", "unit", "standard", "feature"] = "auto"
    """Units of inputs: range: [-1, 1]; unit: [0, 1]; standard: mean 0 and sd 1 of all together; feature: of each by
    itself. auto: range, but unit for femnist and shards, feature for covertype and uci sets, and with lognormal sizes
    pFedBreD's: feature for mnist, standard for fashion_mnist; float features as they are."""
    moments: Literal["training", "all"] = "training"
    """Examples whose mean and sd standard and feature use: the training shards of the federation's clients; or all of
    the dataset, as in published generators, which tells the clients something of the test examples."""
    classes: int | None = None
    """Keep only the examples of the first so many classes; by default of all."""
    partition: str = "auto"
    """How the examples are dealt, a partition of the list above. auto is natural for sent140, femnist and files that
    name owners, ratio for covertype, iid for real targets, else labels. dirichlet deals real ones by their tenths."""
    majority: int = 9
    """r, how many examples of its frequent class a client has to one of the other (ratio partition)."""
    alternate: int = added(2)
    """Class 1 is the frequent one at every so many-th client, class 0 at the others (ratio partition). 2: they take
    turns."""
    layout: Literal["cluster", "window"] = "cluster"
    """Which labels client u holds: cluster (s*u + j) mod C, two kinds of client; window (u + j) mod C, C kinds."""
    labels_per_client: int | None = None
    """s, the number of classes that a client holds (labels, lognormal and shards partitions); by default the paper's
    for the dataset (5; with lognormal sizes 3, of fashion_mnist 2; 3 shards), or all where the data have fewer."""
    label_bug: bool = False
    """Mislabel the first ten examples of each class of a client by their slot 0..s-1, as the published generator of
    pFedBreD's MNIST does (lognormal partition). For comparison with its tables only: accuracies count the wrong labels.
    """
    size: Literal["small", "medium", "large"] = "medium"
    """Examples per client and class, exact and stratified, as in the tables of pFedBayes (labels partition)."""
    alpha: float = 0.5
    """Concentration of the dirichlet and natural partitions; small is more heterogeneous."""
    test_fraction: float | None = None
    """Share of a client's examples kept for testing (all partitions but labels of a dataset with a table); by default
    0.25, of sent140 and femnist LEAF's 0.1, of uci sets 0.1, of covertype 0.2, with shards 1/7 as in MNIST's official
    division."""
    validation: float = added(0.0)
    """Share of every client's training examples that is held out for validation, class by class: whoever chooses
    settings by these can still report test figures. 0 trains on all of them, as the papers do; a sweep holds out 0.2
    instead, unless it ranks by test data."""

    def __post_init__(self) -> None:
        check_types(self, "data.")
        share = self.validation
        require(0 <= share < 1, "data.validation", share, "not a share", "choose 0 or more and less than 1, e.g. 0.2")
        kept = self.classes
        require(kept is None or kept >= 2, "data.classes", kept, "a classifier needs two", "leave it out for all")
        held, alpha, tested = self.labels_per_client, self.alpha, self.test_fraction
        remedy = "leave it out for the paper's number"
        require(held is None or held >= 1, "data.labels_per_client", held, "a client holds a class", remedy)
        remedy = "choose a positive number, e.g. 0.5"
        require(0 < alpha < math.inf, "data.alpha", alpha, "not a concentration", remedy)
        reason, remedy = "the frequent class has no less", "use 9, as the paper"
        require(self.majority >= 1, "data.majority", self.majority, reason, remedy)
        reason, remedy = "clients are counted from 1", "use 2: the classes take turns"
        require(self.alternate >= 1, "data.alternate", self.alternate, reason, remedy)
        if tested is not None:
            check_fraction(tested)


def check_fraction(f: float) -> None:
    """Raise FedRayError unless the share of test examples lies between 0 and 1."""
    require(0 < f < 1, "data.test_fraction", f, "not a share", "choose between 0 and 1, e.g. 0.25")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network."""

    name: str = "auto"
    """A network of the list above. auto: the paper's network for the dataset (mlp; vgg for cifar10; lstm for texts;
    dnn for femnist; blr for covertype; with lognormal sizes dnn and cnn)."""
    likelihood: Literal["auto", "categorical", "gaussian"] = "auto"
    """Of labels categorical; of real targets gaussian, N(f(x), 1/γ) whose precision γ is a parameter of the network.
    gaussian with labels: one-hot vectors with that noise, as "Client Selection for Federated Bayesian Learning" has it.
    auto: as the targets are."""
    hidden: tuple[int, ...] = (100,)
    """Widths of the hidden layers of the mlp or dnn."""
    lstm_hidden: int = 50
    """Units of each direction of the lstm; the layer before its last one has a hundred times as many."""

    def __post_init__(self) -> None:
        check_types(self, "model.")
        remedy = "use `model.name=mclr` for a network without hidden layers"
        require(
            all(width >= 1 for width in self.hidden),
            "model.hidden",
            self.hidden,
            "a layer has units",
            remedy,
        )
        units = self.lstm_hidden
        require(units >= 1, "model.lstm_hidden", units, "an lstm has units", "use 50, as pFedBreD")
