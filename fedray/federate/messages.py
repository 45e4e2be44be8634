"""The messages between the server and its clients, and what a round reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedray.federate.uncertainty.reply import Uncertainty
from fedray.types import Stats


class Failure(NamedTuple):
    """Something that went wrong in a run, and what was made of it."""

    round: int
    who: str  # 'client 3', 'actor of clients 0-4', 'server', 'checkpoint'
    kind: str  # 'exception', 'not finite', 'lost', 'late', 'checkpoint', 'pruning', 'memory', 'graph'
    reason: str  # in one line
    action: str = ""  # 'left out', 'asked again', 'rebuilt from round 5'
    traceback: str = ""
    stage: str = ""  # where it arose: 'begin', 'step', 'finish', 'evaluate', ...; empty where nobody knows


class TrainReply(NamedTuple):
    """What the clients hosted by one process send to the server after local training.

    Without a client that succeeded, ``up``, ``largest``, ``examples`` and ``info`` are None.
    """

    round: int
    ids: tuple[int, ...]  # K clients, ascending
    up: Any  # uploads, stacked [K, ...]; None where sums suffice, and in a round of adaptation
    examples: Tensor | None  # [K] n_i
    info: Any  # the scalars of step, stacked [K, R]
    # Clients that were asked too, and why they are not among ids; with an action, what was dealt with at once.
    failures: tuple[Failure, ...] = ()
    largest: Any = None  # [K] the largest terms of every client, by leaf; where sums suffice
    up_bytes: int = 0  # of one client's upload
    sums: Any = None  # over all ids, in the units that the process was told to expect; None: it was told none


class Spotlight(NamedTuple):
    """The personal predictive distribution of one fixed test image per client, for the uncertainty figure."""

    round: int
    ids: tuple[int, ...]
    label: Tensor  # [K] true class
    probs: Tensor  # [K, M, C] one row per posterior draw


class Validation(NamedTuple):
    """The evaluation sums of the same models over validation examples, which are held out of the training shards."""

    personal: Stats | None  # [K, ...]
    global_: Stats | None  # [K, ...]
    novel: Stats | None = None  # of the clients that were held out


class OwnMeasures(NamedTuple):
    """What the caller's own metrics say of every client's models."""

    names: tuple[str, ...]  # Q metrics
    values: Tensor  # [K, 2, Q] of the personal and of the global model; NaN: there is no such model


class EvalReply(NamedTuple):
    """Evaluation sums of the clients hosted by one process; ratios are taken once, at the end."""

    round: int
    ids: tuple[int, ...]
    personal: Stats | None  # [K, ...] or None where the method has no personal model
    global_: Stats | None  # [K, ...] the global model on each client's own test shard
    spotlight: Spotlight | None
    validation: Validation | None = None  # None: no examples are held out for it
    own: OwnMeasures | None = None  # None: the caller has no metrics


class ClassLosses(NamedTuple):
    """Of each client and class, what the loss deviation is made of: numbers of examples, and NLL in nats."""

    train: Tensor  # [K, C] the client's training examples
    own: Tensor  # [K, C] its test examples
    own_nll: Tensor  # [K, C] Σ -log p̄(y) of its personal model over them
    union: Tensor  # [K, C] the test examples of all clients, the same in every row
    union_nll: Tensor  # [K, C] Σ -log p̄(y) of its personal model over those


class Move(NamedTuple):
    """Clients that changed their machines between two rounds."""

    round: int  # before it
    reason: str  # 'node-b announced the end'
    machines: Mapping[str, int]  # clients on each from then on, by its name
    seconds: float  # that the round had to wait

    @property
    def line(self) -> str:
        """The move for the terminal."""
        after = ", ".join(f"{name} {clients}" for name, clients in self.machines.items())
        return f"before round {self.round}: {self.reason}; clients now: {after} ({self.seconds:.2g} s)"


class RoundMetrics(NamedTuple):
    """All that one round reports. Rows of the sums are those of ``evaluated`` whom they concern."""

    round: int
    participants: tuple[int, ...]  # whose uploads were averaged
    train: Mapping[str, float]  # means of the step's info over those who trained
    personal: Stats | None  # [K, ...]; None where not evaluated in this round
    global_: Stats | None
    # Wall seconds: train, aggregate, evaluate, round; start of new actors, checkpoint. CPU seconds here: cpu.
    seconds: Mapping[str, float]
    bytes_up: int
    bytes_down: int
    spotlights: tuple[Spotlight, ...] = ()
    failures: tuple[Failure, ...] = ()
    novel: Stats | None = None  # rows are the clients that were held out
    selection: Mapping[str, float] = {}  # what the policy reports of its choice
    validation: Validation | None = None  # None: not evaluated, or nothing is held out for it
    evaluated: tuple[int, ...] = ()  # members and newcomers, ascending
    machines: Mapping[str, int] = {}  # clients on each, by its name; none in a single process
    moves: tuple[Move, ...] = ()  # of clients between machines, before the round
    own: OwnMeasures | None = None  # rows are those of the evaluated members; None: not evaluated, or no own metrics


class File(NamedTuple):
    """A file of a checkpoint, as the process that wrote it reports it."""

    name: str
    size: int  # bytes
    crc32: int
    clients: tuple[int, ...] = ()  # whose private states it holds


class Saved(NamedTuple):
    """The private states of a checkpoint, in its files; a client in none of them has never trained."""

    folder: str
    round: int
    files: tuple[File, ...]


class Cohort(Protocol):
    """The clients of a federation, wherever they live: in this process or in Ray actors.

    Replies come back in ascending client order, whatever the order of arrival.
    """

    def wait_until_ready(self) -> bool:
        """Wait until every client can be asked; False where there was nothing to wait for."""
        ...

    def train(self, round_number: int, ids: Sequence[int], down: Any) -> list[TrainReply]:
        """Train the selected clients from ``down``; replies and their failures cover ``ids`` exactly once."""
        ...

    def add(self, round_number: int, ids: Sequence[int], exponents: tuple[int, ...]) -> list[Any]:
        """Partial sums over the clients ``ids`` of the round that was just trained, in the given units."""
        ...

    def evaluate(self, round_number: int, view: Any, spotlight: bool) -> list[EvalReply]:
        """Evaluate personal models and the global model, each on the clients' own test shards.

        A round of the federation concerns its members; a round of adaptation concerns the clients that were held out.
        Of these, the plan says who is evaluated.
        """
        ...

    def class_losses(self, round_number: int, view: Any) -> ClassLosses:
        """The sums of every client's personal model, by class, on its own test shard and on those of all, [N, C]."""
        ...

    def uncertainty(self, round_number: int, view: Any, far: Tensor | None) -> Uncertainty:
        """What the uncertainty of the models is good for, of the clients whom an evaluation of the round asks.

        ``far`` are examples of another dataset.
        """
        ...

    def probe(self, score: str, number: int, view: Any, message: Any) -> Iterator[Tensor]:
        """The clients' replies in one stage of a score, one after the other; read-only."""
        ...

    def snapshot(self) -> Any:
        """The private state of every client, stacked [N, ...]."""
        ...

    def restore(self, saved: Saved) -> None:
        """Give every client the private state that it has in a checkpoint."""
        ...

    def save(self, folder: str) -> list[File]:
        """Write the private states of the clients that have trained into a folder, and list the files in client order.

        States that are kept on disk are linked, not copied, where the folder is in the same file system.
        """
        ...
