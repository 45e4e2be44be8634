"""PVI: the posterior as the prior times one Gaussian site per client, each refined where its data are.

Bui, Nguyen, Swaroop and Turner, "Partitioned Variational Inference", 2018; Ashman et al., "Partitioned Variational
Inference: A Framework for Probabilistic Federated Learning", 2022, Algorithm 1. q = p0 Π_k t_k, all of them Gaussians
with independent parameters, kept as natural parameters: Λ (precision) and η = Λμ. Client k minimizes its local free
energy -E_q[log p_k] + KL(q ‖ q/t_k) over q, and its site becomes t_k ← t_k^(1-ρ) (q_k/(q/t_k))^ρ. With one client per
round that is sequential PVI; with several it is synchronous. Sites are exact for Gaussian likelihoods.

Precisions stay positive because sites may not take any away: where q_k is wider than the cavity q/t_k, Λ_k is 0, and
η_k is such that q_k keeps its mean. With ρ in [0, 1], q is then never wider than the prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedray.arrays import trees
from fedray.arrays.averages import increased
from fedray.arrays.optim import Moments, adam_, zero_moments
from fedray.arrays.rng import Stream
from fedray.bayes.gaussian import Gaussian, draw, inverse_sigma, sigma, sigma_and_slope, where
from fedray.bayes.particles import Likelihood, network
from fedray.bayes.sites import Natural
from fedray.nets.likelihood import predictive
from fedray.types import Algorithm, Batch, Context, LogUniform, Sums, check_types, require


@dataclass(frozen=True, kw_only=True)
class PVI:
    """Settings of PVI."""

    prior_precision: float = 1.0
    """Precision of the Gaussian prior N(0, 1/precision) of every parameter."""
    lr: float = 0.005
    """Adam learning rate of the local free energy, in mean and ρ; σ = log(1 + e^ρ). Adam starts anew every round."""
    mc_samples: int = 1
    """Weight vectors drawn per local step."""
    damping: float = 0.0
    """Damping ρ of a client's change of its site; 0: 1 / clients per round, the papers' choice for synchronous PVI,
    which is 1 in sequential PVI, where one client trains per round."""
    sd_init: float = 0.1
    """Standard deviation σ from which the first round's optimization starts, around the network's usual initial
    weights. Sites start at 1 all the same, so q starts as the prior; but what the first round does not widen again is
    in them: a small σ learns fast at first and is forgotten slowly."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("prior_precision", "lr", "sd_init"):
            require(getattr(self, name) > 0, name, getattr(self, name), "it is positive", "leave it out")
        require(self.mc_samples >= 1, "mc_samples", self.mc_samples, "at least one is needed", "try 1")
        reason = "above 1 it overshoots, and precisions could turn negative"
        require(0 <= self.damping <= 1, "damping", self.damping, reason, "use 0 for 1 / clients per round")


class Server(NamedTuple):
    """The server's state."""

    q: Natural  # [P]
    fresh: Tensor  # [] 1 while q is the prior
    start: Gaussian  # [P] from which the first round's optimization starts; every client knows it


class Down(NamedTuple):
    """What the server sends."""

    q: Natural  # [P]
    fresh: Tensor  # [] 1 while q is the prior


class Client(NamedTuple):
    """What a client keeps between rounds."""

    q: Gaussian  # [P] minimizer q_k of the last local free energy; the server's start at first
    site: Natural  # [P] t_k
    visited: Tensor  # [] 1 once it has trained


class Local(NamedTuple):
    """A client in local training."""

    q: Gaussian  # [P]
    cavity: Natural  # [P] q/t_k
    site: Natural  # [P]
    mu: Moments  # [P] Adam's
    rho: Moments
    t: Tensor  # [] Adam's steps so far


class Info(NamedTuple):
    """What a step reports."""

    nll: Tensor  # [] mean over the minibatch and its draws, nats


def standard(q: Natural) -> Gaussian:
    """The same distribution by mean η/Λ and ρ of σ = Λ^(-1/2)."""
    return Gaussian(q.eta / q.lam, inverse_sigma(q.lam.rsqrt()))


def server_init(ctx: Context[PVI], rng: Stream) -> Server:
    facts = ctx.facts
    cfg = ctx.cfg
    reason = f"{facts.unheard} clients a round would renew sites of which the server never hears"
    require(facts.unheard == 0, "train_all", True, reason, "leave it out")
    mu = ctx.model.init(rng)
    prior = Natural(torch.full_like(mu, cfg.prior_precision), torch.zeros_like(mu))
    start = Gaussian(mu, inverse_sigma(torch.full_like(mu, cfg.sd_init)))
    return Server(prior, torch.ones(()), start)


def client_init(ctx: Context[PVI], server: Server) -> Client:
    zero = torch.zeros_like(server.q.lam)
    return Client(server.start, Natural(zero, zero), torch.zeros(()))


def broadcast(ctx: Context[PVI], server: Server, ids: Sequence[int]) -> Down:
    return Down(server.q, server.fresh)


def publish(ctx: Context[PVI], server: Server) -> Gaussian:
    return standard(server.q)


def begin(ctx: Context[PVI], client: Client, down: Down, data: Batch) -> Local:
    """The cavity is fixed for the visit; the optimization starts at q, in the first round at the common start."""
    # Other clients' sites take no precision away; the bound undoes the rounding of sums.
    lam = (down.q.lam - client.site.lam).clamp_min(ctx.cfg.prior_precision)
    cavity = Natural(lam, down.q.eta - client.site.eta)
    q = where(down.fresh > 0, client.q, standard(down.q))
    zero = zero_moments(lam)
    return Local(q, cavity, client.site, zero, zero, torch.zeros_like(down.fresh))


def noise_shape(ctx: Context[PVI]) -> tuple[int, ...]:
    return ctx.cfg.mc_samples, ctx.model.padded


def step(ctx: Context[PVI], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    return free_energy_step(ctx.cfg, local, network(ctx.model, batch), noise)


def free_energy_step(cfg: PVI, local: Local, likelihood: Likelihood, noise: Tensor) -> tuple[Local, Info]:
    """One Adam step, in place, on the free energy -E_q[log p_k] + KL(q‖cavity), from draws μ + σ ε with ε [K, P].

    dμ = Λ_c μ - η_c - E[s];  dσ = Λ_c σ - 1/σ - E[s ε], s the likelihood's score at a draw;  dρ = dσ sigmoid(ρ).
    """
    (mu, rho), cavity = local.q, local.cavity
    sd, slope = sigma_and_slope(rho)
    nll, s = likelihood(torch.addcmul(mu, sd, noise))
    dmu = cavity.lam * mu - cavity.eta - s.mean(0)
    dsd = cavity.lam * sd - sd.reciprocal() - (s * noise).mean(0)
    t = adam_([mu, rho], [dmu, dsd * slope], [local.mu, local.rho], local.t, cfg.lr)
    return local._replace(t=t), Info(nll)


def finish(ctx: Context[PVI], local: Local, data: Batch) -> tuple[Client, Natural]:
    """Renew t_k and upload how its natural parameters changed."""
    cavity, old = local.cavity, local.site
    lam = (sigma(local.q.rho).square().reciprocal() - cavity.lam).clamp_min(0)
    eta = (cavity.lam + lam) * local.q.mu - cavity.eta
    damping = ctx.cfg.damping or 1 / ctx.facts.per_round
    site = Natural(torch.lerp(old.lam, lam, damping), torch.lerp(old.eta, eta, damping))
    up = Natural(site.lam - old.lam, site.eta - old.eta)
    return Client(local.q, site, torch.ones_like(local.t)), up


def absorb(ctx: Context[PVI], server: Server, sums: Natural, n: Tensor) -> Server:
    """q ← q Π_k t_k new / t_k old."""
    return server._replace(q=trees.tree_map(increased, server.q, sums), fresh=torch.zeros_like(server.fresh))


def predict_noise(ctx: Context[PVI], samples: int) -> tuple[int, ...]:
    return samples, ctx.model.padded


def predict(ctx: Context[PVI], q: Gaussian, x: Tensor, noise: Tensor) -> Tensor:
    return predictive(ctx.model, draw(q, noise), x)


def personalize(ctx: Context[PVI], client: Client, view: Gaussian, data: Batch, noise: Tensor) -> Gaussian:
    """q_k of the last visit; before the first, q."""
    return where(client.visited > 0, client.q, view)


ALGORITHM = Algorithm(
    summary="partitioned variational inference: one Gaussian posterior, a Gaussian site per client",
    config=PVI,
    server_init=server_init,
    client_init=client_init,
    broadcast=broadcast,
    publish=publish,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=Sums(absorb),
    predict_global=predict,
    predict_personal=predict,
    personalize=personalize,
    personal_data=False,
    personal="each client's minimizer of its local free energy, before damping",
    noise_shape=noise_shape,
    predict_noise=predict_noise,
    gaussian=True,
    space={"lr": LogUniform(1e-3, 1e-1), "prior_precision": LogUniform(0.1, 100), "damping": LogUniform(0.01, 1)},
)
