"""The methods that are measured, with settings under which they come to rest.

Learning rates, steps and draws are such that a method does what it can here; what a row is named after, such as the
weight ζ of a divergence, is what it is about. Clients take every step on their whole shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedray import registry
from fedray.config import Experiment, override
from fedray.federate.in_process import LocalFederation
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from fedray.truth.problem import PROBLEMS, Problem, World


class Contestant(NamedTuple):
    """A method with its settings; dotted names are those of an experiment."""

    algorithm: str
    settings: Mapping[str, Any]
    prior: str | None = None  # the setting that takes the problem's prior: its sd, or its precision
    real: bool = True  # whether it can predict real targets
    bar: bool = False  # whether its KL has to be below 0.001 where inputs are orthogonal


def plan(contestant: Contestant, world: World, seed: int = 0) -> Plan:
    """The federation of a contestant on simulated examples."""
    problem = world.problem
    record = registry.algorithms()[contestant.algorithm]
    cfg = Experiment(algorithm=record.config(), seed=seed, predict_samples=1, batch_size=world.y.size)
    own = {"algorithm.prior_sd": problem.prior_sd, "algorithm.prior_precision": problem.prior_sd**-2}
    prior = {contestant.prior: own[contestant.prior]} if contestant.prior else {}
    cfg = override(cfg, {**contestant.settings, **prior})
    cfg = override(cfg, {"eval_every": cfg.rounds})
    return make_plan(cfg, world.dataset, world.partition, problem.layers, problem.density)


def play(contestant: Contestant, world: World, seed: int = 0) -> LocalFederation:
    """The federation after its last round."""
    federation = LocalFederation(plan(contestant, world, seed))
    for _ in federation:
        pass
    return federation


def able(contestant: Contestant, problem: Problem) -> bool:
    """Whether a method has the kind of model that a problem asks for, and can predict its targets."""
    record = registry.algorithms()[contestant.algorithm]
    record = record.configure(record, override(Experiment(algorithm=record.config()), contestant.settings).algorithm)
    has = record.predict_personal if problem.personal else record.predict_global
    return has is not None and (contestant.real or problem.noise_sd is None)


PRECISION, SD = "algorithm.prior_precision", "algorithm.prior_sd"
SERIAL = {"algorithm.mode": "serial", "clients_per_round": 1, "selection": "round_robin"}
POINTS = {"algorithm.lr": 0.003, "algorithm.particles": 99}
WIDE = {"algorithm.kernel_width": 16.0, "algorithm.lr": 0.001}
GAUSSIAN = {"algorithm.posterior": "gaussian", "algorithm.lr_posterior": 0.005, "rounds": 10, "local_steps": 100}
ADAM = {"algorithm.lr_personal": 0.005, "algorithm.lr_global": 0.005, "algorithm.mc_samples": 4}
CHAINS = {"rounds": 100, "local_steps": 10, "algorithm.particles": 99, "algorithm.step_size": 0.4}

# Of problems whose clients share their parameters: the global posterior.
GLOBAL = {
    "pooled, ζ=1": Contestant("pooled", GAUSSIAN | {"algorithm.zeta": 1.0, "algorithm.pool_users": True}, SD),
    "pooled, ζ=0.01 (default)": Contestant("pooled", GAUSSIAN | {"algorithm.pool_users": True}, SD),
    "pvi": Contestant(
        "pvi",
        {"algorithm.lr": 0.005, "algorithm.mc_samples": 32, "rounds": 40, "local_steps": 50},
        PRECISION,
        bar=True,
    ),
    "dsvgd, serial": Contestant("dsvgd", SERIAL | POINTS | {"rounds": 12, "local_steps": 80}, PRECISION),
    "dsvgd, serial, wide kernel": Contestant(
        "dsvgd", SERIAL | POINTS | WIDE | {"rounds": 30, "local_steps": 80}, PRECISION, bar=True
    ),
    "dsvgd, parallel": Contestant("dsvgd", POINTS | {"rounds": 100, "local_steps": 10}, PRECISION),
    "svgd": Contestant("svgd", POINTS | {"rounds": 1000, "local_steps": 1}, PRECISION),
    "svgd, wide kernel": Contestant("svgd", POINTS | WIDE | {"rounds": 3000, "local_steps": 1}, PRECISION),
    "dsgld": Contestant("dsgld", {"rounds": 1000, "local_steps": 4, "algorithm.particles": 99}, PRECISION),
    "pfedbayes, ζ=1": Contestant("pfedbayes", ADAM | {"algorithm.zeta": 1.0, "rounds": 40, "local_steps": 20}),
}
# Of a problem whose clients have parameters of their own: their personal posteriors.
PERSONAL = {
    "local, ζ=1": Contestant("local", GAUSSIAN | {"algorithm.zeta": 1.0}, SD),
    "local, ζ=0.01 (default)": Contestant("local", GAUSSIAN, SD),
    "pfedbayes, ζ=1": Contestant("pfedbayes", ADAM | {"algorithm.zeta": 1.0, "rounds": 40, "local_steps": 20}),
    "pfedbayes, ζ=1, average moments": Contestant(
        "pfedbayes",
        ADAM | {"algorithm.zeta": 1.0, "algorithm.average": "moments", "rounds": 40, "local_steps": 20},
    ),
    "pfedbayes, ζ=10 (default)": Contestant("pfedbayes", ADAM | {"rounds": 40, "local_steps": 20}),
    "bpfed, ζ=1 (default)": Contestant(
        "bpfed", ADAM | {"algorithm.personal": ("layer1.bias",), "rounds": 40, "local_steps": 20}
    ),
    "fedsoul": Contestant("fedsoul", CHAINS, SD, real=False),
    "fedpop": Contestant("fedpop", CHAINS, SD, real=False),
}


def of(name: str) -> dict[str, Contestant]:
    """Those that are measured on a problem."""
    problem = PROBLEMS[name]
    known = PERSONAL if problem.personal else GLOBAL
    return {key: one for key, one in known.items() if able(one, problem)}
