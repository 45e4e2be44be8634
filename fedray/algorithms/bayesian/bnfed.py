"""BNFed, or PFNM: the clients' hidden neurons are matched; matched ones are averaged, all others are added.

Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019, section 3; several rounds
as in its section 3.3. pFedBayes's tables call it BNFed and tune its learning rate (Table 3). A neuron is the vector of
its incoming weights, bias and outgoing weights (fedray/bayes/matching.py). The global network is wider than those of
the clients, because neurons that match no other stay as they are. A client restarts from the global neurons to which
its own were matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.averaging.fedavg import Local, Nothing, Point
from fedray.arrays.rng import Stream
from fedray.bayes.matching import Process, match
from fedray.nets.model import Model
from fedray.types import Algorithm, Batch, Context, FedRayError, LogUniform, Preset, check_types, require

BIAS = 0.1  # prior mean of a bias (public code); that of a weight is 0


@dataclass(frozen=True, kw_only=True)
class BNFed:
    """Settings of BNFed."""

    lr: float = 0.1
    """Learning rate of local descent on the mean cross-entropy of a minibatch. pFedBayes tunes it to 0.5, which works
    for inputs in [0, 1] only (--data.scaling unit). Every client uploads its network and how many training examples of
    each class it has."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Local optimizer, begun anew in every round."""
    matching_sweeps: int = 5
    """Times that each client's neurons are matched anew given all others', after all have come in; the public code
    makes 5, and 3 where it plays several rounds."""
    variance: float = 1.0
    """Variance σ² of a client's weight around that of the global neuron to which it is matched."""
    prior_variance: float = 10.0
    """Prior variance σ₀² of the weights of a global neuron; 1 in the public code. A weight that m clients share is the
    mean of theirs, times m / (m + σ²/σ₀²); of an outgoing weight all clients together count as one, so at 1 it is
    halved in every round."""
    gamma: float = 1.0
    """Mass γ of the Beta-Bernoulli process: the larger, the more neurons stay without a match."""
    popularity: float = 2.0
    """Factor of log(n/(J-n)) in the gain of a match to a neuron that n of J clients have: 2 by derivation."""
    start: Literal["own", "common"] = "own"
    """First weights of the clients: each its own random ones, or the same for all."""
    max_width: int = 700
    """Hidden neurons that the global network has at most."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("lr", "variance", "prior_variance", "gamma"):
            require(getattr(self, name) > 0, name, getattr(self, name), "it is positive", "leave it out")
        sweeps = self.matching_sweeps
        require(sweeps >= 0, "matching_sweeps", sweeps, "a number of sweeps is not negative", "use 0 for none")
        require(self.popularity >= 0, "popularity", self.popularity, "it is not negative", "leave it out")


class Server(NamedTuple):
    """The server's state; H hidden neurons of a client, V weights of a neuron, L the maximal width."""

    neurons: Tensor  # [L, V] zeros where there is none
    bias: Tensor  # [C] of the output
    places: Tensor  # [N, H] the global neurons of which the next network of each client consists
    width: Tensor  # [] global neurons; 0 before the first round
    key: Tensor  # [] of the stream of the first weights, a whole number


class Up(NamedTuple):
    """What a client uploads."""

    theta: Tensor  # [P]
    classes: Tensor  # [C] its training examples of each class


class Network(NamedTuple):
    """The global network, which evaluation sees."""

    neurons: Tensor  # [width, V]
    bias: Tensor  # [C]


def check(model: Model) -> None:
    """Raise FedRayError for a network of which only the hidden neurons of one layer could not be matched."""
    kinds = [type(layer) for layer in model.layers]
    ok = kinds[:1] == [nn.Flatten] and kinds[1::2] == [nn.Linear, nn.Linear] and len(kinds) == 4
    if not (ok and kinds[2] in (nn.ReLU, nn.LeakyReLU)):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise FedRayError(
            f"bnfed: matches the neurons of a single hidden layer, and this network is {names}; use `model.name=mlp` "
            "with one number as `model.hidden`"
        )


def neurons_of(model: Model, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden neurons [H, V], V = inputs + 1 + C, and output bias [C] of a network [P]."""
    w, b, out, bias = model.split(theta)
    return torch.cat([w.T, b[:, None], out], 1), bias


def network_of(model: Model, neurons: Tensor, bias: Tensor) -> Tensor:
    """The inverse of :func:`neurons_of`: a network [P]."""
    inputs = model.shapes[0][0]
    return model.join((neurons[:, :inputs].T, neurons[:, inputs], neurons[:, inputs + 1 :], bias))


def server_init(ctx: Context[BNFed], rng: Stream) -> Server:
    """No neurons yet; refuses networks other than those with one hidden layer, and a global one that is narrower."""
    check(ctx.model)
    inputs, hidden = ctx.model.shapes[0]
    width, classes = ctx.cfg.max_width, ctx.model.classes
    reason = f"the network of a client has {hidden} hidden neurons"
    require(width >= hidden, "max_width", width, reason, f"use {hidden} at least, or lower `model.hidden`")
    neurons = torch.zeros(width, inputs + 1 + classes)
    places = torch.arange(hidden).float().repeat(ctx.facts.clients, 1)
    return Server(neurons, torch.zeros(classes), places, torch.zeros(()), rng.seed())


def broadcast(ctx: Context[BNFed], server: Server, ids: Sequence[int]) -> Point:
    """Row k: client k's slice of the global network; before there is one, random first weights."""
    model = ctx.model
    if server.width == 0:
        common = ctx.cfg.start == "common"
        streams = (Stream(int(server.key), "start", 0 if common else i) for i in ids)
        return Point(torch.stack([model.init(stream) for stream in streams]))
    slices = (server.neurons[server.places[i].long()] for i in ids)
    return Point(torch.stack([network_of(model, own, server.bias) for own in slices]))


def publish(ctx: Context[BNFed], server: Server) -> Network:
    """The network of the width that it has."""
    return Network(server.neurons[: int(server.width)].clone(), server.bias)


def finish(ctx: Context[BNFed], local: Local, data: Batch) -> tuple[Nothing, Up]:
    """Upload the network and Σ weight [y = c]."""
    onehot = data.y[:, None] == torch.arange(ctx.model.classes, device=data.y.device)
    return Nothing(), Up(local.theta, (onehot * data.weight[:, None]).sum(0))


def aggregate(ctx: Context[BNFed], server: Server, ids: Sequence[int], ups: Up, n: Tensor) -> Server:
    """Match the neurons of this round's clients; a client that is not among them goes on from the most popular ones."""
    cfg, model = ctx.cfg, ctx.model
    order = sorted(range(len(ids)), key=lambda k: ids[k])  # so that the order of arrival does not matter
    parts = [neurons_of(model, theta) for theta in ups.theta[order].double()]
    share = output_share(ups.classes[order].double()) / cfg.variance  # [K, C]
    hidden, (inputs, _) = torch.ones(model.shapes[0][0] + 1).double() / cfg.variance, model.shapes[0]
    precisions = [torch.cat([hidden, own]) for own in share]
    b0 = torch.full_like(precisions[0], 1 / cfg.prior_variance)
    mu0 = torch.zeros_like(b0).index_fill(0, torch.tensor([inputs]), BIAS)
    process = Process(mu0, b0, cfg.gamma, len(ids), cfg.popularity)
    places, found = match(process, [w for w, _ in parts], precisions, cfg.matching_sweeps, cfg.max_width)
    neurons = torch.zeros_like(server.neurons)
    neurons[: len(found.n)] = found.mean().float()
    popular = found.n.sort(descending=True, stable=True).indices[: places.shape[1]]
    everyone = popular.float().repeat(len(server.places), 1)
    everyone[[ids[k] for k in order]] = places.float()
    bias = torch.stack([own for _, own in parts])
    bias = (BIAS * b0[0] + (share * bias).sum(0)) / (b0[0] + share.sum(0))
    return Server(neurons, bias.float(), everyone, torch.tensor(float(len(found.n))), server.key)


def output_share(counts: Tensor) -> Tensor:
    """f_jc / Σ_j f_jc [K, C] of class counts [K, C]; 1/K for a class that nobody of this round has, whose weights all
    clients hold as they got them: without a share they would be forgotten."""
    total = counts.sum(0)
    return torch.where(total > 0, counts / total.clamp_min(1), 1 / len(counts))


def predict_global(ctx: Context[BNFed], view: Network, x: Tensor, noise: Tensor) -> Tensor:
    inputs = ctx.model.shapes[0][0]
    w, b, out = view.neurons[:, :inputs], view.neurons[:, inputs], view.neurons[:, inputs + 1 :]
    hidden: Tensor = ctx.model.layers[2](x.flatten(1) @ w.mT + b)
    return torch.log_softmax(hidden @ out + view.bias, -1)[None]


PUBLIC_CODE = Preset(
    overrides={"algorithm.popularity": 1.0, "algorithm.prior_variance": 1.0},
    warning="preset public_code leaves out the factor 2 of log(n/(J-n)), as the authors' code does; the derivation "
    "needs it, and without it the matching does not maximize the posterior",
)

ALGORITHM = Algorithm(
    summary="hidden neurons matched by a Beta-Bernoulli process; a global network wider than the clients'",
    config=BNFed,
    server_init=server_init,
    client_init=fedavg.client_init,
    broadcast=broadcast,
    publish=publish,
    begin=fedavg.begin,
    step=fedavg.step,
    finish=finish,
    aggregate=aggregate,
    predict_global=predict_global,
    predict_personal=None,
    down_per_client=True,
    space={"lr": LogUniform(0.05, 1), "variance": LogUniform(0.1, 10), "gamma": LogUniform(0.1, 10)},
    presets={"public_code": PUBLIC_CODE},
)
