"""DSGLD: Langevin chains that travel from client to client and stay for a trajectory at each.

Ahn, Shahbaba and Welling, "Distributed Stochastic Gradient MCMC", ICML 2014. A chain that visits client k takes steps
θ ← θ + (ε_t/2) [∇log p0 + (1/f_k) s_k] + N(0, ε_t I), s_k = (n_k/b) Σ_b ∇log p(y_b | θ), ε_t = a0 (½ + t)^-γ, t the
steps of that chain so far. f_k is the probability that it visits k; dividing by it makes the mean drift that of the
whole posterior, Σ_k f_k s_k/f_k (eq. 10). M chains are the particles.

In a round the M chains are dealt at random among its S clients, M/S to each, in an order drawn anew; a chain waits for
no other. Where all clients are equally often among the S, as under the policies uniform and round_robin, f_k = 1/N
whatever S is. What several steps in a row at one client cost is a bias of the stationary distribution, of the order of
ε_t N times their number: fewer local steps, or smaller ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.averaging.fedavg import Nothing
from fedray.algorithms.particles import svgd
from fedray.arrays.rng import Stream
from fedray.bayes.particles import Likelihood, ParticleSettings, network
from fedray.types import Algorithm, Batch, Choice, Context, LogUniform, require

SHIFT = 0.5  # of t in ε_t (public code)


@dataclass(frozen=True, kw_only=True)
class DSGLD(ParticleSettings):
    """Settings of DSGLD; those that the paper leaves open are the public code's."""

    a0: float = 5e-4
    """First factor of the step size ε_t = a0 (1/2 + t)^-decay. The more examples, the narrower the posterior: start at
    about 0.5 / training examples in all, 0.0005 for 1,000 (also the public code's) and 0.00005 for 10,000."""
    decay: float = 0.55
    """Exponent γ with which steps shrink; for a bias that vanishes it lies in (1/2, 1]; 0: constant steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.a0 > 0, "a0", self.a0, "a step size is positive", "try 0.0005")
        require(0 <= self.decay <= 1, "decay", self.decay, "an exponent in [0, 1]", "try 0.55")


class Server(NamedTuple):
    """The server's state."""

    x: Tensor  # [S, M/S, P] chains, as many to a client of the round
    t: Tensor  # [S, M/S] steps of each chain so far
    round: Tensor  # [] rounds so far
    key: Tensor  # [] of the stream that deals the chains, a whole number


class Visit(NamedTuple):
    """The chains at a client, going there and coming back."""

    x: Tensor  # [M/S, P]
    t: Tensor  # [M/S]
    chain: Tensor  # [M/S] its number


class View(NamedTuple):
    """What evaluation sees."""

    x: Tensor  # [M, P]


class Info(NamedTuple):
    """What a step reports."""

    nll: Tensor  # [] mean over the minibatch and the chains at the client, nats
    step_size: Tensor  # [] mean ε_t


def server_init(ctx: Context[DSGLD], rng: Stream) -> Server:
    facts = ctx.facts
    cfg = ctx.cfg
    several = facts.per_round
    reason = f"chains are dealt evenly among {facts.per_round} clients per round"
    require(cfg.particles % several == 0, "particles", cfg.particles, reason, f"use a multiple of {several}")
    reason = f"there are no chains for {facts.unheard} clients more"
    require(facts.unheard == 0, "train_all", True, reason, "leave it out")
    x = cfg.initial(ctx.model, rng).view(several, -1, ctx.model.padded)
    return Server(x, torch.zeros(x.shape[:2]), torch.zeros(()), rng.seed())


def broadcast(ctx: Context[DSGLD], server: Server, ids: Sequence[int]) -> Visit:
    """Deal the chains; with fewer clients than there are shares, some chains stay."""
    shares, size, padded = server.x.shape
    stream = Stream(int(server.key), "chains", 0, int(server.round))
    dealt = stream.permutation(shares * size).view(shares, size)[: len(ids)]
    return Visit(server.x.view(-1, padded)[dealt], server.t.view(-1)[dealt], dealt.float())


def publish(ctx: Context[DSGLD], server: Server) -> View:
    return View(server.x.flatten(0, 1))


def begin(ctx: Context[DSGLD], client: Nothing, down: Visit, data: Batch) -> Visit:
    return down


def noise_shape(ctx: Context[DSGLD]) -> tuple[int, ...]:
    return ctx.cfg.particles // ctx.facts.per_round, ctx.model.padded


def step(ctx: Context[DSGLD], local: Visit, batch: Batch, noise: Tensor) -> tuple[Visit, Info]:
    likelihood = network(ctx.model, batch, ctx.cfg.temperature)
    return langevin(ctx.cfg, ctx.model.size, ctx.facts.clients, local, likelihood, noise)


def langevin(
    cfg: DSGLD, d: int, clients: int, visit: Visit, likelihood: Likelihood, noise: Tensor
) -> tuple[Visit, Info]:
    """One Langevin step of every chain at the client, from standard normals [M/S, P]; 1/f_k is ``clients``."""
    x, t, _ = visit
    nll, s = likelihood(x)
    # A power differs in its last bit where it stands elsewhere in a vector; exp and log do not (design.md, 4).
    eps = cfg.a0 * (-cfg.decay * (SHIFT + t).log()).exp()
    noise = torch.where(torch.arange(x.shape[-1], device=x.device) < d, noise, 0)  # the padding stays zero
    drift = cfg.p0(d).score(x) + clients * s
    x = x + (eps / 2)[:, None] * drift + eps.sqrt()[:, None] * noise
    return visit._replace(x=x, t=t + 1), Info(nll, eps.mean())


def finish(ctx: Context[DSGLD], local: Visit, data: Batch) -> tuple[Nothing, Visit]:
    return Nothing(), local


def aggregate(ctx: Context[DSGLD], server: Server, ids: Sequence[int], ups: Visit, n: Tensor) -> Server:
    """The chains come home; those of a client that failed are where they were."""
    returned = ups.chain.flatten().long()
    x = server.x.flatten(0, 1).index_copy(0, returned, ups.x.flatten(0, 1))
    t = server.t.flatten().index_copy(0, returned, ups.t.flatten())
    return server._replace(x=x.view_as(server.x), t=t.view_as(server.t), round=server.round + 1)


ALGORITHM = Algorithm(
    summary="stochastic gradient Langevin chains that travel between clients; one global posterior",
    config=DSGLD,
    server_init=server_init,
    client_init=fedavg.client_init,
    broadcast=broadcast,
    publish=publish,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=aggregate,
    predict_global=svgd.predict,
    predict_personal=None,
    noise_shape=noise_shape,
    down_per_client=True,
    particles=svgd.particles,
    space={"a0": LogUniform(1e-6, 1e-2), "prior_precision": LogUniform(0.1, 100), "particles": Choice((10, 20, 50))},
)
