"""SVGD as if all data were at one place: what distributed particles are measured against.

Liu and Wang, "Stein Variational Gradient Descent", NeurIPS 2016. The score of the posterior is a sum over clients,
∇log p0 + Σ_k s_k, so the server can take the very steps of centralized SVGD: it sends the particles, each client
returns its s_k at them, and one round is one step. Of a client's local steps each adds a minibatch to the estimate of
s_k, none moves a particle: L steps of b examples are one minibatch of L b. There are no approximate sites and there is
no local drift; the price is an exchange of all particles per step. DSVGD takes its local steps for free: compare at
equal numbers of steps (100 rounds of 10 there are 1,000 rounds here) or at equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.averaging.fedavg import Nothing
from fedray.arrays.rng import Stream
from fedray.bayes.particles import Likelihood, ParticleSettings, network
from fedray.bayes.stein import Bandwidth, Descent, Kernel, Rule, direction, move, rbf
from fedray.nets.likelihood import predictive
from fedray.types import Algorithm, Batch, Choice, Context, LogUniform, Sums, added, require


@dataclass(frozen=True, kw_only=True)
class SVGD(ParticleSettings):
    """Settings of SVGD; the paper leaves most of them open, and then they are the public code's."""

    lr: float = 0.003
    """Step size ε."""
    fudge: float = 1e-6
    """Added to the root of the mean or sum of φ², by which a step is divided."""
    rule: Rule = "rmsprop"
    """What a step is divided by. rmsprop: the root of a running mean of φ² (the public codes, which call it AdaGrad);
    adagrad: the root of the sum of all φ² so far (AdaGrad itself, as the papers say); plain: by nothing. In DSVGD mean
    and sum start anew at every visit."""
    bandwidth: Bandwidth = "median"
    """Bandwidth h of the kernel: median of squared distances / log(M + 1); paper: / log M; code: zeros included."""
    kernel_width: float = added(1.0)
    """Factor of h. Few particles understate σ; a wider kernel looks at them all, and at 16 the σ of a posterior close
    to Gaussian comes out right. Steps must be smaller then (see fedray.truth)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lr", "fudge", "kernel_width"):
            require(getattr(self, name) > 0, name, getattr(self, name), "it is positive", "leave it out")

    @property
    def descent(self) -> Descent:
        """How particles move."""
        return Descent(self.lr, self.fudge, self.rule, self.bandwidth, self.kernel_width)

    def kernel(self, x: Tensor) -> Kernel:
        """The kernel of particles [M, P]."""
        return rbf(x, self.bandwidth, self.kernel_width)


class Server(NamedTuple):
    """The server's state."""

    x: Tensor  # [M, P] particles
    v: Tensor  # [M, P] running mean or sum of φ²
    first: Tensor  # [] 1 before the first step


class Particles(NamedTuple):
    """What the server sends."""

    x: Tensor  # [M, P]


class Local(NamedTuple):
    """A client that estimates its score."""

    x: Tensor  # [M, P]
    s: Tensor  # [M, P] sum of the minibatches' estimates, each as often as it has examples
    examples: Tensor  # [] of all of them


class Up(NamedTuple):
    """What a client uploads."""

    s: Tensor  # [M, P] ∇log p_k at the particles


class Info(NamedTuple):
    """What a step reports."""

    nll: Tensor  # [] mean over the minibatch and the particles, nats


def server_init(ctx: Context[SVGD], rng: Stream) -> Server:
    clients, chosen = ctx.facts.clients, ctx.facts.per_round
    reason = "SVGD on all data asks every client in every round"
    require(chosen == clients, "clients_per_round", chosen, reason, f"use {clients}")
    x = ctx.cfg.initial(ctx.model, rng)
    return Server(x, torch.zeros_like(x), torch.ones(()))


def broadcast(ctx: Context[SVGD], server: Server, ids: Sequence[int]) -> Particles:
    return Particles(server.x)


def begin(ctx: Context[SVGD], client: Nothing, down: Particles, data: Batch) -> Local:
    return Local(down.x, torch.zeros_like(down.x), torch.zeros_like(data.total))


def step(ctx: Context[SVGD], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    return estimate(local, network(ctx.model, batch, ctx.cfg.temperature), batch.weight.sum())


def estimate(local: Local, likelihood: Likelihood, examples: Tensor) -> tuple[Local, Info]:
    """One minibatch of so many ``examples`` more in the estimate of the score at the same particles.

    A pass over the shard ends in a short one: weighed alike, its examples would count more than the others.
    """
    nll, s = likelihood(local.x)
    return local._replace(s=local.s + examples * s, examples=local.examples + examples), Info(nll)


def finish(ctx: Context[SVGD], local: Local, data: Batch) -> tuple[Nothing, Up]:
    return Nothing(), Up(local.s / local.examples)


def absorb(ctx: Context[SVGD], server: Server, sums: Up, n: Tensor) -> Server:
    """One SVGD step on p0 Π_k p_k; where clients failed, the others stand for them: N mean_k s_k is unbiased."""
    cfg = ctx.cfg
    s = (sums.s * (ctx.facts.clients / len(n))).to(server.x.dtype) + cfg.p0(ctx.model.size).score(server.x)
    phi = direction(server.x, s, cfg.kernel(server.x))
    x, v = move(cfg.descent, server.x, server.v, server.first > 0, phi)
    return server._replace(x=x, v=v, first=torch.zeros_like(server.first))


def particles(cfg: ParticleSettings) -> int:
    return cfg.particles


def predict(ctx: Context[ParticleSettings], of: Any, x: Tensor, noise: Tensor) -> Tensor:
    """log p [M, B, C], a row for each particle x [M, P] of a state of any such method."""
    return predictive(ctx.model, of.x, x)


ALGORITHM = Algorithm(
    summary="Stein variational gradient descent on all data: one exact step per round, a reference for DSVGD",
    config=SVGD,
    server_init=server_init,
    client_init=fedavg.client_init,
    broadcast=broadcast,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=Sums(absorb),
    predict_global=predict,
    predict_personal=None,
    defaults={"local_steps": 1},
    particles=particles,
    gaussian=True,
    space={"lr": LogUniform(1e-3, 1e-1), "prior_precision": LogUniform(0.1, 100), "particles": Choice((6, 10, 20, 50))},
)
