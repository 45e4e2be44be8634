"""A first study, for those who want to see one."""

from __future__ import annotations

from collections.abc import Mapping

from fedray.studies.cell import Cell, Study, experiment
from fedray.studies.named.pfedbayes import tuned

# The rates of 0.001, 0.003, 0.01, ... that do best on validation examples after these five rounds, over two seeds. Both
# rates of pFedBayes were tried together, and 0.003 with 0.01.
RATES: Mapping[str, Mapping[str, float]] = {
    "fedavg": {"algorithm.lr": 0.3},
    "pfedbayes": {"algorithm.lr_personal": 0.03, "algorithm.lr_global": 0.03},
}


def quick() -> list[Cell]:
    """FedAvg and pFedBayes on the digits that ship with scikit-learn: a minute, no download."""
    shared = {"data.name": "digits", "rounds": 5}
    return [Cell(name, (name,), experiment(name, tuned(name) | shared | dict(own))) for name, own in RATES.items()]


STUDIES: Mapping[str, Study] = {"quick": quick}
