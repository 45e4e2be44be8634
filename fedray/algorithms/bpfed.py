"""BPFed: pFedBayes with personal layers, whose prior is what the client itself believed after its last round.

"Bayesian Personalized Federated Learning with Shared and Personalized Uncertainty Representations". Its formulas are
missing from the text that we have; objective and continual prior are reconstructed from its prose (docs/design.md,
section 3.1): q_i(z, s) with personal layers z and shared ones s, F_i = -E_q[log p(D_i|z, s)] + ζ KL(q_i‖p_i), where
p_i(z) is the client's last q_i(z) and p_i(s) the average of the shared distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedray.algorithms import pfedbayes
from fedray.algorithms.pfedbayes import Client, Info
from fedray.models import Model
from fedray.optim import zero_moments
from fedray.posteriors import Gaussian
from fedray.rng import Stream
from fedray.types import Batch, Facts, LogUniform


@dataclass(frozen=True, kw_only=True)
class BPFed(pfedbayes.PFedBayes):
    """Settings of BPFed."""

    zeta: float = 1.0
    """Weight ζ of KL(q_i || p_i) against the log-likelihood of the whole shard; 1 is the evidence lower bound."""
    personal: tuple[str, ...] = ("head",)
    """Layers that stay with their client: head, body, or single ones: layer1, layer2, ..."""
    sync: bool = True
    """Overwrite the shared layers of q_i by the average at the start of a round; its optimizer then starts anew."""
    prior: Literal["moving", "fixed"] = "moving"
    """What q_i is held to: the client's copy of the prior, which moves with its own steps, or that of the round."""
    upload: Literal["prior", "posterior"] = "prior"
    """What of the shared layers is uploaded: the client's moved copy of the prior, or q_i itself."""
    predict_with: Literal["kept", "average"] = "kept"
    """Shared layers of the personal model: as the client trained them, or the latest average."""


class Local(NamedTuple):
    """A client in local training."""

    client: Client
    w: Gaussian  # [P] the client's copy of the prior
    prior: Gaussian  # [P] of the round; empty where q_i is held to the moving copy


def take(q: Gaussian, index: Tensor) -> Gaussian:
    """The parameters of a Gaussian [P] in the given places [k]."""
    return Gaussian(q.mu[index], q.rho[index])


def put(q: Gaussian, index: Tensor, part: Gaussian) -> Gaussian:
    """A Gaussian [P] with the given places [k] overwritten."""
    return Gaussian(*(whole.index_copy(0, index, some) for whole, some in zip(q, part, strict=True)))


def server_init(cfg: BPFed, model: Model, facts: Facts, rng: Stream) -> Gaussian:
    """pFedBayes's start; refuses layers that the network does not have."""
    model.part(cfg.personal)
    return pfedbayes.server_init(cfg, model, facts, rng)


def client_init(cfg: BPFed, model: Model, server: Gaussian) -> Client:
    return _rested(cfg, pfedbayes.client_init(cfg, model, server))


def _rested(cfg: BPFed, client: Client) -> Client:
    """The client between rounds: without the moments of q_i, where its optimizer starts anew."""
    empty = zero_moments(client.q.mu[:0])
    return client._replace(q_mu=empty, q_rho=empty) if cfg.sync else client


def broadcast(cfg: BPFed, model: Model, server: Gaussian, ids: Sequence[int]) -> Gaussian:
    return take(server, model.rest(cfg.personal))


def begin(cfg: BPFed, model: Model, client: Client, down: Gaussian, data: Batch) -> Local:
    """w.s ← u, w.z ← q.z and, with ``sync``, q.s ← u: both divergences start at 0."""
    w = put(client.q, model.rest(cfg.personal), down)
    if cfg.sync:
        zero = zero_moments(w.mu)
        client = client._replace(q=w, q_mu=zero, q_rho=zero, q_t=torch.zeros_like(client.q_t))
    prior = w if cfg.prior == "fixed" else Gaussian(w.mu[:0], w.rho[:0])
    return Local(*pfedbayes.begin(cfg, model, client, w, data), prior)


def step(cfg: BPFed, model: Model, local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """pFedBayes's step of all layers."""
    moving = pfedbayes.Local(local.client, local.w)
    prior = local.prior if cfg.prior == "fixed" else local.w
    (client, w), info = pfedbayes.train(cfg, model, moving, prior, batch, noise)
    return local._replace(client=client, w=w), info


def adapt(cfg: BPFed, model: Model, local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """A step of the personal layers alone: q.s stays, and w.s with it."""
    shared = model.rest(cfg.personal)
    q, w = take(local.client.q, shared), take(local.w, shared)
    local, info = step(cfg, model, local, batch, noise)
    client = local.client._replace(q=put(local.client.q, shared, q))
    return local._replace(client=client, w=put(local.w, shared, w)), info


def finish(cfg: BPFed, model: Model, local: Local, data: Batch) -> tuple[Client, Gaussian]:
    """Upload shared layers, never personal ones."""
    client, w = pfedbayes.finish(cfg, model, pfedbayes.Local(local.client, local.w), data)
    return _rested(cfg, client), take(w if cfg.upload == "prior" else client.q, model.rest(cfg.personal))


def aggregate(cfg: BPFed, model: Model, server: Gaussian, ids: Sequence[int], ups: Gaussian, n: Tensor) -> Gaussian:
    """pFedBayes's average of the shared layers; the initial personal ones stay as they were."""
    shared = model.rest(cfg.personal)
    return put(server, shared, pfedbayes.aggregate(cfg, model, take(server, shared), ids, ups, n))


def personalize(cfg: BPFed, model: Model, client: Client, view: Gaussian, data: Batch, noise: Tensor) -> Client:
    if cfg.predict_with == "kept":
        return client
    return client._replace(q=put(client.q, model.rest(cfg.personal), view))


ALGORITHM = pfedbayes.ALGORITHM._replace(
    summary="Gaussian posteriors of shared and of personal layers, with a continual prior",
    config=BPFed,
    server_init=server_init,
    client_init=client_init,
    broadcast=broadcast,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=aggregate,
    predict_global=None,
    personalize=personalize,
    adapt=adapt,
    defaults={"batch_size": 50},
    space={
        "zeta": LogUniform(0.01, 5),
        "lr_personal": LogUniform(5e-4, 5e-3),
        "lr_global": LogUniform(5e-4, 5e-3),
    },
    presets={},
)
