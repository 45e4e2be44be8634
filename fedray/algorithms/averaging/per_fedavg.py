"""Per-FedAvg: the global model is trained to be good after one gradient step on a client's data.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, Algorithm 1: min_w E_i f_i(w - α ∇f_i(w)), by first-order or Hessian-free
gradients. Learning rates and the number of steps before the test as in pFedBreD's comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.averaging.fedavg import Averaging, Info, Local, Nothing, Point
from fedray.arrays.minibatches import fine_tune, split, tuning_noise
from fedray.arrays.optim import initial_state
from fedray.types import Algorithm, Batch, Choice, Context, LogUniform, Preset, require


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Averaging):
    """Settings of Per-FedAvg."""

    alpha: float = 0.01
    """Learning rate α of the step that adapts the global model to a client, in training and before the test."""
    alpha_m: float = 0.01
    """Learning rate α_m of the global model's local copy."""
    order: Literal["fo", "hf"] = "fo"
    """Meta-gradient: first order, without the Hessian (fo), or with a difference of gradients for it (hf)."""
    delta: float = 0.001
    """Half the distance δ of that difference, in units of the gradient."""
    adapt_steps: int = 1
    """Steps that adapt the new global model before the test: the last has rate α, those before it α_m."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha >= 0, "alpha", self.alpha, "a learning rate is not negative", "use 0 for FedAvg")
        for name in ("alpha_m", "delta"):
            value = getattr(self, name)
            require(value > 0, name, value, "must be positive", "try 0.01 for α_m, 0.001 for δ")
        require(self.adapt_steps >= 0, "adapt_steps", self.adapt_steps, "not negative", "use 1")


def begin(ctx: Context[PerFedAvg], client: Nothing, down: Point, data: Batch) -> Local:
    return Local(down.theta, down.theta, initial_state("sgd", down.theta))


def minibatches(cfg: PerFedAvg) -> int:
    return 2 if cfg.order == "fo" else 3


def step(ctx: Context[PerFedAvg], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """w ← w - α_m × meta-gradient; info is the NLL before adaptation."""
    cfg = ctx.cfg
    nll, grad = meta_gradient(cfg, partial(fedavg.gradient, ctx.model), local.theta, split(batch, minibatches(cfg)))
    return local._replace(theta=local.theta - cfg.alpha_m * grad), Info(nll)


def meta_gradient(
    cfg: PerFedAvg, gradient: Callable[[Tensor, Batch], tuple[Tensor, Tensor]], w: Tensor, batches: tuple[Batch, ...]
) -> tuple[Tensor, Tensor]:
    """f(w; b1) and the gradient of f(w - α ∇f(w)): v = ∇f(w - α ∇f(w; b1); b2), or (I - α ∇²f(w; b3)) v.

    The Hessian acts through [∇f(w + δv; b3) - ∇f(w - δv; b3)] / (2δ), which is exact for quadratics.
    """
    nll, grad = gradient(w, batches[0])
    v = gradient(w - cfg.alpha * grad, batches[1])[1]
    if cfg.order == "fo":
        return nll, v
    ahead, behind = (gradient(w + delta * v, batches[2])[1] for delta in (cfg.delta, -cfg.delta))
    return nll, v - cfg.alpha / (2 * cfg.delta) * (ahead - behind)


def rates(cfg: PerFedAvg) -> list[float]:
    """Learning rates of the steps before the test: adaptation, then fine-tuning."""
    adapting = [cfg.alpha_m] * (cfg.adapt_steps - 1) + [cfg.alpha] if cfg.adapt_steps else []
    return adapting + [cfg.alpha] * cfg.ft


def personal_noise(ctx: Context[PerFedAvg]) -> tuple[int, ...]:
    return tuning_noise(ctx.cfg.adapt_steps + ctx.cfg.ft, ctx.facts)


def personalize(ctx: Context[PerFedAvg], client: Nothing, view: Point, data: Batch, noise: Tensor) -> Point:
    """The *new* global model, adapted by SGD steps on minibatches of the client's training data."""
    return Point(fine_tune(partial(fedavg.gradient, ctx.model), view.theta, data, rates(ctx.cfg), noise))


def configure(record: Algorithm, cfg: PerFedAvg) -> Algorithm:
    steps = cfg.adapt_steps + cfg.ft
    return record._replace(personal=f"each client's copy of the global model{fedavg.tuned(steps)}")


TABLES = {"batch_size": 20, "local_steps": 20, "algorithm.order": "fo"}
PAPER_TEXT = Preset(
    overrides=TABLES | {"algorithm.adapt_steps": 2, "algorithm.weighting": "uniform"},
    warning="preset paper_text adapts by two steps before the test, as Appendix C.1 of pFedBreD says; its tables are "
    "met by one step, preset paper_tables",
)
PAPER_TABLES = Preset(
    overrides=TABLES | {"algorithm.adapt_steps": 1, "algorithm.weighting": "examples"},
    warning="preset paper_tables is Per-FedAvg as in the tables of pFedBreD, whose accuracies are the maximum over "
    "rounds",
)

ALGORITHM = fedavg.ALGORITHM._replace(
    summary="a global model that is good after one gradient step on a client's data",
    config=PerFedAvg,
    begin=begin,
    step=step,
    personalize=personalize,
    personal_noise=personal_noise,
    configure=configure,
    minibatches=minibatches,
    defaults={"batch_size": 20},
    space={"alpha": LogUniform(1e-3, 0.1), "alpha_m": LogUniform(1e-3, 0.1), "order": Choice(("fo", "hf"))},
    presets={"paper_tables": PAPER_TABLES, "paper_text": PAPER_TEXT},
)
