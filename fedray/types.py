"""The nouns of a federation: what a batch, an algorithm and a selection policy are.

Shapes are written with K clients, M posterior draws, P parameters (padded), B examples, C classes.
Everything that crosses ``torch.vmap`` is a NamedTuple of tensors, so a state is also its own schema.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # an error must not cost the seconds that PyTorch takes to import
    from torch import Tensor

BINS = 10  # equal confidence bins (l/10, (l+1)/10], as in BPFed's calibration tables


class FedRayError(ValueError):
    """A mistake in what the user asked for or supplied: names the value, the reason and the remedy."""


class RunError(FedRayError):
    """A run that had begun cannot go on: names who failed, the reason and the remedy."""


def require(ok: bool, name: str, value: Any, reason: str, remedy: str) -> None:
    """Raise FedRayError(value, reason, remedy) unless ``ok``: the one form of every complaint about a setting."""
    if not ok:
        raise FedRayError(f"--{name.replace('_', '-')} {value}: {reason}; {remedy}")


def check_choices(cfg: Any) -> None:
    """Raise FedRayError for a field of a config whose type lists its values and that holds another."""
    for name, hint in typing.get_type_hints(type(cfg)).items():
        allowed = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else None
        value = getattr(cfg, name)
        require(allowed is None or value in allowed, name, value, "not one of its values", f"choose from {allowed}")


class Batch(NamedTuple):
    """Examples of one client; rows of weight 0 are padding, so that every client's batch has one shape."""

    x: Tensor  # [B, ...] inputs
    y: Tensor  # [B] class labels, int64
    weight: Tensor  # [B] 1 for an example, 0 for padding
    place: Tensor  # [B] position of the example in the client's shard
    total: Tensor  # [] n_i, the number of training examples of the client


class EvalStats(NamedTuple):
    """Sums over examples of one or more clients."""

    examples: Tensor  # [...] their number
    correct: Tensor  # [...] argmax of the averaged predictive is the label
    nll: Tensor  # [...] -log p̄(y)
    brier: Tensor  # [...] Σ_c (p̄_c - y_c)², each in [0, 2]
    entropy: Tensor  # [...] H[p̄]
    mutual_information: Tensor  # [...] H[p̄] - E_m H[p_m] >= 0
    bin_count: Tensor  # [..., BINS]
    bin_confidence: Tensor  # [..., BINS] sum of max_c p̄_c
    bin_correct: Tensor  # [..., BINS]


class LogUniform(NamedTuple):
    """A hyper-parameter searched uniformly in its logarithm."""

    low: float
    high: float


class Uniform(NamedTuple):
    """A hyper-parameter searched uniformly."""

    low: float
    high: float


class Choice(NamedTuple):
    """A hyper-parameter searched over a finite set."""

    values: tuple[Any, ...]


class Preset(NamedTuple):
    """Named settings of an experiment: dotted field -> value, and what the user must know about them."""

    overrides: Mapping[str, Any]
    warning: str


class Facts(NamedTuple):
    """What an algorithm may know of the federation that it runs in."""

    clients: int  # N
    per_round: int  # S, clients whose uploads are averaged in a round
    rounds: int
    local_steps: int  # R, calls of step per client and round
    batch_size: int
    shard: int  # the length to which every client's training shard is padded
    unheard: int = 0  # clients that train in a round without being averaged: all others, under --train-all


class Stage(NamedTuple):
    """One pass over the clients for a score: what each computes, and what the server makes of it."""

    probe: Callable[..., Tensor]  # cfg, model, client, view, message, data -> reply [...]
    combine: Callable[..., Any]  # cfg, model, server, N replies as they come -> message; the last is the scores [N]


def one(cfg: Any) -> int:
    """A step takes one minibatch; a prediction is that of one model."""
    return 1


def no_noise(cfg: Any, model: Any, facts: Facts) -> tuple[int, ...]:
    """The shape of the noise of a deterministic function: none."""
    return (0,)


def one_draw(cfg: Any, model: Any, samples: int) -> tuple[int, ...]:
    """The shape of the noise of a deterministic prediction: none."""
    return (0,)


def as_it_is(record: Algorithm, cfg: Any) -> Algorithm:
    """No setting adds to the record or takes from it."""
    return record


def client_itself(cfg: Any, model: Any, client: Any, view: Any, data: Batch, noise: Tensor) -> Any:
    """The personal model is what the client keeps between rounds."""
    return client


class Algorithm(NamedTuple):
    """A federated algorithm: pure functions of *one* client, stacked from outside by the runtime.

    ``cfg`` is the algorithm's own frozen dataclass, ``model`` a :class:`fedray.nets.model.Model`, ``data`` the client's
    whole private training shard as a :class:`Batch`. Server, client, local, down, up and view are NamedTuples of
    tensors that the algorithm defines. ``noise`` holds standard normals drawn outside, from a stream keyed by (seed,
    purpose, client, round): only ``server_init`` draws for itself.

    Of a client's knowledge, ``up`` goes to the aggregation; besides it, only the scalars ``info``, evaluation sums
    and the replies of score stages leave.
    """

    summary: str  # one line for --help and the docs
    config: type  # frozen dataclass with the paper's defaults
    server_init: Callable[..., Any]  # cfg, model, facts, rng                  -> server; refuses what cannot run
    client_init: Callable[..., Any]  # cfg, model, server                      -> client, private, kept between rounds
    broadcast: Callable[..., Any]  # cfg, model, server, ids                   -> down
    begin: Callable[..., Any]  # cfg, model, client, down, data                -> local
    step: Callable[
        ..., Any
    ]  # cfg, model, local, batch, noise                -> local, info (scalars); may write into local
    finish: Callable[..., Any]  # cfg, model, local, data                      -> client, up
    aggregate: Callable[..., Any]  # cfg, model, server, ids[K], ups[K], n[K]  -> server
    predict_global: Callable[..., Tensor] | None  # cfg, model, view, x, noise       -> log p [M, B, C]
    predict_personal: Callable[..., Tensor] | None  # cfg, model, personal, x, noise -> log p [M, B, C]
    personalize: Callable[..., Any] = client_itself  # cfg, model, client, view, data, noise -> personal
    personal: str = "each client's own model after local training"  # what predict_personal predicts with
    settled: Callable[[Algorithm, Any], Algorithm] = as_it_is  # the record under a cfg that adds or takes functions
    publish: Callable[..., Any] | None = None  # cfg, model, server -> view for evaluation; None: broadcast to all
    noise_shape: Callable[..., tuple[int, ...]] = no_noise  # cfg, model, facts      -> shape of step's noise
    personal_noise: Callable[..., tuple[int, ...]] = no_noise  # cfg, model, facts   -> shape of personalize's noise
    predict_noise: Callable[..., tuple[int, ...]] = one_draw  # cfg, model, samples  -> shape of predict's noise
    particles: Callable[..., int] = one  # cfg -> M: models that every prediction averages, where none are drawn
    adapt: Callable[..., Any] | None = None  # as step, of the personal factors alone: how a newcomer trains
    minibatches: Callable[..., int] = one  # cfg -> J: step's batch is J minibatches, one after the other
    down_per_client: bool = False  # True: broadcast returns one row per client of ids (FedAMP)
    scores: Mapping[str, tuple[Stage, ...]] = {}  # what a selection policy can ask for
    defaults: Mapping[str, Any] = {}  # settings of the experiment that the method's paper differs in
    space: Mapping[str, LogUniform | Uniform | Choice] = {}  # what a sweep searches by default
    presets: Mapping[str, Preset] = {}  # name -> settings that --preset applies before the other options


class Selection(NamedTuple):
    """A policy that picks the clients of a round, at the server."""

    summary: str
    score: str | None  # the algorithm's score that it needs, by name
    init: Callable[..., Any]  # clients                             -> state
    select: Callable[
        ..., Any
    ]  # state, scores, clients, m, rng    -> ids (ascending), state; its real scalars are logged
