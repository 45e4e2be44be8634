"""Conformal sets: classes that together hold the right one with probability 1 - α, whatever the model.

A *score* s(x, c) says how badly class c fits. The threshold q is the ⌈(n + 1)(1 - α)⌉-th smallest of the scores of the
true classes of n calibration examples, and the set of x is {c : s(x, c) <= q}. If calibration and test examples are
exchangeable, it holds the true class with probability between 1 - α and 1 - α + 1/(n + 1), for any n: a client that
calibrates on its own examples has this for *itself*. Of fewer than 1/α - 1 examples there is no such q, and the set has
to be all classes. Source: Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World" (2005).

For clients with few examples the *federated* threshold is that of all clients' scores together, the
⌈(n + N)(1 - α)⌉-th smallest of n scores of N clients: coverage 1 - α on average over clients, not for each. Source: Lu
et al., "Federated Conformal Predictors for Distributed Uncertainty Quantification" (ICML 2023). It is taken from
histograms, which add, and rounded up to the end of a cell, which can only widen the sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

ALPHA = 0.1
CELLS = 256  # of a histogram of scores, of equal width in log(s/(1 - s))
REACH = 16.0  # the logit of the last end but one: scores are told apart from 1e-7 on


class Sets(NamedTuple):
    """What sets of one or more clients come to, for each of R rules of scoring.

    The histograms hold what a threshold of all clients needs: the scores of the calibration examples, and of the
    scored examples those of their true classes and of all classes.
    """

    threshold: Tensor  # [..., R] the client's own; infinity where it has too few calibration examples
    covered: Tensor  # [..., R] scored examples whose set holds the true class
    size: Tensor  # [..., R] Σ of the sizes of the sets of the scored examples
    calibration: Tensor  # [..., R, CELLS]
    labels: Tensor  # [..., R, CELLS]
    classes: Tensor  # [..., R, CELLS]


def thr(p: Tensor, u: Tensor | None = None) -> Tensor:
    """The score 1 - p_c [n, C] of probabilities [n, C]: the smallest sets on average; takes no random numbers.

    Source: Sadinle, Lei and Wasserman, "Least Ambiguous Set-Valued Classifiers" (JASA 2019).
    """
    return 1 - p


def aps(p: Tensor, u: Tensor) -> Tensor:
    """The score Σ_{c' before c} p_c' + u p_c [n, C], classes by falling probability: sets that adapt to the example.

    u [n] is uniform in [0, 1), one per example. Source: Romano, Sesia and Candès, "Classification with Valid and
    Adaptive Coverage" (NeurIPS 2020).
    """
    falling, order = p.sort(dim=-1, descending=True, stable=True)
    mass = falling.cumsum(-1) + (u[:, None].to(p) - 1) * falling
    return torch.empty_like(p).scatter(-1, order, mass).clamp(0, 1)


RULES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"thr": thr, "aps": aps}


def threshold(scores: Tensor, alpha: float = ALPHA) -> Tensor:
    """q [] of the scores [n] of calibration examples; infinity where they are too few."""
    place = rank(len(scores) + 1, alpha)
    return scores.new_tensor(math.inf) if place > len(scores) else scores.kthvalue(place).values


def rank(n: int, alpha: float) -> int:
    """⌈n (1 - α)⌉, of the number that is meant and not of its rounding error."""
    return math.ceil(round(n * (1 - alpha), 9))


def ends(device: torch.device | str = "cpu") -> Tensor:
    """The upper ends [CELLS] of the cells of a histogram of scores in [0, 1]; the last is 1."""
    inner = torch.linspace(-REACH, REACH, CELLS - 1, dtype=torch.float64, device=device).sigmoid()
    return torch.cat([inner, inner.new_ones(1)])


def histogram(scores: Tensor) -> Tensor:
    """How many scores [...] lie in each cell, [CELLS]."""
    cells = torch.bucketize(scores.flatten(), ends(scores.device)).clamp_max(CELLS - 1)  # NaN fits nowhere: the last
    return torch.bincount(cells, minlength=CELLS).double()


def federated(histograms: Tensor) -> int:
    """The cell at whose end the threshold of all N clients lies, of their histograms [N, CELLS].

    CELLS, which is no cell, where they have too few examples together: then sets have to be all classes.
    """
    reached = histograms.sum(0).cumsum(0)
    place = rank(int(reached[-1]) + len(histograms), ALPHA)
    return int(torch.searchsorted(reached, torch.tensor(float(place), dtype=torch.float64)))


def below(histograms: Tensor, cell: int) -> Tensor:
    """How many scores lie in a cell or below it, [...] of histograms [..., CELLS]; all where the cell is CELLS."""
    return histograms[..., : cell + 1].sum(-1)


def sets(calibration: Tensor, y_calibration: Tensor, p: Tensor, y: Tensor, u: Tensor) -> Sets:
    """Sets of n scored examples p [n, C] with labels y [n], calibrated on m others [m, C] with labels [m].

    ``u`` [m + n] are uniform draws, those of the calibration examples first.
    """
    m = len(calibration)
    found = []
    for score in RULES.values():
        own = score(calibration, u[:m]).gather(-1, y_calibration[:, None]).squeeze(-1)
        every = score(p, u[m:])
        labels = every.gather(-1, y[:, None]).squeeze(-1)
        q = threshold(own)
        sums = (labels <= q).double().sum(), (every <= q).double().sum()
        found.append(Sets(q, *sums, *map(histogram, (own, labels, every))))
    return Sets(*(torch.stack(parts) for parts in zip(*found, strict=True)))
