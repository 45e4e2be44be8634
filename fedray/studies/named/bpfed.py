"""The table of the BPFed paper: methods that keep layers with their clients, on few and on many examples.

All take 100 gradient steps of a client's model on minibatches of 50 in every round. The rates are the paper's: Adam
with 0.001, but for FedSOUL, which samples at the rate of our default. The last layer is personal; ``head.bias``, only
its bias, is a variant of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.studies.cell import Cell, Study, experiment

ADAM: Mapping[str, Any] = {"algorithm.optimizer": "adam", "algorithm.lr": 0.001, "local_steps": 100}
BAYESIAN: Mapping[str, Any] = {"local_steps": 20}  # times five steps of the posterior
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "fedper": ("fedper", ADAM),
    "fedrep": ("fedrep", {**ADAM, "algorithm.head_steps": 50}),
    "lg_fedavg": ("lg_fedavg", ADAM),
    "pfedbayes": ("pfedbayes", BAYESIAN),
    "fedsoul": ("fedsoul", {"local_steps": 100, "algorithm.burn_in": 20}),
    "bpfed": ("bpfed", BAYESIAN),
    "bpfed,head.bias": ("bpfed", {**BAYESIAN, "algorithm.personal": ("head.bias",)}),
}
# Section VI-C. Those of the paper's methods that can adapt personal layers to frozen shared ones, and clients alone.
NOVEL: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "local": ("local", ADAM),
    **{name: METHODS[name] for name in ("fedper", "fedrep", "bpfed")},
}
HELD_OUT: Mapping[str, Any] = {"novel_clients": 2, "adapt_rounds": 100}  # a client of either kind of the cluster layout


def column(dataset: str, title: str) -> Study:
    """The study of a dataset."""

    def cells() -> list[Cell]:
        shared = {"data.name": dataset, "rounds": 800, "batch_size": 50}
        found = []
        for size in ("small", "large"):
            for name, (algorithm, own) in METHODS.items():
                cfg = experiment(algorithm, {**shared, **own, "data.size": size})
                found.append(Cell(f"{name}-{size}", (name,), cfg))
        return found

    cells.__doc__ = f"{title}, small and large: BPFed beside methods with personal layers."
    return cells


def novel() -> list[Cell]:
    """Clients that the federation has not met, MNIST and FashionMNIST small: BPFed, FedPer, FedRep, or no help."""
    shared = {"rounds": 800, "batch_size": 50, "data.size": "small", **HELD_OUT}
    return [
        Cell(f"{name}-{short}", (name, short), experiment(algorithm, {**shared, "data.name": dataset, **own}))
        for short, dataset in (("mnist", "mnist"), ("fmnist", "fashion_mnist"))
        for name, (algorithm, own) in NOVEL.items()
    ]


STUDIES: Mapping[str, Study] = {
    "bpfed-mnist": column("mnist", "MNIST"),
    "bpfed-fmnist": column("fashion_mnist", "FashionMNIST"),
    "bpfed-novel": novel,
}
