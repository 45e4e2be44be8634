"""FedPer: the layers of the body are averaged, those of the head stay with their client.

Arivazhagan et al., "Federated Learning with Personalization Layers", arXiv:1912.00818, Algorithms 1 and 2: both parts
descend together. Without personal layers it is FedAvg; with all of them, every client for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedray.algorithms.averaging import fedavg
from fedray.arrays.rng import Stream
from fedray.types import Algorithm, Batch, Context, LogUniform, Sums


@dataclass(frozen=True, kw_only=True)
class FedPer(fedavg.FedAvg):
    """Settings of FedPer."""

    personal: tuple[str, ...] = ("head",)
    """Layers that stay with their client: head, body, or single ones: layer1, layer1.bias, ..."""


class Part(NamedTuple):
    """The parameters of some layers: the personal ones at their client, the shared ones on their way."""

    theta: Tensor  # [k]


def server_init(ctx: Context[FedPer], rng: Stream) -> fedavg.Point:
    """FedAvg's start; refuses layers that the network does not have."""
    ctx.model.part(ctx.cfg.personal)
    return fedavg.server_init(ctx, rng)


def client_init(ctx: Context[FedPer], server: fedavg.Point) -> Part:
    """Everyone's personal layers start where the server's initial ones lie."""
    return Part(server.theta[ctx.model.part(ctx.cfg.personal, server.theta.device)])


def broadcast(ctx: Context[FedPer], server: fedavg.Point, ids: Sequence[int]) -> Part:
    return Part(server.theta[ctx.model.rest(ctx.cfg.personal, server.theta.device)])


def whole(ctx: Context[FedPer], client: Part, shared: Part) -> Tensor:
    """A client's network [P]: its own layers and the shared ones."""
    return ctx.model.assemble(ctx.cfg.personal, client.theta, shared.theta)


def begin(ctx: Context[FedPer], client: Part, down: Part, data: Batch) -> fedavg.Local:
    return fedavg.begin(ctx, fedavg.Nothing(), fedavg.Point(whole(ctx, client, down)), data)


def adapt(ctx: Context[FedPer], local: fedavg.Local, batch: Batch, noise: Tensor) -> tuple[fedavg.Local, fedavg.Info]:
    """A step of the personal layers alone."""
    shared = ctx.model.rest(ctx.cfg.personal, local.theta.device)
    frozen = local.theta[shared]
    local, info = fedavg.step(ctx, local, batch, noise)
    return local._replace(theta=local.theta.index_copy(0, shared, frozen)), info


def finish(ctx: Context[FedPer], local: fedavg.Local, data: Batch) -> tuple[Part, Part]:
    """Keep the personal layers, upload the shared ones."""
    model, personal, theta = ctx.model, ctx.cfg.personal, local.theta
    return Part(theta[model.part(personal, theta.device)]), Part(theta[model.rest(personal, theta.device)])


def absorb(ctx: Context[FedPer], server: fedavg.Point, sums: Part, n: Tensor) -> fedavg.Point:
    """FedAvg's average of the shared layers; the server's initial personal ones stay as they were."""
    shared = ctx.model.rest(ctx.cfg.personal, server.theta.device)
    mean = fedavg.absorb(ctx, fedavg.Point(server.theta[shared]), fedavg.Point(sums.theta), n)
    return fedavg.Point(server.theta.index_copy(0, shared, mean.theta))


def personalize(ctx: Context[FedPer], client: Part, view: Part, data: Batch, noise: Tensor) -> fedavg.Point:
    """The client's own layers under the latest average of the shared ones, after ``ft`` SGD steps."""
    return fedavg.personalize(ctx, fedavg.Nothing(), fedavg.Point(whole(ctx, client, view)), data, noise)


def configure(record: Algorithm, cfg: FedPer) -> Algorithm:
    return record._replace(personal=record.personal + fedavg.tuned(cfg.ft), personal_data=cfg.ft > 0)


ALGORITHM = Algorithm(
    summary="the body is averaged, the head stays with its client",
    config=FedPer,
    server_init=server_init,
    client_init=client_init,
    broadcast=broadcast,
    begin=begin,
    step=fedavg.step,
    finish=finish,
    aggregate=Sums(absorb, weigh=fedavg.weigh),
    predict_global=None,
    predict_personal=fedavg.predict_global,
    personalize=personalize,
    personal_noise=fedavg.personal_noise,
    personal="each client's own layers under the latest average of the shared ones",
    configure=configure,
    adapt=adapt,
    space={"lr": LogUniform(1e-4, 1e-1)},
)
