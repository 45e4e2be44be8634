"""The arguments of :func:`fedray.run` as the settings of an experiment and its execution."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from fedray import registry
from fedray.arrays.rng import Stream
from fedray.config import (
    CheckpointConfig,
    DataConfig,
    Execution,
    Experiment,
    ModelConfig,
    TrackingConfig,
    override,
)
from fedray.data import papers
from fedray.data.digests import OWNERS, digest
from fedray.data.own import GIVEN
from fedray.data.partition import Partition, hold_out
from fedray.federate import report
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from fedray.federate.uncertainty import summary as uncertain
from fedray.types import FedRayError, suggestion

TAKEN = {"algorithm", "data", "model"}  # fields of an experiment that are arguments by themselves


class Asked(NamedTuple):
    """What a caller asks for."""

    plan: Plan
    execution: Execution


def asked(
    algorithm: Any, data: Any, partition: Any, model: Any, metrics: Mapping[str, Any], settings: Mapping[str, Any]
) -> Asked:
    """The plan and the execution of a run; raises FedRayError for arguments with which nothing can run."""
    if data is None:
        raise FedRayError("data=None: there are no examples; give the name of a dataset, a file, or arrays")
    own = not isinstance(data, str | Path | DataConfig)
    data_cfg = data if isinstance(data, DataConfig) else DataConfig(name=GIVEN if own else str(data))
    model_cfg = ModelConfig(name=model) if isinstance(model, str) else model
    layers = model if isinstance(model, nn.Module) else None
    if model is None or layers is not None:
        model_cfg = ModelConfig()
    if not isinstance(model_cfg, ModelConfig):
        raise FedRayError(f"model={model!r}: is no network; give a name, a ModelConfig or a torch.nn.Module")
    if isinstance(partition, str):
        data_cfg = override(data_cfg, {"partition": partition})
    algorithm = _algorithm(algorithm)
    experiment = override(Experiment(), registry.algorithm_of(algorithm).defaults)
    parts = _Parts(algorithm, experiment, data_cfg, model_cfg, _execution(settings))
    parts = parts.set({name: value for name, value in settings.items() if name not in ("tracking", "checkpoint")})
    cfg = override(parts.experiment, {"algorithm": parts.algorithm, "data": parts.data, "model": parts.model})
    names: tuple[str, ...] = ()
    owners: dict[str, str] = {}
    if isinstance(partition, Mapping):
        deal = partition
        partition, names = dealt(deal, cfg)
        owners = {OWNERS: digest(_given(deal))}  # not of what the seed held out of it
    elif not isinstance(partition, str | Partition | None):
        kinds = "give a name, a dict {client: indices}, or a Partition"
        raise FedRayError(f"partition={type(partition).__name__}: is not a way to deal examples; {kinds}")
    plan = make_plan(cfg, data if own else None, partition if isinstance(partition, Partition) else None, layers)
    plan = plan._replace(names=plan.names._replace(users=names)) if names else plan
    plan = plan._replace(own_metrics=_checked(metrics, plan), digests={**plan.digests, **owners})
    return Asked(plan, parts.execution)


class _Parts(NamedTuple):
    """The configs among which the settings of a call are shared out."""

    algorithm: Any
    experiment: Experiment
    data: DataConfig
    model: ModelConfig
    execution: Execution

    def set(self, settings: Mapping[str, Any]) -> _Parts:
        """The same with some settings; raises FedRayError for a name that no config has, or two have."""
        parts = self._asdict()
        given: dict[str, dict[str, Any]] = {}
        for name, value in settings.items():
            fields = [field for field, cfg in parts.items() if name in _names(cfg, field)]
            if not fields:
                known = [each for field, cfg in parts.items() for each in _names(cfg, field)]
                near = suggestion(name, known)
                own = f"{type(self.algorithm).__name__} has {', '.join(_names(self.algorithm, 'algorithm'))}"
                raise FedRayError(f"{name}={value!r}: fedray.run has no such argument; {near}{own}")
            if len(fields) > 1:
                kinds = " and ".join(type(parts[field]).__name__ for field in fields)
                raise FedRayError(
                    f"{name}={value!r}: {kinds} have a setting of this name; give the object that you mean"
                )
            given.setdefault(fields[0], {})[name] = value
        return self._replace(**{field: override(parts[field], own) for field, own in given.items()})


def _names(cfg: Any, part: str) -> list[str]:
    """The settings of a config that are arguments; a run's name is its execution's."""
    names = [field.name for field in dataclasses.fields(cfg)]
    left_out = TAKEN if part == "experiment" else {"name"} if part in ("data", "model") else set()
    return [name for name in names if name not in left_out]


def _algorithm(algorithm: Any) -> Any:
    """The settings of an algorithm, given by name or by themselves."""
    if isinstance(algorithm, str):
        return registry.pick(registry.algorithms(), "`algorithm`", algorithm).config()
    registry.algorithm_name(algorithm)  # refuses what is none
    return algorithm


def _execution(settings: Mapping[str, Any]) -> Execution:
    """An execution in this process, untracked; without a folder to keep, it keeps no checkpoints and draws nothing."""
    tracking = settings.get("tracking", "none")
    tracking = TrackingConfig(uri=str(tracking)) if isinstance(tracking, str | Path) else tracking
    kept = settings.get("output") is not None
    on_ray = settings.get("runtime") == "ray"  # which goes on from checkpoints where it loses a process
    checkpoint = settings.get("checkpoint", CheckpointConfig(every=1 if kept or on_ray else 0))
    if not isinstance(tracking, TrackingConfig) or not isinstance(checkpoint, CheckpointConfig):
        raise FedRayError("tracking is the address of a store or a TrackingConfig, checkpoint a CheckpointConfig")
    figures = "png" if kept else "none"
    return Execution(runtime="local", tracking=tracking, checkpoint=checkpoint, figures=figures)


def dealt(partition: Mapping[Any, Any], cfg: Experiment) -> tuple[Partition, tuple[str, ...]]:
    """The partition {client: indices} or {client: (training indices, test indices)}, and the clients' names.

    Of indices alone the share ``test_fraction`` is held out for testing, drawn by the run's seed. Clients 0..N-1 have
    no names. Raises FedRayError for anything else than indices.
    """
    if not partition:
        raise FedRayError("partition={}: a federation needs clients; give {client: indices}")
    own = override(cfg.data, {"partition": GIVEN})
    fraction = papers.protocol(own).held_out if cfg.data.test_fraction is None else cfg.data.test_fraction
    rng = Stream(cfg.seed, "partition").numpy
    train, test = [], []
    for client, indices in partition.items():
        if isinstance(indices, tuple) and len(indices) == 2 and all(np.ndim(part) for part in indices):
            train.append(_indices(client, indices[0], 1))
            test.append(_indices(client, indices[1], 1))
        else:
            held = hold_out([_indices(client, indices, 2)], fraction, rng)
            train.append(held.train[0])
            test.append(held.test[0])
    names = () if list(partition) == list(range(len(partition))) else tuple(map(str, partition))
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        raise FedRayError(f"partition: two clients have the name {twice[0]!r}; give each a name of its own")
    return Partition(tuple(train), tuple(test)), names


def _given(partition: Mapping[Any, Any]) -> Iterator[np.ndarray]:
    """The indices of each client as they were given: alone, or those for training and those for testing."""
    for indices in partition.values():
        yield from map(np.asarray, indices if isinstance(indices, tuple) and np.ndim(indices[0]) else [indices])


def _indices(client: Any, values: Any, least: int) -> np.ndarray:
    try:
        found = np.asarray(values)
    except ValueError:  # lists of different lengths
        found = np.empty(0)
    if found.ndim != 1 or found.dtype.kind not in "iu" or len(found) < least:
        raise FedRayError(
            f"partition: client {client!r} has no list of {least} indices or more; give positions in the data, or a "
            "pair (training indices, test indices)"
        )
    return found.astype(np.int64)


def _checked(metrics: Mapping[str, Any], plan: Plan) -> Mapping[str, Any]:
    """The caller's metrics; raises FedRayError for what is no function, or has a name that is taken."""
    if not isinstance(metrics, Mapping):
        raise FedRayError(f"metrics={metrics!r}: has no names; give {{name: function}}")
    taken = {*plan.task.measures, report.STABILITY, *uncertain.TRACKED}
    for name, function in metrics.items():
        if not callable(function):
            raise FedRayError(f"metrics[{name!r}]: is not a function of probabilities [n, C] and labels [n]")
        if not isinstance(name, str) or not name.replace("_", "").isalnum() or name in taken:
            raise FedRayError(
                f"metrics[{name!r}]: is no free name; take letters, digits and _, and none of FedRay's own"
            )
    if metrics and plan.target is not None:
        raise FedRayError("metrics: they are functions of class probabilities, and the targets are real numbers")
    return dict(metrics)
