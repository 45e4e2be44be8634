"""Stein variational gradient descent and the discrepancies of its kernel: KSD and HIP.

Liu and Wang, "Stein Variational Gradient Descent", NeurIPS 2016; Yang, Liu and Kassab, "Client Selection for Federated
Bayesian Learning", eqs. 10-13 and 19. Particles x [N, P] are rows of which d entries are parameters and the rest zero
padding; scores s [N, P] are gradients of a log-density at the particles, zero in the padding. The kernel is
k(x, y) = exp(-‖x - y‖²/h). Products over P are taken in float64, a slice of P at a time: distances of particles with
80,000 parameters cancel in float32, and [N, N, P] differences or a float64 copy of [N, P] would not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

SLICE = 8192  # parameters whose float64 copies are alive at a time
TOGETHER = 1 << 18  # of all particles, where they are taken one after the other
FLOOR = 1e-12  # of h: particles that coincide have no median distance
DECAY = 0.9  # of the running mean of φ² (both public codes, which call the rule AdaGrad)

Bandwidth = Literal["median", "paper", "code"]
Rule = Literal["rmsprop", "adagrad", "plain"]


class Kernel(NamedTuple):
    """The RBF kernel of a set of particles, float64."""

    k: Tensor  # [N, N] exp(-D/h)
    distance: Tensor  # [N, N] D, squared
    h: Tensor  # [] a constant: nothing is differentiated through it


class Reference(NamedTuple):
    """What inner products with a direction φ' need to know of it."""

    phi: Tensor  # [N, P]
    offset: Tensor  # []


class Descent(NamedTuple):
    """How particles move along their direction."""

    lr: float  # ε
    fudge: float = 1e-6
    rule: Rule = "rmsprop"
    bandwidth: Bandwidth = "median"
    width: float = 1.0


def inner(a: Tensor, b: Tensor) -> Tensor:
    """a_i·b_j [N, M] of rows a [N, P], b [M, P], in float64."""
    pairs = zip(a.split(SLICE, -1), b.split(SLICE, -1), strict=True)
    return torch.stack([p.double() @ q.double().transpose(-1, -2) for p, q in pairs]).sum(0)


def pairing(a: Tensor, b: Tensor) -> Tensor:
    """a_i·b_i [N] of rows [N, P], in float64."""
    pairs = zip(a.split(SLICE, -1), b.split(SLICE, -1), strict=True)
    return torch.stack([(p.double() * q.double()).sum(-1) for p, q in pairs]).sum(0)


def centred(x: Tensor) -> Tensor:
    """x [N, P] without its mean over particles, which no difference of particles can see."""
    return x - x.mean(0)


def squared_distances(x: Tensor, y: Tensor | None = None) -> Tensor:
    """D_ij = ‖x_i - y_j‖² [N, M], float64, never negative; without y between rows of x, exactly 0 on the diagonal."""
    middle = x.mean(0)  # no difference of particles sees it, and the products lose fewer digits without it
    x = x - middle
    if y is None:
        gram = inner(x, x)
        norm = other = gram.diagonal(dim1=-2, dim2=-1)
    else:
        y = y - middle
        gram = inner(x, y)
        norm = pairing(x, x)
        other = pairing(y, y)
    return (norm[:, None] + other[None, :] - 2 * gram).clamp_min(0)


def bandwidth(distance: Tensor, rule: Bandwidth = "median") -> Tensor:
    """h of the median heuristic from squared distances [N, N].

    median: median off the diagonal / log(N + 1); paper: / log N; code: the median of all N² entries / log(N + 1).
    """
    n = len(distance)
    if n == 1:
        return torch.ones_like(distance[0, 0])
    i, j = torch.triu_indices(n, n, 1, device=distance.device)
    values = (distance.flatten() if rule == "code" else distance[i, j]).sort().values
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    return (middle / math.log(n if rule == "paper" else n + 1)).clamp_min(FLOOR)


def rbf(x: Tensor, rule: Bandwidth = "median", width: float = 1.0) -> Kernel:
    """The kernel of particles [N, P], with ``width`` times the h of a rule."""
    distance = squared_distances(x)
    h = width * bandwidth(distance, rule)
    return Kernel(torch.exp(-distance / h), distance, h)


def direction(x: Tensor, s: Tensor, kernel: Kernel) -> Tensor:
    """SVGD's direction φ(x_i) = (1/N) Σ_j [k_ij s_j + ∇_{x_j} k(x_j, x_i)] [N, P] (eq. 13); with one particle, s.

    In matrices (1/N) [K s + (2/h)(diag(K 1) - K) x].
    """
    x, k, gain = centred(x), kernel.k.to(x.dtype), (2 / kernel.h).to(x.dtype)
    return (k @ (s - gain * x) + (gain * k.sum(1, keepdim=True)) * x) / len(x)


def stein_matrix(x: Tensor, s1: Tensor, s2: Tensor, kernel: Kernel, d: int) -> Tensor:
    """h_{p1,p2}(θ_i, θ_j) [N, N], float64, of Theorem 1; d is the true dimension, of which the trace consists.

    K ∘ [s1 s2ᵀ + (2/h) s1_i·(x_i - x_j) - (2/h) (x_i - x_j)·s2_j + 2d/h - 4D/h²].
    """
    x = centred(x)
    gain = 2 / kernel.h
    first, second = inner(s1, x), inner(x, s2)
    cross = first.diagonal()[:, None] - first - second + second.diagonal()[None, :]
    trace = gain * d - gain.square() * kernel.distance
    return kernel.k * (inner(s1, s2) + gain * cross + trace)


def v_statistic(matrix: Tensor) -> Tensor:
    """Mean of a Stein matrix: ‖φ‖² or ⟨φ1, φ2⟩ of the empirical measure (eq. 19); KSD's is never negative."""
    return matrix.mean()


def u_statistic(matrix: Tensor) -> Tensor:
    """Mean off the diagonal: unbiased, and can be negative; 0 with one particle, which has no pairs."""
    n = len(matrix)
    return (matrix.sum() - matrix.diagonal().sum()) / max(n * (n - 1), 1)


def ksd(x: Tensor, s: Tensor, kernel: Kernel, d: int, statistic: Literal["v", "u"] = "v") -> Tensor:
    """Kernelized Stein discrepancy S(q, p), float64, of particles from q and scores of p (eq. 10)."""
    matrix = stein_matrix(x, s, s, kernel, d)
    return v_statistic(matrix) if statistic == "v" else u_statistic(matrix)


def offset(x: Tensor, s: Tensor, kernel: Kernel, d: int) -> Tensor:
    """The rest of ⟨·, φ⟩, float64: (1/N²) Σ_ij k_ij [(2/h)(x_j - x_i)·s_j + 2d/h - 4D/h²], the mean divergence of φ."""
    return v_statistic(stein_matrix(x, torch.zeros_like(s), s, kernel, d))


def reference(x: Tensor, target: Tensor, kernel: Kernel, d: int) -> Reference:
    """φ' of the target's scores [N, P], and the rest of the inner products with it."""
    return Reference(direction(x, target, kernel), offset(x, target, kernel, d))


def hip(s: Tensor, other: Reference) -> Tensor:
    """⟨φ_s, φ'⟩ = (1/N) Σ_n s_n·φ'(θ_n) + offset [], float64, of scores [N, P], by the reproducing property.

    It is the V-statistic of Theorem 1: with one reference, K clients cost O(N² P + K N P) in place of O(K N² P).
    """
    pairs = zip(s.flatten().split(TOGETHER), other.phi.flatten().split(TOGETHER), strict=True)
    return torch.stack([torch.dot(a.double(), b.double()) for a, b in pairs]).sum() / len(s) + other.offset


def move(how: Descent, x: Tensor, v: Tensor, first: Tensor | bool, phi: Tensor) -> tuple[Tensor, Tensor]:
    """One step x + ε φ/(fudge + √v), and the new v [N, P], of φ² at this step and those before it.

    rmsprop: v = φ² at the first step and 0.9 v + 0.1 φ² later; adagrad: v + φ², the sum of all (Duchi, Hazan and
    Singer, JMLR 2011); plain: x + ε φ, v unused.
    """
    if how.rule == "plain":
        return x + how.lr * phi, v
    square = phi.square()
    later = v + square if how.rule == "adagrad" else DECAY * v + (1 - DECAY) * square
    v = torch.where(torch.as_tensor(first), square, later)
    return x + how.lr * phi / (how.fudge + v.sqrt()), v


def descend(how: Descent, x: Tensor, score: Callable[[Tensor], Tensor], steps: int) -> Tensor:
    """Particles [N, P] after SVGD steps on the density whose score [N, P] is given as a function of them."""
    v = torch.zeros_like(x)
    for r in range(steps):
        x, v = move(how, x, v, r == 0, direction(x, score(x), rbf(x, how.bandwidth, how.width)))
    return x
