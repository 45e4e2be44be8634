"""The importance indicators KSD and HIP as score stages, for methods whose server has particles.

Yang, Liu and Kassab, "Client Selection for Federated Bayesian Learning", Algorithms 1 and 2. ``server.x`` [M, P] are
the global particles; every indicator is taken at them, on the client's whole shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fedray.aggregate import mean
from fedray.models import Model
from fedray.priors import Prior
from fedray.stein import Bandwidth, Reference, hip, ksd, rbf, reference
from fedray.types import Batch, Stage

Scores = Callable[..., tuple[Tensor, Tensor]]  # cfg, model, client, down, data -> scores of p_k and of p̃_k [M, P]


class Config(Protocol):
    """The settings of a method that the indicators depend on."""

    @property
    def bandwidth(self) -> Bandwidth: ...
    @property
    def ksd(self) -> Literal["v", "u"]: ...
    @property
    def hip(self) -> Literal["paper", "first_order"]: ...
    @property
    def hip_offset(self) -> bool: ...
    def p0(self, d: int) -> Prior: ...


def stages(scores: Scores) -> Mapping[str, tuple[Stage, ...]]:
    """KSD; HIP from the clients' scores; and HIP in two phases, of which the server needs only a sum in the first."""
    tell, pair = Stage(partial(_tell, scores), compared), Stage(partial(_pair, scores), _as_it_is)
    return {
        "ksd": (Stage(partial(_ksd, scores), _as_it_is),),
        "hip": (tell._replace(combine=_pair_all),),
        "hip_two_phase": (tell, pair),
    }


def compared(cfg: Config, model: Model, server: Any, replies: Tensor) -> Reference:
    """φ' of p' = (Π_k p_k)^(1/N) (Lemma 3), or of the posterior p0 Π_k p_k, from the clients' scores of p_k."""
    target = mean(replies[:, 0])
    if cfg.hip == "first_order":
        target = len(replies) * target + cfg.p0(model.size).score(server.x)
    other = reference(server.x, target, rbf(server.x, cfg.bandwidth), model.size)
    return other if cfg.hip_offset else other._replace(offset=torch.zeros_like(other.offset))


def _ksd(scores: Scores, cfg: Config, model: Model, client: Any, down: Any, message: None, data: Batch) -> Tensor:
    """S(q, p̃_k) []."""
    _, s = scores(cfg, model, client, down, data)
    return ksd(down.x, s, rbf(down.x, cfg.bandwidth), model.size, cfg.ksd)


def _tell(scores: Scores, cfg: Config, model: Model, client: Any, down: Any, message: None, data: Batch) -> Tensor:
    """The score of p_k, and where it is asked for that of p̃_k: [1 or 2, M, P]."""
    return torch.stack(scores(cfg, model, client, down, data)[: 1 if cfg.hip == "paper" else 2])


def _pair(scores: Scores, cfg: Config, model: Model, client: Any, down: Any, message: Reference, data: Batch) -> Tensor:
    return hip(scores(cfg, model, client, down, data)[0 if cfg.hip == "paper" else 1], message)


def _pair_all(cfg: Config, model: Model, server: Any, replies: Tensor) -> Tensor:
    other = compared(cfg, model, server, replies)
    return torch.stack([hip(s, other) for s in replies[:, -1]])


def _as_it_is(cfg: Config, model: Model, server: Any, replies: Tensor) -> Tensor:
    return replies
