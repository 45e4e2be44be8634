"""FedPop: a shared body φ, and a Langevin chain over the head z_i of every client, whose prior p(z|β) is learned.

Kotelevskii, Vono, Moulines and Durmus, "FedPop: A Bayesian Approach for Personalised Federated Learning", NeurIPS
2022; their algorithm is called FedSOUL. Empirical Bayes: maximize Σ_i log ∫ p(D_i|φ, z) p(z|β) dz over φ and β, here
with p(z|β) = N(μ, diag(v)), β = (μ, v). By Fisher's identity the gradient is a mean over the posterior of z_i:
∇_φ = E[∇_φ log p(D_i|φ, z_i)], ∇_β = E[∇_β log p(z_i|β)]. A client's chain
z ← z - h ∇U(z) + √(2h (1 - h/2v)) ξ, h = min(γ/n_i, v/2), U = -log p(D_i|φ, z) - log p(z|β), estimates both; the
server takes the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.averaging import fedavg
from fedray.arrays import trees
from fedray.arrays.averages import average
from fedray.arrays.optim import OptimizerState, initial_state, optimizer_step
from fedray.arrays.rng import Stream
from fedray.nets.likelihood import predictive
from fedray.types import Algorithm, Batch, Context, LogUniform, Preset, Sums, check_types, require


@dataclass(frozen=True, kw_only=True)
class FedPop:
    """Settings of FedPop."""

    personal: tuple[str, ...] = ("head",)
    """Layers that are random and stay with their client: head, body, or single ones: layer1, layer1.bias, ..."""
    sampler: Literal["ula", "sgld", "map"] = "sgld"
    """How the chain moves. ula: Langevin steps on the whole shard; sgld: on minibatches; map: minibatch descent without
    noise, which finds one z and no posterior."""
    step_size: float = 0.1
    """Step size γ of the chain per training example: a client with n_i examples takes steps γ/n_i, because U is a sum
    over them, but steps of v/2 where that is less, v being the prior's variance. The chain is stable up to about
    1.5 / (curvature of the mean cross-entropy in the head)."""
    burn_in: int = 4
    """Local steps of every round whose states are not used: the chain first follows the new φ and β."""
    prior: Literal["learned", "fixed"] = "learned"
    """The prior p(z|β) of the heads: its mean and standard deviation are learned, or stay at 0 and prior_sd."""
    prior_sd: float = 0.1
    """Standard deviation of the prior of every parameter of the head at first. The public code has 1, which is wide for
    a head of 100 inputs."""
    lr: float = 0.001
    """Server's learning rate of φ, on the mean log-likelihood of an example."""
    lr_prior: float = 0.1
    """Server's learning rate of β, in (0, 1], along the natural gradient; at 1 it is an EM step, which sets β to the
    moments of the clients' heads."""
    optimizer: Literal["sgd", "adam"] = "adam"
    """Server's optimizer of φ."""
    particles: int = 10
    """States of its chain that a client averages when it predicts: those at the ends of its last rounds. States of one
    round are too near to each other to be a sample."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("step_size", "prior_sd", "lr"):
            require(getattr(self, name) > 0, name, getattr(self, name), "it is positive", "leave it out")
        reason = "a variance beyond the heads' own would turn negative"
        require(0 < self.lr_prior <= 1, "lr_prior", self.lr_prior, f"it lies in (0, 1]: above 1 {reason}", "try 0.1")
        require(self.particles >= 1, "particles", self.particles, "at least one is needed", "try 10")
        require(self.burn_in >= 0, "burn_in", self.burn_in, "a number of steps is not negative", "use 0 for none")
        reason = "without noise the z_i tell nothing of their spread, and a learned prior would shrink to a point"
        ok = self.sampler != "map" or self.prior == "fixed"
        require(ok, "prior", self.prior, reason, "use `prior=fixed`, or `sampler=sgld`")


class HeadPrior(NamedTuple):
    """β, or a gradient in it: p(z|β) = N(μ, diag(v))."""

    mu: Tensor  # [k] mean μ
    var: Tensor  # [k] variance v


class Server(NamedTuple):
    """The server's state."""

    phi: Tensor  # [d_s]
    beta: HeadPrior
    memory: OptimizerState  # of φ's optimizer


class Down(NamedTuple):
    """What the server sends."""

    phi: Tensor  # [d_s]
    beta: HeadPrior


class Client(NamedTuple):
    """What a client keeps between rounds."""

    z: Tensor  # [k] state of the chain
    kept: Tensor  # [M, k] its states at the ends of the last M rounds
    rounds: Tensor  # [] in which it has trained


class Local(NamedTuple):
    """A client whose chain moves."""

    theta: Tensor  # [P] the network: φ and z
    own: Tensor  # [k] where z lies in it; finding it out in every step would cost half a gradient
    client: Client  # as it was before the round
    down: Down
    i: HeadPrior  # sum of ∇_β log p(z_m|β)
    j: Tensor  # [P] sum of ∇ log p(D_i|φ, z_m), of which only the part in φ is sent
    r: Tensor  # [] local steps so far
    shard: Batch | fedavg.Nothing  # with ula; other samplers look at minibatches alone


class Networks(NamedTuple):
    """A personal model."""

    thetas: Tensor  # [M, P]


class Up(NamedTuple):
    """What a client uploads: the means over its chain."""

    i: HeadPrior  # I_i
    j: Tensor  # [d_s] J_i


def server_init(ctx: Context[FedPop], rng: Stream) -> Server:
    """The network's usual body and the prior N(0, prior_sd²); refuses a round without a state that is used."""
    cfg = ctx.cfg
    reason = f"`local_steps={ctx.facts.local_steps}` leaves no state of the chain to use"
    require(cfg.burn_in < ctx.facts.local_steps, "burn_in", cfg.burn_in, reason, "lower it")
    phi = ctx.model.init(rng)[ctx.model.rest(cfg.personal)]
    mu = torch.zeros(len(ctx.model.part(cfg.personal)))
    beta = HeadPrior(mu, torch.full_like(mu, cfg.prior_sd**2))
    return Server(phi, beta, initial_state(cfg.optimizer, phi))


def client_init(ctx: Context[FedPop], server: Server) -> Client:
    mu = server.beta.mu
    return Client(mu, mu.repeat(ctx.cfg.particles, 1), torch.zeros(()))


def broadcast(ctx: Context[FedPop], server: Server, ids: Sequence[int]) -> Down:
    return Down(server.phi, server.beta)


def begin(ctx: Context[FedPop], client: Client, down: Down, data: Batch) -> Local:
    """The chain goes on from where it was; it starts at the prior's mean."""
    z = torch.where(client.rounds > 0, client.z, down.beta.mu)
    theta = ctx.model.assemble(ctx.cfg.personal, z, down.phi)
    i = trees.tree_map(torch.zeros_like, down.beta)
    shard = data if ctx.cfg.sampler == "ula" else fedavg.Nothing()
    own = ctx.model.part(ctx.cfg.personal, z.device)
    return Local(theta, own, client, down, i, torch.zeros_like(theta), torch.zeros_like(data.total), shard)


def noise_shape(ctx: Context[FedPop]) -> tuple[int, ...]:
    return (0,) if ctx.cfg.sampler == "map" else (len(ctx.model.part(ctx.cfg.personal)),)


def step(ctx: Context[FedPop], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, fedavg.Info]:
    """One step of the chain, on a minibatch or on the whole shard."""
    cfg, model = ctx.cfg, ctx.model
    examples = local.shard if isinstance(local.shard, Batch) else batch
    nll, grad = fedavg.gradient(model, local.theta, examples)
    score = -batch.total * grad  # of log p(D_i|φ, z): a minibatch's mean times n_i is its sum times n_i/b
    return advance(cfg, local, score, batch.total, noise), fedavg.Info(nll)


def advance(cfg: FedPop, local: Local, score: Tensor, n: Tensor, noise: Tensor) -> Local:
    """z ← z + h (∇_z log p(D|φ, z) + ∇_z log p(z|β)) + √(2h (1 - h/2v)) ξ; the state before it adds to I and to J.

    h [k] is γ/n, but v/2 where that is less: steps of more than 2v overshoot the prior's mean further each time, as
    those of few examples would. The noise is less by √(1 - h/2v): with it, a z of which the data say nothing keeps the
    variance v for any h. Without, it has v / (1 - h/2v), from which β would learn a larger v, round after round.
    Writes into ``local.j``. ``score`` [P] is ∇ log p(D|φ, z) in φ and z; n [] examples; ξ [k].
    """
    z, beta = local.theta.gather(0, local.own), local.down.beta
    pull = (z - beta.mu) / beta.var
    used = (local.r >= cfg.burn_in).to(z.dtype)
    i = HeadPrior(local.i.mu + used * pull, local.i.var + used * (pull * pull - 1 / beta.var) / 2)
    local.j.add_(used * score)
    h = (cfg.step_size / n).minimum(beta.var / 2)
    moved = z + h * (score.gather(0, local.own) - pull)
    if cfg.sampler != "map":
        moved = moved + (2 * h * (1 - h / (2 * beta.var))).sqrt() * noise
    return local._replace(theta=local.theta.scatter(0, local.own, moved), i=i, r=local.r + 1)


def finish(ctx: Context[FedPop], local: Local, data: Batch) -> tuple[Client, Up]:
    """Keep the chain's last state; upload the means over its states after the burn-in."""
    states = ctx.facts.local_steps - ctx.cfg.burn_in
    z, j = local.theta.gather(0, local.own), local.j[ctx.model.rest(ctx.cfg.personal, local.j.device)]
    return keep(local.client, z), Up(HeadPrior(local.i.mu / states, local.i.var / states), j / states)


def keep(client: Client, z: Tensor) -> Client:
    """The client after a round: the new state z [k] takes the oldest one's place, in the first round every place."""
    places, number = torch.arange(len(client.kept), device=z.device), client.rounds
    here = (places == number % len(places)) | (number == 0)
    return Client(z, torch.where(here[:, None], z, client.kept), number + 1)


def absorb(ctx: Context[FedPop], server: Server, sums: Up, n: Tensor) -> Server:
    """φ ← φ + lr Σ_i J_i / Σ_i n_i, by the optimizer; (μ, μ² + v) ← that + lr_prior (mean of (z, z²) - that).

    In β this is lr_prior F⁻¹ mean_i I_i, with the inverse diag(v, 2 v²) of its Fisher information, less in v the square
    of the step of μ. The plain gradient overshoots: that in v grows like 1/v² where v is too small.
    """
    cfg = ctx.cfg
    phi, memory = trees.tree_map(torch.clone, (server.phi, server.memory))
    grad = -average(sums.j, float(n.sum()), phi)
    phi, memory = optimizer_step(cfg.optimizer, cfg.lr, phi, grad, memory)
    if cfg.prior == "fixed":
        return Server(phi, server.beta, memory)
    mu, var = server.beta
    by_mu, by_var = (average(total, len(n), mu) for total in sums.i)
    moved = mu + cfg.lr_prior * var * by_mu
    spread = var + cfg.lr_prior * 2 * var.square() * by_var - (moved - mu).square()
    least = max(1 - cfg.lr_prior, torch.finfo(var.dtype).eps) * var  # rounding turns no variance negative
    return Server(phi, HeadPrior(moved, spread.maximum(least)), memory)


def personalize(ctx: Context[FedPop], client: Client, view: Down, data: Batch, noise: Tensor) -> Networks:
    """The kept heads on the latest body; before a client's first round, the prior's mean as it is known by then.

    After fewer rounds than there are places, every state stands as often as the others, or once more.
    """
    places = torch.arange(len(client.kept), device=client.z.device)
    different = client.rounds.clamp(1, len(client.kept)).long()
    kept = torch.where(client.rounds > 0, client.kept[places % different], view.beta.mu)
    return Networks(torch.stack([ctx.model.assemble(ctx.cfg.personal, z, view.phi) for z in kept]))


def predict_personal(ctx: Context[FedPop], personal: Networks, x: Tensor, noise: Tensor) -> Tensor:
    return predictive(ctx.model, personal.thetas, x)


def particles(cfg: FedPop) -> int:
    return cfg.particles


PUBLIC_CODE = Preset(
    overrides={
        "algorithm.prior": "fixed",
        "algorithm.sampler": "map",
        "algorithm.prior_sd": 1.0,
        "algorithm.burn_in": 5,
        "algorithm.particles": 1,
        "local_steps": 10,
        "batch_size": 60,
    },
    warning="preset public_code moves the heads without noise and predicts with one of their states, as the public "
    "code does on images: a point estimate, whose uncertainty is not a posterior's; use it to compare accuracies only",
)

ALGORITHM = Algorithm(
    summary="a shared body; each client samples its head by Langevin steps under a learned prior",
    config=FedPop,
    server_init=server_init,
    client_init=client_init,
    broadcast=broadcast,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=Sums(absorb),
    predict_global=None,
    predict_personal=predict_personal,
    personalize=personalize,
    personal_data=False,
    personal="the heads that each client's chain has visited, on the latest body",
    adapt=step,
    noise_shape=noise_shape,
    particles=particles,
    space={"lr": LogUniform(3e-4, 1e-2), "step_size": LogUniform(1e-2, 0.3), "prior_sd": LogUniform(0.03, 1)},
    presets={"public_code": PUBLIC_CODE},
)
