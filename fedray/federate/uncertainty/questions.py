"""What the models of a client are asked: which of its examples calibrate and which score, and what is strange to it.

Examples of classes that a client does not hold, and of another dataset, are there in a simulation only: each process
reads the former from the dataset's files, as the loss deviation does. Where clients own their data, nobody has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.config import Execution, override
from fedray.data import loading, shards, tables
from fedray.data.digests import of_examples
from fedray.data.readers import Dataset, reading
from fedray.data.scaling import Scaling, converted
from fedray.data.shards import Examples
from fedray.federate.block import Block
from fedray.federate.plan import Plan
from fedray.federate.uncertainty.reply import SAMPLE
from fedray.types import FedRayError, require


class Questions(NamedTuple):
    """Examples for the models of one client; no example is in two of them."""

    calibration: Examples
    scored: Examples
    known: Tensor  # [n] of the scored examples, which are of a class that the client trains on
    unknown: Tensor  # x [m, ...] of other clients, of classes that it does not train on; m may be 0


def check(plan: Plan, execution: Execution) -> None:
    """Raise FedRayError for real targets, and for an --ood that cannot be what it says."""
    ood = execution.ood
    reason = "it is part of the uncertainty report"
    require(execution.uncertainty or not ood, "ood", ood, reason, "add `uncertainty`")
    if execution.uncertainty and plan.target is not None:
        raise FedRayError("`uncertainty`: its measures are of labels, and the targets are real numbers; leave it out")
    if ood:
        _check_other(ood, ood != plan.cfg.data.name)
        far(plan, ood)


def _check_other(name: str, other: bool) -> None:
    """Raise FedRayError where another dataset is not ``other`` than the run's own."""
    reason = "it is the run's own dataset, which its clients know"
    require(other, "ood", name, reason, "choose another of the same shape")


def far(plan: Plan, name: str) -> Tensor:
    """Examples x [n, ...] of another dataset in the run's units, drawn by the run's seed; at most SAMPLE of them.

    Columns of a table are the run's features by their names. Raises FedRayError where the dataset is missing, has
    other columns or inputs of another shape, or is the run's own by another path.
    """
    settings = {"name": name, "classes": None, "embedding": None, "scaling": "auto"}
    try:
        dataset = loading.load(override(plan.cfg.data, settings))
        with reading(Path(name), "give the columns of the run's data"):
            dataset = tables.arranged(dataset, plan.names.features)
    except FedRayError as error:
        raise FedRayError(f"`ood`: {error}") from None
    _check_other(name, not plan.examples or of_examples(dataset) != plan.examples)
    shape, wanted = dataset.input_shape, plan.model.input_shape
    reason = f"its inputs have the shape {list(shape)}, those of the run {list(wanted)}"
    same = shape == wanted and dataset.vectors is None
    require(same, "ood", name, reason, "choose a dataset of the same shape, such as fashion_mnist for mnist")
    scaled = dataset._replace(scaling=_units(plan, dataset, name))
    return shards.examples(scaled, _drawn(plan, "far", 0, np.arange(len(dataset.y))))[0]


def _units(plan: Plan, dataset: Dataset, name: str) -> Scaling | None:
    """What brings another dataset to the run's units: the run's scaling where both are in the same units.

    Raises SettingError for whole numbers, such as pixels, beside others whose range is not known.
    """
    own = loading.load(plan.cfg.data) if plan.given is None else plan.given
    if own.scaling is not None and dataset.scaling is not None and plan.scaling is not None:
        same = all(map(np.array_equal, own.scaling, dataset.scaling))
        return plan.scaling if same else converted(plan.scaling, own.scaling, dataset.scaling)
    kinds = ["whole numbers" if np.array_equal(x, np.rint(x)) else "fractions" for x in (dataset.x, own.x)]
    reason, remedy = "its inputs are {}, those of the run {}".format(*kinds), "choose a dataset in the same units"
    require(len(set(kinds)) == 1, "ood", name, reason, remedy)
    return plan.scaling


class Pool(NamedTuple):
    """The test examples of all clients, one client after the other."""

    dataset: Dataset  # with the labels of the partition
    positions: np.ndarray  # [n] in the dataset
    ends: np.ndarray  # [N] of the clients' own among them


def pool(plan: Plan, dataset: Dataset) -> Pool:
    """What strange examples are drawn from; ``dataset`` holds everybody's examples."""
    test = plan.partition.test
    ends = np.cumsum([len(part) for part in test])
    return Pool(shards.relabelled(dataset, plan.partition), np.concatenate(test), ends)


def questions(block: Block, k: int, pool: Pool) -> Questions:
    """The examples that the k-th hosted client's models are asked about.

    They are calibrated on its validation examples or, where none are held out, on half of its test examples, at most
    SAMPLE, which then do not score. Those that score come in a drawn order: a caller's own may be sorted by class.
    """
    plan, client = block.plan, block.ids[k]
    x, y = block.shards.test(k)
    order = plan.stream("calibration", client).permutation(len(y)).to(y.device)
    calibration = block.shards.validation(k)
    held = min(len(y) // 2, SAMPLE) if calibration is None else 0
    if calibration is None:
        calibration = (x[order[:held]], y[order[:held]])
    scored = (x[order[held:]], y[order[held:]])
    trained = np.zeros(plan.model.classes, dtype=bool)
    trained[block.shards.labels(k).cpu().numpy()] = True
    if plan.algorithm.pools:
        trained[:] = True  # its one model has seen them all
    end = pool.ends[client]
    own = slice(end - len(plan.partition.test[client]), end)  # may be of a class that it does not train on
    others = np.delete(pool.positions, own)
    strange = others[~trained[pool.dataset.y[others]]]
    unknown, _ = shards.examples(pool.dataset, _drawn(plan, "unknown", client, strange))
    known = torch.from_numpy(trained).to(y.device)[scored[1]]
    return Questions(calibration, scored, known, unknown.to(x.device))


def _drawn(plan: Plan, purpose: str, client: int, indices: np.ndarray) -> np.ndarray:
    """At most SAMPLE of the indices, drawn by the run's seed."""
    order: Any = plan.stream(purpose, client).permutation(len(indices)).numpy()
    return indices[order[:SAMPLE]]
