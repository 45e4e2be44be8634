"""FedProx: FedAvg whose local objective is held near the broadcast weights by (μ/2)‖w - w^t‖².

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, eq. 2; settings as tuned by pFedBayes
(Table 3). At μ = 0 it is FedAvg, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedray.algorithms.averaging import fedavg
from fedray.types import Batch, Context, LogUniform, require


@dataclass(frozen=True, kw_only=True)
class FedProx(fedavg.FedAvg):
    """Settings of FedProx."""

    mu: float = 0.001
    """Weight μ of the proximal term."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mu >= 0, "mu", self.mu, "the proximal weight is not negative", "use 0 for FedAvg")


class Local(NamedTuple):
    """A client in local training."""

    net: fedavg.Local
    start: Tensor  # [P] the broadcast weights w^t


def begin(ctx: Context[FedProx], client: fedavg.Nothing, down: fedavg.Point, data: Batch) -> Local:
    return Local(fedavg.begin(ctx, client, down, data), down.theta)


def step(ctx: Context[FedProx], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, fedavg.Info]:
    """One step on the mean cross-entropy plus (μ/2)‖w - w^t‖²."""
    net, start = local
    nll, grad = fedavg.gradient(ctx.model, net.theta, batch)
    pull = ctx.cfg.mu * (net.theta - start)
    return Local(fedavg.descended(ctx.cfg, net, grad + pull), start), fedavg.Info(nll)


def finish(ctx: Context[FedProx], local: Local, data: Batch) -> tuple[fedavg.Nothing, fedavg.Point]:
    return fedavg.finish(ctx, local.net, data)


ALGORITHM = fedavg.ALGORITHM._replace(
    summary="FedAvg with a proximal term; one global model",
    config=FedProx,
    begin=begin,
    step=step,
    finish=finish,
    space={"lr": LogUniform(1e-4, 1e-1), "mu": LogUniform(1e-4, 1.0)},
)
