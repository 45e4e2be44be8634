"""FedAvg: local descent from the global model, averaged by shard size.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1;
learning rate as tuned by pFedBayes (Table 3). There is no personal model, unless the global one is fine-tuned (--ft).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from fedray.arrays.averages import average, damped
from fedray.arrays.minibatches import fine_tune, tuning_noise
from fedray.arrays.optim import OptimizerState, initial_state, optimizer_step
from fedray.arrays.rng import Stream
from fedray.nets.likelihood import nll_and_grad, predictive
from fedray.nets.model import Model
from fedray.types import Algorithm, Batch, Context, LogUniform, Sums, by_examples, check_types, equally, require


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """Settings of every method whose server averages one weight vector."""

    beta: float = 1.0
    """Server step β: w ← (1-β) w + β Σ_i a_i w_i; 1 is the average, 2 the aggregate momentum (AM) of pFedBreD's
    tables."""
    weighting: Literal["examples", "uniform"] = "examples"
    """The weights a_i of the averaged clients: their shares of the training examples, or all the same."""
    ft: int = 0
    """Fine-tuning (FT): SGD steps that a copy of the personal model takes on minibatches of the client's training data
    before it is tested. FedAvg and FedProx have a personal model with it only: the fine-tuned global one."""

    def __post_init__(self) -> None:
        check_types(self)
        require(0 < self.beta <= 2, "beta", self.beta, "the server's step lies in (0, 2]", "try 1, the average")
        require(self.ft >= 0, "ft", self.ft, "a number of steps is not negative", "use 0 for no fine-tuning")


@dataclass(frozen=True, kw_only=True)
class FedAvg(Averaging):
    """Settings of FedAvg."""

    lr: float = 0.01
    """Learning rate of local descent on the mean cross-entropy of a minibatch."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Local optimizer, begun anew in every round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lr > 0, "lr", self.lr, "a learning rate is positive", "try 0.01")


class LocalDescent(Protocol):
    """Settings of local descent."""

    @property
    def lr(self) -> float: ...

    @property
    def optimizer(self) -> Literal["sgd", "adam"]: ...


class Point(NamedTuple):
    """One weight vector: the server's state, what it sends, and what a client uploads."""

    theta: Tensor  # [P]


class Nothing(NamedTuple):
    """What FedAvg's clients keep between rounds."""


class Local(NamedTuple):
    """A client in local training."""

    theta: Tensor  # [P]
    start: Tensor  # [P] the broadcast weights
    memory: OptimizerState  # of the optimizer


class Info(NamedTuple):
    """What a step reports."""

    nll: Tensor  # [] mean over the minibatch, nats


def server_init(ctx: Context[Averaging], rng: Stream) -> Point:
    return Point(ctx.model.init(rng))


def client_init(ctx: Context[Any], server: Any) -> Nothing:
    return Nothing()


def broadcast(ctx: Context[Averaging], server: Point, ids: Sequence[int]) -> Point:
    return server


def begin(ctx: Context[LocalDescent], client: Nothing, down: Point, data: Batch) -> Local:
    return Local(down.theta, down.theta, initial_state(ctx.cfg.optimizer, down.theta))


def step(ctx: Context[LocalDescent], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """One step on the mean cross-entropy."""
    nll, grad = gradient(ctx.model, local.theta, batch)
    return descended(ctx.cfg, local, grad), Info(nll)


def descended(cfg: LocalDescent, local: Local, grad: Tensor) -> Local:
    """The client after a step of its optimizer along a gradient [P]; Adam's overwrites ``local``."""
    theta, memory = optimizer_step(cfg.optimizer, cfg.lr, local.theta, grad, local.memory)
    return local._replace(theta=theta, memory=memory)


def gradient(model: Model, theta: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean NLL of the minibatch in nats and its gradient [P]."""
    return nll_and_grad(model, theta, batch.x, batch.y, batch.weight / batch.weight.sum())


def finish(ctx: Context[FedAvg], local: Local, data: Batch) -> tuple[Nothing, Point]:
    return Nothing(), Point(local.theta)


def weigh(ctx: Context[Averaging], n: Tensor) -> Tensor:
    """n_k, or the same for all."""
    return (by_examples if ctx.cfg.weighting == "examples" else equally)(ctx, n)


def absorb(ctx: Context[Averaging], server: Point, sums: Point, n: Tensor) -> Point:
    """w ← (1-β) w + β Σ_k a_k w_k / Σ_k a_k, a_k = n_k or the same for all."""
    mean = average(sums.theta, float(weigh(ctx, n).sum()), server.theta)
    return Point(damped(server.theta, mean, ctx.cfg.beta))


def predict_global(ctx: Context[Averaging], view: Point, x: Tensor, noise: Tensor) -> Tensor:
    return predictive(ctx.model, view.theta[None], x)


def personal_noise(ctx: Context[Averaging]) -> tuple[int, ...]:
    return tuning_noise(ctx.cfg.ft, ctx.facts)


def personalize(ctx: Context[FedAvg], client: Nothing, view: Point, data: Batch, noise: Tensor) -> Point:
    """The new global model after ``ft`` SGD steps on the client's training data."""
    return Point(fine_tune(partial(gradient, ctx.model), view.theta, data, [ctx.cfg.lr] * ctx.cfg.ft, noise))


def configure(record: Algorithm, cfg: FedAvg) -> Algorithm:
    """Without fine-tuning there is no personal model."""
    if cfg.ft == 0:
        return record._replace(predict_personal=None)
    return record._replace(personal=f"each client's copy of the global model{tuned(cfg.ft)}")


def tuned(steps: int) -> str:
    """What fine-tuning adds to the description of a personal model."""
    return f", fine-tuned by {steps} SGD step{'s' * (steps > 1)} on its training data" if steps else ""


ALGORITHM = Algorithm(
    summary="local descent, averaged; one global model",
    config=FedAvg,
    server_init=server_init,
    client_init=client_init,
    broadcast=broadcast,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=Sums(absorb, weigh=weigh),
    predict_global=predict_global,
    predict_personal=predict_global,
    personalize=personalize,
    personal_noise=personal_noise,
    configure=configure,
    gaussian=True,
    space={"lr": LogUniform(1e-4, 1e-1)},
)
