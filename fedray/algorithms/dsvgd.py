"""DSVGD: one set of particles stands for the posterior of all clients, moved by Stein variational gradient descent.

Kassab and Simeone, "Federated Generalized Bayesian Learning via Distributed SVGD", 2022; selection of clients by
Yang, Liu and Kassab, "Client Selection for Federated Bayesian Learning", eqs. 4-7, 13, 17-25 and Algorithms 1-2.
Client k moves the particles x towards p̃_k = q/t_k · p_k, t_k ≈ p_k its site (fedray.sites); they are its personal
posterior, too. Serial: the server takes over the particles of the round's one client. Parallel: it averages what the
clients made of each particle, or runs SVGD itself on p0 Π_k t_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.svgd import SVGD, particles, predict
from fedray.arrays import trees
from fedray.arrays.averages import increased, mean
from fedray.arrays.minibatches import spaced
from fedray.arrays.rng import Stream
from fedray.bayes.importance import stages
from fedray.bayes.particles import Likelihood, check_layers, curvature, network
from fedray.bayes.sites import BACKENDS, Settings, regression
from fedray.bayes.stein import descend, direction, move, rbf
from fedray.types import Algorithm, Batch, Choice, Context, LogUniform, Preset, require


@dataclass(frozen=True, kw_only=True)
class DSVGD(SVGD):
    """Settings of DSVGD; the papers leave most of them open, and then they are the public code's."""

    lr: float = 0.001
    """Step size ε; 0.001 is the public code's for networks, 0.05 its for logistic regression."""
    mode: Literal["serial", "parallel"] = "parallel"
    """serial: one client per round, whose particles become the server's; parallel: any number, see merge."""
    merge: Literal["average", "svgd"] = "average"
    """What the server does in parallel mode: average: x_n is the mean of what the clients made of x_n; svgd: SVGD
    on p0 Π_k t_k, which holds what the sites do, and for networks that is little."""
    server_steps: int = 50
    """SVGD steps of the server per round (merge svgd)."""
    sites: Literal["site", "particle", "none", "history", "kde_distill", "kde_shared", "kde_code"] = "site"
    """How t_k is kept: site: as a Gaussian; particle: as one for every particle, for networks, in messages three times
    as long; none: not; history: as the particles of all visits; kde_distill: as in the paper, diverges beyond two
    dimensions; kde_shared: with an adaptive width; kde_code: the public code's, inert."""
    curvature: Literal["ggn", "regression"] = "ggn"
    """Precision of a site from the Gauss-Newton matrix, or by regressing scores on particles (needs M above P)."""
    beta: float = 0.0
    """Damping β of a Gaussian site, t_k ← t_k^(1-β) (t_k new)^β; 0: 1 in serial mode, 0.1 in parallel, where clients
    that all make up for each other at once would overshoot. Other sites are not damped, and refuse it."""
    kde_width: float = 0.55
    """Width λ of the density estimates (kde_distill, kde_code, history)."""
    distil_steps: int = 10
    """SVGD steps L' that fit the local particles (kde_distill, kde_shared, kde_code)."""
    slots: int = 20
    """Visits of one client that history has room for."""
    ksd: Literal["v", "u"] = "v"
    """Estimator of the KSD score: the V-statistic, or the unbiased U-statistic, which can be negative."""
    hip: Literal["paper", "first_order"] = "paper"
    """HIP score of client k: the likelihoods' ⟨φ_k, φ'⟩, or with the direction that k would really follow, and that
    of the whole posterior: the first-order decrease of the free energy."""
    hip_offset: bool = True
    """Keep the part of HIP that all clients share; near convergence it makes the choice almost uniform, and this flag
    leaves it out."""
    score_examples: int = 0
    """Examples of each client by which KSD and HIP judge it, evenly spaced in its shard; 0: all of them, which costs
    more than the training of the one who is chosen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.kde_width > 0, "kde_width", self.kde_width, "it is positive", "leave it out")
        for name in ("server_steps", "slots", "distil_steps"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least one is needed", "try 20")
        require(self.score_examples >= 0, "score_examples", self.score_examples, "not negative", "use 0, all of them")
        require(0 <= self.beta <= 1, "beta", self.beta, "the damping lies in [0, 1]", "use 0 for the mode's own")

    def site_settings(self, d: int) -> Settings:
        """What the sites need to know, for a model with d parameters."""
        beta = self.beta or (1.0 if self.mode == "serial" else 0.1)
        return Settings(d, self.p0(d).score, beta, self.kde_width, self.slots, self.descent, self.distil_steps)


class Server(NamedTuple):
    """The server's state, and what it sends."""

    x: Tensor  # [M, P] global particles
    sums: Any  # of all sites


class Client(NamedTuple):
    """What a client keeps between rounds."""

    x: Tensor  # [M, P] particles of its tilted posterior
    site: Any
    visited: Tensor  # [] 1 once it has trained


class Local(NamedTuple):
    """A client in local training."""

    x: Tensor  # [M, P]
    v: Tensor  # [M, P] running mean of φ²
    first: Tensor  # [] 1 before the first step
    cavity: Any  # q/t_k
    site: Any


class Up(NamedTuple):
    """What a client uploads."""

    x: Tensor  # [M, P]; empty where the server does not look at it
    sums: Any  # what its site adds to the sums


class Info(NamedTuple):
    """What a step reports."""

    nll: Tensor  # [] mean over the minibatch and the particles, nats
    bandwidth: Tensor  # [] h


def tilted(cfg: DSVGD, d: int, cavity: Any, x: Tensor, s: Tensor) -> Tensor:
    """∇log p̃_k at particles x [M, P] where the likelihood's score is s (eq. 6)."""
    return s + cfg.p0(d).score(x) + BACKENDS[cfg.sites].pull(cfg.site_settings(d), cavity, x)


def server_init(ctx: Context[DSVGD], rng: Stream) -> Server:
    cfg, model, facts = ctx.cfg, ctx.model, ctx.facts
    backend = BACKENDS[cfg.sites]
    serial = cfg.mode == "serial"
    several = facts.per_round
    reason = "serial DSVGD trains one client at a time"
    require(not serial or several == 1, "clients_per_round", several, reason, "use 1, or `mode=parallel`")
    possible = serial or cfg.merge == "average" or backend.gaussian
    require(possible, "sites", cfg.sites, "the server cannot rebuild q from them", "use site, or `merge=average`")
    reason = "the sites of these kinds are never damped"
    require(cfg.beta == 0 or backend.gaussian, "beta", cfg.beta, reason, "leave it out, or use `sites=site`")
    reason = "in serial mode the server takes over the particles of the one client"
    require(not serial or cfg.merge == "average", "merge", cfg.merge, reason, "leave it out, or use `mode=parallel`")
    reason = f"a client may be visited in each of {facts.rounds} rounds"
    require(cfg.sites != "history" or cfg.slots >= facts.rounds, "slots", cfg.slots, reason, "raise it")
    reason = f"{facts.unheard} clients a round would renew sites of which the server never hears"
    require(facts.unheard == 0 or cfg.sites == "none", "train_all", True, reason, "leave it out")
    if backend.gaussian and cfg.curvature == "ggn":
        check_layers(model, "curvature", "ggn")
    x = cfg.initial(model, rng)
    return Server(x, backend.shared(cfg.site_settings(model.size), x))


def client_init(ctx: Context[DSVGD], server: Server) -> Client:
    site = BACKENDS[ctx.cfg.sites].own(ctx.cfg.site_settings(ctx.model.size), server.x)
    return Client(server.x, site, torch.zeros(()))


def broadcast(ctx: Context[DSVGD], server: Server, ids: Sequence[int]) -> Server:
    return server


def begin(ctx: Context[DSVGD], client: Client, down: Server, data: Batch) -> Local:
    """x ← the global particles; the cavity q/t_k is fixed for the visit."""
    cavity = BACKENDS[ctx.cfg.sites].cavity(ctx.cfg.site_settings(ctx.model.size), down.sums, client.site, down.x)
    return Local(down.x, torch.zeros_like(down.x), torch.ones_like(client.visited), cavity, client.site)


def step(ctx: Context[DSVGD], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    return svgd_step(ctx.cfg, ctx.model.size, local, network(ctx.model, batch, ctx.cfg.temperature))


def svgd_step(cfg: DSVGD, d: int, local: Local, likelihood: Likelihood) -> tuple[Local, Info]:
    """One SVGD step on p̃_k (eq. 13)."""
    nll, s = likelihood(local.x)
    kernel = rbf(local.x, cfg.bandwidth)
    s = tilted(cfg, d, local.cavity, local.x, s)
    phi = direction(local.x, s, kernel)
    x, v = move(cfg.descent, local.x, local.v, local.first > 0, phi)
    return local._replace(x=x, v=v, first=torch.zeros_like(local.first)), Info(nll, kernel.h.to(nll.dtype))


def finish(ctx: Context[DSVGD], local: Local, data: Batch) -> tuple[Client, Up]:
    cfg, model = ctx.cfg, ctx.model
    x = local.x
    if not BACKENDS[cfg.sites].gaussian:  # no other looks at the likelihood again
        return renew_site(cfg, model.size, local, x, x)
    _, s = network(model, data, cfg.temperature)(x)
    curved = regression(x, s) if cfg.curvature == "regression" else curvature(model, data, x, cfg.temperature)
    return renew_site(cfg, model.size, local, s, curved)


def renew_site(cfg: DSVGD, d: int, local: Local, s: Tensor, curved: Tensor) -> tuple[Client, Up]:
    """Renew t_k from the likelihood's scores and curvature [M, P] at the new particles (eq. 7)."""
    site = BACKENDS[cfg.sites].renew(cfg.site_settings(d), local.site, local.cavity, local.x, s, curved)
    unused = cfg.mode == "parallel" and cfg.merge == "svgd"
    up = Up(local.x[:0] if unused else local.x, BACKENDS[cfg.sites].share(local.site, site))
    return Client(local.x, site, torch.ones_like(local.first)), up


def aggregate(ctx: Context[DSVGD], server: Server, ids: Sequence[int], ups: Up, n: Tensor) -> Server:
    """Add the sites' increments in client order; x ← the clients' mean, which of one is its own, or SVGD on p0 Π_k t_k.

    x_n is the mean of what clients made of the same x_n, as FedAvg's weights are; where every p̃_k is the posterior,
    no particle moves any more.
    """
    cfg = ctx.cfg
    order = sorted(range(len(ids)), key=lambda row: ids[row])
    ups = trees.rows(ups, order)
    sums = trees.tree_map(increased, server.sums, ups.sums)
    if cfg.mode == "serial" or cfg.merge == "average":
        return Server(mean(ups.x), sums)
    still = torch.zeros_like(server.x)
    x = descend(cfg.descent, server.x, lambda x: tilted(cfg, ctx.model.size, sums, x, still), cfg.server_steps)
    return Server(x, sums)


def personalize(ctx: Context[DSVGD], client: Client, view: Server, data: Batch, noise: Tensor) -> Client:
    """The particles of the last visit; before the first, the global ones."""
    return client._replace(x=torch.where(client.visited > 0, client.x, view.x))


def scores(ctx: Context[DSVGD], client: Client, down: Server, data: Batch) -> tuple[Tensor, Tensor]:
    """The scores of p_k and of p̃_k [M, P] at the global particles, on the whole shard or ``score_examples`` of it."""
    cfg = ctx.cfg
    _, s = network(ctx.model, spaced(data, cfg.score_examples), cfg.temperature)(down.x)
    return s, tilted(cfg, ctx.model.size, begin(ctx, client, down, data).cavity, down.x, s)


SERIAL = {"algorithm.mode": "serial", "clients_per_round": 1}
PAPER_TEXT = Preset(
    overrides=SERIAL | {"local_steps": 10, "algorithm.sites": "kde_distill", "algorithm.start": "prior"},
    warning="preset paper_text follows the text of the client-selection paper, whose sites are local particles (eq. "
    "7); with more than a few parameters they diverge: --sites site keeps Gaussians in their place, --sites particle "
    "one for each particle of a network",
)
CODE = {"local_steps": 200, "selection": "round_robin", "algorithm.bandwidth": "code"}
PUBLIC_CODE = Preset(
    overrides=SERIAL | CODE | {"algorithm.sites": "kde_code", "algorithm.distil_steps": 200},
    warning="preset public_code repeats the public code of DSVGD, whose sites have a gradient of zero beyond about 20 "
    "parameters: every client then trains on the prior and its own data alone, from the particles of the one before; "
    "for its logistic regression add --particles 6 --lr 0.05 --prior gamma",
)

ALGORITHM = Algorithm(
    summary="distributed Stein variational gradient descent; the particles are the posterior",
    config=DSVGD,
    server_init=server_init,
    client_init=client_init,
    broadcast=broadcast,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=aggregate,
    predict_global=predict,
    predict_personal=predict,
    personalize=personalize,
    scores=stages(scores),
    particles=particles,
    space={"lr": LogUniform(1e-3, 1e-1), "prior_precision": LogUniform(0.1, 100), "particles": Choice((6, 10, 20, 50))},
    presets={"paper_text": PAPER_TEXT, "public_code": PUBLIC_CODE},
)
