"""How well a score of uncertainty tells examples of unknown classes from those of known ones.

The unknown examples are the positive class of all measures, and a higher score means "more likely unknown". Thresholds
lie between distinct scores only, so that no measure depends on the order of examples with equal scores. Every measure
is NaN where there are no examples on one side, or where a score is NaN.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

TPR = 0.95  # of the unknown examples, the share that the threshold of FPR95 has to find


class Ranked(NamedTuple):
    """How well scores tell unknown from known examples; all in [0, 1]."""

    auroc: Tensor  # [...]
    aupr: Tensor  # [...]
    fpr95: Tensor  # [...]


def ranked(known: Tensor, unknown: Tensor) -> Ranked:
    """All measures of S scores: known [S, n], unknown [S, m] -> [S] each."""
    pairs = list(zip(known.double(), unknown.double(), strict=True))
    return Ranked(*(torch.stack([measure(*pair) for pair in pairs]) for measure in (auroc, aupr, fpr95)))


def auroc(known: Tensor, unknown: Tensor) -> Tensor:
    """Area under the ROC curve: P(s_u > s_k) + P(s_u = s_k)/2 of a random unknown and a random known example.

    Of scores known [n] and unknown [m]; 0.5 is chance. Source: Mann and Whitney (1947).
    """
    if _undefined(known, unknown):
        return _nan(known)
    known = known.sort().values
    below = torch.searchsorted(known, unknown) + torch.searchsorted(known, unknown, right=True)
    return below.to(known).mean() / (2 * len(known))


def aupr(known: Tensor, unknown: Tensor) -> Tensor:
    """Average precision Σ_t (R_t - R_{t-1}) P_t over the distinct scores t, from the highest down.

    P_t and R_t are precision and recall of "unknown where the score is t or more". Chance is the share of unknown
    examples m/(n + m), so values of sets of other proportions do not compare.
    """
    if _undefined(known, unknown):
        return _nan(known)
    found, false = _counts(known, unknown)
    gained = torch.diff(found, prepend=found.new_zeros(1))
    return (gained * found / (found + false)).sum() / len(unknown)


def fpr95(known: Tensor, unknown: Tensor) -> Tensor:
    """The least share of known examples that is taken for unknown where at least 95 % of the unknown are found."""
    if _undefined(known, unknown):
        return _nan(known)
    found, false = _counts(known, unknown)
    enough = math.ceil(round(TPR * len(unknown), 9))
    return false[torch.searchsorted(found, torch.tensor(float(enough)).to(found))] / len(known)


def _counts(known: Tensor, unknown: Tensor) -> tuple[Tensor, Tensor]:
    """(unknown, known) examples whose score is t or more, for all distinct scores t from the highest down, [T]."""
    distinct = torch.cat([known, unknown]).unique().flip(0)
    found, false = (len(part) - torch.searchsorted(part.sort().values, distinct) for part in (unknown, known))
    return found.to(known), false.to(known)


def _undefined(known: Tensor, unknown: Tensor) -> bool:
    return not len(known) or not len(unknown) or bool(known.isnan().any() or unknown.isnan().any())


def _nan(like: Tensor) -> Tensor:
    return like.new_tensor(math.nan)
