"""Regression: the Bayesian methods on the UCI sets with which Stein methods and Bayesian networks are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray import registry
from fedray.studies.cell import Cell, Study, experiment

# Chosen on validation examples, the same for all sets: see docs/methods/regression.md.
TUNED: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"lr": 0.01, "optimizer": "adam"},
    "pfedbayes": {"zeta": 3.0, "lr_personal": 0.005, "lr_global": 0.005},
    "bpfed": {"prior": "fixed", "lr_personal": 0.005, "lr_global": 0.005},
    "pvi": {"lr": 0.02},
    "dsvgd": {"prior": "noise", "sites": "none", "lr": 0.003},
    "svgd": {"prior": "noise", "lr": 0.02},
}
CONTROL = {"posterior": "gaussian", "zeta": 0.3, "prior_sd": 1.0, "lr_posterior": 0.005}
CONTROLS = ("local", "pooled")
# Beside the protocol: SVGD takes one step per round, and a control as many as pFedBayes takes of its posteriors.
STEPS: Mapping[str, Mapping[str, Any]] = {
    "svgd": {"local_steps": 1, "rounds": 2000, "eval_every": 100},
    "local": {"local_steps": 100},
    "pooled": {"local_steps": 100},
}


def uci() -> list[Cell]:
    """Regression: Bayesian methods, FedAvg and controls on nine UCI sets, a hidden layer of 50 units, five clients."""
    protocol = {"rounds": 100, "model.hidden": (50,), "predict_samples": 20}
    cells = []
    for table in registry.datasets()["uci"].tables:
        for algorithm, settings in (TUNED | dict.fromkeys(CONTROLS, CONTROL)).items():
            tuned = {f"algorithm.{name}": value for name, value in settings.items()}
            changes = protocol | tuned | STEPS.get(algorithm, {}) | {"data.name": f"uci-{table}"}
            cells.append(Cell(f"{algorithm}-{table}", (algorithm, table), experiment(algorithm, changes)))
    return cells


STUDIES: Mapping[str, Study] = {"uci": uci}
TABLES: Mapping[str, Mapping[str, str]] = {
    "uci": {
        "by": "data.name,algorithm",
        "metrics": "personal/rmse,global/rmse,personal/nll,global/nll,personal/coverage,global/coverage",
    },
}
