"""FedAMP: every client is drawn to an average u_i of all models, in which models like its own have large weights.

Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021, Algorithm 1:
min_W Σ_i F_i(w_i) + λ Σ_{i<j} A(‖w_i - w_j‖²) with A(x) = 1 - e^(-x/σ). The server takes a gradient step on the second
sum, each client a proximal step on its own loss. There is no global model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.averaging.fedavg import Info, Nothing
from fedray.arrays.rng import Stream
from fedray.nets.likelihood import predictive
from fedray.types import Algorithm, Batch, Context, LogUniform, added, check_types, require


@dataclass(frozen=True, kw_only=True)
class Attracted:
    """Settings of a client that is drawn to its average u_i: those of FedAMP and HeurFedAMP."""

    lr: float = 0.01
    """Learning rate of local descent on the mean cross-entropy of a minibatch plus (μ/2)‖w - u‖²."""
    mu: float = 0.1
    """Weight μ of the pull towards u; the paper's λ/α_k."""
    start: Literal["u", "own"] = "u"
    """Where local training starts: at u, or at the client's own model."""
    predict: Literal["own", "u"] = added("own")
    """Which model a client predicts with: its own, or the u that it was sent last, as in codes that test a model before
    they train it. Training then starts at u."""

    def __post_init__(self) -> None:
        check_types(self)
        require(self.lr > 0, "lr", self.lr, "a learning rate is positive", "try 0.01")
        reason = "a step with lr μ ≥ 2 or μ < 0 moves away from u"
        require(0 <= self.lr * self.mu < 2, "mu", self.mu, reason, f"stay below 2/lr = {2 / self.lr:g}")
        ok = self.start == "u" or self.predict == "own"
        require(ok, "predict", self.predict, "a client then keeps no model of its own to start from", "set start to u")


@dataclass(frozen=True, kw_only=True)
class FedAMP(Attracted):
    """Settings of FedAMP."""

    sigma: float = 0.1
    """Scale σ of squared distances between models: the weight of a model falls with e^(-‖w_i - w_j‖²/σ)."""
    alpha: float | None = None
    """Step α_k of the server, at most σ/(N-1); by default σ/N, which weighs N equal models the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.sigma > 0, "sigma", self.sigma, "a scale is positive", "try 1")
        require(self.alpha is None or self.alpha >= 0, "alpha", self.alpha, "a step is not negative", "leave it out")


class Server(NamedTuple):
    """What the server knows of the clients."""

    w: Tensor  # [N, P] the last model that each of them sent; at first the same for all


class Anchor(NamedTuple):
    """What a client is sent: its average of all models."""

    u: Tensor  # [P]


class Own(NamedTuple):
    """A client's model: what it keeps between rounds, and what it uploads."""

    w: Tensor  # [P]


class Local(NamedTuple):
    """A client in local training."""

    w: Tensor  # [P]
    u: Tensor  # [P]


class Likeness(NamedTuple):
    """What the weights of the models are computed from, in float64; of K clients that are asked, and of all N."""

    products: Tensor  # [K, N] ⟨w_i, w_j⟩
    squares: Tensor  # [N] ‖w_j‖²
    ids: Tensor  # [K] the clients that are asked

    @property
    def own(self) -> Tensor:
        """Where a client meets its own model: [K, N]."""
        return self.ids[:, None] == torch.arange(len(self.squares))


def server_init(ctx: Context[FedAMP], rng: Stream) -> Server:
    """The same start for all clients; refuses an α with which the weight ξ_ii of their own models would be negative.

    A' ≤ 1/σ, so ξ_ii ≥ 1 - (N-1) α/σ: never negative if α ≤ σ/(N-1). In the first round all models are equal and the
    bound is met, so no larger α would do either.
    """
    others = ctx.facts.clients - 1
    most = ctx.cfg.sigma / others if others else None
    ok = ctx.cfg.alpha is None or most is None or ctx.cfg.alpha <= most
    reason = f"the weight ξ_ii of a client's own model is negative where {others} others are like it"
    require(ok, "alpha", ctx.cfg.alpha, reason, f"at most `sigma`/(N-1) = {most} will do, or leave it out")
    return same_start(ctx, rng)


def same_start(ctx: Context[Attracted], rng: Stream) -> Server:
    """The initial server: the model of every client is the same."""
    return Server(ctx.model.init(rng).expand(ctx.facts.clients, -1))


def client_init(ctx: Context[Attracted], server: Server) -> Own:
    return Own(server.w[0])


def broadcast(ctx: Context[FedAMP], server: Server, ids: Sequence[int]) -> Anchor:
    w, likeness = compared(server, ids)
    return Anchor((weights(ctx, likeness) @ w).to(server.w.dtype))


def compared(server: Server, ids: Sequence[int]) -> tuple[Tensor, Likeness]:
    """The models in float64, [N, P], and how those of ``ids`` compare to all: one product, no copy per client."""
    w = server.w.double()
    asked = torch.tensor(list(ids))
    return w, Likeness(w[asked] @ w.mT, w.square().sum(-1), asked)


def weights(ctx: Context[FedAMP], likeness: Likeness) -> Tensor:
    """ξ [K, N]: ξ_ij = α A'(‖w_i - w_j‖²) = (α/σ) e^(-‖w_i - w_j‖²/σ) for j ≠ i, and ξ_ii = 1 - Σ_{j≠i} ξ_ij."""
    cfg = ctx.cfg
    alpha = cfg.sigma / ctx.facts.clients if cfg.alpha is None else cfg.alpha
    squares = likeness.squares
    distances = (squares[likeness.ids, None] + squares - 2 * likeness.products).clamp_min(0)
    others = (alpha / cfg.sigma * (-distances / cfg.sigma).exp()).masked_fill(likeness.own, 0)
    return torch.where(likeness.own, 1 - others.sum(1, keepdim=True), others)


def publish(ctx: Context[Attracted], server: Server) -> Nothing:
    """Nothing: clients evaluate with their own models."""
    return Nothing()


def begin(ctx: Context[Attracted], client: Own, down: Anchor, data: Batch) -> Local:
    return Local(client.w if ctx.cfg.start == "own" else down.u, down.u)


def step(ctx: Context[Attracted], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """One SGD step on the mean cross-entropy plus (μ/2)‖w - u‖²."""
    nll, grad = fedavg.gradient(ctx.model, local.w, batch)
    pull = ctx.cfg.mu * (local.w - local.u)
    return local._replace(w=local.w - ctx.cfg.lr * (grad + pull)), Info(nll)


def finish(ctx: Context[Attracted], local: Local, data: Batch) -> tuple[Own, Own]:
    return Own(local.u if ctx.cfg.predict == "u" else local.w), Own(local.w)


def aggregate(ctx: Context[Attracted], server: Server, ids: Sequence[int], ups: Own, n: Tensor) -> Server:
    """The models that came take the places of the clients' last ones; the others stay as they were last known."""
    return Server(server.w.index_copy(0, torch.tensor(list(ids), device=server.w.device), ups.w))


def predict_personal(ctx: Context[Attracted], personal: Own, x: Tensor, noise: Tensor) -> Tensor:
    return predictive(ctx.model, personal.w[None], x)


ALGORITHM = Algorithm(
    summary="each client is drawn to an average of the models that are like its own",
    config=FedAMP,
    server_init=server_init,
    client_init=client_init,
    broadcast=broadcast,
    publish=publish,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=aggregate,
    predict_global=None,
    predict_personal=predict_personal,
    down_per_client=True,
    space={"lr": LogUniform(1e-3, 1e-1), "mu": LogUniform(1e-3, 10.0), "sigma": LogUniform(0.01, 10.0)},
)
