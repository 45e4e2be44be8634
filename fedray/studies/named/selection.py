"""The experiments of Yang, Liu and Kassab, "Client Selection for Federated Bayesian Learning", Figures 2 to 5.

Two splits, each with few and with 120 clients, and four policies. The paper prints plots and leaves learning rates,
rounds and particles open. In the studies ``selection-printed...`` whatever it does say is as it says: sites as local
particles, AdaGrad, first particles from the prior, and probabilities without a floor. Its network has Gaussian noise on
the output; here the likelihood is the categorical one. The other studies have sites that hold many parameters.
``selection-rare`` and ``selection-unequal`` are questions of our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray import registry
from fedray.studies.cell import Cell, Study, experiment

POLICIES = ("round_robin", "uniform", "ksd", "hip")  # the methods of the paper
# Each round trains one client for the paper's L = 10 steps.
SERIAL = {"algorithm.mode": "serial", "clients_per_round": 1, "rounds": 100, "local_steps": 10, "eval_every": 2}
COVERTYPE = {
    "data.name": "covertype",
    "data.moments": "all",  # as public code scales the columns
    "model.name": "blr",
    "algorithm.prior": "gamma",
    "algorithm.particles": 6,
}
DIGITS = {"data.name": "digits", "data.partition": "dirichlet", "algorithm.particles": 6}
MNIST = {"data.name": "mnist", "data.classes": 9, "data.partition": "shards", "algorithm.particles": 20}
# Our choices where the paper's do not hold so many parameters.
LOGISTIC = {"algorithm.lr": 0.02}
# Two partitions of ours, where a policy that looks at the clients should beat one that does not.
RARE = {"data.majority": 99, "data.alternate": 10}  # 3 of 30 clients hold 92 % of class 1
UNEQUAL = {"data.partition": "dirichlet", "data.alpha": 0.3}  # shares of both classes, and so sizes, differ
NETWORK = {"algorithm.lr": 0.003, "algorithm.sites": "particle", "algorithm.score_examples": 200}


def selection() -> list[Cell]:
    """Serial DSVGD with four selection policies: logistic regression, Covertype 1:9, 30 clients (5 CPU minutes)."""
    return _policies(COVERTYPE | LOGISTIC, clients=30)


def selection_120() -> list[Cell]:
    """The same with 120 clients."""
    return _policies(COVERTYPE | LOGISTIC, clients=120)


def selection_rare() -> list[Cell]:
    """Covertype with three of 30 clients that hold nearly all examples of one class: HIP against turns."""
    return _policies(COVERTYPE | LOGISTIC | RARE, clients=30)


def selection_unequal() -> list[Cell]:
    """Covertype with 30 clients of very unequal sizes: HIP against turns."""
    return _policies(COVERTYPE | LOGISTIC | UNEQUAL, clients=30)


def selection_digits() -> list[Cell]:
    """The same on scikit-learn's digits with a network: 30 clients with Dirichlet label shares, no download."""
    return _policies(DIGITS | {"algorithm.lr": 0.01}, clients=30)


def selection_mnist() -> list[Cell]:
    """The same on MNIST's digits 0-8 with a network: 27 clients of three digits, 20 particles (an hour)."""
    return _policies(MNIST | NETWORK, clients=27)


def selection_mnist_120() -> list[Cell]:
    """The same with 120 clients of three digits."""
    return _policies(MNIST | NETWORK, clients=120)


def selection_printed() -> list[Cell]:
    """As the paper's text has it, beside parallel DSVGD: Covertype 1:9, 30 clients."""
    return _printed(COVERTYPE | {"algorithm.lr": 0.05}, clients=30)


def selection_printed_120() -> list[Cell]:
    """As the paper's text has it: Covertype 1:9, 120 clients."""
    return _printed(COVERTYPE | {"algorithm.lr": 0.05}, clients=120)


def selection_printed_mnist() -> list[Cell]:
    """As the paper's text has it: MNIST's digits 0-8, 27 clients of three digits."""
    return _printed(MNIST | {"algorithm.lr": 0.01}, clients=27)


def selection_printed_mnist_120() -> list[Cell]:
    """As the paper's text has it: MNIST's digits 0-8, 120 clients of three digits."""
    return _printed(MNIST | {"algorithm.lr": 0.01}, clients=120)


def _policies(settings: Mapping[str, Any], clients: int) -> list[Cell]:
    """Four policies and five seeds."""
    start = {**SERIAL, **settings, "clients": clients}
    return [_cell(policy, start | {"selection": policy}) for policy in POLICIES]


def _printed(settings: Mapping[str, Any], clients: int) -> list[Cell]:
    """The same by the paper's text, and the parallel DSVGD of its Figure 5, in whose rounds all clients train."""
    presets = registry.algorithms()["dsvgd"].presets
    text, parallel = (presets[name].overrides for name in ("paper_text", "paper_parallel"))
    everybody = {"clients": clients, "clients_per_round": clients}
    together = _cell("parallel", {**SERIAL, **parallel, **settings, **everybody})
    return [*_policies({**text, **settings}, clients), together]


def _cell(name: str, settings: Mapping[str, Any]) -> Cell:
    return Cell(name, (name,), experiment("dsvgd", settings), seeds=5)


STUDIES: Mapping[str, Study] = {
    "selection": selection,
    "selection-120": selection_120,
    "selection-rare": selection_rare,
    "selection-unequal": selection_unequal,
    "selection-digits": selection_digits,
    "selection-mnist": selection_mnist,
    "selection-mnist-120": selection_mnist_120,
    "selection-printed": selection_printed,
    "selection-printed-120": selection_printed_120,
    "selection-printed-mnist": selection_printed_mnist,
    "selection-printed-mnist-120": selection_printed_mnist_120,
}
# Options of the comparison of policies: these metrics matter there.
COMPARISONS: Mapping[str, Mapping[str, str]] = {
    study: {
        "by": "data.name,selection",
        "metrics": "global/accuracy,global/nll,global/ece,global/mce,global/stability,selection/effective,"
        "selection/chosen,selection/average,comm/bytes_up,comm/bytes_down",
    }
    for study in STUDIES
}
