"""Pooled: one model trained on the data of all clients at one place, the control that no global model should beat.

It takes the steps of ``local`` on the union of the training shards, as many of them and with as large minibatches as
a federated client has: one model, R steps per round. Every client tests it on its own examples. Nothing here is
federated: the first client hosts all training examples and hands its model on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedray.algorithms.averaging.fedavg import Point
from fedray.algorithms.controls import local
from fedray.algorithms.controls.local import Posterior, Weights
from fedray.arrays.trees import row
from fedray.bayes.gaussian import Gaussian, draw
from fedray.nets.likelihood import predictive
from fedray.types import Algorithm, Batch, Context


@dataclass(frozen=True, kw_only=True)
class PooledTraining(local.LocalTraining):
    """Settings of one model that is trained on all data."""

    pool_users: bool = False
    """Also pool examples that have owners: those of a dataset with users (sent140, femnist, LEAF files) and those of a
    partition that the caller gives. By default only what FedRay dealt itself, which was at one place before."""


def finish(
    ctx: Context[PooledTraining], local: Weights | Posterior, data: Batch
) -> tuple[Weights | Posterior, Point | Gaussian]:
    """Keep what the optimizer remembers, hand on the model."""
    return local, Point(local.theta) if isinstance(local, Weights) else local.q


def aggregate(
    ctx: Context[PooledTraining], server: Point | Gaussian, ids: Sequence[int], ups: Point | Gaussian, n: Tensor
) -> Point | Gaussian:
    """The one model that there is, as it is."""
    return row(ups, list(ids).index(min(ids)))


def publish(ctx: Context[PooledTraining], server: Point | Gaussian) -> Point | Gaussian:
    return server


def gaussian_predict(ctx: Context[PooledTraining], view: Gaussian, x: Tensor, noise: Tensor) -> Tensor:
    return predictive(ctx.model, draw(view, noise), x)


def configure(record: Algorithm, cfg: PooledTraining) -> Algorithm:
    """A posterior has states and steps of its own."""
    if cfg.pool_users:
        record = record._replace(pools="owned")
    if cfg.posterior == "point":
        return record
    record = local.configure(record, cfg)
    return record._replace(predict_global=gaussian_predict, predict_personal=None, adapt=None)


ALGORITHM = local.ALGORITHM._replace(
    summary="all data at one place: a control, not federated",
    config=PooledTraining,
    finish=finish,
    aggregate=aggregate,
    publish=publish,
    predict_global=local.predict,
    predict_personal=None,
    adapt=None,
    configure=configure,
    control="not federated: all training examples at one place, a bound above global models",
    pools="dealt",
)
