"""Conformal sets: their exact law over calibrations, their scores by hand, and the threshold of all clients."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import betabinom, binom
from torch.testing import assert_close

from fedray.federate.uncertainty import conformal
from fedray.federate.uncertainty.conformal import ALPHA, CELLS, RULES, aps, below, ends, federated, histogram, thr

SIMULATIONS, TESTED = 1000, 100
CLIENTS = {9: 0, 22: 1, 137: 2}  # calibration examples: seed of a client of its own


def examples(n, rng, classes=4):
    """A model that is wrong in a way of its own: labels do not follow its probabilities."""
    p = torch.from_numpy(rng.dirichlet(np.full(classes, 0.3), n))
    y = torch.from_numpy(np.where(rng.random(n) < 0.7, p.argmax(-1), rng.integers(classes, size=n)))
    return p, y, torch.from_numpy(rng.random(n))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", CLIENTS)
def test_coverage_over_calibrations_follows_its_exact_law_for_every_client(n, rule):
    """With k = ⌈(n + 1)(1 - α)⌉, of m test examples BetaBinomial(m, k, n + 1 - k) are covered (Vovk, 2012)."""
    rng = np.random.default_rng(CLIENTS[n])
    p, y, u = examples(SIMULATIONS * (n + TESTED), rng)
    own = RULES[rule](p, u).gather(-1, y[:, None]).view(SIMULATIONS, n + TESTED)
    covered = np.array([int((row[n:] <= conformal.threshold(row[:n])).sum()) for row in own])
    k = math.ceil(round((n + 1) * (1 - ALPHA), 9))
    law = betabinom(TESTED, k, n + 1 - k)
    # Each simulation lies in the law's 98 % band with a known probability; so does the number of those that do.
    low, high = law.ppf(0.01), law.ppf(0.99)
    inside = int(((low <= covered) & (covered <= high)).sum())
    chance = law.cdf(high) - law.cdf(low - 1)
    assert binom.ppf(1e-4, SIMULATIONS, chance) <= inside <= binom.ppf(1 - 1e-4, SIMULATIONS, chance)
    assert covered.mean() == pytest.approx(law.mean(), abs=4 * law.std() / SIMULATIONS**0.5)
    assert law.mean() / TESTED >= 1 - ALPHA
    assert covered.std() == pytest.approx(law.std(), rel=0.1)


def test_the_threshold_is_an_order_statistic_and_infinite_of_too_few():
    scores = torch.arange(1.0, 20.0)[torch.randperm(19)]
    assert float(conformal.threshold(scores)) == 18  # ⌈20 · 0.9⌉
    assert float(conformal.threshold(scores[:9])) == float(scores[:9].max())
    assert conformal.threshold(scores[:8]).isinf()
    assert conformal.threshold(scores[:0]).isinf()
    assert float(conformal.threshold(torch.arange(1.0, 10.0), alpha=0.5)) == 5


def test_scores_by_hand():
    p, u = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]).double(), torch.tensor([0.5, 0.0]).double()
    assert_close(thr(p), torch.tensor([[0.8, 0.5, 0.7], [0.9, 0.9, 0.2]]).double())
    assert_close(aps(p, u), torch.tensor([[0.9, 0.25, 0.65], [0.8, 0.9, 0.0]]).double())


def test_a_class_has_the_same_adaptive_score_wherever_it_stands():
    rng = np.random.default_rng(0)
    p, _, u = examples(50, rng, 7)
    order = torch.randperm(7)
    assert_close(aps(p[:, order], u), aps(p, u)[:, order])
    assert_close(aps(p, u).amin(-1), u * p.amax(-1))  # the first class is reached first


def test_sets_count_what_their_scores_say():
    rng = np.random.default_rng(1)
    (p0, y0, u0), (p, y, u) = examples(40, rng), examples(60, rng)
    found = conformal.sets(p0, y0, p, y, torch.cat([u0, u]))
    for r, score in enumerate(RULES.values()):
        q = conformal.threshold(score(p0, u0)[torch.arange(40), y0])
        inside = score(p, u) <= q
        assert found.threshold[r] == q
        assert found.size[r] == inside.sum()
        assert found.covered[r] == inside[torch.arange(60), y].sum()
    assert found.calibration.sum(-1).tolist() == [40, 40]
    assert found.labels.sum(-1).tolist() == [60, 60]
    assert found.classes.sum(-1).tolist() == [240, 240]


def test_histograms_say_how_many_scores_lie_below_the_end_of_a_cell():
    scores = torch.from_numpy(np.random.default_rng(2).beta(0.2, 0.4, 500))
    counts, edges = histogram(scores), ends()
    assert edges[-1] == 1
    assert (edges.diff() > 0).all()
    for cell in (0, 100, 128, 200, CELLS - 1):
        assert below(counts, cell) == (scores <= edges[cell]).sum()
    assert below(counts, CELLS) == 500
    assert histogram(torch.tensor([0.0, 1.0]))[[0, -1]].tolist() == [1, 1]


def test_the_federated_threshold_is_that_of_all_scores_rounded_up_to_its_cell():
    rng = np.random.default_rng(3)
    parts = [torch.from_numpy(rng.beta(1, 3, n)) for n in (5, 30, 200)]
    cell = federated(torch.stack([histogram(part) for part in parts]))
    exact = torch.cat(parts).sort().values[math.ceil(round((235 + 3) * 0.9, 9)) - 1]
    assert ends()[cell - 1] < exact <= ends()[cell]
    assert federated(torch.stack([histogram(part[:2]) for part in parts])) == CELLS  # ⌈(6 + 3) · 0.9⌉ > 6


def test_the_federated_threshold_covers_on_average_but_not_every_client():
    """Two clients whose model is good and one whose model is bad: nobody else's examples speak for it."""
    rng = np.random.default_rng(4)
    shares = [torch.from_numpy(rng.beta(1, b, 2000)) for b in (9, 9, 1)]  # small: the model is good
    cell = federated(torch.stack([histogram(part[:1000]) for part in shares]))
    covered = [float((part[1000:] <= ends()[cell]).double().mean()) for part in shares]
    assert np.mean(covered) == pytest.approx(0.9, abs=0.03)
    assert covered[2] < 0.8
    own = [float((part[1000:] <= conformal.threshold(part[:1000])).double().mean()) for part in shares]
    assert own == pytest.approx([0.9] * 3, abs=0.04)


def test_every_client_counts_in_the_federated_rank():
    """Of 12 clients with 5 scores each it is ⌈(60 + 12) 0.9⌉ = 65: more than there are, so every label is in."""
    scores = torch.linspace(0.1, 0.9, 60, dtype=torch.float64).view(12, 5)
    assert federated(torch.stack([histogram(row) for row in scores])) == CELLS
