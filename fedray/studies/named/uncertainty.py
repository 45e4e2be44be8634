"""What the uncertainty of five methods is good for: one table of calibration, abstention, unknown classes and sets.

In every round a client's model takes 100 gradient steps on minibatches of 50, as in the study of the BPFed paper.
FedAvg's personal models are the global one after an epoch of SGD on the client's data. All runs end with the
uncertainty report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.studies.cell import Cell, Study, experiment
from fedray.studies.named.bpfed import BAYESIAN

ROUNDS, EVERY, SEEDS = 20, 5, 3
POINT: Mapping[str, Any] = {"local_steps": 100}
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "pfedbayes": ("pfedbayes", BAYESIAN),
    "bpfed": ("bpfed", BAYESIAN),
    "fedper": ("fedper", POINT),
    "fedavg+ft": ("fedavg", POINT),
    "local": ("local", POINT),
}
# The learning rates with the least NLL on validation examples after these rounds: seed 0, Adam with 0.001, 0.003, 0.01
# and 0.03 for the Gaussian posteriors, SGD with 0.01, 0.03, 0.1 and 0.3 for the others. A client has one minibatch.
DIGITS: Mapping[str, Mapping[str, Any]] = {
    "pfedbayes": {"algorithm.lr_personal": 0.01, "algorithm.lr_global": 0.01},
    "bpfed": {"algorithm.lr_personal": 0.001, "algorithm.lr_global": 0.001},
    "fedper": {"algorithm.lr": 0.01},
    "fedavg+ft": {"algorithm.lr": 0.3, "algorithm.ft": 1},
    "local": {"algorithm.lr": 0.01},
}
# The papers' 0.001 for the Gaussian posteriors; 0.01 as in pFedBayes' Table 1, but for FedAvg 0.1, which has
# less NLL on validation examples than 0.03. A client has five minibatches.
MNIST: Mapping[str, Mapping[str, Any]] = {
    "pfedbayes": {},
    "bpfed": {},
    "fedper": {"algorithm.lr": 0.01},
    "fedavg+ft": {"algorithm.lr": 0.1, "algorithm.ft": 5},
    "local": {"algorithm.lr": 0.01},
}


def uncertainty_digits() -> list[Cell]:
    """What uncertainty is good for: pFedBayes, BPFed, FedPer, fine-tuned FedAvg and local training on the digits."""
    return _cells("digits", DIGITS)


def uncertainty_mnist() -> list[Cell]:
    """The same on MNIST small."""
    return _cells("mnist", MNIST)


def _cells(dataset: str, tuned: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    shared = {"data.name": dataset, "data.size": "small", "rounds": ROUNDS, "eval_every": EVERY, "batch_size": 50}
    return [
        Cell(name, (name,), experiment(algorithm, {**shared, **own, **tuned[name]}), SEEDS, uncertainty=True)
        for name, (algorithm, own) in METHODS.items()
    ]


STUDIES: Mapping[str, Study] = {"uncertainty-digits": uncertainty_digits, "uncertainty-mnist": uncertainty_mnist}
# The measures of a user's questions; the rows are the methods.
COMPARISONS: Mapping[str, Mapping[str, str]] = {
    study: {
        "by": "algorithm,algorithm.ft",
        "metrics": "personal/accuracy,personal/nll,personal/ece,personal/adaptive_ece,personal/aurc,"
        "personal/unknown_auroc,personal/unknown_fpr95,personal/thr_coverage",
    }
    for study in STUDIES
}
