"""Accuracy, calibration and uncertainty: a worked example, bounds, and sums that add."""

import math

import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss
from torch.testing import assert_close

from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.federate.measures import metrics
from fedray.federate.measures.metrics import calibration_errors, evaluate, summarize
from fedray.federate.measures.tasks import CLASSIFICATION
from fedray.types import EvalStats


def predictions(examples=200, classes=4, draws=5, sharpness=2.0):
    stream = Stream(0, "predictions")
    logits = sharpness * stream.normal([1, examples, classes]) + stream.normal([draws, examples, classes])
    return torch.log_softmax(logits, -1), (stream.uniform([examples]) * classes).long()


LOG_P, Y = predictions()


def test_three_examples_by_hand():
    """p̄ = (.75, .25), (.5, .5) of two draws that disagree, (.05, .95); labels 0, 1, 0; argmax breaks ties low."""
    draws = torch.tensor([[[3, 1], [3, 1], [0.2, 3.8]], [[3, 1], [1, 3], [0.2, 3.8]]]) / 4
    stats = evaluate(draws.double().log(), torch.tensor([0, 1, 0]))
    assert (stats.examples, stats.correct) == (3, 1)
    assert_close(stats.nll.item(), -math.log(0.75) - math.log(0.5) - math.log(0.05), rtol=1e-6, atol=0)
    assert_close(stats.brier.item(), 0.125 + 0.5 + 1.805, rtol=1e-6, atol=0)

    def h(p):
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    assert_close(stats.entropy.item(), h(0.75) + h(0.5) + h(0.05), rtol=1e-6, atol=0)
    assert_close(stats.mutual_information.item(), h(0.5) - h(0.75), rtol=1e-6, atol=1e-9)
    ece, mce = calibration_errors(stats)
    assert ece == pytest.approx((0.25 + 0.5 + 0.95) / 3, rel=1e-6)
    assert mce == pytest.approx(0.95, rel=1e-6)
    assert summarize(stats).accuracy == pytest.approx(1 / 3)


def test_brier_score_and_nll_agree_with_scikit_learn():
    stats = evaluate(LOG_P, Y)
    p = LOG_P.double().exp().mean(0)
    p = (p / p.sum(-1, keepdim=True)).numpy()
    assert stats.brier.item() / 200 == pytest.approx(brier_score_loss(Y, p, scale_by_half=False), abs=1e-6)
    assert stats.nll.item() / 200 == pytest.approx(log_loss(Y, p), abs=1e-6)


def test_bins_are_closed_on_the_right():
    edges = torch.arange(11).double() / 10
    counts = metrics._by_bin(torch.cat([edges, edges[:-1] + 1e-9]), torch.ones(21).double())
    assert counts.tolist() == [3] + [2] * 9  # confidence 0 joins the first bin
    for p, bin_ in ((0.5, 4), (0.75, 7), (1.0, 9)):
        stats = evaluate(torch.tensor([[[p, 1 - p]]]).log(), torch.tensor([0]))
        assert stats.bin_count.nonzero().item() == bin_


@pytest.mark.parametrize("sharpness", [0.0, 0.5, 2.0, 30.0])
def test_bounds(sharpness):
    log_p, y = predictions(sharpness=sharpness)
    stats = evaluate(log_p, y)
    ece, mce = calibration_errors(stats)
    assert 0 <= ece <= mce <= 1
    one_bin = abs(float(stats.correct - stats.bin_confidence.sum())) / 200
    assert ece >= one_bin - 1e-12  # equal, but for rounding, where all bins err to the same side
    assert stats.nll >= 0
    assert 0 <= stats.brier <= 2 * 200
    assert 0 <= stats.mutual_information <= stats.entropy <= 200 * math.log(4)
    assert stats.bin_count.sum() == stats.examples
    assert stats.bin_correct.sum() == stats.correct


def test_the_worst_brier_score_is_two_and_the_best_zero():
    certain = torch.tensor([[[0.0, -math.inf]]])
    assert summarize(evaluate(certain, torch.tensor([1]))).brier == 2
    right = summarize(evaluate(certain, torch.tensor([0])))
    assert (right.brier, right.nll, right.entropy, right.mutual_information, right.ece) == (0, 0, 0, 0, 0)


def test_one_bin_compares_accuracy_with_mean_confidence(monkeypatch):
    monkeypatch.setattr(metrics, "BINS", 1)
    stats = evaluate(LOG_P, Y)
    ece, mce = calibration_errors(stats)
    confidence = LOG_P.double().exp().mean(0).max(-1).values.mean()
    assert ece == pytest.approx(abs(float(stats.correct / 200 - confidence)))
    assert mce == ece


def test_mutual_information_vanishes_without_disagreement():
    assert evaluate(LOG_P, Y).mutual_information > 1
    for draws in (LOG_P[:1], LOG_P[:1].expand(5, -1, -1)):
        assert evaluate(draws, Y).mutual_information < 1e-12
        for k in range(50):  # rounding does not make it negative
            assert evaluate(draws[:, [k]], Y[[k]]).mutual_information >= 0


def test_the_predictive_is_the_mean_of_probabilities_even_where_they_underflow():
    assert_close(evaluate(LOG_P, Y).nll, -LOG_P.double().exp().mean(0)[range(200), Y].log().sum())
    far = evaluate(torch.tensor([[[0.0, -2000.0]], [[0.0, -1000.0]]]), torch.tensor([1]))
    assert far.nll.item() == pytest.approx(1000 + math.log(2))


def test_two_components_of_unequal_shares_by_hand():
    """p̄ = 0.2 (.9, .1) + 0.8 (.5, .5) = (.58, .42); MI = H[p̄] - 0.2 H[.9] - 0.8 H[.5]."""
    draws = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).double().log()
    stats = evaluate(draws, torch.tensor([1]), torch.tensor([0.2, 0.8]).double())

    def h(p):
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    assert stats.nll.item() == pytest.approx(-math.log(0.42))
    assert stats.bin_confidence.sum().item() == pytest.approx(0.58)
    assert stats.mutual_information.item() == pytest.approx(h(0.58) - 0.2 * h(0.9) - 0.8 * h(0.5))
    assert metrics.class_nll(draws, torch.tensor([1]), torch.tensor([0.2, 0.8]))[1][1].item() == pytest.approx(
        -math.log(0.42)
    )


def test_equal_shares_are_none_and_a_share_of_one_is_that_draw_alone():
    assert_close(evaluate(LOG_P, Y, torch.full((5,), 0.2)), evaluate(LOG_P, Y), rtol=1e-6, atol=1e-6)
    alone = evaluate(LOG_P, Y, torch.tensor([0.0, 0, 1, 0, 0]))
    assert_close(alone, evaluate(LOG_P[2:3], Y))


def test_the_order_of_examples_and_of_draws_changes_nothing():
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    assert_close(evaluate(LOG_P[:, order], Y[order]), evaluate(LOG_P, Y))
    assert_close(evaluate(LOG_P.flip(0), Y), evaluate(LOG_P, Y))


def test_sums_of_parts_are_the_sums_of_the_whole():
    parts = [evaluate(LOG_P[:, cut], Y[cut]) for cut in (slice(0, 3), slice(3, 150), slice(150, 200))]
    whole = evaluate(LOG_P, Y)
    assert_close(metrics.pooled(trees.stack(parts)), whole)
    assert_close(summarize(metrics.pooled(trees.stack(parts))), summarize(whole))
    assert [CLASSIFICATION.of_client(trees.stack(parts), k) for k in range(len(parts))] == [
        summarize(part) for part in parts
    ]


def test_no_examples_have_no_calibration():
    assert all(map(math.isnan, calibration_errors(EvalStats(*map(torch.zeros_like, evaluate(LOG_P, Y))))))


def test_a_bin_of_few_examples_can_decide_the_largest_error_alone():
    """One example sure and wrong decides MCE, and 99 of confidence .85, of which 90 are right, decide ECE."""
    p = torch.tensor([[1.0, 0.0]] + 99 * [[0.85, 0.15]], dtype=torch.float64)
    ece, mce = calibration_errors(evaluate(p.log()[None], torch.tensor([1] + 90 * [0] + 9 * [1])))
    assert mce == pytest.approx(1.0)
    assert ece == pytest.approx((1.0 + 99 * (90 / 99 - 0.85)) / 100)


def test_sums_in_one_order_are_those_of_any_order_and_of_groups_without_members_0():
    group, value = torch.tensor([3, 0, 3, 1, 3]), torch.tensor([0.1, -2.0, 0.7, 4.0, 1.1]).double()
    expected = torch.tensor([-2.0, 4.0, 0.0, 1.9, 0.0]).double()
    assert_close(metrics.in_one_order(group, value, 5), expected)
    assert_close(metrics.sums_by(group, value, 5), expected)


def test_losses_by_class_add_up_to_the_loss():
    count, losses = metrics.class_nll(LOG_P, Y)
    assert count.tolist() == [(c == Y).sum() for c in range(4)]
    for c in range(4):
        part = evaluate(LOG_P[:, c == Y], Y[c == Y])
        assert_close(losses[c], part.nll)
    count, losses = metrics.class_nll(LOG_P[:, :1], Y[:1])
    assert (count != 0).sum() == 1
    assert losses[count == 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("clients", "worst"), [(3, [0]), (10, [0]), (11, [0, 1]), (25, [0, 1, 2])])
def test_the_worst_decile_is_the_mean_of_the_lowest_tenth_rounded_up(clients, worst):
    correct = torch.arange(clients, dtype=torch.float64).flip(0)
    stats = trees.stack([evaluate(LOG_P, Y)] * clients)._replace(
        correct=correct, examples=torch.full((clients,), 30.0, dtype=torch.float64)
    )
    assert metrics.worst_decile(stats) == pytest.approx(sum(worst) / len(worst) / 30)
