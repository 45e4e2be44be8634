"""Every algorithm with one budget: a client's model takes 100 gradient steps per round, on minibatches of 100.

In the papers' tables it does not: pFedMe takes five steps on a minibatch, Per-FedAvg two, and others one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.config import Experiment
from fedray.studies.cell import Cell, Study, experiment
from fedray.studies.named.pfedbayes import ROUNDS, at_every_size, tuned

BATCH, STEPS = 100, 100
# Gradient steps that a model takes on one minibatch, where it is not one.
STEPS_PER_MINIBATCH = {"pfedbayes": 5, "bpfed": 5, "pfedme": 5, "pfedbred": 5, "per_fedavg": 2}
# What a method counts in minibatches keeps its share of them. SVGD sends every step to the server: a round is a step.
SHARES: Mapping[str, Mapping[str, Any]] = {
    "fedrep": {"algorithm.head_steps": 20},
    "fedpop": {"algorithm.burn_in": 20},
    "fedsoul": {"algorithm.burn_in": 20},
    "svgd": {"local_steps": 1},
}
# With pFedBayes' 0.5 and inputs in [-1, 1], BNFed ends at 10 % on MNIST small (seeds 0, 1 and 2, 200 rounds).
RATES: Mapping[str, Mapping[str, Any]] = {"bnfed": {"algorithm.lr": 0.1}}


def column(dataset: str, title: str) -> Study:
    """The study of a dataset."""

    def made(algorithm: str, size: str) -> Experiment:
        return experiment(algorithm, {"data.name": dataset, "data.size": size, "rounds": ROUNDS, **_budget(algorithm)})

    def cells() -> list[Cell]:
        return at_every_size(made)

    cells.__doc__ = f"{title}: every algorithm with as many gradient steps, on small, medium and large."
    return cells


def _budget(algorithm: str) -> dict[str, Any]:
    """The settings of an algorithm, and those that give it the budget."""
    steps = STEPS // STEPS_PER_MINIBATCH.get(algorithm, 1)
    shares = {"batch_size": BATCH, "local_steps": steps, **SHARES.get(algorithm, {})}
    return tuned(algorithm) | dict(RATES.get(algorithm, {})) | shares


STUDIES: Mapping[str, Study] = {
    "equal-steps-mnist": column("mnist", "MNIST"),
    "equal-steps-fmnist": column("fashion_mnist", "FashionMNIST"),
}
