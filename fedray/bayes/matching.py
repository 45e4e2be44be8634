"""Matching of the neurons of several networks by a Beta-Bernoulli process: which of them are noisy copies of which.

Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019, section 3 (PFNM). Global
neurons θ_i ~ N(μ_0, diag(1/b_0)); a client's neuron is w ~ N(θ_i, diag(1/p)); which global neurons a client has is
drawn by the process with mass γ. With A_i = b_0 μ_0 + Σ p w and B_i = b_0 + Σ p over the neurons matched to θ_i, its
posterior mean is A_i/B_i, and twice the log posterior of a matching is, up to a constant, Σ_i Σ_v A_iv²/B_iv plus the
process's terms. One client's best matching given all others' is a linear assignment problem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Process(NamedTuple):
    """The prior of global neurons of V weights, and of who has them."""

    mu0: Tensor  # [V] prior mean
    b0: Tensor  # [V] prior precision
    gamma: float  # mass γ: the larger, the sooner a neuron is taken for a new one
    clients: int  # J
    popularity: float  # factor of log(n_i/(J-n_i)): 2 by derivation


class Neurons(NamedTuple):
    """Global neurons by their natural parameters, in float64."""

    a: Tensor  # [L, V] A_i, precision times mean
    b: Tensor  # [L, V] B_i, precision
    n: Tensor  # [L] how many clients have a neuron matched to it

    def mean(self) -> Tensor:
        """The posterior means A/B [L, V]."""
        return self.a / self.b


def none(process: Process) -> Neurons:
    """No neurons yet."""
    nothing = process.b0.new_zeros(0, len(process.b0))
    return Neurons(nothing, nothing, nothing[:, 0])


def gains(process: Process, neurons: Neurons, w: Tensor, p: Tensor, fresh: int) -> Tensor:
    """What it adds to twice the log posterior to match w [H, V] of precision p [V]: [H, L + fresh].

    To global neuron i: Σ_v [(A + p w)²/(B + p) - A²/B] + popularity · log(n/(J-n)). To the k-th of the ``fresh`` new
    ones: the same with A = b_0 μ_0 and B = b_0, but 2 log(γ/J) - 2 log k. The squares are expanded, so that it is two
    products.
    """
    q = p * w
    new = _improvement((process.b0 * process.mu0)[None], process.b0[None], q, p)
    order = torch.arange(1, fresh + 1, dtype=w.dtype)
    new = new + 2 * math.log(process.gamma / process.clients) - 2 * order.log()
    old = _improvement(neurons.a, neurons.b, q, p)
    old = old + process.popularity * (neurons.n / (process.clients - neurons.n)).log()
    return torch.cat([old, new], 1)


def _improvement(a: Tensor, b: Tensor, q: Tensor, p: Tensor) -> Tensor:
    """Σ_v [(a + q)²/(b + p) - a²/b] for q = p w [H, V] and a, b [L, V]: [H, L]."""
    inverse = (b + p).reciprocal()
    own = (a.square() * (inverse - b.reciprocal())).sum(1)
    return own + q @ (2 * a * inverse).T + q.square() @ inverse.T


def match(
    process: Process, nets: Sequence[Tensor], precisions: Sequence[Tensor], sweeps: int, width: int
) -> tuple[Tensor, Neurons]:
    """Match the neurons w_j [H, V], of precisions p_j [V], of all clients: places [J, H], and the global neurons [L].

    The clients come in one after the other; then, ``sweeps`` times, each is taken out and matched anew given all
    others. No two neurons of a client share a place. There are never more than ``width`` global neurons, which has to
    be H at least.
    """
    neurons, places = none(process), torch.full((len(nets), len(nets[0])), -1)
    for sweep in range(sweeps + 1):
        for j, (w, p) in enumerate(zip(nets, precisions, strict=True)):
            if sweep:
                neurons, places = _without(neurons, places, j, w, p)
            neurons, places[j] = _with(process, neurons, w, p, width)
    return places, neurons


def _with(process: Process, neurons: Neurons, w: Tensor, p: Tensor, width: int) -> tuple[Neurons, Tensor]:
    """The global neurons with a client's best match, and its places [H]."""
    from scipy.optimize import linear_sum_assignment

    fresh = min(len(w), width - len(neurons.n))
    _, column = linear_sum_assignment(gains(process, neurons, w, p, fresh).numpy(), maximize=True)
    place = torch.from_numpy(column)
    # The k-th new column may be left out for the next only if both are worth the same, which 2 log k rules out.
    added = int(place.max()) + 1 - len(neurons.n)
    if added > 0:
        grown = (process.b0 * process.mu0).expand(added, -1), process.b0.expand(added, -1), neurons.n.new_zeros(added)
        neurons = Neurons(*(torch.cat(pair) for pair in zip(neurons, grown, strict=True)))
    return _changed(neurons, place, p * w, p, 1), place


def _without(neurons: Neurons, places: Tensor, j: int, w: Tensor, p: Tensor) -> tuple[Neurons, Tensor]:
    """The global neurons without client j's, and the places [J, H] of the others; what nobody has is dropped."""
    neurons = _changed(neurons, places[j], -p * w, -p, -1)
    left = neurons.n > 0
    return Neurons(*(leaf[left] for leaf in neurons)), (left.cumsum(0) - 1)[places]


def _changed(neurons: Neurons, place: Tensor, a: Tensor, b: Tensor, n: int) -> Neurons:
    """A, B and n with something added at the places [H]."""
    count = neurons.n.new_full(place.shape, n)
    return Neurons(*(x.index_add(0, place, by) for x, by in zip(neurons, (a, b.expand_as(a), count), strict=True)))
