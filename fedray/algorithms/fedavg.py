"""FedAvg: local descent from the global model, averaged by shard size.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1;
learning rate as tuned by pFedBayes (Table 3). There is no personal model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from fedray.aggregate import weighted_mean
from fedray.likelihood import log_probs, nll_and_grad
from fedray.models import Model
from fedray.optim import Descent, descend, descent
from fedray.rng import Stream
from fedray.types import Algorithm, Batch, Facts, LogUniform, check_choices, require


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Settings of FedAvg."""

    lr: float = 0.01
    """Learning rate of local descent on the mean cross-entropy of a minibatch."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Local optimizer, begun anew in every round."""

    def __post_init__(self) -> None:
        check_choices(self)
        require(self.lr > 0, "lr", self.lr, "a learning rate is positive", "try 0.01")


class Point(NamedTuple):
    """One weight vector: the server's state, what it sends, and what a client uploads."""

    theta: Tensor  # [P]


class Nothing(NamedTuple):
    """What FedAvg's clients keep between rounds."""


class Local(NamedTuple):
    """A client in local training."""

    theta: Tensor  # [P]
    start: Tensor  # [P] the broadcast weights
    memory: Descent  # of the optimizer


class Info(NamedTuple):
    """What a step reports."""

    nll: Tensor  # [] mean over the minibatch, nats


def server_init(cfg: FedAvg, model: Model, facts: Facts, rng: Stream) -> Point:
    return Point(model.init(rng))


def client_init(cfg: FedAvg, model: Model, server: Point) -> Nothing:
    return Nothing()


def broadcast(cfg: FedAvg, model: Model, server: Point, ids: Sequence[int]) -> Point:
    return server


def begin(cfg: FedAvg, model: Model, client: Nothing, down: Point, data: Batch) -> Local:
    return Local(down.theta, down.theta, descent(cfg.optimizer, down.theta))


def step(cfg: FedAvg, model: Model, local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """One step on the mean cross-entropy."""
    nll, grad = gradient(model, local.theta, batch)
    return descended(cfg, local, grad), Info(nll)


def descended(cfg: FedAvg, local: Local, grad: Tensor) -> Local:
    """The client after a step of its optimizer along a gradient [P]; Adam's overwrites ``local``."""
    theta, memory = descend(cfg.optimizer, cfg.lr, local.theta, grad, local.memory)
    return local._replace(theta=theta, memory=memory)


def gradient(model: Model, theta: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean NLL of the minibatch in nats and its gradient [P]."""
    return nll_and_grad(model, theta, batch.x, batch.y, batch.weight / batch.weight.sum())


def finish(cfg: FedAvg, model: Model, local: Local, data: Batch) -> tuple[Nothing, Point]:
    return Nothing(), Point(local.theta)


def aggregate(cfg: FedAvg, model: Model, server: Point, ids: Sequence[int], ups: Point, n: Tensor) -> Point:
    """w ← Σ_k n_k w_k / Σ_k n_k."""
    return Point(weighted_mean(ups.theta, n))


def predict_global(cfg: FedAvg, model: Model, view: Point, x: Tensor, noise: Tensor) -> Tensor:
    return log_probs(model, view.theta[None], x)


ALGORITHM = Algorithm(
    summary="local descent, averaged; one global model",
    config=FedAvg,
    server_init=server_init,
    client_init=client_init,
    broadcast=broadcast,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=aggregate,
    predict_global=predict_global,
    predict_personal=None,
    space={"lr": LogUniform(1e-4, 1e-1)},
)
