"""Adaptive ECE: the calibration error over bins that hold equally many examples each.

ECE's bins of equal width leave most of a confident model's examples in one bin, where errors of both signs cancel. Here
the bins are the tenths of a client's own predictions, by confidence. Sums over a bin add up over clients, as those of
ECE do. Source: Nixon et al., "Measuring Calibration in Deep Learning" (CVPR Workshops 2019).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedray.federate.uncertainty.selective import tie_means
from fedray.types import BINS


class Tenths(NamedTuple):
    """Sums over the tenths of the predictions of one or more clients, the least confident first."""

    examples: Tensor  # [..., BINS] how many
    confidence: Tensor  # [..., BINS]
    correct: Tensor  # [..., BINS]


def tenths(confidence: Tensor, correct: Tensor) -> Tenths:
    """The sums of n predictions with their confidence [n], and whether each is right [n], 0 or 1.

    Bins differ by one example at most, the first ones are the larger. Equal confidences share their mean correctness.
    """
    ranked, order = confidence.double().sort()
    right = tie_means(ranked, correct[order].double())
    parts = list(zip(ranked.tensor_split(BINS), right.tensor_split(BINS), strict=True))
    examples = ranked.new_tensor([len(part) for part, _ in parts])
    return Tenths(examples, *(torch.stack([part.sum() for part in each]) for each in zip(*parts, strict=True)))


def error(sums: Tenths) -> float:
    """Σ_b |correct_b - confidence_b| / n of sums [BINS]; NaN where there are no examples."""
    return float((sums.correct - sums.confidence).abs().sum() / sums.examples.sum())
