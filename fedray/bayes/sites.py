"""What a client of DSVGD remembers of its own likelihood, t_k ≈ p_k, so that it is not counted twice.

The tilted target is p̃_k = q/t_k · p_k (Yang, Liu and Kassab, eqs. 6-7), q = p0 Π_k t_k. Its score is ∇log p0 + s_k +
pull, s_k the score of the client's likelihood; a backend says what the pull is and how t_k is renewed. Particles are
rows of x [M, P].

site     log t_k = η_k·θ - ½ θᵀ diag(Λ_k) θ, fitted by the stationarity conditions of Gaussian variational inference:
         Λ_k = E_q[-∇² log p_k], η_k = E_q[s_k] + Λ_k E_q[θ]; exact for Gaussian likelihoods. The server keeps the sums.
particle the same with a Gaussian for each particle, that of log p_k's expansion at it: Λ_kn = -∇² log p_k(θ_n), η_kn =
         s_k(θ_n) + Λ_kn θ_n. Where all were fitted at the same particles, Σ_k t_k has the very score of Π_k p_k there,
         whatever the likelihood and Λ: what does not move is at rest under SVGD on all data. It holds for particles
         that keep their row from visit to visit, as all here do; messages are three times as long.
none     no pull: every client targets p0 p_k alone. A control.
kde_*    r_k = p0 t_k as local particles: the pull is ∇log q - ∇log r_k of kernel density estimates, and L' steps of
         SVGD distil q_new/q_old r_k into r_k (eq. 7). kde_distill: one width; kde_shared: λ² = h/2 of the global
         particles; kde_code: the public code's estimate with its floors, whose gradient is zero in more than about 20
         dimensions. The first two diverge in many dimensions, and in one where clients disagree.
history  log t_k as the sum of log q_new - log q_old over the client's visits: the particles of both are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.bayes.kde import code_gradient, kde_gradient, median_width
from fedray.bayes.stein import Descent, descend


class Settings(NamedTuple):
    """What the backends need to know."""

    d: int  # the true dimension
    prior: Callable[[Tensor], Tensor]  # its score at x [M, P]
    damping: float  # β: t_k ← t_k^(1-β) (t_k new)^β
    width: float  # λ of kde_distill, kde_code and history
    slots: int  # visits that history can keep
    descent: Descent
    distil_steps: int  # L'


class Nothing(NamedTuple):
    """No memory."""


class Natural(NamedTuple):
    """A Gaussian factor in natural parameters, or one for each particle."""

    lam: Tensor  # [P] or [M, P] precision Λ
    eta: Tensor  # the same


class Cloud(NamedTuple):
    """Local particles of r_k = p0 t_k."""

    x: Tensor  # [M, P]


class Ratio(NamedTuple):
    """q/r_k of a round, as particles."""

    q: Tensor  # [M, P]
    r: Tensor  # [M, P]


class VisitCount(NamedTuple):
    """Visits of all clients so far; at none, q is the prior."""

    visits: Tensor  # []


class Visits(NamedTuple):
    """The global particles before and after every visit; slots are filled in order."""

    before: Tensor  # [V, M, P]
    after: Tensor  # [V, M, P]
    first: Tensor  # [V] 1 where ``before`` is the prior itself
    filled: Tensor  # [V] 1 where the slot is in use


class Past(NamedTuple):
    """q and t_k of a round, as particles."""

    q: Tensor  # [M, P]
    first: Tensor  # [] 1 where q is the prior itself
    visits: Visits


class Backend(NamedTuple):
    """How sites are kept."""

    own: Callable[..., Any]  # settings, x -> a client's site before its first visit
    shared: Callable[..., Any]  # settings, x -> the sums over clients that the server keeps
    cavity: Callable[..., Any]  # settings, sums, own, x -> what is left of q without t_k, fixed during a visit
    pull: Callable[..., Tensor]  # settings, cavity, x -> its score without the prior's [M, P]
    renew: Callable[..., Any]  # settings, own, cavity, x, s [M, P], curvature [M, P] -> own
    share: Callable[..., Any]  # old own, new own -> what is added to the sums
    density: Callable[..., Tensor] | None = None  # settings, q, centres, x -> ∇log of the estimate of r_k or q [M, P]
    gaussian: bool = False  # renewed from the likelihood's scores and curvature; the sums are all that q needs


def regression(x: Tensor, s: Tensor) -> Tensor:
    """E_q[-∂²log p], the same [M, P] for all particles, from them and scores [M, P] by Stein's lemma.

    -Cov(θ_j, s_j)/Var(θ_j), clipped at 0: exact where s is linear in each coordinate alone; noise where M is not large
    against P.
    """
    away = x - x.mean(0)
    squares = away.square().sum(0)
    slope = -(away * s).sum(0) / squares.clamp_min(torch.finfo(x.dtype).tiny)
    return torch.where(squares > 0, slope, 0).clamp_min(0).expand_as(x)


def natural_site(settings: Settings, x: Tensor) -> Natural:
    return Natural(torch.zeros_like(x[0]), torch.zeros_like(x[0]))


def expanded_site(settings: Settings, x: Tensor) -> Natural:
    return Natural(torch.zeros_like(x), torch.zeros_like(x))


def natural_cavity(settings: Settings, sums: Natural, own: Natural, x: Tensor) -> Natural:
    return Natural(sums.lam - own.lam, sums.eta - own.eta)


def natural_pull(settings: Settings, cavity: Natural, x: Tensor) -> Tensor:
    return cavity.eta - cavity.lam * x


def natural_renew(
    settings: Settings, own: Natural, cavity: Natural, x: Tensor, s: Tensor, curvature: Tensor
) -> Natural:
    lam = curvature.mean(0)
    return damped_site(own, Natural(lam, s.mean(0) + lam * x.mean(0)), settings.damping)


def expanded_renew(
    settings: Settings, own: Natural, cavity: Natural, x: Tensor, s: Tensor, curvature: Tensor
) -> Natural:
    return damped_site(own, Natural(curvature, s + curvature * x), settings.damping)


def damped_site(old: Natural, new: Natural, beta: float) -> Natural:
    """t_k^(1-β) (t_k new)^β."""
    return Natural(old.lam + beta * (new.lam - old.lam), old.eta + beta * (new.eta - old.eta))


def natural_share(old: Natural, new: Natural) -> Natural:
    return Natural(new.lam - old.lam, new.eta - old.eta)


def cloud_site(settings: Settings, x: Tensor) -> Cloud:
    return Cloud(x)


def cloud_cavity(settings: Settings, sums: Nothing, own: Cloud, x: Tensor) -> Ratio:
    return Ratio(x, own.x)


def fixed_width(settings: Settings, q: Tensor) -> float:
    return settings.width


def shared_width(settings: Settings, q: Tensor) -> Tensor:
    return median_width(q)


def cloud_density(
    gradient: Callable[..., Tensor],
    width: Callable[..., Any],
    settings: Settings,
    q: Tensor,
    centres: Tensor,
    x: Tensor,
) -> Tensor:
    """∇log of the density that is estimated from the centres, with the width that belongs to the round's q."""
    return gradient(x, centres, width(settings, q), settings.d)


def cloud_pull(
    gradient: Callable[..., Tensor], width: Callable[..., Any], settings: Settings, cavity: Ratio, x: Tensor
) -> Tensor:
    at = width(settings, cavity.q)
    return gradient(x, cavity.q, at, settings.d) - gradient(x, cavity.r, at, settings.d)


def cloud_renew(
    gradient: Callable[..., Tensor],
    width: Callable[..., Any],
    settings: Settings,
    own: Cloud,
    cavity: Ratio,
    x: Tensor,
    s: Tensor,
    curvature: Tensor,
) -> Cloud:
    """L' steps of SVGD on q_new/q_old r_k, from the particles of r_k."""
    at = width(settings, cavity.q)
    new = x

    def score(y: Tensor) -> Tensor:
        ratio = gradient(y, new, at, settings.d) - gradient(y, cavity.q, at, settings.d)
        return ratio + gradient(y, cavity.r, at, settings.d)

    return Cloud(descend(settings.descent, cavity.r, score, settings.distil_steps))


def visits_site(settings: Settings, x: Tensor) -> Visits:
    empty, slots = x.new_zeros(settings.slots, *x.shape), x.new_zeros(settings.slots)
    return Visits(empty, empty, slots, slots)


def visits_cavity(settings: Settings, sums: VisitCount, own: Visits, x: Tensor) -> Past:
    return Past(x, (sums.visits == 0).to(x.dtype), own)


def visits_pull(settings: Settings, cavity: Past, x: Tensor) -> Tensor:
    """∇log q - Σ_j ∇log(q_j new/q_j old) - ∇log p0; where a q is the prior, its own gradient."""
    prior = settings.prior(x)

    def gradient(centres: Tensor, first: Tensor) -> Tensor:
        return torch.where(first > 0, prior, kde_gradient(x, centres, settings.width, settings.d))

    total = gradient(cavity.q, cavity.first) - prior
    for before, after, first, filled in zip(*cavity.visits, strict=True):
        total = total - filled * (gradient(after, torch.zeros_like(first)) - gradient(before, first))
    return total


def visits_renew(settings: Settings, own: Visits, cavity: Past, x: Tensor, s: Tensor, curvature: Tensor) -> Visits:
    next_slot = torch.arange(settings.slots, device=x.device) == own.filled.sum()
    cube = next_slot[:, None, None]
    return Visits(
        torch.where(cube, cavity.q, own.before),
        torch.where(cube, x, own.after),
        torch.where(next_slot, cavity.first, own.first),
        torch.where(next_slot, 1.0, own.filled),
    )


def visits_share(old: Visits, new: Visits) -> VisitCount:
    return VisitCount(new.filled.sum() - old.filled.sum())


def nothing(*_: Any) -> Nothing:
    """No site, no sum, no cavity."""
    return Nothing()


def no_pull(settings: Settings, cavity: Nothing, x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def _kde(gradient: Callable[..., Tensor], width: Callable[..., Any]) -> Backend:
    return Backend(
        own=cloud_site,
        shared=nothing,
        cavity=cloud_cavity,
        pull=partial(cloud_pull, gradient, width),
        renew=partial(cloud_renew, gradient, width),
        share=nothing,
        density=partial(cloud_density, gradient, width),
    )


BACKENDS = {
    "site": Backend(
        natural_site, natural_site, natural_cavity, natural_pull, natural_renew, natural_share, gaussian=True
    ),
    "particle": Backend(
        expanded_site, expanded_site, natural_cavity, natural_pull, expanded_renew, natural_share, gaussian=True
    ),
    "none": Backend(nothing, nothing, nothing, no_pull, nothing, nothing),
    "history": Backend(
        visits_site,
        lambda _, x: VisitCount(x.new_zeros(())),
        visits_cavity,
        visits_pull,
        visits_renew,
        visits_share,
    ),
    "kde_distill": _kde(kde_gradient, fixed_width),
    "kde_shared": _kde(kde_gradient, shared_width),
    "kde_code": _kde(code_gradient, fixed_width),
}
