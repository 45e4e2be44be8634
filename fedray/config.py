"""What a run is: frozen dataclasses, one mutation path (`override`), and validation before anything starts.

An :class:`Experiment` decides the result together with nothing else; an :class:`Execution` only decides where and how
fast it is computed, and where it is written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fedray.dataconfig import DataConfig, ModelConfig
from fedray.types import FedRayError, check_choices, require


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that the numbers depend on."""

    algorithm: Annotated[Any, tyro.conf.Suppress] = None
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rounds: int = 20
    """Communication rounds."""
    clients: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Number of clients; by default the paper's for the dataset (10; 20 for cifar10; 198 for femnist; with lognormal
    sizes 100 and 20), or every user of a LEAF file."""
    clients_per_round: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Clients that train in a round and are averaged; by default the paper's for the dataset (all; 10 of 20 for
    cifar10; 4 of 10 for sent140; 20 of 198 for femnist; with lognormal sizes 20 of 100 and 4 of 20)."""
    train_all: bool = False
    """Train every client in every round; only the uploads of those selected are averaged. For methods that keep
    something on the client (pFedBreD's tables); for others it changes nothing but the time, and those whose server sums
    sites or deals chains refuse it."""
    novel_clients: int = 0
    """Clients held out of the federation, the last ones; after its rounds they adapt their personal factors alone."""
    adapt_rounds: int = 10
    """Rounds of local training of the clients that were held out."""
    selection: str = "uniform"
    """Policy that picks the clients of a round."""
    seed: int = 0
    """Seed of every random stream of the run."""
    batch_size: int = 100
    """Examples per minibatch."""
    local_steps: int = 20
    """Minibatches per client and round."""
    eval_every: int = 1
    """Evaluate after every k-th round (and after the last)."""
    predict_samples: int = 10
    """Posterior draws averaged at prediction; 0 predicts with the mean weights."""

    def __post_init__(self) -> None:
        for name in ("rounds", "clients", "clients_per_round", "batch_size", "local_steps", "eval_every"):
            value = getattr(self, name)
            ok = value is None or (isinstance(value, int) and value >= 1)
            require(ok, name, value, "at least one is needed", "give a positive whole number")
        reason, remedy = "newcomers take a round or more to adapt", "give a positive whole number"
        require(self.adapt_rounds >= 1, "adapt_rounds", self.adapt_rounds, reason, remedy)
        require(self.novel_clients >= 0, "novel_clients", self.novel_clients, "a number of clients", "use 0 for none")
        draws = self.predict_samples
        require(draws >= 0, "predict_samples", draws, "a number of draws is not negative", "use 0 for the mean weights")
        require(0 <= self.seed < 2**63, "seed", self.seed, "a seed lies in [0, 2^63)", "use 0")


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Where MLflow keeps the run."""

    uri: str = ""
    """MLflow tracking URI; by default the SQLite file runs/mlflow.db; 'none' switches tracking off."""
    experiment: str = "fedray"
    """MLflow experiment that the run belongs to."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is kept of a run in progress."""

    every: int = 1
    """Keep the federation after every k-th round; 0 keeps nothing."""
    keep: int = 2
    """Number of checkpoints kept, the last ones."""
    url: str = ""
    """Folder or URL (s3://..., gs://...) of the checkpoints; by default in the run's folder. On several machines give
    one that all of them see."""
    on_error: Literal["warn", "stop"] = "warn"
    """What to do where one cannot be written: go on without it and say so, or stop the run."""

    def __post_init__(self) -> None:
        check_choices(self)
        require(self.every >= 0, "checkpoint.every", self.every, "a number of rounds", "use 0 to keep nothing")
        require(self.keep >= 1, "checkpoint.keep", self.keep, "at least one is kept", "use --checkpoint.every 0")


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Everything that the numbers do not depend on."""

    runtime: Literal["ray", "local"] = "ray"
    """ray: clients are Ray actors; local: all clients in this process."""
    backend: Literal["auto", "loop", "vmap", "compiled"] = "auto"
    """How a process runs its clients: one by one, stacked, or one by one with compiled kernels (other rounding, needs
    a C++ compiler); auto stacks small networks, and everything on a GPU."""
    clients_per_actor: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Clients hosted by one Ray actor; by default one, or more where the cluster has less room."""
    gpus_per_client: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """GPU share of one client; by default what fits evenly."""
    address: Annotated[str | None, tyro.conf.arg(metavar="STR")] = None
    """Ray cluster to join ('auto', or host:port); by default $RAY_ADDRESS, a running cluster, or a new local one."""
    name: Annotated[str | None, tyro.conf.arg(metavar="STR")] = None
    """Name of the run; by default algorithm-dataset-s<seed>-<time>."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for the result; by default runs/<name>. It must not hold anything yet."""
    on_failure: Literal["retry", "skip", "abort"] = "retry"
    """A client whose process dies, hangs or raises is tried again, in a new process (retry); one that keeps failing
    stops the run, or is left out of the round (skip), which changes the numbers; abort stops at once."""
    round_timeout: Annotated[float | None, tyro.conf.arg(metavar="SECONDS")] = None
    """Seconds after which an actor that has not answered counts as hanging; by default it is waited for."""
    loss_deviation: bool = False
    """After the last round, write the loss deviation of the personal models by class (pFedBreD). For simulations only:
    every process reads the test examples of all clients from the dataset's files. Costs as much as evaluating the
    personal models as many times as there are clients."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        check_choices(self)
        limit = self.round_timeout
        require(limit is None or limit > 0, "round_timeout", limit, "a time is positive", "leave it out to wait")
        per_actor, share = self.clients_per_actor, self.gpus_per_client
        reason = "an actor hosts at least one client"
        require(per_actor is None or per_actor >= 1, "clients_per_actor", per_actor, reason, "leave it out")
        require(share is None or share >= 0, "gpus_per_client", share, "a share is not negative", "use 0 for CPUs")


def override(cfg: Any, settings: Mapping[str, Any]) -> Any:
    """A copy of a config with dotted fields replaced, e.g. ``{"algorithm.zeta": 3.0}``.

    Raises FedRayError for a field that does not exist, listing those that do.
    """
    for dotted, value in settings.items():
        if not dataclasses.is_dataclass(cfg) or isinstance(cfg, type):
            raise FedRayError(f"{dotted!r}: {cfg!r} has no settings of its own; give a field of the experiment")
        head, _, rest = dotted.partition(".")
        names = [f.name for f in dataclasses.fields(cfg)]
        if head not in names:
            raise FedRayError(f"{dotted!r} is not a setting of {type(cfg).__name__}; choose from {', '.join(names)}")
        if rest:
            value = override(getattr(cfg, head), {rest: value})
        cfg = dataclasses.replace(cfg, **{head: value})
    return cfg


def to_dict(cfg: Any) -> Any:
    """A config as plain nested dicts, lists, strings and numbers, ready for JSON."""
    if dataclasses.is_dataclass(cfg) and not isinstance(cfg, type):
        return {f.name: to_dict(getattr(cfg, f.name)) for f in dataclasses.fields(cfg)}
    if isinstance(cfg, tuple | list):
        return [to_dict(item) for item in cfg]
    return str(cfg) if isinstance(cfg, Path) else cfg


def fingerprint(cfg: Experiment) -> str:
    """16 hex digits that two resolved experiments share exactly where they compute the same.

    Where the data lie does not count. A setting that a later version adds changes it: what was computed without that
    setting is computed again.
    """
    values = to_dict(cfg) | {"kind": f"{type(cfg.algorithm).__module__}.{type(cfg.algorithm).__qualname__}"}
    values["data"] = {name: value for name, value in values["data"].items() if name not in ("root", "download")}
    # Whoever writes 5 for 5.0 means the same.
    same = json.loads(json.dumps(values), parse_float=lambda text: int(v) if (v := float(text)).is_integer() else v)
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]


def from_dict(kind: type, values: Mapping[str, Any]) -> Any:
    """The inverse of :func:`to_dict` for a config class whose nested configs are typed."""
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(kind)}
    unknown = set(values) - known
    if unknown:
        raise FedRayError(f"{kind.__name__} has no setting {sorted(unknown)}; choose from {sorted(known)}")
    return kind(**{name: _parse(hints[name], value) for name, value in values.items()})


def _parse(hint: Any, value: Any) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is not None and Path in options:
        return Path(value)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return from_dict(hint, value)  # type: ignore[arg-type]
    return tuple(value) if isinstance(value, list) else value


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one level with dotted keys, for tracking parameters."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        nested = flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
        flat |= nested
    return flat


def differences(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """The names under which two flat configurations differ."""
    return [name for name in {**a, **b} if a.get(name) != b.get(name)]


def differing(a: Any, b: Any) -> list[str]:
    """The dotted names of the settings in which two configs differ."""
    return differences(flatten(to_dict(a)), flatten(to_dict(b)))
