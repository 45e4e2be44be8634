"""HeurFedAMP: FedAMP whose weights follow the angles between models, not their distances.

Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021, the heuristic for deep networks,
in whose many dimensions distances tell little. Settings as tuned by pFedBayes (Table 3), which calls ξ_ii α.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedray.algorithms.mixtures import fedamp
from fedray.algorithms.mixtures.fedamp import Anchor, Likeness, Server
from fedray.arrays.rng import Stream
from fedray.types import Context, LogUniform, Uniform, require


@dataclass(frozen=True, kw_only=True)
class HeurFedAMP(fedamp.Attracted):
    """Settings of HeurFedAMP."""

    xi_own: float = 0.5
    """Weight ξ_ii of a client's own model in its average u_i: 1 leaves the others out."""
    sigma: float = 500.0
    """Sharpness σ: another model's weight grows with e^(σ cos(w_i, w_j)); at 0 all others weigh the same. Cosines of
    models with a common start differ by a percent or less, so σ is large."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.xi_own <= 1, "xi_own", self.xi_own, "a weight lies in [0, 1]", "try 0.5")


def server_init(ctx: Context[HeurFedAMP], rng: Stream) -> Server:
    return fedamp.same_start(ctx, rng)


def broadcast(ctx: Context[HeurFedAMP], server: Server, ids: Sequence[int]) -> Anchor:
    w, likeness = fedamp.compared(server, ids)
    return Anchor((weights(ctx, likeness) @ w).to(server.w.dtype))


def weights(ctx: Context[HeurFedAMP], likeness: Likeness) -> Tensor:
    """ξ [K, N]: ξ_ij = (1 - ξ_ii) e^(σ cos(w_i, w_j)) / Σ_{h≠i} e^(σ cos(w_i, w_h)) for j ≠ i; 1 for a lone client."""
    cfg = ctx.cfg
    own = likeness.own
    lengths = likeness.squares.sqrt()
    norms = lengths[likeness.ids, None] * lengths
    cosines = likeness.products / norms.clamp_min(torch.finfo(norms.dtype).tiny)  # 0 for models that are zero
    others = (cfg.sigma * cosines).masked_fill(own, -torch.inf).softmax(1)
    share = cfg.xi_own if ctx.facts.clients > 1 else 1.0
    return torch.where(own, share, (1 - share) * others)


ALGORITHM = fedamp.ALGORITHM._replace(
    summary="FedAMP with weights by the angles between models",
    config=HeurFedAMP,
    server_init=server_init,
    broadcast=broadcast,
    space={
        "lr": LogUniform(1e-3, 1e-1),
        "mu": LogUniform(1e-3, 10.0),
        "sigma": LogUniform(1.0, 1000.0),
        "xi_own": Uniform(0.1, 0.9),
    },
)
