"""An execution: where and how fast an experiment is computed, and where its result goes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedray.types import check_types, require

NAME_MAX = 500  # characters of the name of an MLflow experiment


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Where MLflow keeps the run."""

    uri: str = ""
    """MLflow tracking URI; by default the SQLite file runs/mlflow.db; 'none' switches tracking off."""
    experiment: str = "fedray"
    """MLflow experiment that the run belongs to."""
    system_metrics: bool = False
    """Record what the run's machines do: CPU, memory, disk, network and GPUs, every ten seconds, for each of them."""

    def __post_init__(self) -> None:
        check_types(self, "tracking.")
        fits = 1 <= len(self.experiment) <= NAME_MAX
        require(fits, "tracking.experiment", self.experiment, f"a name has 1 to {NAME_MAX} characters", "try fedray")
        unseen = self.system_metrics and self.uri == "none"
        reason = "nothing is tracked"
        require(not unseen, "tracking.system_metrics", self.system_metrics, reason, "leave out `tracking.uri`")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is kept of a run in progress."""

    every: int = 1
    """Keep the federation after every k-th round; 0 keeps nothing."""
    keep: int = 2
    """Number of checkpoints kept, the last ones; 1 keeps two, for the last round may be lost with the server."""
    url: str = ""
    """Folder or URL (s3://..., gs://...) of the checkpoints; by default in the run's folder. On several machines give
    one that all of them see."""
    on_error: Literal["warn", "stop"] = "warn"
    """What to do where one cannot be written: go on without it and say so, or stop the run."""

    def __post_init__(self) -> None:
        check_types(self, "checkpoint.")
        require(self.every >= 0, "checkpoint.every", self.every, "a number of rounds", "use 0 to keep nothing")
        require(self.keep >= 1, "checkpoint.keep", self.keep, "at least one is kept", "use `checkpoint.every=0`")


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Everything that the numbers do not depend on."""

    runtime: Literal["ray", "local"] = "ray"
    """ray: clients are Ray actors; local: all clients in this process."""
    backend: Literal["auto", "loop", "vmap", "graph", "compiled"] = "auto"
    """How a process runs its clients: one by one; stacked; stacked, with steps that a GPU replays as a graph; or one by
    one with a local step that is compiled once (other rounding; the first time it needs a C++ compiler). auto compiles
    for long runs of small networks; otherwise it stacks small networks, and takes graph on a GPU."""
    clients_per_actor: int | None = None
    """Clients hosted by one Ray actor; by default one, or more where the cluster has less room."""
    client_states: Literal["memory", "disk"] = "memory"
    """Where the states of clients that sit out are kept. disk: in one file per client, beside the checkpoints, and a
    checkpoint links those that did not change; for more clients than fit into memory."""
    gpus_per_client: float | None = None
    """GPU share of one client; by default what fits evenly."""
    gpus: int | Literal["auto"] = "auto"
    """GPUs that the clients share; 0 for CPUs. auto: those of the cluster and, where it can start machines that have
    some, one GPU for every eight actors; with `runtime=local` none, and 1 is the GPU of this machine."""
    cpus: int | Literal["auto"] = "auto"
    """CPUs that the clients share, without GPUs. auto: those of the cluster and, where it has no GPUs and can start
    machines, one for every actor."""
    start_timeout: str = ""
    """How long to wait for machines and free room, as 90s, 20m or 2h; by default 20m where the cluster can start
    machines, else 2m."""
    address: str | None = None
    """Ray cluster to join ('auto', or host:port); by default $RAY_ADDRESS, a running cluster, or a new local one."""
    name: str | None = None
    """Name of the run; by default algorithm-dataset-s<seed>-<time>."""
    output: str | Path | None = None
    """Folder for the result; by default runs/<name>. It must not hold anything yet."""
    elastic: bool = True
    """Whether to follow the cluster: spread over machines that join, leave those that announce their end, and go on
    without those that are lost. With --no-elastic the clients keep their machines, and wait for the successor of a lost
    one."""
    round_timeout: float | None = None
    """Seconds after which an actor that has not answered counts as hanging; by default there is no limit."""
    loss_deviation: bool = False
    """After the last round, write the loss deviation of the personal models by class (pFedBreD). For simulations only:
    every process reads the test examples of all clients from the dataset's files. Costs as much as evaluating the
    personal models as many times as there are clients."""
    uncertainty: bool = False
    """After the last round, ask what the models' uncertainty is good for: telling classes that a client does not hold,
    abstaining, recalibrating, conformal sets, and what becomes of them under corrupted inputs. For simulations only:
    every process reads test examples of other clients from the dataset's files. Measures: docs/uncertainty.md."""
    ood: str = ""
    """Another dataset of the same shape, such as fashion_mnist for mnist, whose examples the models should find
    strange (`uncertainty`)."""
    figures: Literal["png", "pdf", "svg", "none"] = "png"
    """Format of the figures: png; pdf or svg, which stay sharp in print, are written beside it; none draws nothing."""
    register: str = ""
    """Register the models of the run in MLflow under this name, as NAME or NAME@ALIAS; the alias is by default that of
    the algorithm."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        check_types(self)
        untracked = self.register and self.tracking.uri == "none"
        reason = "nothing is tracked, so there is no store to register in"
        require(not untracked, "register", self.register, reason, "leave out `tracking.uri`")
        limit = self.round_timeout
        require(limit is None or limit > 0, "round_timeout", limit, "a time is positive", "leave it out to wait")
        per_actor, share = self.clients_per_actor, self.gpus_per_client
        reason = "an actor hosts at least one client"
        require(per_actor is None or per_actor >= 1, "clients_per_actor", per_actor, reason, "leave it out")
        require(share is None or share >= 0, "gpus_per_client", share, "a share is not negative", "use 0 for CPUs")
        gpus, cpus = self.gpus, self.cpus
        require(gpus == "auto" or gpus >= 0, "gpus", gpus, "a number of GPUs is not negative", "use 0 for CPUs")
        require(cpus == "auto" or cpus >= 1, "cpus", cpus, "clients need a CPU", "give a positive whole number")
        reason = "a run without Ray is one process, which computes on one GPU"
        require(gpus in ("auto", 0, 1) or self.runtime == "ray", "gpus", gpus, reason, "use 1, or `runtime=ray`")
        reason = "clients that share GPUs get the CPUs of their machines"
        require(cpus == "auto" or (gpus in ("auto", 0) and not share), "cpus", cpus, reason, "leave it out")
        reason = "the share of a client says how many are needed"
        require(gpus == "auto" or share is None, "gpus", gpus, reason, "leave it or `gpus_per_client` out")
        seconds(self.start_timeout or "0")


def seconds(text: str) -> float:
    """A length of time such as 90, 90s, 20m or 2h, in seconds; raises SettingError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    require(found is not None, "start_timeout", text, "not a length of time", "give one such as 90s, 20m or 2h")
    assert found is not None
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]
