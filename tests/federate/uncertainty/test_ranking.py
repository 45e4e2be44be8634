"""AUROC, AUPR and FPR95: against scikit-learn, in closed form, and under ties."""

import math

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch.testing import assert_close

from fedray.federate.uncertainty.ranking import aupr, auroc, fpr95, ranked

SIZES = [(1, 1), (3, 7), (40, 19), (200, 500)]


def drawn(n, m, tied, seed=0):
    """Scores of known and unknown examples, which overlap; tied ones take eight values."""
    rng = torch.Generator().manual_seed(seed)
    known, unknown = torch.randn(n, generator=rng).double(), 1 + torch.randn(m, generator=rng).double()
    return tuple((2 * part).round() / 2 if tied else part for part in (known, unknown))


def by_sklearn(known, unknown):
    truth = [0] * len(known) + [1] * len(unknown)
    scores = torch.cat([known, unknown]).numpy()
    false, found, _ = roc_curve(truth, scores, drop_intermediate=False)
    first = next(i for i, rate in enumerate(found) if rate >= 0.95)
    return roc_auc_score(truth, scores), average_precision_score(truth, scores), false[first]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_all_agree_with_scikit_learn(n, m, tied):
    for seed in range(5):
        known, unknown = drawn(n, m, tied, seed)
        found = [float(measure(known, unknown)) for measure in (auroc, aupr, fpr95)]
        assert found == pytest.approx(by_sklearn(known, unknown), abs=1e-12)


def test_separated_scores_are_perfect_reversed_ones_worst_and_equal_ones_chance():
    low, high = torch.arange(3.0), torch.arange(3.0, 10.0)
    assert [float(measure(low, high)) for measure in (auroc, aupr, fpr95)] == [1, 1, 0]
    assert [float(measure(high, low)) for measure in (auroc, fpr95)] == [0, 1]
    same = torch.zeros(3), torch.zeros(7)
    assert [float(measure(*same)) for measure in (auroc, aupr, fpr95)] == pytest.approx([0.5, 0.7, 1])


def test_the_auroc_of_shifted_normals_is_known():
    """P(z_u + d > z_k) = Φ(d/√2)."""
    known, unknown = drawn(20_000, 20_000, tied=False)
    assert float(auroc(known, unknown)) == pytest.approx(0.5 * (1 + math.erf(1 / 2)), abs=0.008)


def test_only_ranks_count_and_the_order_of_examples_does_not():
    known, unknown = drawn(50, 30, tied=True)
    shuffled = known[torch.randperm(50)], unknown.flip(0)
    for measure in (auroc, aupr, fpr95):
        assert measure(known, unknown) == measure(*shuffled) == measure(known.exp(), unknown.exp())


def test_several_scores_are_ranked_at_once():
    pairs = [drawn(30, 20, False, seed) for seed in range(3)]
    found = ranked(*(torch.stack(parts) for parts in zip(*pairs, strict=True)))
    for s, pair in enumerate(pairs):
        assert_close(torch.stack([field[s] for field in found]), torch.stack([f(*pair) for f in (auroc, aupr, fpr95)]))


def test_where_one_side_is_missing_or_a_score_is_nan_there_is_no_measure():
    some, none, odd = torch.ones(2), torch.ones(0), torch.tensor([1.0, math.nan])
    for pair in ((some, none), (none, some), (some, odd), (odd, some)):
        assert all(measure(*pair).isnan() for measure in (auroc, aupr, fpr95))
