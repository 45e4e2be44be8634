"""Regression: the Bayesian methods on the UCI sets with which Stein methods and Bayesian networks are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray import registry
from fedray.studies.cell import Cell, Study, experiment

PROTOCOL = {"rounds": 100, "model.hidden": (50,), "predict_samples": 20}
# A control takes as many steps as pFedBayes takes of a client's posterior.
CONTROL = {"algorithm.posterior": "gaussian", "algorithm.prior_sd": 1.0, "local_steps": 100}
# Chosen on validation examples (docs/methods/regression.md), but for FedAvg, BPFed, PVI and SVGD.
TUNED: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"algorithm.lr": 0.01, "algorithm.optimizer": "adam"},
    "pfedbayes": {"algorithm.zeta": 10.0, "algorithm.lr_personal": 0.005, "algorithm.lr_global": 0.005},
    "bpfed": {"algorithm.prior": "fixed", "algorithm.lr_personal": 0.005, "algorithm.lr_global": 0.005},
    "pvi": {"algorithm.lr": 0.02},
    # Without sites a client takes its likelihood to the power of N = 5, for it stands for the others' as well.
    "dsvgd": {
        "algorithm.prior": "noise",
        "algorithm.sites": "none",
        "algorithm.temperature": 0.2,
        "algorithm.lr": 0.01,
    },
    "svgd": {
        "algorithm.prior": "noise",
        "algorithm.lr": 0.02,
        "local_steps": 1,
        "rounds": 2000,
        "eval_every": 100,
    },
    "local": CONTROL | {"algorithm.zeta": 0.3, "algorithm.lr_posterior": 0.0025},
    "pooled": CONTROL | {"algorithm.zeta": 0.1, "algorithm.lr_posterior": 0.0025},
}
# By set, where validation asks for it. The target of naval has almost no noise: it takes larger or more steps.
OWN: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "boston": {"local": {"algorithm.zeta": 1.0}, "pooled": {"algorithm.zeta": 0.3}},
    "energy": {"pfedbayes": {"algorithm.zeta": 3.0}, "dsvgd": {"algorithm.lr": 0.005}},
    "kin8nm": {"local": {"algorithm.lr_posterior": 0.005}},
    "naval": {
        "pfedbayes": {"algorithm.zeta": 1.0, "algorithm.lr_personal": 0.01, "algorithm.lr_global": 0.01},
        "dsvgd": {"algorithm.lr": 0.001, "local_steps": 100},
        "local": {"algorithm.zeta": 0.1, "algorithm.lr_posterior": 0.01},
        "pooled": {"algorithm.lr_posterior": 0.01},
    },
    "wine": {"pooled": {"algorithm.zeta": 1.0}, "dsvgd": {"algorithm.temperature": 1.0, "algorithm.lr": 0.005}},
    "yacht": {
        "pfedbayes": {"algorithm.zeta": 3.0},
        "pooled": {"algorithm.zeta": 0.3},
        "dsvgd": {"algorithm.lr": 0.005},
    },
}


def uci() -> list[Cell]:
    """Regression: Bayesian methods, FedAvg and controls on nine UCI sets, a hidden layer of 50 units, five clients."""
    cells = []
    for table in registry.datasets()["uci"].tables:
        for algorithm, settings in TUNED.items():
            own = OWN.get(table, {}).get(algorithm, {})
            changes = {**PROTOCOL, **settings, **own, "data.name": f"uci-{table}"}
            cells.append(Cell(f"{algorithm}-{table}", (algorithm, table), experiment(algorithm, changes)))
    return cells


STUDIES: Mapping[str, Study] = {"uci": uci}
COMPARISONS: Mapping[str, Mapping[str, str]] = {
    "uci": {
        "by": "data.name,algorithm",
        "metrics": "personal/rmse,global/rmse,personal/nll,global/nll,personal/coverage,global/coverage",
    },
}
