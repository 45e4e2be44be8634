"""Accuracy, calibration and uncertainty of predicted labels as sums that add: ratios are taken once, at the end.

Every field is a float64 sum over examples, with any leading axes (clients, say); ``pooled`` adds them up, so unequal
shards are averaged correctly by construction. Entropies and NLL are in nats.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedray.types import BINS, EvalStats, RegressionStats

SUM_TOLERANCE = 1e-3  # of a sum of probabilities, which should be 1
ROUNDING_NATS = 1e-9  # less mutual information is rounding error of draws that all predict the same
StatsT = TypeVar("StatsT", bound=EvalStats | RegressionStats)


class Summary(NamedTuple):
    """Ratios of :class:`EvalStats`; accuracies and calibration errors are fractions, nll and entropies nats."""

    accuracy: float
    nll: float
    ece: float
    mce: float
    brier: float
    entropy: float
    mutual_information: float


def evaluate(log_probs: Tensor, y: Tensor, shares: Tensor | None = None) -> EvalStats:
    """Sums of one batch from the draws ``log_probs`` [M, B, C] and labels ``y`` [B].

    The predictive is the average p̄ = Σ_m a_m p_m, a_m = 1/M or the ``shares`` [M] of sum 1; it is formed in log space
    so that -log p̄(y) stays finite.
    """
    log_probs = log_probs.double()
    log_mean = log_average(log_probs, shares)
    p = log_mean.exp()
    confidence, predicted = p.max(-1)
    hit = (predicted == y).double()
    onehot = torch.nn.functional.one_hot(y, p.shape[-1])
    entropy = entropy_of(p)
    conditional = expected_entropy(log_probs, shares)
    return EvalStats(
        examples=torch.tensor(float(len(y)), dtype=torch.float64),
        correct=hit.sum(),
        nll=-log_mean.gather(-1, y[:, None]).sum(),
        brier=((p - onehot) ** 2).sum(),
        entropy=entropy.sum(),
        mutual_information=(entropy - conditional).clamp_min(0).sum(),
        bin_count=_by_bin(confidence, torch.ones_like(hit)),
        bin_confidence=_by_bin(confidence, confidence),
        bin_correct=_by_bin(confidence, hit),
    )


def class_nll(log_probs: Tensor, y: Tensor, shares: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(their number, Σ -log p̄(y)) of the examples of each class [C], of draws [M, B, C] and labels [B]."""
    losses = -log_average(log_probs.double(), shares).gather(-1, y[:, None]).squeeze(-1)
    classes = log_probs.shape[-1]
    return sums_by(y, torch.ones_like(losses), classes), sums_by(y, losses, classes)


def log_average(log_probs: Tensor, shares: Tensor | None = None) -> Tensor:
    """log p̄ [B, C] of draws [M, B, C], p̄ = Σ_m a_m p_m; a_m is 1/M, or given in ``shares`` [M]."""
    if shares is None:
        return torch.logsumexp(log_probs, 0) - math.log(log_probs.shape[0])
    return torch.logsumexp(log_probs + shares.to(log_probs).log()[:, None, None], 0)


def entropy_of(p: Tensor) -> Tensor:
    """H[p] = -Σ_c p_c log p_c [...] in nats of probabilities [..., C]."""
    return -torch.special.xlogy(p, p).sum(-1)


def expected_entropy(log_probs: Tensor, shares: Tensor | None = None) -> Tensor:
    """Σ_m a_m H[p_m] [B] in nats of draws [M, B, C], with the same a_m."""
    entropies = entropy_of(log_probs.exp())
    return entropies.mean(0) if shares is None else shares.to(log_probs) @ entropies


def _by_bin(confidence: Tensor, value: Tensor) -> Tensor:
    bin_of = ((confidence * BINS).ceil().long() - 1).clamp(0, BINS - 1)
    return sums_by(bin_of, value, BINS)


def sums_by(group: Tensor, value: Tensor, groups: int) -> Tensor:
    """Σ of the values [B] of each group [groups]; ``group`` [B] counts from 0.

    On a GPU ``index_add`` adds in any order, and the same run would have other bits each time.
    """
    if value.is_cuda:
        return in_one_order(group, value, groups)
    return value.new_zeros(groups).index_add(0, group, value)


def in_one_order(group: Tensor, value: Tensor, groups: int) -> Tensor:
    """The same, of a matrix of the values [groups, B] with 0 where an example is of another group."""
    members = group == torch.arange(groups, device=group.device)[:, None]
    return torch.where(members, value, 0.0).sum(-1)


def pooled(stats: StatsT) -> StatsT:
    """The sums over all clients of stats stacked [K, ...], of labels or of real targets."""
    return type(stats)(*(field.sum(0) for field in stats))


def calibration_errors(stats: EvalStats) -> tuple[float, float]:
    """(ECE, MCE): Σ_b (n_b/n) |acc_b - conf_b| and the largest |acc_b - conf_b| over the bins that hold examples.

    A bin of a few examples can decide MCE and leave no trace in ECE. NaN where there are no examples.
    """
    gap = (stats.bin_correct - stats.bin_confidence).abs()
    n = stats.bin_count
    filled = n > 0
    mce = float((gap[filled] / n[filled]).max()) if filled.any() else math.nan
    return float(gap.sum() / n.sum()), mce


def summarize(stats: EvalStats) -> Summary:
    """The ratios of sums without leading axes; pool first."""
    n = float(stats.examples)
    ece, mce = calibration_errors(stats)
    return Summary(
        accuracy=float(stats.correct) / n,
        nll=float(stats.nll) / n,
        ece=ece,
        mce=mce,
        brier=float(stats.brier) / n,
        entropy=float(stats.entropy) / n,
        mutual_information=float(stats.mutual_information) / n,
    )


def worst_decile(stats: EvalStats) -> float:
    """Mean accuracy of the worst tenth of the clients (at least one) of stats stacked [K, ...]."""
    accuracy = (stats.correct / stats.examples).sort().values
    return float(accuracy[: math.ceil(len(accuracy) / 10)].mean())
