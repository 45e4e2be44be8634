"""FedRep: FedPer whose client first trains its head under the frozen body, then the body under the new head.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021, Algorithm 1. Every
phase has an optimizer of its own. Of ten local epochs the authors' code takes nine on the head and one on the body; it
adds momentum and weight decay, which are not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.averaging import fedavg, fedper
from fedray.arrays.rng import Stream
from fedray.arrays.trees import tree_map
from fedray.types import Batch, Context, Preset, require


@dataclass(frozen=True, kw_only=True)
class FedRep(fedper.FedPer):
    """Settings of FedRep."""

    head_steps: int = 4
    """Local steps on the personal layers; what is left of --local-steps goes to the shared ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.head_steps >= 1, "head_steps", self.head_steps, "the head has to be trained", "try 4")


class Local(NamedTuple):
    """A client in local training."""

    net: fedavg.Local
    r: Tensor  # [] steps so far


def server_init(ctx: Context[FedRep], rng: Stream) -> fedavg.Point:
    """FedAvg's start; refuses a round without a step for the shared layers."""
    reason = f"`local_steps={ctx.facts.local_steps}` leaves no step to the shared layers"
    require(ctx.cfg.head_steps < ctx.facts.local_steps, "head_steps", ctx.cfg.head_steps, reason, "lower it")
    return fedper.server_init(ctx, rng)


def begin(ctx: Context[FedRep], client: fedper.Part, down: fedper.Part, data: Batch) -> Local:
    return Local(fedper.begin(ctx, client, down, data), torch.zeros_like(down.theta.sum()))


def step(ctx: Context[FedRep], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, fedavg.Info]:
    """A step of the personal layers while r < ``head_steps``, then of the shared ones, under a fresh optimizer."""
    cfg = ctx.cfg
    device = local.r.device
    none = torch.zeros(ctx.model.padded, dtype=torch.bool, device=device)
    personal = none.index_fill(0, ctx.model.part(cfg.personal, device), True)
    moving = torch.where(local.r < cfg.head_steps, personal, ~personal)
    return _masked_step(ctx, local, batch, moving, local.r != cfg.head_steps)


def adapt(ctx: Context[FedRep], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, fedavg.Info]:
    """A step of the personal layers alone."""
    net, info = fedper.adapt(ctx, local.net, batch, noise)
    return local._replace(net=net), info


def _masked_step(
    ctx: Context[FedRep], local: Local, batch: Batch, moving: Tensor, remember: Tensor
) -> tuple[Local, fedavg.Info]:
    """FedAvg's step on the parameters in ``moving`` [P]; the optimizer starts anew unless it is to remember."""
    net = local.net
    before = local.net.theta.clone()

    def kept(past: Tensor) -> Tensor:
        return past * remember

    net = net._replace(memory=tree_map(kept, net.memory))
    net, info = fedavg.step(ctx, net, batch, torch.zeros(0))
    return Local(net._replace(theta=torch.where(moving, net.theta, before)), local.r + 1), info


def finish(ctx: Context[FedRep], local: Local, data: Batch) -> tuple[fedper.Part, fedper.Part]:
    return fedper.finish(ctx, local.net, data)


PUBLIC_CODE = Preset(
    overrides={"algorithm.head_steps": 45, "local_steps": 50},
    warning="preset public_code takes 45 of 50 steps on the head, as the authors' code gives it nine of ten epochs; "
    "it repeats neither their momentum nor their weight decay",
)

ALGORITHM = fedper.ALGORITHM._replace(
    summary="first the head, then the body, which alone is averaged",
    config=FedRep,
    server_init=server_init,
    begin=begin,
    step=step,
    finish=finish,
    adapt=adapt,
    presets={"public_code": PUBLIC_CODE},
)
