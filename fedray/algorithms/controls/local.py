"""Local: every client trains alone on its own data, the control that a personal method has to beat.

Nothing is sent in either direction. A client keeps its model, and what its optimizer remembers, from round to round,
so that a run of T rounds of R steps is one training of T·R steps. The model is a weight vector θ or, with
``posterior=gaussian``, a mean-field Gaussian q under the fixed prior N(0, s²I), which descends
Ω(q) = -E_q[log p(D_i|θ)] + ζ KL(q‖N(0, s²I)), the negative evidence lower bound at ζ = 1 (Blundell et al., "Weight
Uncertainty in Neural Networks", ICML 2015, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.averaging.fedavg import Nothing, Point
from fedray.algorithms.bayesian import pfedbayes
from fedray.arrays.optim import Moments, OptimizerState, adam_, initial_state, optimizer_step, zero_moments
from fedray.arrays.rng import Stream
from fedray.bayes.gaussian import Gaussian, draw, kl, sigma
from fedray.bayes.variational import Objective, objective_grad
from fedray.nets.likelihood import predictive
from fedray.nets.model import Model
from fedray.types import Algorithm, Batch, Context, LogUniform, check_types, require


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Settings of one model that is trained at one place."""

    posterior: Literal["point", "gaussian"] = "point"
    """What is learned: one weight vector, or a Gaussian posterior over the weights."""
    lr: float = 0.01
    """Learning rate of the weight vector."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer of the weight vector; the posterior's is Adam."""
    lr_posterior: float = 0.001
    """Adam learning rate of the posterior's mean and of its ρ."""
    prior_sd: float = 0.1
    """Standard deviation s of the prior N(0, s²) of every weight (posterior=gaussian)."""
    zeta: float = 0.01
    """Weight ζ of the divergence between posterior and prior against the data term; 1 is the evidence lower bound,
    under which few examples leave q at the prior. A control has to be as good as it can be."""
    rho_init: float = -2.5
    """Initial ρ of every weight (posterior=gaussian); σ = log(1 + e^ρ)."""

    def __post_init__(self) -> None:
        check_types(self)
        for name, value in (("lr", 0.01), ("lr_posterior", 0.001), ("prior_sd", 0.1)):
            own = getattr(self, name)
            require(own > 0, name, own, "it is positive", f"try {value}")
        require(self.zeta >= 0, "zeta", self.zeta, "a KL weight is not negative", "try 0.01")


class Weights(NamedTuple):
    """A weight vector in training: what a client keeps, and its state in local training."""

    theta: Tensor  # [P]
    memory: OptimizerState


class Posterior(NamedTuple):
    """A Gaussian in training: what a client keeps, and its state in local training."""

    q: Gaussian  # [P]
    q_mu: Moments  # Adam moments of q
    q_rho: Moments
    t: Tensor  # [] Adam steps so far


def client_init(ctx: Context[LocalTraining], server: Point) -> Weights:
    """All clients start alike, as in the federated methods."""
    return Weights(server.theta, initial_state(ctx.cfg.optimizer, server.theta))


def broadcast(ctx: Context[LocalTraining], server: Point | Gaussian, ids: Sequence[int]) -> Nothing:
    return Nothing()


def begin(ctx: Context[LocalTraining], client: Weights | Posterior, down: Nothing, data: Batch) -> Weights | Posterior:
    return client


def step(ctx: Context[LocalTraining], local: Weights, batch: Batch, noise: Tensor) -> tuple[Weights, fedavg.Info]:
    """One step on the mean cross-entropy."""
    nll, grad = fedavg.gradient(ctx.model, local.theta, batch)
    return Weights(*optimizer_step(ctx.cfg.optimizer, ctx.cfg.lr, local.theta, grad, local.memory)), fedavg.Info(nll)


def finish(ctx: Context[LocalTraining], local: Weights | Posterior, data: Batch) -> tuple[Weights | Posterior, Nothing]:
    """Keep everything, upload nothing."""
    return local, Nothing()


def aggregate(
    ctx: Context[LocalTraining], server: Point | Gaussian, ids: Sequence[int], ups: Nothing, n: Tensor
) -> Point | Gaussian:
    """The server knows the common start and learns nothing."""
    return server


def predict(ctx: Context[LocalTraining], model: Weights | Point, x: Tensor, noise: Tensor) -> Tensor:
    return predictive(ctx.model, model.theta[None], x)


def prior(cfg: LocalTraining, model: Model, like: Tensor) -> Gaussian:
    """N(0, s²) of every weight; in the padding the initial q, so that nothing moves there."""
    rho = math.log(math.expm1(cfg.prior_sd)) if cfg.prior_sd < 30 else cfg.prior_sd
    used = torch.arange(model.padded, device=like.device) < model.size
    return Gaussian(torch.zeros_like(like), torch.where(used, rho, cfg.rho_init).to(like.dtype))


def gaussian_server_init(ctx: Context[LocalTraining], rng: Stream) -> Gaussian:
    """pFedBayes's start: μ ~ N(0, 0.1²), ρ = rho_init."""
    model = ctx.model
    mu = model.pad(pfedbayes.INIT_SD * rng.normal([model.padded]))
    return Gaussian(mu, torch.full_like(mu, ctx.cfg.rho_init))


def gaussian_client_init(ctx: Context[LocalTraining], server: Gaussian) -> Posterior:
    zero = zero_moments(server.mu)
    return Posterior(server, zero, zero, torch.zeros(()))


def gaussian_noise_shape(ctx: Context[LocalTraining]) -> tuple[int, ...]:
    return 1, ctx.model.padded


def gaussian_step(
    ctx: Context[LocalTraining], local: Posterior, batch: Batch, noise: Tensor
) -> tuple[Posterior, pfedbayes.Info]:
    """One Adam step of q on Ω, in place."""
    info, t = gaussian_step_(ctx.cfg, ctx.model, local, batch, noise)
    return local._replace(t=t), info


def gaussian_step_(
    cfg: LocalTraining, model: Model, local: Posterior, batch: Batch, noise: Tensor
) -> tuple[pfedbayes.Info, Tensor]:
    """The nll and KL(q‖prior) before the step, in nats, and the number of steps so far."""
    held = prior(cfg, model, local.q.rho)
    divergence = kl(local.q, held)
    nll, grad = objective_grad(Objective(zeta=cfg.zeta), model, local.q, held.mu, sigma(held.rho), batch, noise)
    return pfedbayes.Info(nll, divergence), adam_(local.q, grad, (local.q_mu, local.q_rho), local.t, cfg.lr_posterior)


def gaussian_predict(ctx: Context[LocalTraining], model: Posterior, x: Tensor, noise: Tensor) -> Tensor:
    return predictive(ctx.model, draw(model.q, noise), x)


def configure(record: Algorithm, cfg: LocalTraining) -> Algorithm:
    """A posterior has states and steps of its own."""
    if cfg.posterior == "point":
        return record
    return record._replace(
        server_init=gaussian_server_init,
        client_init=gaussian_client_init,
        step=gaussian_step,
        adapt=gaussian_step,
        noise_shape=gaussian_noise_shape,
        predict_noise=pfedbayes.predict_noise,
        predict_personal=gaussian_predict,
        space={"lr_posterior": LogUniform(5e-4, 5e-3), "zeta": LogUniform(1e-3, 1.0)},
    )


ALGORITHM = Algorithm(
    summary="every client alone: a control, nothing is sent",
    config=LocalTraining,
    server_init=fedavg.server_init,
    client_init=client_init,
    broadcast=broadcast,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=aggregate,
    predict_global=None,
    predict_personal=predict,
    personal="a model that each client trained alone",
    configure=configure,
    control="not federated: every client alone, a bound below personal models",
    adapt=step,
    gaussian=True,
    space={"lr": LogUniform(1e-4, 1e-1)},
)
