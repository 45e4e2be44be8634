"""pFedBreD: personal models are proximal steps from a prior whose mean μ_i each client chooses by a strategy.

Shi et al., "Personalized Federated Learning with Hidden Information on Personalized Prior", Algorithm 1:
min_w E_i F_i(w), F_i(w) = min_θ f_i(θ) + λ D(θ, μ_i(w)), μ_i(w) = w - η ∇Φ_i(w) (eqs. 14-17, C.4). Text, released code
and tables differ; what the text says and what reproduces the tables are the presets paper_text and paper_tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.averaging.fedavg import Averaging, Info, Point
from fedray.arrays.minibatches import fine_tune, split
from fedray.arrays.rng import Stream
from fedray.bayes.bregman import SPHERICAL, Family, envelope_gradient, gaussian, proximal
from fedray.nets.model import Model, own_module
from fedray.types import Algorithm, Batch, Choice, Context, LogUniform, Preset, client_itself, require

Gradient = Callable[[Tensor, Batch], tuple[Tensor, Tensor]]  # θ [P], minibatch -> mean NLL, its gradient [P]


@dataclass(frozen=True, kw_only=True)
class Proximal(Averaging):
    """Settings of methods whose personal model is a proximal map: pFedBreD and pFedMe."""

    alpha: float = 0.01
    """Learning rate α of the personal model θ: of its proximal steps, and of fine-tuning."""
    alpha_m: float = 0.01
    """Learning rate α_m of the local copy w of the global model: w ← w - α_m λ ∇²g*(μ)(μ - θ)."""
    lam: float = 15.0
    """Weight λ of the divergence D(θ, μ), the scale of the prior; the tables have 30 for the DNN, else 15."""
    inner_steps: int = 5
    """Proximal steps K on every minibatch."""
    start: Literal["reset", "warm_round", "warm_all"] = "reset"
    """Where they begin: at w, shifted by the gradient where there is one (reset, as the released code); so in a round's
    first minibatch, then at the last θ (warm_round, as pFedMe's code); always at the last θ (warm_all, the paper)."""
    prior: Literal["spherical", "gaussian"] = "spherical"
    """Exponential family of the prior: spherical has unit variances, gaussian those of ``variance``."""
    variance: tuple[float, ...] = (1.0,)
    """Variances Σ of the gaussian prior: one for all weights, or one per layer."""
    coordinates: Literal["mean", "dual"] = "mean"
    """Parameter in which the proximal steps are taken: θ, or ∇g*(θ) (mirror descent: gradients multiplied by Σ)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha > 0, "alpha", self.alpha, "a learning rate is positive", "try 0.01")
        for name in ("alpha_m", "lam"):
            value = getattr(self, name)
            require(value >= 0, name, value, "it is not negative", "try 0.01 for α_m, 15 for λ")
        require(self.inner_steps >= 1, "inner_steps", self.inner_steps, "at least one is needed", "try 5")
        ok = len(self.variance) > 0 and all(value > 0 for value in self.variance)
        require(ok, "variance", self.variance, "variances are positive", "use 1.0")
        ok = self.prior == "gaussian" or self.variance == (1.0,)
        require(ok, "variance", self.variance, f"the {self.prior} prior has none", "use `prior=gaussian`")


@dataclass(frozen=True, kw_only=True)
class PFedBreD(Proximal):
    """Settings of pFedBreD; the defaults are those with which the released code reproduces the tables."""

    strategy: Literal["fo", "mfo", "mg", "mg_c4", "mh"] = "mh"
    """How the prior's mean μ is chosen: by a gradient (fo), the memory of the last round (mfo), both (mg: eq. 17), or a
    meta-gradient and memory (mg_c4: Appendix C.4); mh is mg_c4 whose gradient step also moves w. The paper's tables
    call mh "mg": that is what the released code ran, and what reproduces them."""
    eta: float = 0.05
    """Step η of the memory: μ moves by -η (w_mem - θ) (mfo, mg, mg_c4, mh)."""
    eta_a: float = 0.01
    """Step η_α of the gradient (fo, mg, mg_c4, mh)."""
    eta_tilde: float | None = None
    """Step η̃ to the point where the meta-gradient is taken (mg_c4, mh); by default η_α."""
    same_batch: bool = False
    """Take both gradients of the meta-gradient (mg_c4, mh) on one minibatch instead of two."""
    residual: Literal["mu", "w"] = "mu"
    """The outer step follows μ - θ, the exact gradient (mu, as the released code), or w - θ (eq. 15)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("eta", "eta_a", "eta_tilde"):
            value = getattr(self, name)
            require(value is None or value >= 0, name, value, "a step is not negative", "use 0 to leave it out")


class Client(NamedTuple):
    """What a client keeps between rounds; at first the initial weights."""

    theta: Tensor  # [P] personal model after the last minibatch of the last round trained
    w_mem: Tensor  # [P] local copy w after that round; empty where the strategy has no memory


class Local(NamedTuple):
    """A client in local training."""

    w: Tensor  # [P] local copy of the global model
    theta: Tensor  # [P] personal model after the last minibatch
    w_mem: Tensor  # [P] as kept
    r: Tensor  # [] minibatches of this round so far


class Proposal(NamedTuple):
    """What is chosen before the proximal steps on a minibatch."""

    w: Tensor  # [P] local copy; only mh moves it
    start: Tensor  # [P] where the proximal steps begin after a reset
    mu: Tensor  # [P] mean of the prior
    anchor: Tensor  # [P] from where the outer step measures its residual: μ, or w by the letter of eq. 15


def server_init(ctx: Context[Proximal], rng: Stream) -> Point:
    """FedAvg's start; refuses variances that do not fit the network's layers."""
    given = ctx.cfg.variance
    layers = len(_layers(ctx.model))
    reason = f"the network has {layers} layers"
    require(len(given) in (1, layers), "variance", given, reason, "give one number, or one per layer")
    return fedavg.server_init(ctx, rng)


def client_init(ctx: Context[PFedBreD], server: Point) -> Client:
    return Client(server.theta, server.theta[:0] if ctx.cfg.strategy == "fo" else server.theta)


def begin(ctx: Context[Proximal], client: Client, down: Point, data: Batch) -> Local:
    return Local(down.theta, client.theta, client.w_mem, down.theta.new_zeros(()))


def minibatches(cfg: PFedBreD) -> int:
    return 2 if cfg.strategy in ("mg_c4", "mh") and not cfg.same_batch else 1


def step(ctx: Context[PFedBreD], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """One iteration: μ, K proximal steps from there, one outer step; info is the NLL where the proximal steps begin."""
    cfg = ctx.cfg
    gradient = partial(fedavg.gradient, ctx.model)
    batches = split(batch, minibatches(cfg))
    proposal = choose_prior(cfg, gradient, local, batches)
    return iterate(cfg, gradient, family(ctx, local.w.device), local, proposal, batches[-1])


def choose_prior(cfg: PFedBreD, gradient: Gradient, local: Local, batches: tuple[Batch, ...]) -> Proposal:
    """μ = w - η_α ∇f - η (w_mem - θ) (eq. 17), each term where the strategy has it.

    C.4 and mh take ∇f(w - η̃ ∇f(w; b); b') without the Hessian factor; of two minibatches, the proximal map uses b'.
    """
    w = start = local.w
    if cfg.strategy in ("fo", "mg"):
        start = w.sub(gradient(w, batches[-1])[1], alpha=cfg.eta_a)
    if cfg.strategy in ("mg_c4", "mh"):
        ahead = cfg.eta_a if cfg.eta_tilde is None else cfg.eta_tilde
        probe = w.sub(gradient(w, batches[0])[1], alpha=ahead)
        start = w.sub(gradient(probe, batches[-1])[1], alpha=cfg.eta_a)
    mu = start if cfg.strategy == "fo" else start.sub(local.w_mem - local.theta, alpha=cfg.eta)
    w = start if cfg.strategy == "mh" else w
    return Proposal(w, start, mu, mu if cfg.residual == "mu" else w)


def iterate(
    cfg: Proximal, gradient: Gradient, prior: Family, local: Local, proposal: Proposal, batch: Batch
) -> tuple[Local, Info]:
    """θ: K proximal steps on one minibatch; w ← w - α_m ∇env(μ)."""
    start = proposal.start
    if cfg.start != "reset":
        start = local.theta if cfg.start == "warm_all" else torch.where(local.r > 0, local.theta, start)
    theta, nll = proximal(
        lambda at: gradient(at, batch), prior, cfg.lam, start, proposal.mu, cfg.alpha, cfg.inner_steps,
        cfg.coordinates == "dual",
    )  # fmt: skip
    w = proposal.w.sub(envelope_gradient(prior, cfg.lam, proposal.anchor, theta), alpha=cfg.alpha_m)
    return Local(w, theta, local.w_mem, local.r + 1), Info(nll)


def family(ctx: Context[Proximal], device: torch.device) -> Family:
    """The prior's family, with its variances on the network's layers."""
    cfg = ctx.cfg
    if cfg.prior != "gaussian":
        return SPHERICAL
    if len(cfg.variance) == 1:
        return gaussian(cfg.variance[0])
    variance = torch.ones(ctx.model.padded, device=device)
    for layer, value in zip(_layers(ctx.model), cfg.variance, strict=True):
        variance[layer].fill_(value)
    return gaussian(variance)


def _layers(model: Model) -> list[slice]:
    """Where the layers lie in a weight vector; a caller's module is one, whatever its parts are called."""
    if own_module(model) is not None:
        return [slice(0, model.size)]
    return [where for name, where in model.slices.items() if name.startswith("layer")]


def finish(ctx: Context[Proximal], local: Local, data: Batch) -> tuple[Client, Point]:
    """Upload w; θ and, with a memory, w stay."""
    return Client(local.theta, local.w if len(local.w_mem) else local.w_mem), Point(local.w)


def personalize(ctx: Context[Proximal], client: Client, view: Point, data: Batch, noise: Tensor) -> Point:
    """θ of the last round that the client trained, after ``ft`` SGD steps without the prior."""
    rates = [ctx.cfg.alpha] * ctx.cfg.ft
    return Point(fine_tune(partial(fedavg.gradient, ctx.model), client.theta, data, rates, noise))


def configure(record: Algorithm, cfg: Proximal) -> Algorithm:
    """Without fine-tuning a personal model needs no data."""
    if cfg.ft == 0:
        return record._replace(personalize=client_itself)
    return record._replace(personal=record.personal + fedavg.tuned(cfg.ft))


TABLES = {"train_all": True, "batch_size": 20, "local_steps": 20, "data.moments": "all"}
RELEASED = {"algorithm.start": "reset", "algorithm.weighting": "examples"}
WRITTEN = {"algorithm.start": "warm_all", "algorithm.weighting": "uniform"}
PAPER_TABLES = Preset(
    overrides=TABLES | RELEASED | {"algorithm.strategy": "mh", "algorithm.residual": "mu"},
    warning="preset paper_tables follows the released code, which is what reproduces the tables of pFedBreD: their "
    "'mg' is mh; λ is 15, but add --lam 30 for the DNN; their networks have leaky ReLUs, their accuracies are the "
    "maximum over rounds, and their MNIST has 5% of its test labels wrong",
)
PAPER_TEXT = Preset(
    overrides=TABLES | WRITTEN | {"algorithm.strategy": "mg", "algorithm.residual": "w"},
    warning="preset paper_text follows the text of pFedBreD (Algorithm 1, eqs. 15-17), which does not reproduce its "
    "tables; use paper_tables to compare with them",
)

ALGORITHM = fedavg.ALGORITHM._replace(
    summary="personal models by proximal steps from a prior whose mean each client chooses",
    config=PFedBreD,
    server_init=server_init,
    client_init=client_init,
    begin=begin,
    step=step,
    adapt=step,  # a newcomer's copy of w moves as a member's does, and nothing of it is uploaded
    finish=finish,
    personalize=personalize,
    personal="each client's own model, θ of the last round that it trained",
    configure=configure,
    minibatches=minibatches,
    defaults={"batch_size": 20},
    space={
        "strategy": Choice(("fo", "mfo", "mg", "mg_c4", "mh")),
        "lam": LogUniform(1.0, 60.0),
        "eta": LogUniform(1e-3, 0.5),
        "eta_a": LogUniform(1e-3, 0.05),
        "alpha": LogUniform(1e-3, 0.03),
        "alpha_m": LogUniform(1e-3, 0.03),
    },
    presets={"paper_tables": PAPER_TABLES, "paper_text": PAPER_TEXT},
)
