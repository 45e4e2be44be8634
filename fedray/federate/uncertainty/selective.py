"""Selective prediction: how often a model errs where it answers only what it is most confident of.

Of n examples sorted by falling confidence, the *risk* r_k is the share of errors among the first k, at the *coverage*
k/n. Examples of equal confidence count as in random order: each has the mean error of its ties. Source: Geifman and
El-Yaniv, "Selective Classification for Deep Neural Networks" (NeurIPS 2017).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

RISK = 0.05  # at which the coverage is reported
COVERAGE = 0.8  # at which the risk is reported
ROUNDING = 1e-12  # of means of errors: a risk that is 0.05 may be 0.05 + 7e-18
POINTS = 50  # of a curve, at the coverages 1/50, 2/50 ... 1


class Selective(NamedTuple):
    """Selective prediction of the examples of one or more clients; all in [0, 1]."""

    aurc: Tensor  # [...]
    coverage_at_risk: Tensor  # [...]
    risk_at_coverage: Tensor  # [...]
    curve: Tensor  # [..., POINTS] risks


def selective(confidence: Tensor, wrong: Tensor) -> Selective:
    """All measures of n >= 1 predictions: their confidence [n], and whether each is wrong [n], 0 or 1."""
    found = risks(confidence, wrong)
    curve = torch.stack([risk_at(found, j / POINTS) for j in range(1, POINTS + 1)])
    return Selective(aurc(found), coverage_at(found, RISK), risk_at(found, COVERAGE), curve)


def risks(confidence: Tensor, wrong: Tensor) -> Tensor:
    """r_k [n] of the k most confident of n predictions, k = 1 ... n."""
    order = confidence.argsort(descending=True)
    errors = tie_means(confidence[order], wrong[order].double())
    return errors.cumsum(0) / torch.arange(1, len(errors) + 1, device=errors.device)


def tie_means(ranked: Tensor, values: Tensor) -> Tensor:
    """Values [n] of ranked examples, each replaced by the mean over those of equal rank value ``ranked`` [n]."""
    _, group, size = ranked.unique_consecutive(return_inverse=True, return_counts=True)
    totals = values.new_zeros(len(size)).index_add(0, group, values)
    return (totals / size)[group]


def aurc(risks: Tensor) -> Tensor:
    """Area under the risk-coverage curve: its mean height between the coverages 1/n and 1, by the trapezoid rule.

    0 is a model without errors; a confidence that knows nothing has the error rate. NaN of fewer than two examples.
    """
    return (risks[1:] + risks[:-1]).mean() / 2


def coverage_at(risks: Tensor, most: float) -> Tensor:
    """The largest coverage k/n whose risk is at most ``most``; 0 where there is none."""
    allowed = torch.arange(1, len(risks) + 1, device=risks.device) * (risks <= most + ROUNDING)
    return allowed.max().double() / len(risks)


def risk_at(risks: Tensor, coverage: float) -> Tensor:
    """The risk r_k of the least k with k/n >= ``coverage``."""
    return risks[math.ceil(round(coverage * len(risks), 9)) - 1]
