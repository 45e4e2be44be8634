"""The nouns of a federation: what a batch, an algorithm and a selection policy are.

Shapes are written with K clients, M posterior draws, P parameters (padded), B examples, C classes.
Everything that crosses ``torch.vmap`` is a NamedTuple of tensors, so a state is also its own schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:  # an error must not cost the seconds that PyTorch takes to import
    from torch import Tensor

    from fedray.arrays.rng import Stream
    from fedray.nets.model import Model

BINS = 10  # equal confidence bins (l/10, (l+1)/10], as in BPFed's calibration tables


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


C = TypeVar("C", covariant=True)  # the settings of an algorithm, a frozen dataclass


@dataclass(frozen=True)
class Context(Generic[C]):
    """What every function of an algorithm is given first: fixed during a run, and the same for every client."""

    cfg: C
    model: Model
    facts: Facts


class ServerInit(Protocol):
    """The server's state before the first round, by random numbers of its own; refuses what cannot run."""

    def __call__(self, ctx: Context[Any], rng: Stream, /) -> Any: ...


class ClientInit(Protocol):
    """What a client keeps before its first round: private, and kept between rounds."""

    def __call__(self, ctx: Context[Any], server: Any, /) -> Any: ...


class Broadcast(Protocol):
    """What the server sends to the clients ``ids``: down."""

    def __call__(self, ctx: Context[Any], server: Any, ids: Sequence[int], /) -> Any: ...


class Begin(Protocol):
    """A client at the start of local training: local."""

    def __call__(self, ctx: Context[Any], client: Any, down: Any, data: Batch, /) -> Any: ...


class Step(Protocol):
    """One local step: local and info, a NamedTuple of scalars. It may write into ``local``."""

    def __call__(self, ctx: Context[Any], local: Any, batch: Batch, noise: Tensor, /) -> tuple[Any, Any]: ...


class Finish(Protocol):
    """What the client keeps, and what it uploads: client and up."""

    def __call__(self, ctx: Context[Any], local: Any, data: Batch, /) -> tuple[Any, Any]: ...


class Aggregate(Protocol):
    """The server's state from the uploads of the clients ids [K], stacked [K, ...], with n [K] training examples."""

    def __call__(self, ctx: Context[Any], server: Any, ids: Sequence[int], ups: Any, n: Tensor, /) -> Any: ...


class Publish(Protocol):
    """What clients evaluate with: the view."""

    def __call__(self, ctx: Context[Any], server: Any, /) -> Any: ...


class Predict(Protocol):
    """log p [M, B, C] of inputs x [B, ...] under M draws from a view or from a personal model."""

    def __call__(self, ctx: Context[Any], model: Any, x: Tensor, noise: Tensor, /) -> Tensor: ...


class Personalize(Protocol):
    """A client's personal model, from what it keeps, the view and its training data."""

    def __call__(self, ctx: Context[Any], client: Any, view: Any, data: Batch, noise: Tensor, /) -> Any: ...


class NoiseShape(Protocol):
    """The shape of the standard normals that a function is given."""

    def __call__(self, ctx: Context[Any], /) -> tuple[int, ...]: ...


class PredictNoise(Protocol):
    """The shape of the standard normals of a prediction that averages so many draws."""

    def __call__(self, ctx: Context[Any], samples: int, /) -> tuple[int, ...]: ...


class Count(Protocol):
    """A number that the settings alone decide."""

    def __call__(self, cfg: Any, /) -> int: ...


class Configure(Protocol):
    """The record under given settings, which may add functions to it or remove them."""

    def __call__(self, record: Algorithm, cfg: Any, /) -> Algorithm: ...


class Probe(Protocol):
    """A client's reply in one stage of a score; ``message`` is None in the first stage."""

    def __call__(self, ctx: Context[Any], client: Any, view: Any, message: Any, data: Batch, /) -> Tensor: ...


class Combine(Protocol):
    """What the server makes of N replies as they come: the next stage's message; of the last stage, the scores [N]."""

    def __call__(self, ctx: Context[Any], server: Any, replies: Iterator[Tensor], /) -> Any: ...


class Stage(NamedTuple):
    """One pass over the clients for a score: what each computes, and what the server makes of it."""

    probe: Probe
    combine: Combine


def one(cfg: Any) -> int:
    """A step takes one minibatch; a prediction is that of one model."""
    return 1


def no_noise(ctx: Context[Any]) -> tuple[int, ...]:
    """The shape of the noise of a deterministic function: none."""
    return (0,)


def one_draw(ctx: Context[Any], samples: int) -> tuple[int, ...]:
    """The shape of the noise of a deterministic prediction: none."""
    return (0,)


def unchanged(record: Algorithm, cfg: Any) -> Algorithm:
    """The same record under all settings."""
    return record


def client_itself(ctx: Context[Any], client: Any, view: Any, data: Batch, noise: Tensor) -> Any:
    """The personal model is what the client keeps between rounds."""
    return client


class Algorithm(NamedTuple):
    """A federated algorithm: pure functions of *one* client, which the runtime stacks from outside.

    Every function is given the :class:`Context` first: the settings ``ctx.cfg``, the network ``ctx.model``, and
    ``ctx.facts`` of the federation. ``data`` is the client's whole private training shard as a :class:`Batch`. Server,
    client, local, down, up and view are NamedTuples of tensors that the algorithm defines. ``noise`` holds standard
    normals drawn outside, from a stream keyed by (seed, purpose, client, round): only ``server_init`` draws for itself.

    Of a client's knowledge, only these leave it: ``up``, the scalars ``info``, the sums of the evaluation, and the
    replies of score stages.
    """

    summary: str  # one line for --help and the docs
    config: type  # frozen dataclass with the paper's defaults
    server_init: ServerInit
    client_init: ClientInit
    broadcast: Broadcast
    begin: Begin
    step: Step
    finish: Finish
    aggregate: Aggregate
    predict_global: Predict | None  # None: the method has no global model
    predict_personal: Predict | None  # None: the method has no personal models
    personalize: Personalize = client_itself
    personal: str = "each client's own model after local training"  # what predict_personal predicts with
    configure: Configure = unchanged  # how settings change this record
    publish: Publish | None = None  # None: what is broadcast to all clients
    noise_shape: NoiseShape = no_noise  # of step's noise
    personal_noise: NoiseShape = no_noise  # of personalize's noise
    predict_noise: PredictNoise = one_draw
    particles: Count = one  # M: models that every prediction averages, where none are drawn
    adapt: Step | None = None  # a step of the personal factors alone: how a newcomer trains
    minibatches: Count = one  # J: step's batch is J minibatches, one after the other
    down_per_client: bool = False  # True: broadcast returns one row per client of ids (FedAMP)
    scores: Mapping[str, tuple[Stage, ...]] = {}  # what a selection policy can ask for
    defaults: Mapping[str, Any] = {}  # settings of the experiment in which the method's paper differs
    space: Mapping[str, LogUniform | Uniform | Choice] = {}  # what a sweep searches by default
    presets: Mapping[str, Preset] = {}  # name -> settings that --preset applies before the other options


class SelectionInit(Protocol):
    """The state of a policy before the first round of a federation with so many clients."""

    def __call__(self, clients: int, /) -> Any: ...


class Select(Protocol):
    """The m clients of a round, ascending, and the new state, whose real scalars are logged.

    ``scores`` [N] are those that the policy asks for, None where it asks for none.
    """

    def __call__(
        self, state: Any, scores: Tensor | None, clients: int, m: int, rng: Stream, /
    ) -> tuple[tuple[int, ...], Any]: ...


class Selection(NamedTuple):
    """A policy that picks the clients of a round, at the server."""

    summary: str
    score: str | None  # the algorithm's score that it needs, by name
    init: SelectionInit
    select: Select
