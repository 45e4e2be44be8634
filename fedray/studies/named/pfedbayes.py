"""Tables 1 to 3 of Zhang et al., "Personalized Federated Learning via Variational Bayesian Inference", ICML 2022."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedray import registry
from fedray.config import Experiment, override
from fedray.studies.cell import Cell, Study, experiment

ROUNDS = 800  # the paper reports the best of rounds 700 to 800
SIZES = ("small", "medium", "large")
# Settings of the paper, section 5.2. An algorithm without an entry keeps its defaults, which are the paper's where it
# names some: 0.01 for Per-FedAvg, pFedMe (λ = 15) and HeurFedAMP (ξ = 0.5 of a client's own model), 0.05 for pFedGP.
TUNED: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"lr": 0.01},
    "fedprox": {"lr": 0.01, "mu": 0.001},
    "bnfed": {"lr": 0.5},
    "pfedbayes": {"zeta": 10.0, "rho_init": -2.5, "lr_personal": 0.001, "lr_global": 0.001},
}
# Beside section 5.2: pFedBayes' Algorithm 1, a step of the posterior and one of the global distribution in turn.
# What the paper leaves to "the settings in (T Dinh et al., 2020)", pFedMe's public code, or does not say, is as in the
# public code of the method. But every method of the paper has pFedBayes' minibatches: those of 20 are pFedMe's and
# Per-FedAvg's own.
MINIBATCH = 100
PUBLIC_NOISE = 0.001  # in the place of 1: public code draws weights that are all but μ
PROTOCOL: Mapping[str, Mapping[str, Any]] = {
    "pfedme": {"batch_size": MINIBATCH},
    # A model is tested after two steps, of the one rate and of the other.
    "per_fedavg": {"batch_size": MINIBATCH, "algorithm.adapt_steps": 2},
    # The paper names a rate and α, no pull and no σ, and says that α = 0.1 lets ten clients weigh the same. So a client
    # starts from its average, as from FedAvg's, and is tested by it: pFedMe's code tests a model before it is trained.
    # σ is that of public code.
    "heurfedamp": {"algorithm.mu": 0.0, "algorithm.sigma": 1.0, "algorithm.predict": "u"},
    "bnfed": {"algorithm.prior_variance": 1.0, "algorithm.popularity": 1.0, "data.scaling": "unit"},
    "pfedbayes": {"algorithm.personal_steps": 1, "predict_samples": 1},  # a model is tested by one draw of its weights
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


def base(algorithm: str, dataset: str, size: str = "medium") -> Experiment:
    """An algorithm as the paper compares it, on one of its datasets."""
    own = tuned(algorithm) | dict(PROTOCOL.get(algorithm, {}))
    return experiment(algorithm, own | {"data.name": dataset, "data.size": size, "rounds": ROUNDS})


def tuned(algorithm: str) -> dict[str, Any]:
    """The settings that section 5.2 names."""
    return {f"algorithm.{name}": value for name, value in TUNED.get(algorithm, {}).items()}


def table2() -> list[Cell]:
    """pFedBayes on MNIST medium: ζ, ρ and the two learning rates, the 18 rows of the paper's Table 2."""
    start = base("pfedbayes", "mnist")

    def cell(*tags: str, **settings: float) -> Cell:
        name = ",".join(f"{key}={value:g}" for key, value in settings.items())
        changed = override(start, {f"algorithm.{key}": value for key, value in settings.items()})
        return Cell(name, tags, changed)

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


def table1_noise() -> list[Cell]:
    """pFedBayes on MNIST and FashionMNIST as in Table 1, but with the noise of its public code, of sd 0.001."""
    return _reread("pfedbayes", {"algorithm.noise_sd": PUBLIC_NOISE})


def table1_code() -> list[Cell]:
    """pFedBayes on MNIST and FashionMNIST as in Table 1, but trained as by its public code."""
    record = registry.algorithms()["pfedbayes"]
    public = record.presets["a_parity"].overrides
    return _reread("pfedbayes", {**public, "algorithm.personal_steps": record.config().personal_steps})


def table1_gp() -> list[Cell]:
    """pFedGP on MNIST and FashionMNIST as in Table 1, but trained as by its public code."""
    return _reread("pfedgp", registry.algorithms()["pfedgp"].presets["public_code"].overrides)


def _reread(algorithm: str, changes: Mapping[str, Any]) -> list[Cell]:
    """An algorithm's columns of Table 1 where a paper is read in another way."""
    return [
        Cell(
            f"{short}-{size}",
            (short, size),
            override(base(algorithm, dataset, size), changes),
            uncertainty=True,
        )
        for short, dataset in (("mnist", "mnist"), ("fmnist", "fashion_mnist"))
        for size in SIZES
    ]


def _table1(dataset: str) -> list[Cell]:
    return at_every_size(lambda algorithm, size: base(algorithm, dataset, size))


def at_every_size(made: Callable[[str, str], Experiment]) -> list[Cell]:
    """Every algorithm at every size, with the report on uncertainty: it has the classes that a client lacks."""
    return [
        Cell(f"{algorithm}-{size}", (algorithm,), made(algorithm, size), uncertainty=True)
        for size in SIZES
        for algorithm in registry.algorithms()
    ]


STUDIES: Mapping[str, Study] = {
    "table2": table2,
    "table3": table3,
    "table1-mnist": table1_mnist,
    "table1-fmnist": table1_fmnist,
    "table1-cifar10": table1_cifar10,
    "table1-noise": table1_noise,
    "table1-code": table1_code,
    "table1-gp": table1_gp,
}
