"""Selective prediction: by hand, against scikit-learn, its bounds, and its mean over the order of ties."""

import itertools

import pytest
import torch
from sklearn.metrics import auc
from torch.testing import assert_close

from fedray.federate.uncertainty import selective
from fedray.federate.uncertainty.selective import aurc, coverage_at, risk_at, risks


def drawn(n, seed=0):
    rng = torch.Generator().manual_seed(seed)
    confidence = torch.rand(n, generator=rng).double()
    return confidence, (torch.rand(n, generator=rng) > confidence).double()


def test_four_predictions_by_hand():
    """Sorted: right, wrong, right, right."""
    found = risks(torch.tensor([0.6, 0.9, 0.5, 0.8]), torch.tensor([0, 0, 0, 1]))
    assert_close(found, torch.tensor([0, 1 / 2, 1 / 3, 1 / 4]).double())
    assert float(aurc(found)) == pytest.approx((0 / 2 + 1 / 2 + 1 / 3 + 1 / 8) / 3)
    assert float(coverage_at(found, 0.3)) == 1  # the last risk is low again
    assert float(coverage_at(found[:3], 0.3)) == pytest.approx(1 / 3)
    assert float(coverage_at(found[1:2], 0.3)) == 0
    assert [float(risk_at(found, c)) for c in (0.25, 0.26, 0.8, 1)] == pytest.approx([0, 1 / 2, 1 / 4, 1 / 4])


@pytest.mark.parametrize("n", [20, 500, 1000])
def test_a_risk_that_is_just_allowed_is_allowed_among_ties(n):
    wrong = (torch.arange(n) < n // 20).double()
    assert float(coverage_at(risks(torch.ones(n), wrong), 0.05)) == 1


@pytest.mark.parametrize("n", [2, 7, 100])
def test_the_area_agrees_with_scikit_learn(n):
    confidence, wrong = drawn(n)
    found = risks(confidence, wrong)
    coverage = torch.arange(1, n + 1) / n
    assert float(aurc(found)) == pytest.approx(auc(coverage, found) / (1 - 1 / n), abs=1e-7)
    assert aurc(found[:1]).isnan()


def test_a_confidence_that_knows_nothing_has_the_error_rate_everywhere():
    found = selective.selective(torch.full((10,), 0.5), torch.tensor([1.0] * 3 + [0.0] * 7))
    assert_close(found.curve, torch.full((selective.POINTS,), 0.3).double())
    assert [float(each) for each in found[:3]] == pytest.approx([0.3, 0, 0.3])


def test_no_confidence_is_better_than_one_that_knows_the_errors():
    confidence, wrong = drawn(60)
    best, worst = (aurc(risks(sign * wrong, wrong)) for sign in (-1, 1))
    assert best < aurc(risks(confidence, wrong)) < worst
    assert float(risk_at(risks(-wrong, wrong), 1 - float(wrong.mean()))) == 0


def test_ties_count_as_the_mean_over_their_orders():
    confidence, wrong = torch.tensor([0.9, 0.7, 0.7, 0.7, 0.2]), torch.tensor([1.0, 0, 1, 1, 0])
    ordered = []
    for order in itertools.permutations(range(1, 4)):
        distinct = confidence.clone()
        distinct[list(order)] += torch.tensor([0.01, 0, -0.01])
        ordered.append(risks(distinct, wrong))
    assert_close(risks(confidence, wrong), torch.stack(ordered).mean(0))
    shuffled = torch.tensor([3, 0, 4, 2, 1])
    assert_close(risks(confidence[shuffled], wrong[shuffled]), risks(confidence, wrong))


def test_the_curve_ends_at_the_error_rate():
    confidence, wrong = drawn(33)
    curve = selective.selective(confidence, wrong).curve
    assert curve[-1] == pytest.approx(float(wrong.mean()))
    assert curve[0] == risks(confidence, wrong)[0]  # of 33, a fiftieth is one example
