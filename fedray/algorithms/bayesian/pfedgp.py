"""pFedGP: the clients share a network that computes features; each classifies by Gaussian processes on them.

Achituve, Shamsian, Navon, Chechik and Fetaya, "Personalized Federated Learning with Gaussian Processes", NeurIPS 2021.
The network is averaged; the processes are rebuilt from a client's own examples wherever they are needed. The classes
are the leaves of a binary tree with one process per inner node (Achituve et al., "GP-Tree", ICML 2021). The nodes of
one level share no example, so a level is one process, whose kernel is 0 between examples of different nodes.
docs/methods/pfedgp.md has all equations and deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.averaging.fedavg import Info, Nothing
from fedray.algorithms.averaging.fedper import Part
from fedray.arrays.averages import average
from fedray.arrays.optim import OptimizerState, initial_state, optimizer_step
from fedray.arrays.rng import Stream
from fedray.bayes import polya_gamma as pg
from fedray.nets.model import Model, own_module
from fedray.types import Algorithm, Batch, Choice, Context, LogUniform, Preset, Sums, added, check_types, require

JITTER = 1e-3  # added to the diagonal of a kernel matrix (public code)


@dataclass(frozen=True, kw_only=True)
class PFedGP:
    """Settings of pFedGP."""

    lr: float = 0.05
    """Learning rate of the network."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Local optimizer, begun anew in every round."""
    momentum: float = added(0.0)
    """SGD steps along v ← momentum · v + gradient, from v = 0 in every round; the public code has 0.9."""
    weight_decay: float = added(0.0)
    """Times the weights, this is added to the gradient; the public code has 0.001."""
    loss: Literal["examples", "nodes"] = added("examples")
    """What is averaged: the NLL of an example along its path (examples), or the NLL in each node of the tree, whose
    averages are added (nodes, public code). There a node near the leaves counts as much as the root."""
    outputscale: float = 8.0
    """Variance of a process: the kernel of an example with itself."""
    lengthscale: float = 1.0
    """Distance between features of length 1 at which their kernel has fallen to e^-½."""
    chains: int = 10
    """Chains of the Gibbs sampler, side by side."""
    gibbs_steps: int = 5
    """Gibbs steps of a chain."""
    points: int = 512
    """Training examples of a client's processes when it predicts: a random part of a larger shard, every class in its
    share. In training a minibatch takes their place. Costs grow with their cube."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("lr", "outputscale", "lengthscale"):
            value = getattr(self, name)
            require(value > 0, name, value, "it is positive", f"try {PFedGP.__dataclass_fields__[name].default}")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "it is in [0, 1)", "try 0.9")
        reason = "Adam has a momentum of its own"
        require(self.momentum == 0 or self.optimizer == "sgd", "momentum", self.momentum, reason, "use `optimizer=sgd`")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "it is not negative", "try 0.001")
        for name in ("chains", "gibbs_steps", "points"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least one is needed", "leave it out")


class Tree(NamedTuple):
    """A binary tree over the classes, level by level."""

    node: Tensor  # [L, C] the node that a class belongs to at a level, counted from 0 within it
    side: Tensor  # [L, C] κ of a class: ½ if it goes to the node's first half, -½ to the second, 0 if it is alone
    present: Tensor  # [C] 1 for a class with a training example


class Local(NamedTuple):
    """A client in local training."""

    theta: Tensor  # [P]
    memory: OptimizerState
    velocity: Tensor  # [P] of momentum
    tree: Tree  # under the broadcast network


class Personal(NamedTuple):
    """A client's processes, given its training examples."""

    theta: Tensor  # [P]
    z: Tensor  # [n, D] features of the examples
    node: Tensor  # [L, n] of the examples
    alpha: Tensor  # [L, S, n] weights of the predictive mean of every chain
    a: Tensor  # [L, n, n] of the predictive variance, averaged over the chains
    tree: Tree
    total: Tensor  # [] training examples of the client


def levels(classes: int) -> int:
    """L = ⌈log₂ C⌉, the depth of the tree."""
    return (classes - 1).bit_length()


def class_tree(z: Tensor, y: Tensor, weight: Tensor, classes: int) -> Tree:
    """Halve the classes, level by level, by features z [n, D] of length 1 and labels y [n].

    The poles of a node are the two of its classes whose mean features are farthest apart. Its classes are ranked by
    their distance to the one less that to the other; half of them go to each side, rounded up to the first. A class
    without an example goes nowhere: its side is always 0.
    """
    index = torch.arange(classes, device=z.device)
    onehot = (y[:, None] == index) * weight[:, None]
    count = onehot.sum(0)
    means = (onehot / count.clamp_min(1)).mT @ z
    distance = (means[:, None] - means).square().sum(-1)
    present = count > 0
    node = torch.zeros_like(index)
    nodes: list[Tensor] = []
    sides: list[Tensor] = []
    for _ in range(levels(classes)):
        together = (node[:, None] == node) & present[:, None] & present
        apart = torch.where(together, distance, -1).flatten()
        inside = (node == index[:, None])[..., None] & together
        pole = torch.where(inside.flatten(1), apart, -1).argmax(-1)[node]
        score = torch.where(present, distance.gather(1, (pole // classes)[:, None])[:, 0], 0)
        score = score - distance.gather(1, (pole % classes)[:, None])[:, 0]
        before = (score[None] < score[:, None]) | ((score[None] == score[:, None]) & (index < index[:, None]))
        size = together.sum(-1)
        first = 2 * (before & together).sum(-1) < size
        nodes.append(node)
        sides.append(torch.where(size > 1, torch.where(first, 0.5, -0.5), 0.0))
        node = 2 * node + torch.where(first, 0, 1)
    return Tree(torch.stack(nodes), torch.stack(sides), present.to(z.dtype))


def features(model: Model, parts: Sequence[Tensor], x: Tensor) -> Tensor:
    """What the layer below the head gives before its activation, scaled to length 1, [B, D] of inputs x [B, ...]."""
    z = model.features(parts, x).flatten(1)
    return z * (z.square().sum(-1, keepdim=True) + 1e-12).rsqrt()


def kernel(cfg: PFedGP, z: Tensor, other: Tensor) -> Tensor:
    """outputscale · exp(-‖z - z'‖²/2 lengthscale²) [n, m] of features [n, D] and [m, D] of length 1."""
    return cfg.outputscale * torch.exp((z @ other.mT - 1) / cfg.lengthscale**2)


def spread(data: Batch, noise: Tensor, count: int) -> Batch:
    """``count`` examples of a shard, ordered by class and within a class at random (noise [B]); padding comes last.

    If there are more, they are taken at equal distances, which keeps the shares of the classes.
    """
    keys = torch.where(data.weight > 0, data.y + (1 + torch.tanh(noise)) / 2, torch.inf)
    n = data.weight.sum()
    place = torch.arange(count, device=noise.device)
    at = keys.argsort()[torch.where(n > count, (place * (n / count)).long(), place)]
    return Batch(data.x[at], data.y[at], data.weight[at], data.place[at], data.total)


def server_init(ctx: Context[PFedGP], rng: Stream) -> Part:
    """A network without its head; refuses one that is nothing but a head."""
    body = ctx.model.slices["body"]
    reason = "it has no layer below its head, so there are no features to learn"
    require(body.stop > 0, "model.name", "a single layer", reason, "use `model.name=mlp`")
    reason = "it does not say what its head is given, and these are the features"
    require(own_module(ctx.model) is None, "model", "nn.Module", reason, "give an nn.Sequential")
    return Part(ctx.model.init(rng)[body])


def broadcast(ctx: Context[PFedGP], server: Part, ids: Sequence[int]) -> Part:
    return server


def whole(ctx: Context[PFedGP], body: Tensor) -> Tensor:
    """The weight vector [P] of a network with this body [d]; its head is 0 and never used."""
    return torch.cat([body, body.new_zeros(ctx.model.padded - len(body))])


def begin(ctx: Context[PFedGP], client: Nothing, down: Part, data: Batch) -> Local:
    """The tree of a round is that of the client's whole shard under the broadcast network."""
    theta = whole(ctx, down.theta)
    z = features(ctx.model, ctx.model.split(theta), data.x)
    tree = class_tree(z, data.y, data.weight, ctx.model.classes)
    return Local(theta, initial_state(ctx.cfg.optimizer, theta), torch.zeros_like(theta), tree)


def draws(ctx: Context[PFedGP], count: int) -> tuple[int, ...]:
    """Shape of the standard normals of all levels for processes with this many examples."""
    return levels(ctx.model.classes), ctx.cfg.gibbs_steps + 1, pg.NORMALS, ctx.cfg.chains, count


def noise_shape(ctx: Context[PFedGP]) -> tuple[int, ...]:
    size = ctx.facts.batch_size
    shape = torch.Size(draws(ctx, size - size // 2))
    return (size + shape.numel(),)


def step(ctx: Context[PFedGP], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """One step on the NLL of one half of the minibatch under the processes of the other half."""
    cfg = ctx.cfg
    nll, grad = objective(ctx, local, batch, noise)
    velocity = cfg.momentum * local.velocity + grad + cfg.weight_decay * local.theta
    theta, memory = optimizer_step(cfg.optimizer, cfg.lr, local.theta, velocity, local.memory)
    return local._replace(theta=theta, memory=memory, velocity=velocity), Info(nll)


def adapt(ctx: Context[PFedGP], local: Local, batch: Batch, noise: Tensor) -> tuple[Local, Info]:
    """A newcomer trains nothing: its processes come of its examples alone."""
    nll, _ = objective(ctx, local, batch, noise)
    return local, Info(nll)


def objective(ctx: Context[PFedGP], local: Local, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The loss in nats on the half of a minibatch that is held out, and its gradient [P].

    -Σ_levels Σ_i c_i log p_i(side | ω), where c_i is one over the number of held-out examples, or of those in the node
    of i.
    """
    cfg, model = ctx.cfg, ctx.model
    size = len(batch.y)
    batch = spread(batch, noise[:size], size)
    fitted, scored = (_rows(batch, start) for start in (0, 1))
    noise = noise[size:].view(draws(ctx, len(fitted.y)))

    def kernels(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        z, other = features(model, parts, fitted.x), features(model, parts, scored.x)
        return kernel(cfg, z, z), kernel(cfg, other, z)

    (k, cross), pullback, *_ = torch.func.vjp(kernels, model.split(local.theta))
    jitter = JITTER * torch.eye(len(k), device=k.device)
    (node, kappa), (other_node, labels) = (labelled(local.tree, half) for half in (fitted, scored))
    nll, by_kernel, by_cross = torch.zeros_like(k[0, 0]), torch.zeros_like(k), torch.zeros_like(cross)
    for level in range(levels(model.classes)):
        same, across = node[level][:, None] == node[level], other_node[level][:, None] == node[level]
        own = k * same + jitter
        omega = pg.gibbs(own, kappa[level], noise[level])
        weight = shares(cfg, other_node[level], labels[level])
        value, *by = pg.held_out(own, cross * across, cfg.outputscale, kappa[level], labels[level], weight, omega)
        nll, by_kernel, by_cross = nll + value, by_kernel + by[0] * same, by_cross + by[1] * across
    count = scored.weight.sum().clamp_min(1) if cfg.loss == "examples" else torch.ones_like(nll)
    (grads,) = pullback((by_kernel / count, by_cross / count))
    return nll / count, model.join(grads)


def shares(cfg: PFedGP, node: Tensor, labels: Tensor) -> Tensor:
    """How much the examples of a level count [m]: 1, or one over the number in their node; 0 where the label is 0."""
    member = (labels != 0).to(labels.dtype)
    if cfg.loss == "examples":
        return member
    return member / ((node[:, None] == node) * member).sum(-1).clamp_min(1)


def _rows(batch: Batch, start: int) -> Batch:
    """Every second example from ``start`` on."""
    x, y, weight, place, total = batch
    return Batch(x[start::2], y[start::2], weight[start::2], place[start::2], total)


def labelled(tree: Tree, batch: Batch) -> tuple[Tensor, Tensor]:
    """The node and κ of every example at every level [L, n]; κ of padding is 0."""
    return tree.node[:, batch.y], tree.side[:, batch.y] * batch.weight


def finish(ctx: Context[PFedGP], local: Local, data: Batch) -> tuple[Nothing, Part]:
    return Nothing(), Part(local.theta[ctx.model.slices["body"]])


def absorb(ctx: Context[PFedGP], server: Part, sums: Part, n: Tensor) -> Part:
    """The plain mean of the networks."""
    return Part(average(sums.theta, len(n), server.theta))


def points(ctx: Context[PFedGP]) -> int:
    """Examples of a client's processes when it predicts."""
    return min(ctx.cfg.points, ctx.facts.shard)


def personal_noise(ctx: Context[PFedGP]) -> tuple[int, ...]:
    return (ctx.facts.shard + torch.Size(draws(ctx, points(ctx))).numel(),)


def personalize(ctx: Context[PFedGP], client: Nothing, view: Part, data: Batch, noise: Tensor) -> Personal:
    """Build the tree and sample the processes anew, from the client's examples under the newest network."""
    model = ctx.model
    theta = whole(ctx, view.theta)
    z = features(model, model.split(theta), data.x)
    tree = class_tree(z, data.y, data.weight, model.classes)
    shard = len(data.y)
    part = spread(data._replace(x=z), noise[:shard], points(ctx))
    noise = noise[shard:].view(draws(ctx, points(ctx)))
    node, kappa = labelled(tree, part)
    k, jitter = kernel(ctx.cfg, part.x, part.x), JITTER * torch.eye(len(part.y), device=z.device)
    alphas: list[Tensor] = []
    means: list[Tensor] = []
    for level in range(levels(model.classes)):
        own = k * (node[level][:, None] == node[level]) + jitter
        omega = pg.gibbs(own, kappa[level], noise[level])
        a = pg.precision(own, omega)
        alphas.append(pg.weights(a, kappa[level], omega))
        means.append(a.mean(0))
    return Personal(theta, part.x, node, torch.stack(alphas), torch.stack(means), tree, data.total)


def predict_personal(ctx: Context[PFedGP], personal: Personal, x: Tensor, noise: Tensor) -> Tensor:
    """The product of the sigmoids along a class's path, one row per chain; every class keeps 1/(n + 1)/C.

    A class without a training example would have probability 0. As if one more example were seen, spread over all
    classes, p = (n p_tree + 1/C)/(n + 1).
    """
    cfg, model, tree, n = ctx.cfg, ctx.model, personal.tree, personal.total
    cross = kernel(cfg, personal.z, features(model, model.split(personal.theta), x))
    p = tree.present[:, None, None].expand(-1, cfg.chains, len(x))
    for level in range(levels(model.classes)):
        inside = (personal.node[level] == torch.arange(2**level, device=x.device)[:, None]).to(cross.dtype)
        means = (inside[:, None] * personal.alpha[level]) @ cross
        variance = cfg.outputscale - inside @ ((personal.a[level] @ cross) * cross)
        first, side = pg.probability(means, variance[:, None])[tree.node[level]], tree.side[level][:, None, None]
        p = p * torch.where(side > 0, first, torch.where(side < 0, 1 - first, 1))
    return ((n * p + 1 / model.classes) / (n + 1)).log().permute(1, 2, 0)


def chains(cfg: PFedGP) -> int:
    """A prediction averages one row per chain."""
    return cfg.chains


PUBLIC_CODE = Preset(
    overrides={"algorithm.loss": "nodes", "algorithm.momentum": 0.9, "algorithm.weight_decay": 1e-3},
    warning="preset public_code trains on the loss of pFedGP's public code, with its momentum and weight decay, but in "
    "five steps per round on minibatches, where that code takes one on the whole shard, and with 10 chains, not 20",
)

ALGORITHM = Algorithm(
    summary="Gaussian processes on shared features, one tree of them per client; no global model",
    config=PFedGP,
    server_init=server_init,
    client_init=fedavg.client_init,
    broadcast=broadcast,
    begin=begin,
    step=step,
    finish=finish,
    aggregate=Sums(absorb),
    predict_global=None,
    predict_personal=predict_personal,
    personalize=personalize,
    personal="each client's Gaussian processes on its own examples, under the newest network",
    adapt=adapt,
    noise_shape=noise_shape,
    personal_noise=personal_noise,
    particles=chains,
    own_products=True,
    defaults={"local_steps": 5},
    space={"lr": LogUniform(5e-3, 0.2), "outputscale": LogUniform(1, 32), "chains": Choice((5, 10, 20))},
    presets={"public_code": PUBLIC_CODE},
)
