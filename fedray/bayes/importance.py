"""The importance indicators KSD and HIP as score stages, for methods whose server has particles.

Yang, Liu and Kassab, "Client Selection for Federated Bayesian Learning", Algorithms 1 and 2. ``server.x`` [M, P] are
the global particles; every indicator is taken at them, on the examples that the method's scores are of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fedray.arrays.averages import total
from fedray.bayes.priors import Prior
from fedray.bayes.stein import Kernel, Reference, hip, ksd, reference
from fedray.types import Batch, Context, Stage

Scores = Callable[..., tuple[Tensor, Tensor]]  # ctx, client, down, data -> scores of p_k and of p̃_k [M, P]


class Config(Protocol):
    """The settings of a method that the indicators depend on."""

    @property
    def ksd(self) -> Literal["v", "u"]: ...
    @property
    def hip(self) -> Literal["paper", "first_order"]: ...
    @property
    def hip_offset(self) -> bool: ...
    def p0(self, d: int) -> Prior: ...
    def kernel(self, x: Tensor) -> Kernel: ...


def stages(scores: Scores) -> Mapping[str, tuple[Stage, ...]]:
    """KSD; HIP from the clients' scores; and HIP in two phases, of which the server needs only a sum in the first.

    At the server hip holds the scores of all clients, N M P floats, since all are needed before the first is paired;
    hip_two_phase adds them up as they come, and holds one.
    """
    return {
        "ksd": (Stage(partial(_ksd, scores), _as_they_are),),
        "hip": (Stage(partial(_tell, scores), _pair_all),),
        "hip_two_phase": (Stage(partial(_tell_own, scores), _announce), Stage(partial(_pair, scores), _as_they_are)),
    }


def compared(ctx: Context[Config], server: Any, own: Iterable[Tensor]) -> Reference:
    """φ' of p' = (Π_k p_k)^(1/N) (Lemma 3), or of the posterior p0 Π_k p_k, from the clients' scores of p_k [M, P].

    In float64: pairings with it then are the double sums of Theorem 1 to rounding in that.
    """
    cfg = ctx.cfg
    size = ctx.model.size
    x = server.x.double()
    (added, clients) = total(own)
    target = added / clients if cfg.hip == "paper" else added + cfg.p0(size).score(x)
    other = reference(x, target, cfg.kernel(x), size)
    return other if cfg.hip_offset else other._replace(offset=torch.zeros_like(other.offset))


def _ksd(scores: Scores, ctx: Context[Config], client: Any, down: Any, message: None, data: Batch) -> Tensor:
    """S(q, p̃_k) []."""
    _, s = scores(ctx, client, down, data)
    return ksd(down.x, s, ctx.cfg.kernel(down.x), ctx.model.size, ctx.cfg.ksd)


def _tell_own(scores: Scores, ctx: Context[Config], client: Any, down: Any, message: None, data: Batch) -> Tensor:
    """The score of p_k [M, P]."""
    return scores(ctx, client, down, data)[0]


def _tell(scores: Scores, ctx: Context[Config], client: Any, down: Any, message: None, data: Batch) -> Tensor:
    """The score of p_k, and where it is asked for that of p̃_k: [1 or 2, M, P]."""
    return torch.stack(scores(ctx, client, down, data)[: 1 if ctx.cfg.hip == "paper" else 2])


def _pair(scores: Scores, ctx: Context[Config], client: Any, down: Any, message: Reference, data: Batch) -> Tensor:
    return hip(scores(ctx, client, down, data)[0 if ctx.cfg.hip == "paper" else 1], message)


def _pair_all(ctx: Context[Config], server: Any, replies: Iterable[Tensor]) -> Tensor:
    both = list(replies)
    other = compared(ctx, server, (reply[0] for reply in both))
    return torch.stack([hip(reply[-1], other) for reply in both])


def _announce(ctx: Context[Config], server: Any, replies: Iterable[Tensor]) -> Reference:
    other = compared(ctx, server, replies)
    return other._replace(phi=other.phi.to(server.x.dtype))  # what is sent is not twice as large


def _as_they_are(ctx: Context[Config], server: Any, replies: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(replies))
