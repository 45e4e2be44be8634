"""Adaptive ECE: by hand, its bins, what it sees that ECE does not, and that its sums add."""

import math

import pytest
import torch
from sklearn.calibration import calibration_curve
from torch.testing import assert_close

from fedray.arrays import trees
from fedray.federate.measures import metrics
from fedray.federate.uncertainty.adaptive import Tenths, error, tenths


def drawn(n, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(n, generator=rng).double(), (torch.rand(n, generator=rng) < 0.6).double()


@pytest.mark.parametrize("n", [3, 10, 137])
def test_bins_hold_equally_many_of_the_sorted_predictions(n):
    confidence, correct = drawn(n)
    order = confidence.argsort()
    parts = [(confidence[part], correct[part]) for part in order.tensor_split(10)]
    found = tenths(confidence, correct)
    assert found.examples.tolist() == [len(part) for part, _ in parts]
    assert found.examples.max() - found.examples.min() <= 1
    by_hand = sum(abs(float(right.sum() - sure.sum())) for sure, right in parts) / n
    assert error(found) == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("n", [50, 400])
def test_it_agrees_with_scikit_learn_where_all_bins_are_equally_full(n):
    confidence, correct = drawn(n)
    accuracy, sure = calibration_curve(correct, confidence, n_bins=10, strategy="quantile")
    assert error(tenths(confidence, correct)) == pytest.approx(abs(accuracy - sure).mean(), abs=1e-12)


def test_it_sees_errors_of_both_signs_that_cancel_within_a_bin_of_ece():
    """Half the predictions are at .91 and right at .96, half at .99 and right at .94: in the mean all is well."""
    confidence = torch.tensor([0.91] * 100 + [0.99] * 100, dtype=torch.float64)
    correct = torch.tensor([1.0] * 96 + [0.0] * 4 + [1.0] * 94 + [0.0] * 6)
    p = torch.stack([confidence, 1 - confidence], -1)
    ece, _ = metrics.calibration_errors(metrics.evaluate(p.log()[None], (1 - correct).long()))
    assert ece == pytest.approx(0, abs=1e-12)
    assert error(tenths(confidence, correct)) == pytest.approx(0.05)


def test_it_is_zero_where_every_confidence_is_right_that_often():
    confidence = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64).repeat_interleave(50)
    correct = torch.cat([(torch.arange(50) < 50 * c).double() for c in (0.2, 0.4, 0.6, 0.8)])
    assert error(tenths(confidence, correct)) == pytest.approx(0, abs=1e-12)


def test_the_order_of_examples_does_not_count():
    confidence, correct = drawn(40)
    confidence = (4 * confidence).round() / 4  # ties
    order = torch.randperm(40)
    assert_close(tenths(confidence[order], correct[order]), tenths(confidence, correct))


def test_sums_of_clients_pool_bin_by_bin_and_none_have_no_error():
    one, other = tenths(*drawn(30)), tenths(*drawn(50, 1))
    both = Tenths(*trees.tree_map(lambda leaf: leaf.sum(0), trees.stack([one, other])))
    assert both.examples.sum() == 80
    assert error(both) <= (30 * error(one) + 50 * error(other)) / 80
    assert math.isnan(error(tenths(torch.ones(0), torch.ones(0))))
