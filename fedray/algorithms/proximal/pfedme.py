"""pFedMe: pFedBreD whose prior has the global model itself as its mean, μ = w.

Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1:
min_w E_i F_i(w), F_i(w) = min_θ f_i(θ) + (λ/2)‖θ - w‖². Its code adds 0.001 θ to the gradients; here nothing is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.averaging.fedavg import Info, Point
from fedray.algorithms.proximal import pfedbred
from fedray.algorithms.proximal.pfedbred import Client, Local, Proposal
from fedray.types import Batch, Context, LogUniform, Preset


@dataclass(frozen=True, kw_only=True)
class PFedMe(pfedbred.Proximal):
    """Settings of pFedMe."""


def client_init(ctx: Context[PFedMe], server: Point) -> Client:
    """No memory of w."""
    return Client(server.theta, server.theta[:0])


def step(ctx: Context[PFedMe], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """θ: K proximal steps from w on f(θ) + λ D(θ, w); w ← w - α_m λ (w - θ)."""
    proposal = Proposal(w=local.w, start=local.w, mu=local.w, anchor=local.w)
    gradient = partial(fedavg.gradient, ctx.model)
    return pfedbred.iterate(ctx.cfg, gradient, pfedbred.family(ctx, local.w.device), local, proposal, batch)


PAPER_TABLES = Preset(
    overrides=pfedbred.TABLES | pfedbred.RELEASED,
    warning="preset paper_tables is pFedMe as in the tables of pFedBreD: λ is 15, but add --lam 30 for the DNN",
)
PAPER_TEXT = Preset(
    overrides=pfedbred.TABLES | pfedbred.WRITTEN,
    warning="preset paper_text is pFedMe by Algorithm 1 of pFedBreD's text, which does not reproduce its tables; use "
    "paper_tables to compare with them",
)

ALGORITHM = pfedbred.ALGORITHM._replace(
    summary="personal models by proximal steps from the global one",
    config=PFedMe,
    client_init=client_init,
    step=step,
    adapt=step,
    minibatches=fedavg.ALGORITHM.minibatches,
    space={"lam": LogUniform(1.0, 60.0), "alpha": LogUniform(1e-3, 0.03), "alpha_m": LogUniform(1e-3, 0.03)},
    presets={"paper_tables": PAPER_TABLES, "paper_text": PAPER_TEXT},
)
