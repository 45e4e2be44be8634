"""The nouns of a federation: what a batch, an algorithm and a selection policy are.

Shapes are written with K clients, M posterior draws, P parameters (padded), B examples, C classes. The states of an
algorithm are NamedTuples of tensors, so that ``torch.vmap`` can stack them and each is its own schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:  # importing PyTorch takes seconds, and who only needs an error class should not wait
    from torch import Tensor

    from fedray.arrays.rng import Stream
    from fedray.nets.model import Model

BINS = 10  # equal confidence bins (l/10, (l+1)/10], as in BPFed's calibration tables
LEVELS = tuple(tenths / 10 for tenths in range(1, 10))  # of the central intervals whose coverage is counted


class Batch(NamedTuple):
    """Examples of one client; rows of weight 0 are padding, so that every client's batch has one shape."""

    x: Tensor  # [B, ...] inputs
    y: Tensor  # [B] class labels, int64; or real targets, float32, of mean 0 and sd 1 over all training examples
    weight: Tensor  # [B] 1 for an example, 0 for padding
    place: Tensor  # [B] position of the example in the client's shard
    total: Tensor  # [] n_i, the number of training examples of the client


class EvalStats(NamedTuple):
    """Sums over examples of one or more clients, of predicted labels."""

    examples: Tensor  # [...] how many there are
    correct: Tensor  # [...] how many are predicted right: the argmax of p̄, the average over draws, is the label
    nll: Tensor  # [...] -log p̄(y)
    brier: Tensor  # [...] Σ_c (p̄_c - y_c)², each in [0, 2]
    entropy: Tensor  # [...] H[p̄]
    mutual_information: Tensor  # [...] H[p̄] - E_m H[p_m] >= 0
    bin_count: Tensor  # [..., BINS]
    bin_confidence: Tensor  # [..., BINS] sum of max_c p̄_c
    bin_correct: Tensor  # [..., BINS]


class RegressionStats(NamedTuple):
    """Sums over examples of one or more clients, of predicted real targets y, in their own units."""

    examples: Tensor  # [...] how many there are
    squared_error: Tensor  # [...] (y - μ̄)², μ̄ the mean of p̄, the average over draws
    nll: Tensor  # [...] -log p̄(y)
    covered: Tensor  # [..., 9] how many lie in the central interval of p̄ of each level of LEVELS
    aleatoric: Tensor  # [...] mean over draws of their variance
    epistemic: Tensor  # [...] variance over draws of their mean


Stats = EvalStats | RegressionStats  # what an evaluation adds up


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
    """Named settings of an experiment (dotted field -> value), with a warning for those who use them."""

    overrides: Mapping[str, Any]
    warning: str


class Facts(NamedTuple):
    """What an algorithm may know about the federation in which it runs."""

    clients: int  # N
    per_round: int  # S, clients whose uploads are averaged in a round
    rounds: int
    local_steps: int  # R, calls of step per client and round
    batch_size: int  # B, rows of a minibatch: examples, and padding of weight 0
    shard: int  # the length to which every client's training shard is padded
    unheard: int = 0  # clients that train in a round but are not averaged: with --train-all, all that are not selected


C = TypeVar("C", covariant=True)  # the settings of an algorithm, a frozen dataclass


@dataclass(frozen=True)
class Context(Generic[C]):
    """The first argument of every function of an algorithm: fixed during a run, and the same for every client."""

    cfg: C
    model: Model
    facts: Facts


class ServerInit(Protocol):
    """The server's state before the first round, drawn from ``rng``; raises FedRayError for what cannot run."""

    def __call__(self, ctx: Context[Any], rng: Stream, /) -> Any: ...


class ClientInit(Protocol):
    """A client's private state before its first round; it is kept between rounds."""

    def __call__(self, ctx: Context[Any], server: Any, /) -> Any: ...


class Broadcast(Protocol):
    """down: what the server sends to the clients ``ids``."""

    def __call__(self, ctx: Context[Any], server: Any, ids: Sequence[int], /) -> Any: ...


class Begin(Protocol):
    """local: the client's state at the start of local training."""

    def __call__(self, ctx: Context[Any], client: Any, down: Any, data: Batch, /) -> Any: ...


class Step(Protocol):
    """local after one step, and info, a NamedTuple of scalars to be logged. A step may write into ``local``."""

    def __call__(self, ctx: Context[Any], local: Any, batch: Batch, noise: Tensor, /) -> tuple[Any, Any]: ...


class Finish(Protocol):
    """client and up: what the client keeps, and what it uploads."""

    def __call__(self, ctx: Context[Any], local: Any, data: Batch, /) -> tuple[Any, Any]: ...


class Aggregate(Protocol):
    """The server's new state from uploads stacked [K, ...]; the clients ``ids`` have n [K] training examples."""

    def __call__(self, ctx: Context[Any], server: Any, ids: Sequence[int], ups: Any, n: Tensor, /) -> Any: ...


class Terms(Protocol):
    """t_k: what of one client's upload is added over the clients, a tree of tensors."""

    def __call__(self, ctx: Context[Any], up: Any, /) -> Any: ...


class Weigh(Protocol):
    """The weights a [K] of clients that have n [K] training examples: whole numbers."""

    def __call__(self, ctx: Context[Any], n: Tensor, /) -> Tensor: ...


class Absorb(Protocol):
    """The server's new state from Σ_k a_k t_k, a tree in float64; the clients have n [K] training examples."""

    def __call__(self, ctx: Context[Any], server: Any, sums: Any, n: Tensor, /) -> Any: ...


class Publish(Protocol):
    """The view: what clients evaluate with."""

    def __call__(self, ctx: Context[Any], server: Any, /) -> Any: ...


class Predict(Protocol):
    """log p [M, B, C] of inputs x [B, ...] under M draws from a view or from a personal model.

    Of real targets: the mean and the log-variance of a Gaussian, [M, B, 2].
    """

    def __call__(self, ctx: Context[Any], model: Any, x: Tensor, noise: Tensor, /) -> Tensor: ...


class Personalize(Protocol):
    """A client's personal model, from what it keeps, the view and its training data."""

    def __call__(self, ctx: Context[Any], client: Any, view: Any, data: Batch, noise: Tensor, /) -> Any: ...


class Shares(Protocol):
    """Weights [M] of the rows that predict_personal returns: not negative, of sum 1."""

    def __call__(self, ctx: Context[Any], personal: Any, /) -> Tensor: ...


class NoiseShape(Protocol):
    """The shape of the standard normals that a function is given."""

    def __call__(self, ctx: Context[Any], /) -> tuple[int, ...]: ...


class PredictNoise(Protocol):
    """The shape of the standard normals of a prediction that averages ``samples`` draws."""

    def __call__(self, ctx: Context[Any], samples: int, /) -> tuple[int, ...]: ...


class Count(Protocol):
    """A number that follows from the settings alone."""

    def __call__(self, cfg: Any, /) -> int: ...


class Configure(Protocol):
    """The record for given settings, which may add or remove functions."""

    def __call__(self, record: Algorithm, cfg: Any, /) -> Algorithm: ...


class Probe(Protocol):
    """A client's reply in one stage of a score; ``message`` is None in the first stage."""

    def __call__(self, ctx: Context[Any], client: Any, view: Any, message: Any, data: Batch, /) -> Tensor: ...


class Combine(Protocol):
    """The message of the next stage, or after the last stage the scores [N], from N replies that arrive one by one."""

    def __call__(self, ctx: Context[Any], server: Any, replies: Iterator[Tensor], /) -> Any: ...


class Stage(NamedTuple):
    """One pass over the clients for a score: what each client computes, and how the server combines it."""

    probe: Probe
    combine: Combine


def whole_upload(ctx: Context[Any], up: Any) -> Any:
    """Default: all of the upload is added."""
    return up


def equally(ctx: Context[Any], n: Tensor) -> Tensor:
    """Default: every client has weight 1."""
    return n.new_ones(n.shape)


def by_examples(ctx: Context[Any], n: Tensor) -> Tensor:
    """Every client has weight n_k."""
    return n


class Sums(NamedTuple):
    """Aggregation for which sums over the clients suffice: each process adds its own, and no upload is gathered.

    The sums are the same to the last bit however the clients are grouped.
    """

    absorb: Absorb
    terms: Terms = whole_upload
    weigh: Weigh = equally


def one(cfg: Any) -> int:
    """The default of ``minibatches`` (per step) and of ``particles`` (models per prediction): one."""
    return 1


def no_noise(ctx: Context[Any]) -> tuple[int, ...]:
    """The shape of the noise of a deterministic function: it gets none."""
    return (0,)


def one_draw(ctx: Context[Any], samples: int) -> tuple[int, ...]:
    """The shape of the noise of a deterministic prediction: it gets none."""
    return (0,)


def unchanged(record: Algorithm, cfg: Any) -> Algorithm:
    """Default: return the record unchanged."""
    return record


def client_itself(ctx: Context[Any], client: Any, view: Any, data: Batch, noise: Tensor) -> Any:
    """Default: the personal model is the client's state."""
    return client


class Algorithm(NamedTuple):
    """A federated algorithm: pure functions of *one* client, which the run-time stacks from outside.

    Every function is given the :class:`Context` first: the settings ``ctx.cfg``, the network ``ctx.model``, and
    ``ctx.facts`` of the federation. ``data`` is the client's whole private training shard as a :class:`Batch`. Server,
    client, local, down, up and view are NamedTuples of tensors that the algorithm defines. ``noise`` holds standard
    normals that the run-time draws, from a stream keyed by (seed, purpose, client, round); only ``server_init`` draws
    for itself.

    Only this leaves a client: ``up``, the scalars ``info``, the sums of the evaluation, the predicted probabilities of
    one test image, and the replies to the stages of a score.
    """

    summary: str  # one line for --help and the docs
    config: type  # frozen dataclass with the paper's defaults
    server_init: ServerInit
    client_init: ClientInit
    broadcast: Broadcast
    begin: Begin
    step: Step
    finish: Finish
    aggregate: Aggregate | Sums  # Sums where the server can do with them; a function where it needs every upload
    predict_global: Predict | None  # None: the method has no global model
    predict_personal: Predict | None  # None: the method has no personal models
    personalize: Personalize = client_itself
    shares: Shares | None = None  # weights of predict_personal's rows, for mixtures; None: all the same
    personal_data: bool = True  # whether personalize takes the training examples: else a saved model needs none
    personal: str = "each client's own model after local training"  # what predict_personal predicts with
    configure: Configure = unchanged  # how settings change this record
    publish: Publish | None = None  # None: what is broadcast to all clients
    noise_shape: NoiseShape = no_noise  # of step's noise
    personal_noise: NoiseShape = no_noise  # of personalize's noise
    predict_noise: PredictNoise = one_draw
    particles: Count = one  # M: models that every prediction averages, for methods that draw none
    adapt: Step | None = None  # a newcomer's step, of which nothing shared is sent or kept; None: not offered
    minibatches: Count = one  # J: the batch of a step consists of J minibatches, one after the other
    down_per_client: bool = False  # True: broadcast returns one row per client of ids (FedAMP)
    own_products: bool = False  # whether a step multiplies more than a layer by its inputs: alone these round otherwise
    gaussian: bool = False  # whether it learns the noise of a Gaussian likelihood, too: regression
    scores: Mapping[str, tuple[Stage, ...]] = {}  # what a selection policy can ask for
    defaults: Mapping[str, Any] = {}  # settings of the experiment (dotted field -> value) that this method changes
    space: Mapping[str, LogUniform | Uniform | Choice] = {}  # what a sweep searches by default
    presets: Mapping[str, Preset] = {}  # name -> settings that --preset applies before the other options
    control: str = ""  # what bounds the federated methods, in words for the result; empty: it is one of them
    # All training examples lie with the first client: those that FedRay dealt itself, or also those that have owners.
    pools: Literal["", "dealt", "owned"] = ""

    @property
    def trains_to_predict(self) -> bool:
        """Whether a personal model is made of the client's training examples each time that it is loaded."""
        return self.personal_data and self.personalize is not client_itself


class SelectionInit(Protocol):
    """The state of a policy before the first round of a federation of ``clients`` clients."""

    def __call__(self, clients: int, /) -> Any: ...


class Select(Protocol):
    """The m clients of a round, ascending, and the policy's new state, whose floating-point scalars are logged.

    ``scores`` [N] belong to the clients; None if the policy asks for no score.
    """

    def __call__(
        self, state: Any, scores: Tensor | None, clients: int, m: int, rng: Stream, /
    ) -> tuple[tuple[int, ...], Any]: ...


class SelectWithFloor(Protocol):
    """``select`` for a floor ε: the share of the uniform distribution in the probabilities of a draw."""

    def __call__(self, epsilon: float, /) -> Select: ...


class Selection(NamedTuple):
    """A policy that picks the clients of a round, at the server."""

    summary: str
    score: str | None  # the name of the algorithm's score that it needs; None: it needs none
    init: SelectionInit
    select: Select
    with_floor: SelectWithFloor | None = None  # None: no draw by scores, so ``selection_epsilon`` has no meaning
