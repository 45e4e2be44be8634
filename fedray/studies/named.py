"""Named studies: each is a function that returns the cells of a table, to be run once per seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedray import registry
from fedray.config import Experiment, override

ROUNDS = 800  # the paper reports the best of 700 to 800
SIZES = ("small", "medium", "large")
# pFedBayes, section 5.2; an algorithm without an entry keeps its own defaults.
TUNED: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"lr": 0.01},
    "fedprox": {"lr": 0.01, "mu": 0.001},
    "pfedbayes": {"zeta": 10.0, "rho_init": -2.5, "lr_personal": 0.001, "lr_global": 0.001},
}


POLICIES = ("round_robin", "uniform", "ksd", "hip")  # the methods of "Client Selection for Federated Bayesian Learning"
CHOICE = {
    "by": "data.name,selection",
    "metrics": "global/accuracy,global/nll,global/ece,global/mce,global/stability,selection/effective,"
    "selection/chosen,selection/average,comm/bytes_up,comm/bytes_down",
}


class Cell(NamedTuple):
    """One entry of a study's table."""

    name: str  # of its runs, before the seed; a plain file name
    axes: tuple[str, ...]  # what --only may name: the rows that it belongs to
    experiment: Experiment
    seeds: int = 2  # runs of it, where nobody says how many


def base(algorithm: str, dataset: str, size: str = "medium", rounds: int = ROUNDS) -> Experiment:
    """An algorithm as tuned in pFedBayes's comparison, on a dataset of that paper."""
    record = registry.algorithms()[algorithm]
    tuned = {f"algorithm.{name}": value for name, value in TUNED.get(algorithm, {}).items()}
    own = {"data.name": dataset, "data.size": size, "rounds": rounds}
    return override(Experiment(algorithm=record.config()), dict(record.defaults) | tuned | own)


def table2() -> list[Cell]:
    """pFedBayes on MNIST medium: ζ, ρ and the two learning rates, the 18 rows of the paper's Table 2."""
    start = base("pfedbayes", "mnist")

    def cell(*axes: str, **settings: float) -> Cell:
        name = ",".join(f"{key}={value:g}" for key, value in settings.items())
        changed = override(start, {f"algorithm.{key}": value for key, value in settings.items()})
        return Cell(name, axes, changed)

    rates = [(0.001, 0.005), (0.005, 0.001), (0.005, 0.005)]
    return [
        Cell("base", ("zeta", "rho_init"), start),
        *(cell("zeta", zeta=zeta) for zeta in (0.5, 1.0, 5.0, 20.0)),
        *(cell("rho_init", "lr", rho_init=rho) for rho in (-1.0, -2.0, -3.0)),
        cell("rho_init", rho_init=-1.5),
        *(
            cell("lr", rho_init=rho, lr_personal=personal, lr_global=global_)
            for rho in (-1.0, -2.0, -3.0)
            for personal, global_ in rates
        ),
    ]


def table1_mnist() -> list[Cell]:
    """Every algorithm on MNIST, small, medium and large, as in the paper's Table 1."""
    return _table1("mnist")


def table1_fmnist() -> list[Cell]:
    """Every algorithm on FashionMNIST, small, medium and large, as in the paper's Table 1."""
    return _table1("fashion_mnist")


def table1_cifar10() -> list[Cell]:
    """Every algorithm on CIFAR-10, small, medium and large, as in the paper's Table 1."""
    return _table1("cifar10")


def _table1(dataset: str) -> list[Cell]:
    return [
        Cell(f"{algorithm}-{size}", (algorithm,), base(algorithm, dataset, size))
        for size in SIZES
        for algorithm in registry.algorithms()
    ]


def quick() -> list[Cell]:
    """FedAvg and pFedBayes on the digits that ship with scikit-learn: a minute, no download."""
    return [Cell(name, (name,), base(name, "digits", rounds=5)) for name in ("fedavg", "pfedbayes")]


def selection() -> list[Cell]:
    """Serial DSVGD by four ways to choose a client: logistic regression, Covertype 1:9, 30 clients (10 CPU minutes)."""
    data = {"data.name": "covertype", "model.name": "blr", "clients": 30, "algorithm.prior": "gamma"}
    return _selection(data | {"algorithm.particles": 6, "algorithm.lr": 0.02})


def selection_digits() -> list[Cell]:
    """The same on scikit-learn's digits with a network: 30 clients with Dirichlet label shares, no download."""
    data = {"data.name": "digits", "data.partition": "dirichlet", "clients": 30}
    return _selection(data | {"algorithm.particles": 6, "algorithm.lr": 0.01})


def selection_mnist() -> list[Cell]:
    """The same on MNIST's digits 0-8 with a network: 27 clients of three digits, 20 particles (an hour)."""
    data = {"data.name": "mnist", "data.classes": 9, "data.partition": "shards", "clients": 27}
    network = {"algorithm.sites": "particle", "algorithm.score_examples": 200}
    return _selection(data | network | {"algorithm.particles": 20, "algorithm.lr": 0.003})


def _selection(federation: Mapping[str, Any]) -> list[Cell]:
    """Four policies over five seeds, one client a round, which takes the paper's L = 10 steps."""
    ours = {"algorithm.mode": "serial", "clients_per_round": 1, "rounds": 100, "local_steps": 10, "eval_every": 2}
    start = override(Experiment(algorithm=registry.algorithms()["dsvgd"].config()), ours | dict(federation))
    return [Cell(name, (name,), override(start, {"selection": name}), seeds=5) for name in POLICIES]


STUDIES: Mapping[str, Callable[[], list[Cell]]] = {
    "quick": quick,
    "table2": table2,
    "table1-mnist": table1_mnist,
    "table1-fmnist": table1_fmnist,
    "table1-cifar10": table1_cifar10,
    "selection": selection,
    "selection-digits": selection_digits,
    "selection-mnist": selection_mnist,
}
# How a study's table differs from the default of a comparison.
TABLES: Mapping[str, Mapping[str, str]] = dict.fromkeys(("selection", "selection-digits", "selection-mnist"), CHOICE)
