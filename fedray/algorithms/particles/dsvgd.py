"""DSVGD: one set of particles stands for the posterior of all clients, moved by Stein variational gradient descent.

Kassab and Simeone, "Federated Generalized Bayesian Learning via Distributed SVGD", 2022; selection of clients by
Yang, Liu and Kassab, "Client Selection for Federated Bayesian Learning", eqs. 4-7, 13, 17-25 and Algorithms 1-2.
Client k moves the particles x towards the tilted posterior p̃_k = q/t_k · p_k. Its site t_k ≈ p_k is a remembered
approximation of its own likelihood (fedray/bayes/sites.py). The moved particles are its personal posterior, too. In
serial mode the server takes over the particles of the round's one client. In parallel mode it averages each particle
over the clients, or runs SVGD itself on the product of the sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.particles.svgd import SVGD, particles, predict
from fedray.arrays import trees
from fedray.arrays.averages import average, increased
from fedray.arrays.minibatches import spaced
from fedray.arrays.rng import Stream
from fedray.bayes.importance import stages
from fedray.bayes.particles import Likelihood, check_layers, curvature, network
from fedray.bayes.sites import BACKENDS, Settings, regression
from fedray.bayes.stein import descend, direction, move
from fedray.types import Algorithm, Batch, Choice, Context, LogUniform, Preset, Sums, require


@dataclass(frozen=True, kw_only=True)
class DSVGD(SVGD):
    """Settings of DSVGD; where the papers leave one open, the default is the public code's."""

    lr: float = 0.001
    """Step size ε; the public code takes 0.001 for networks and 0.05 for logistic regression."""
    mode: Literal["serial", "parallel"] = "parallel"
    """serial: one client per round, whose particles become the server's; parallel: several clients, see merge."""
    merge: Literal["average", "svgd", "kde"] = "average"
    """What the server does in parallel mode. average: the mean of particle x_n over the clients; svgd: SVGD on
    p0 Π_k t_k, which is only as good as the sites, and for networks they are poor; kde: the same with densities that
    the server estimates from the clients' local particles (P-DSVGD: sites kde_*, all clients in every round)."""
    server_steps: int = 50
    """SVGD steps of the server per round (merge svgd and kde)."""
    sites: Literal["site", "particle", "none", "history", "kde_distill", "kde_shared", "kde_code"] = "site"
    """How t_k is kept. site: one Gaussian; particle: one Gaussian per particle, for networks (messages are three times
    as long); none: not at all; history: the particles of all visits; kde_distill: as in the paper, which diverges
    beyond two dimensions; kde_shared: the same with an adaptive width; kde_code: as in the public code, without
    effect."""
    curvature: Literal["ggn", "regression"] = "ggn"
    """Precision of a site: from the Gauss-Newton matrix, or by regression of scores on particles, which needs many more
    particles than parameters."""
    beta: float = 0.0
    """Damping β of a Gaussian site, t_k ← t_k^(1-β) (t_k new)^β. 0 stands for 1 in serial mode and 0.1 in parallel
    mode, where simultaneous corrections would overshoot. Only Gaussian sites can be damped."""
    kde_width: float = 0.55
    """Width λ of the density estimates (kde_distill, kde_code, history)."""
    distil_steps: int = 10
    """SVGD steps L' that fit the local particles (kde_distill, kde_shared, kde_code)."""
    slots: int = 20
    """Visits of one client for which sites=history has room."""
    ksd: Literal["v", "u"] = "v"
    """Estimator of the KSD score: the V-statistic, or the unbiased U-statistic, which can be negative."""
    hip: Literal["paper", "first_order"] = "paper"
    """HIP score of client k. paper: ⟨φ_k, φ'⟩ of the likelihoods' directions; first_order: the same of the direction
    that k would really follow and that of the whole posterior, the first-order decrease of the free energy."""
    hip_offset: bool = True
    """Whether HIP keeps the part that all clients share, as the paper does; near convergence it makes the choice almost
    uniform. --no-hip-offset leaves it out."""
    score_examples: int = 0
    """Examples of each client, evenly spaced in its shard, from which KSD and HIP are computed; 0: all of them, which
    costs more than training the selected client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.kde_width > 0, "kde_width", self.kde_width, "it is positive", "leave it out")
        for name in ("server_steps", "slots", "distil_steps"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least one is needed", "try 20")
        reason = "it is a mean over pairs of particles; without one all scores are 0, and clients are drawn uniformly"
        require(self.ksd == "v" or self.particles > 1, "ksd", self.ksd, reason, "use `ksd=v`, or more `particles`")
        require(self.score_examples >= 0, "score_examples", self.score_examples, "not negative", "use 0, all of them")
        require(0 <= self.beta <= 1, "beta", self.beta, "the damping lies in [0, 1]", "use 0 for the mode's own")

    def site_settings(self, d: int) -> Settings:
        """What the sites need to know, for a model with d parameters."""
        beta = self.beta or (1.0 if self.mode == "serial" else 0.1)
        return Settings(d, self.p0(d).score, beta, self.kde_width, self.slots, self.descent, self.distil_steps)


class Server(NamedTuple):
    """The server's state; it is also what the server sends."""

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
    v: Tensor  # [M, P] running mean or sum of φ²
    first: Tensor  # [] 1 before the first step
    cavity: Any  # q/t_k
    site: Any


class Up(NamedTuple):
    """What a client uploads."""

    x: Tensor  # [M, P] what it made of the global particles, or of its local ones (merge kde); empty (merge svgd)
    sums: Any  # the change of its site, which the server adds to its sums


class Info(NamedTuple):
    """What a step reports."""

    nll: Tensor  # [] mean over the minibatch and the particles, nats
    bandwidth: Tensor  # [] h


def tilted(cfg: DSVGD, d: int, cavity: Any, x: Tensor, s: Tensor) -> Tensor:
    """∇log p̃_k at particles x [M, P] where the likelihood's score is s (eq. 6)."""
    return s + cfg.p0(d).score(x) + BACKENDS[cfg.sites].pull(cfg.site_settings(d), cavity, x)


def check(ctx: Context[DSVGD]) -> None:
    """Raise FedRayError for settings that do not go together, or not with this federation or network."""
    cfg, facts = ctx.cfg, ctx.facts
    serial = cfg.mode == "serial"
    gaussian = BACKENDS[cfg.sites].gaussian
    require(
        not serial or facts.per_round == 1,
        "clients_per_round",
        facts.per_round,
        "serial DSVGD trains one client at a time",
        "use 1, or `mode=parallel`",
    )
    require(
        serial or cfg.merge != "svgd" or gaussian,
        "sites",
        cfg.sites,
        "the server cannot rebuild q from them",
        "use site, or `merge=average`",
    )
    require(
        serial or cfg.merge != "kde" or BACKENDS[cfg.sites].density is not None,
        "sites",
        cfg.sites,
        "merge kde estimates the density of a client's local particles",
        "use kde_distill, kde_shared or kde_code, or `merge=average`",
    )
    require(
        serial or cfg.merge != "kde" or facts.per_round == facts.clients,
        "clients_per_round",
        facts.per_round,
        "merge kde needs the local particles of all clients",
        f"use {facts.clients}",
    )
    require(
        cfg.beta == 0 or gaussian,
        "beta",
        cfg.beta,
        "the sites of these kinds are never damped",
        "leave it out, or use `sites=site`",
    )
    require(
        not serial or cfg.merge == "average",
        "merge",
        cfg.merge,
        "in serial mode the server takes over the particles of the one client",
        "leave it out, or use `mode=parallel`",
    )
    require(
        cfg.sites != "history" or cfg.slots >= facts.rounds,
        "slots",
        cfg.slots,
        f"a client may be visited in each of {facts.rounds} rounds",
        "raise it",
    )
    require(
        facts.unheard == 0 or cfg.sites == "none",
        "train_all",
        True,
        f"in each round {facts.unheard} clients would renew sites that the server never receives",
        "leave it out",
    )
    if gaussian and cfg.curvature == "ggn":
        check_layers(ctx.model)


def server_init(ctx: Context[DSVGD], rng: Stream) -> Server:
    check(ctx)
    x = ctx.cfg.initial(ctx.model, rng)
    return Server(x, BACKENDS[ctx.cfg.sites].shared(ctx.cfg.site_settings(ctx.model.size), x))


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
    kernel = cfg.kernel(local.x)
    s = tilted(cfg, d, local.cavity, local.x, s)
    phi = direction(local.x, s, kernel)
    x, v = move(cfg.descent, local.x, local.v, local.first > 0, phi)
    return local._replace(x=x, v=v, first=torch.zeros_like(local.first)), Info(nll, kernel.h.to(nll.dtype))


def finish(ctx: Context[DSVGD], local: Local, data: Batch) -> tuple[Client, Up]:
    cfg, model = ctx.cfg, ctx.model
    x = local.x
    if not BACKENDS[cfg.sites].gaussian:  # other kinds of site ignore the likelihood at the new particles
        return renew_site(cfg, model.size, local, x, x)
    _, s = network(model, data, cfg.temperature)(x)
    curved = regression(x, s) if cfg.curvature == "regression" else curvature(model, data, x, cfg.temperature)
    return renew_site(cfg, model.size, local, s, curved)


def renew_site(cfg: DSVGD, d: int, local: Local, s: Tensor, curved: Tensor) -> tuple[Client, Up]:
    """Renew t_k from the likelihood's scores and curvature [M, P] at the new particles (eq. 7)."""
    site = BACKENDS[cfg.sites].renew(cfg.site_settings(d), local.site, local.cavity, local.x, s, curved)
    x = site.x if cfg.merge == "kde" else local.x[: 0 if cfg.merge == "svgd" else None]
    return Client(local.x, site, torch.ones_like(local.first)), Up(x, BACKENDS[cfg.sites].share(local.site, site))


def absorb(ctx: Context[DSVGD], server: Server, sums: Up, n: Tensor) -> Server:
    """Add the sites' increments; x ← the mean over the clients, or SVGD on p0 Π_k t_k.

    Every particle x_n is averaged over the clients, as FedAvg averages weights. The mean of a single client's particles
    is that client's. Once every p̃_k equals the posterior, no particle moves.
    """
    cfg = ctx.cfg
    sites = trees.tree_map(increased, server.sums, sums.sums)
    if cfg.merge == "average":
        return Server(average(sums.x, len(n), server.x), sites)
    score = partial(tilted, cfg, ctx.model.size, sites, s=torch.zeros_like(server.x))
    return Server(descend(cfg.descent, server.x, score, cfg.server_steps), sites)


def merge_densities(ctx: Context[DSVGD], server: Server, ids: Sequence[int], ups: Up, n: Tensor) -> Server:
    """SVGD on p0 Π_k t_k, where every t_k is estimated from its client's local particles: they are all needed."""
    cfg = ctx.cfg
    local = ups.x[sorted(range(len(ids)), key=lambda row: ids[row])]
    score = partial(estimated, cfg, ctx.model.size, ctx.facts.clients, server.x, local)
    return server._replace(x=descend(cfg.descent, server.x, score, cfg.server_steps))


def estimated(cfg: DSVGD, d: int, clients: int, q: Tensor, local: Tensor, x: Tensor) -> Tensor:
    """∇log p0 Π_k t_k at x [M, P], t_k = r_k/p0, where each r_k is estimated from its local particles [K, M, P].

    Where clients failed, the others stand for them: N mean_k ∇log t_k. q [M, P] gives kde_shared its width.
    """
    density = BACKENDS[cfg.sites].density
    assert density is not None  # the settings were checked
    prior = cfg.p0(d).score(x)
    each = torch.vmap(partial(density, cfg.site_settings(d), q), (0, None))
    return prior + clients * (each(local, x).mean(0) - prior)


def personalize(ctx: Context[DSVGD], client: Client, view: Server, data: Batch, noise: Tensor) -> Client:
    """The particles of the client's last visit, or the global ones before its first."""
    return client._replace(x=torch.where(client.visited > 0, client.x, view.x))


def scores(ctx: Context[DSVGD], client: Client, down: Server, data: Batch) -> tuple[Tensor, Tensor]:
    """The scores of p_k and of p̃_k [M, P] at the global particles, on the whole shard or ``score_examples`` of it."""
    cfg = ctx.cfg
    _, s = network(ctx.model, spaced(data, cfg.score_examples), cfg.temperature)(down.x)
    return s, tilted(cfg, ctx.model.size, begin(ctx, client, down, data).cavity, down.x, s)


SERIAL = {"algorithm.mode": "serial", "clients_per_round": 1}
TEXT = {
    "local_steps": 10,
    "selection_epsilon": 0.0,
    "algorithm.sites": "kde_distill",
    "algorithm.start": "prior",
    "algorithm.rule": "adagrad",
    "algorithm.bandwidth": "paper",
}
PAPER_TEXT = Preset(
    overrides=SERIAL | TEXT,
    warning="preset paper_text follows the text of the client-selection paper, whose sites are local particles (eq. "
    "7); with more than a few parameters they diverge: use --sites site (one Gaussian) or, for networks, --sites "
    "particle (one Gaussian per particle). Its probabilities have no floor (eqs. 17, 24), and its steps are AdaGrad's",
)


def configure(record: Algorithm, cfg: DSVGD) -> Algorithm:
    """Density estimates need every client's particles; otherwise sums over the clients suffice."""
    return record._replace(aggregate=merge_densities) if cfg.merge == "kde" else record


PARALLEL = {"algorithm.mode": "parallel", "algorithm.merge": "kde", "algorithm.server_steps": 10}
PAPER_PARALLEL = Preset(
    overrides=TEXT | PARALLEL,
    warning="preset paper_parallel is the P-DSVGD with which the client-selection paper compares, as far as its text "
    "says how it works: all clients train, and the server runs SVGD on density estimates of their local particles. It "
    "shares the limits of paper_text",
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
    aggregate=Sums(absorb),
    configure=configure,
    predict_global=predict,
    predict_personal=predict,
    personalize=personalize,
    personal_data=False,
    scores=stages(scores),
    particles=particles,
    gaussian=True,
    space={"lr": LogUniform(1e-3, 1e-1), "prior_precision": LogUniform(0.1, 100), "particles": Choice((6, 10, 20, 50))},
    presets={"paper_text": PAPER_TEXT, "paper_parallel": PAPER_PARALLEL, "public_code": PUBLIC_CODE},
)
