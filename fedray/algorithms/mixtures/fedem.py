"""FedEM: M components for all clients; each client mixes them with weights of its own, found by EM.

Marfoq et al., "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021, Algorithm 1. Client i
assumes p_i(y|x) = Σ_m π_im p(y|x; θ_m), and all clients together maximize its likelihood. What is sent is averaged over
clients, component by component; π_i never leaves its client. With one component it is FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.averaging.fedavg import Info
from fedray.arrays.averages import average
from fedray.arrays.minibatches import filled
from fedray.arrays.rng import Stream
from fedray.bayes.particles import starts
from fedray.nets.likelihood import nll_and_grad, predictive
from fedray.nets.model import Model
from fedray.types import Algorithm, Batch, Choice, Context, LogUniform, Sums, by_examples, check_types, require

ROWS = 500  # examples of a shard whose likelihoods are computed at a time


@dataclass(frozen=True, kw_only=True)
class FedEM:
    """Settings of FedEM."""

    components: int = 3
    """Number M of components; a client trains, receives and sends all of them."""
    lr: float = 0.03
    """Learning rate of local descent on each component's share of the mean cross-entropy of a minibatch."""

    def __post_init__(self) -> None:
        check_types(self)
        require(self.components >= 1, "components", self.components, "at least one is needed", "try 3")
        require(self.lr > 0, "lr", self.lr, "a learning rate is positive", "try 0.01")


class Components(NamedTuple):
    """The components: the server's state, what it sends, and what a client uploads."""

    theta: Tensor  # [M, P]


class Client(NamedTuple):
    """What a client keeps between rounds."""

    pi: Tensor  # [M] weights of the components, which sum to 1


class Local(NamedTuple):
    """A client in local training."""

    theta: Tensor  # [M, P]
    q: Tensor  # [M, n] responsibilities: the probability that a component made an example
    pi: Tensor  # [M]


class Mixture(NamedTuple):
    """A personal model."""

    theta: Tensor  # [M, P]
    pi: Tensor  # [M]


def server_init(ctx: Context[FedEM], rng: Stream) -> Components:
    """A start of its own for every component: components that are equal would stay equal."""
    return Components(starts(ctx.model, rng, ctx.cfg.components))


def client_init(ctx: Context[FedEM], server: Components) -> Client:
    return Client(torch.full((ctx.cfg.components,), 1 / ctx.cfg.components))


def broadcast(ctx: Context[FedEM], server: Components, ids: Sequence[int]) -> Components:
    return server


def expect(ctx: Context[FedEM], theta: Tensor, pi: Tensor, data: Batch) -> tuple[Tensor, Tensor]:
    """The E-step on a shard: q_mj ∝ π_m p(y_j | x_j; θ_m), [M, n]; and the new π_m = Σ_j q_mj / n, [M].

    Pieces of the shard that are known to be padding are left out: there q is 0.
    """
    starts = range(0, filled(data), ROWS)
    log_p = [log_likelihood(ctx.model, theta, data.x[at : at + ROWS], data.y[at : at + ROWS]) for at in starts]
    q = (pi.log()[:, None] + torch.cat(log_p, -1)).softmax(0)
    q = torch.nn.functional.pad(q, (0, len(data.y) - q.shape[-1]))
    return q, (q * data.weight).sum(-1) / data.weight.sum()


def log_likelihood(model: Model, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """log p(y_b | x_b; θ_m) [M, B]."""
    log_p = predictive(model, theta, x)
    return log_p.gather(-1, y.expand(len(log_p), -1)[..., None]).squeeze(-1)


def begin(ctx: Context[FedEM], client: Client, down: Components, data: Batch) -> Local:
    return Local(down.theta, *expect(ctx, down.theta, client.pi, data))


def step(ctx: Context[FedEM], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """A step of the M-step: θ_m ← θ_m - lr ∇ Σ_b q_mb nll_b(θ_m) / B for every m; info is the sum over m."""
    share = local.q.index_select(1, batch.place) * (batch.weight / batch.weight.sum())
    nll, grad = nll_and_grad(ctx.model, local.theta, batch.x, batch.y, share)
    return local._replace(theta=local.theta - ctx.cfg.lr * grad), Info(nll.sum())


def adapt(ctx: Context[FedEM], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """Nothing but the E-step, which ``begin`` has made: the components stay as they are; info is the mixture's NLL."""
    log_p = log_likelihood(ctx.model, local.theta, batch.x, batch.y)
    nll = -torch.logsumexp(local.pi.log()[:, None] + log_p, 0)
    return local, Info((nll * batch.weight).sum() / batch.weight.sum())


def finish(ctx: Context[FedEM], local: Local, data: Batch) -> tuple[Client, Components]:
    return Client(local.pi), Components(local.theta)


def absorb(ctx: Context[FedEM], server: Components, sums: Components, n: Tensor) -> Components:
    """θ_m ← Σ_k n_k θ_km / Σ_k n_k."""
    return Components(average(sums.theta, float(n.sum()), server.theta))


def personalize(ctx: Context[FedEM], client: Client, view: Components, data: Batch, noise: Tensor) -> Mixture:
    """The new components with the client's weights after an E-step on them: its own are those of older ones."""
    return Mixture(view.theta, expect(ctx, view.theta, client.pi, data)[1])


def predict_personal(ctx: Context[FedEM], personal: Mixture, x: Tensor, noise: Tensor) -> Tensor:
    """log p(y|x; θ_m): a row for each component, which evaluation weighs with π."""
    return predictive(ctx.model, personal.theta, x)


def shares(ctx: Context[FedEM], personal: Mixture) -> Tensor:
    """π, the weights of those rows."""
    return personal.pi


def components(cfg: FedEM) -> int:
    return cfg.components


ALGORITHM = Algorithm(
    summary="a few models for all clients, which each client mixes with weights of its own",
    config=FedEM,
    server_init=server_init,
    client_init=client_init,
    broadcast=broadcast,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=Sums(absorb, weigh=by_examples),
    predict_global=None,
    predict_personal=predict_personal,
    personalize=personalize,
    shares=shares,
    personal="the latest components, mixed with each client's own weights after an E-step on its training data",
    adapt=adapt,
    particles=components,
    space={"lr": LogUniform(1e-3, 1e-1), "components": Choice((2, 3, 5))},
)
