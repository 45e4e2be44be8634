"""The loss deviation of personal models: who is good at what, by class (pFedBreD, Section 6.3).

Of client i, of N, and class c: L_ic is the mean NLL of its personal model on its own n_ic test examples of the class,
G_ic on those of all clients. Measured against the federation,

    ΔL_ic = L_ic - Σ_j n_jc L_jc / Σ_j n_jc        ΔG_ic = G_ic - (1/N) Σ_j G_jc

so Σ_i n_ic ΔL_ic = Σ_i ΔG_ic = 0. Below zero a client is better than the others are. The models stay with their
clients: each process reads the test examples of all clients from the dataset's files, which in a simulation it can,
and returns sums. Where clients own their data there is no such union, and no such analysis.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray import registry
from fedray.arrays import trees
from fedray.data import shards
from fedray.data.readers import Dataset
from fedray.data.shards import Examples
from fedray.federate.block import Block
from fedray.federate.evaluation import ROWS, Predictive, personal_model, personal_predictor, pieces
from fedray.federate.measures import metrics
from fedray.federate.messages import ClassLosses
from fedray.federate.plan import Plan
from fedray.types import FedRayError

TABLE = "loss_deviation.csv"
COLUMNS = ("L", "G", "dL", "dG")  # in it, of the fields of Deviations


class Deviations(NamedTuple):
    """By client and class [N, C], in nats; NaN where there is nothing to average."""

    own: Tensor  # L
    union: Tensor  # G
    own_deviation: Tensor  # ΔL
    union_deviation: Tensor  # ΔG


def check(plan: Plan) -> None:
    """Raise FedRayError for real targets, a method without personal models, and where clients are held out."""
    if plan.target is not None:
        raise FedRayError("`loss_deviation`: is by class, and the targets are real numbers; leave the option out")
    if plan.novel:
        raise FedRayError("`loss_deviation`: compares the members of a federation; leave `novel_clients` out")
    if not plan.personal:
        name = registry.algorithm_name(plan.cfg.algorithm)
        raise FedRayError(f"`loss_deviation`: {name} has no personal models to compare; leave the option out")


def class_losses(block: Block, round_number: int, view: Any, dataset: Dataset) -> ClassLosses:
    """The sums of every hosted client's personal model after a round; all test examples are read from ``dataset``."""
    plan = block.plan
    union = np.concatenate(plan.partition.test)
    found = []
    dataset = shards.relabelled(dataset, plan.partition)
    for k in range(len(block.ids)):
        own = block.shards.test(k)
        labels = block.shards.labels(k).to(block.device)
        model = personal_model(block, k, round_number, view)
        predict = personal_predictor(block, k, round_number, model, plan.cfg.predict_samples)
        everyone = (shards.examples(dataset, union[i : i + ROWS]) for i in range(0, len(union), ROWS))
        held = metrics.sums_by(labels, torch.ones_like(labels, dtype=torch.float64), plan.model.classes)
        found.append(
            ClassLosses(held, *_sums(predict, pieces(own), block.device), *_sums(predict, everyone, block.device))
        )
    return trees.tree_map(Tensor.cpu, trees.stack(found))


def _sums(predict: Predictive, examples: Iterable[Examples], device: torch.device) -> tuple[Tensor, Tensor]:
    """Number and summed NLL of the examples of each class."""
    parts = [metrics.class_nll(predict.rows(x.to(device)), y.to(device), predict.shares) for x, y in examples]
    return trees.tree_map(lambda *sums: torch.stack(sums).sum(0), *parts)


def deviations(losses: ClassLosses) -> Deviations:
    """L, G, ΔL and ΔG of the sums of all clients [N, C]."""
    own, union = losses.own_nll / losses.own, losses.union_nll / losses.union  # 0/0 = NaN masks what is absent
    average = losses.own_nll.sum(0) / losses.own.sum(0)
    return Deviations(own, union, own - average, union - union.mean(0))


def rows(losses: ClassLosses) -> list[dict[str, Any]]:
    """One row per client and class for loss_deviation.csv; what a client or the federation lacks is empty.

    A model that diverged shows as nan.
    """
    (clients, classes) = losses.own.shape
    examples = (losses.own, losses.union) * 2
    columns = list(zip(COLUMNS, deviations(losses), examples, strict=True))
    table = []
    for i in range(clients):
        for c in range(classes):
            counts = {"train_examples": int(losses.train[i, c]), "test_examples": int(losses.own[i, c])}
            values = {name: float(value[i, c]) if count[i, c] else "" for name, value, count in columns}
            table.append({"client": i, "class": c} | counts | values)
    return table
