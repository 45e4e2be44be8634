"""FedProx: FedAvg whose local objective is held near the broadcast weights by (μ/2)‖w - w^t‖².

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, eq. 2; settings as tuned by pFedBayes
(Table 3). At μ = 0 it is FedAvg, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def step(ctx: Context[FedProx], local: fedavg.Local, batch: Batch, noise: Tensor) -> tuple[fedavg.Local, fedavg.Info]:
    """One step on the mean cross-entropy plus (μ/2)‖w - w^t‖²."""
    nll, grad = fedavg.gradient(ctx.model, local.theta, batch)
    pull = ctx.cfg.mu * (local.theta - local.start)
    return fedavg.descended(ctx.cfg, local, grad + pull), fedavg.Info(nll)


ALGORITHM = fedavg.ALGORITHM._replace(
    summary="FedAvg with a proximal term; one global model",
    config=FedProx,
    step=step,
    space={"lr": LogUniform(1e-4, 1e-1), "mu": LogUniform(1e-4, 1.0)},
)
