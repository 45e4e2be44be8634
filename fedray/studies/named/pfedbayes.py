"""Tables 1 to 3 of Zhang et al., "Personalized Federated Learning via Variational Bayesian Inference", ICML 2022."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray import registry
from fedray.config import Experiment, override
from fedray.studies.cell import Cell, Study, experiment

ROUNDS = 800  # the paper reports the best of rounds 700 to 800
SIZES = ("small", "medium", "large")
# Settings of the paper, section 5.2. An algorithm without an entry keeps its defaults, which are the paper's where it
# names some: 0.01 for Per-FedAvg, pFedMe (λ = 15) and HeurFedAMP (ξ = 0.5 of a client's own model), 0.05 for pFedGP.
# But for BNFed: with the paper's 0.5 ours ends at 10 % on MNIST small (seeds 0, 1 and 2, 200 rounds). It keeps 0.1.
TUNED: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"lr": 0.01},
    "fedprox": {"lr": 0.01, "mu": 0.001},
    "pfedbayes": {"zeta": 10.0, "rho_init": -2.5, "lr_personal": 0.001, "lr_global": 0.001},
}
# Table 1 has one budget: in a round a client's model takes 100 gradient steps on minibatches of 100 examples, as those
# of pFedBayes do, 20 times 5. So 200 rounds are as many steps of FedAvg as 1,000 rounds of its usual 20 minibatches.
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
# Table 3: the rivals' learning rates. HeurFedAMP's ξ of a client's own model is the table's α.
RATES = (0.0005, 0.001, 0.005, 0.01)
TABLE3: Mapping[str, tuple[Mapping[str, float], ...]] = {
    "fedavg": tuple({"lr": lr} for lr in RATES),
    "fedprox": (
        *({"lr": lr, "mu": 0.001} for lr in RATES),
        *({"lr": 0.001, "mu": mu} for mu in (0.01, 0.1, 1.0)),
    ),
    "bnfed": tuple({"lr": lr} for lr in (*RATES, 0.1, 0.2, 0.5)),
    "per_fedavg": tuple({"alpha": lr} for lr in (*RATES, 0.1)),
    "pfedme": tuple({"alpha": lr, "alpha_m": max(lr, 0.001)} for lr in (*RATES, 0.1)),
    "heurfedamp": tuple({"xi_own": own, "lr": lr} for own in (0.1, 0.5) for lr in (*RATES, 0.1)),
    "pfedgp": tuple({"lr": lr} for lr in (0.01, 0.05, 0.1)),
}


def base(algorithm: str, dataset: str, size: str = "medium", rounds: int = ROUNDS) -> Experiment:
    """An algorithm as the paper compares it, on one of its datasets."""
    tuned = {f"algorithm.{name}": value for name, value in TUNED.get(algorithm, {}).items()}
    return experiment(algorithm, tuned | {"data.name": dataset, "data.size": size, "rounds": rounds})


def table2() -> list[Cell]:
    """pFedBayes on MNIST medium: ζ, ρ and the two learning rates, the 18 rows of the paper's Table 2."""
    start = base("pfedbayes", "mnist")

    def cell(*rows: str, **settings: float) -> Cell:
        name = ",".join(f"{key}={value:g}" for key, value in settings.items())
        changed = override(start, {f"algorithm.{key}": value for key, value in settings.items()})
        return Cell(name, rows, changed)

    cells = [Cell("base", ("zeta", "rho_init"), start)]
    cells += [cell("zeta", zeta=zeta) for zeta in (0.5, 1.0, 5.0, 20.0)]
    cells += [cell("rho_init", "lr", rho_init=rho) for rho in (-1.0, -2.0, -3.0)]
    cells += [cell("rho_init", rho_init=-1.5)]
    for rho in (-1.0, -2.0, -3.0):
        for lr_personal, lr_global in ((0.001, 0.005), (0.005, 0.001), (0.005, 0.005)):
            cells.append(cell("lr", rho_init=rho, lr_personal=lr_personal, lr_global=lr_global))
    return cells


def table3() -> list[Cell]:
    """The rivals of pFedBayes on MNIST medium with the learning rates of the paper's Table 3."""
    cells = []
    for algorithm, series in TABLE3.items():
        for settings in series:
            name = ",".join([algorithm, *(f"{key}={value:g}" for key, value in settings.items())])
            changes = {f"algorithm.{key}": value for key, value in settings.items()}
            cells.append(Cell(name, (algorithm,), override(base(algorithm, "mnist"), changes)))
    return cells


def table1_mnist() -> list[Cell]:
    """Every algorithm on MNIST, small, medium and large, as in the paper's Table 1."""
    return _table1("mnist")


def table1_fmnist() -> list[Cell]:
    """Every algorithm on FashionMNIST, small, medium and large, as in the paper's Table 1."""
    return _table1("fashion_mnist")


def table1_cifar10() -> list[Cell]:
    """Every algorithm that can play CIFAR-10, small, medium and large, as in the paper's Table 1."""
    return _table1("cifar10")


def _table1(dataset: str) -> list[Cell]:
    return [
        Cell(
            f"{algorithm}-{size}",
            (algorithm,),
            override(base(algorithm, dataset, size), _budget(algorithm)),
            uncertainty=True,  # for the classes that a client does not hold
        )
        for size in SIZES
        for algorithm in registry.algorithms()
    ]


def _budget(algorithm: str) -> Mapping[str, Any]:
    """The settings that give a method the budget of Table 1."""
    steps = STEPS // STEPS_PER_MINIBATCH.get(algorithm, 1)
    return {"batch_size": BATCH, "local_steps": steps, **SHARES.get(algorithm, {})}


STUDIES: Mapping[str, Study] = {
    "table2": table2,
    "table3": table3,
    "table1-mnist": table1_mnist,
    "table1-fmnist": table1_fmnist,
    "table1-cifar10": table1_cifar10,
}
