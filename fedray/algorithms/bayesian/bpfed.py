"""BPFed: pFedBayes with personal layers, whose prior is what the client itself believed after its last round.

"Bayesian Personalized Federated Learning with Shared and Personalized Uncertainty Representations". Its formulas are
missing from the text that we have; objective and continual prior are reconstructed from its prose
(docs/methods/bpfed.md): q_i(z, s) with personal layers z and shared ones s,
F_i = -E_q[log p(D_i|z, s)] + ζ KL(q_i‖p_i), where p_i(z) is the client's last q_i(z) and p_i(s) the average of the
shared distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.bayesian import pfedbayes
from fedray.algorithms.bayesian.pfedbayes import Info
from fedray.arrays.optim import zero_moments
from fedray.arrays.rng import Stream
from fedray.bayes.gaussian import Gaussian, sigma_and_slope, where
from fedray.types import Batch, Context, LogUniform, Sums


@dataclass(frozen=True, kw_only=True)
class BPFed(pfedbayes.PFedBayes):
    """Settings of BPFed."""

    zeta: float = 1.0
    """Weight ζ of the divergence between q_i and p_i against the data term; 1 is the evidence lower bound."""
    personal: tuple[str, ...] = ("head",)
    """Layers that stay with their client: head, body, or single ones: layer1, layer1.bias, ...; with few examples
    head.bias did better than head on test data (docs/methods/bpfed.md)."""
    sync: bool = True
    """Whether the average overwrites the shared layers of q_i at the start of a round; its optimizer then starts anew.
    With --no-sync they stay as the client trained them."""
    prior: Literal["moving", "carried", "fixed"] = "moving"
    """What q_i is held to. moving: the client's copy of the prior, which follows q_i by steps of its own and starts
    every round at the average and, in personal layers, at q_i; carried: the same, but in personal layers it goes on
    from where it was; fixed: the prior at the start of the round."""
    upload: Literal["prior", "posterior"] = "prior"
    """What of the shared layers is uploaded: the client's moved copy of the prior, or q_i itself."""
    predict_with: Literal["kept", "average"] = "kept"
    """Shared layers of the personal model: as the client trained them, or the latest average."""


class Client(NamedTuple):
    """What a client keeps between rounds."""

    posterior: pfedbayes.Client
    prior: Gaussian  # [k] the client's copy of the prior of the personal layers; empty unless carried


class Local(NamedTuple):
    """A client in local training."""

    client: pfedbayes.Client
    w: Gaussian  # [P] the client's copy of the prior
    prior: Gaussian  # [P] of the round; empty where q_i is held to the moving copy


def take(q: Gaussian, index: Tensor) -> Gaussian:
    """The parameters of a Gaussian [P] in the given places [k]."""
    return Gaussian(q.mu[index], q.rho[index])


def put(q: Gaussian, index: Tensor, part: Gaussian) -> Gaussian:
    """A Gaussian [P] with the given places [k] overwritten."""
    return Gaussian(*(whole.index_copy(0, index, some) for whole, some in zip(q, part, strict=True)))


def server_init(ctx: Context[BPFed], rng: Stream) -> Gaussian:
    """pFedBayes's start; refuses layers that the network does not have."""
    ctx.model.part(ctx.cfg.personal)
    return pfedbayes.server_init(ctx, rng)


def client_init(ctx: Context[BPFed], server: Gaussian) -> Client:
    return _rested(ctx, pfedbayes.client_init(ctx, server), server)


def _rested(ctx: Context[BPFed], client: pfedbayes.Client, w: Gaussian) -> Client:
    """The client between rounds: without the moments of q_i, where its optimizer starts anew."""
    cfg = ctx.cfg
    if cfg.sync:
        empty = zero_moments(client.q.mu[:0])
        client = client._replace(q_mu=empty, q_rho=empty)
    own = ctx.model.part(cfg.personal, client.q.mu.device)
    return Client(client, take(w, own if cfg.prior == "carried" else own[:0]))


def broadcast(ctx: Context[BPFed], server: Gaussian, ids: Sequence[int]) -> Gaussian:
    return take(server, ctx.model.rest(ctx.cfg.personal, server.mu.device))


def begin(ctx: Context[BPFed], client: Client, down: Gaussian, data: Batch) -> Local:
    """w.s ← u, w.z ← q.z or as carried and, with ``sync``, q.s ← u."""
    cfg, device = ctx.cfg, down.mu.device
    state = client.posterior
    q = put(state.q, ctx.model.rest(cfg.personal, device), down)
    w = put(q, ctx.model.part(cfg.personal, device), client.prior) if cfg.prior == "carried" else q
    if not cfg.sync:
        state = state._replace(q=where(state.q_t == 0, q, state.q))  # nothing else has trained its shared layers
    else:
        zero = zero_moments(w.mu)
        state = state._replace(q=q, q_mu=zero, q_rho=zero, q_t=torch.zeros_like(state.q_t))
    prior = w if cfg.prior == "fixed" else Gaussian(w.mu[:0], w.rho[:0])
    return Local(*pfedbayes.localized(ctx, state, w), prior)


def step(ctx: Context[BPFed], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """pFedBayes's step of all layers."""
    moving = pfedbayes.Local(local.client, local.w)
    (client, w), info = pfedbayes.train(ctx, moving, _prior(ctx, local), batch, noise)
    return local._replace(client=client, w=w), info


def _prior(ctx: Context[BPFed], local: Local) -> Gaussian:
    """What q_i is held to."""
    return local.prior if ctx.cfg.prior == "fixed" else local.w


def adapt(ctx: Context[BPFed], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """A step of the personal layers alone: q.s stays, so that each step of q.z is one under the same body, and w.s.

    Without ``sync``, too, the body is the average: it comes before the first step, and nothing else has trained it.
    """
    client, w, shared = local.client, local.w, ctx.model.rest(ctx.cfg.personal, local.w.mu.device)
    w_s, prior, new = take(w, shared), _prior(ctx, local), client.q_t == 0
    q_s = where(new, w_s, take(client.q, shared))
    client = client._replace(q=put(client.q, shared, q_s))
    prior_sd, _ = sigma_and_slope(prior.rho)
    nll = noise.new_zeros(())
    for eps in noise:
        client, nll = pfedbayes.personal_steps(ctx, client, (prior.mu, prior_sd), batch, eps[None])
        client = client._replace(q=put(client.q, shared, q_s))
    kl, t = pfedbayes.global_step_(ctx.cfg, client, w, sigma_and_slope(w.rho))
    return local._replace(client=client._replace(w_t=t), w=put(w, shared, w_s)), Info(nll, kl)


def finish(ctx: Context[BPFed], local: Local, data: Batch) -> tuple[Client, Gaussian]:
    """Upload shared layers, never personal ones."""
    client, w = pfedbayes.finish(ctx, pfedbayes.Local(local.client, local.w), data)
    shared = ctx.model.rest(ctx.cfg.personal, local.w.mu.device)
    return _rested(ctx, client, local.w), take(w if ctx.cfg.upload == "prior" else client.q, shared)


def absorb(ctx: Context[BPFed], server: Gaussian, sums: pfedbayes.Averaged, n: Tensor) -> Gaussian:
    """pFedBayes's average of the shared layers; the initial personal ones stay as they were."""
    shared = ctx.model.rest(ctx.cfg.personal, server.mu.device)
    return put(server, shared, pfedbayes.absorb(ctx, take(server, shared), sums, n))


def personalize(ctx: Context[BPFed], client: Client, view: Gaussian, data: Batch, noise: Tensor) -> pfedbayes.Client:
    """q.z on the body that the client has trained, or on u; before its first round always on u."""
    state = client.posterior
    latest = put(state.q, ctx.model.rest(ctx.cfg.personal, view.mu.device), view)
    kept = latest if ctx.cfg.predict_with != "kept" else where(state.q_t == 0, latest, state.q)
    return state._replace(q=kept)


OWN = {"algorithm.zeta": 1e-3 / 20, "algorithm.sync": False, "algorithm.prior": "carried"}
H_PARITY = pfedbayes.H_PARITY._replace(overrides={**pfedbayes.H_PARITY.overrides, **OWN})
TEN_EPOCHS = {"local_steps": 50}  # of MNIST small's 250 training examples in minibatches of 50
PAPER_TEXT = pfedbayes.PAPER_TEXT._replace(
    overrides={**pfedbayes.PAPER_TEXT.overrides, **TEN_EPOCHS},
    warning="preset paper_text takes one step of q_i and one of w_i per minibatch on all clients, and 50 minibatches a "
    "round, the paper's ten epochs of 250 examples; with n training examples per client give --local-steps n/5",
)

ALGORITHM = pfedbayes.ALGORITHM._replace(
    summary="Gaussian posteriors of shared and of personal layers, with a continual prior",
    config=BPFed,
    server_init=server_init,
    client_init=client_init,
    broadcast=broadcast,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=Sums(absorb, pfedbayes.terms),
    predict_global=None,
    personalize=personalize,
    adapt=adapt,
    defaults={"batch_size": 50},
    space={
        "zeta": LogUniform(0.01, 5),
        "lr_personal": LogUniform(5e-4, 5e-3),
        "lr_global": LogUniform(5e-4, 5e-3),
    },
    presets={"paper_text": PAPER_TEXT, "h_parity": H_PARITY},
)
