"""Errors, coverage and uncertainty of real targets: by hand, against quadrature, and sums that add."""

import math

import pytest
import torch
from torch.testing import assert_close

from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.federate.measures import metrics
from fedray.federate.measures.regression import evaluate, mixture, summarize, worst_rmse
from fedray.federate.measures.tasks import REGRESSION
from fedray.types import LEVELS


def draws(examples=200, count=5, spread=1.0):
    stream = Stream(0, "draws")
    means = stream.normal([1, examples]) + spread * stream.normal([count, examples])
    return torch.stack([means, 0.3 * stream.normal([count, examples])], -1)


PREDICTIONS, Y = draws(), Stream(0, "y").normal([200])


def of(mean, variance):
    """One draw that predicts the same of every example."""
    return torch.tensor([mean, math.log(variance)]).double()


def test_two_draws_by_hand():
    """N(0, 1) and N(4, 9): mean 2, noise 5, disagreement 4; y = 1 is 1 from the mean."""
    predictions = torch.stack([of(0, 1), of(4, 9)])[:, None]
    stats = evaluate(predictions, torch.tensor([1.0]))
    density = (math.exp(-1 / 2) + math.exp(-1 / 2) / 3) / 2 / math.sqrt(2 * math.pi)
    assert_close(float(stats.nll), -math.log(density))
    assert [float(stats.squared_error), float(stats.aleatoric), float(stats.epistemic)] == pytest.approx([1, 5, 4])
    assert summarize(stats)._asdict() == pytest.approx(
        {"rmse": 1, "nll": -math.log(density), "coverage": 1, "aleatoric_sd": math.sqrt(5), "epistemic_sd": 2}
    )


def test_the_variance_of_the_mixture_is_noise_plus_disagreement():
    """Against numerical integration of the mixture's density."""
    found = mixture(PREDICTIONS[:, :1])
    at = torch.linspace(-30, 30, 200_001).double()
    sd = (PREDICTIONS[:, 0, 1].double() / 2).exp()
    each = torch.distributions.Normal(PREDICTIONS[:, 0, 0].double()[:, None], sd[:, None]).log_prob(at).exp()
    p = each.mean(0)
    mean = torch.trapezoid(p * at, at)
    variance = torch.trapezoid(p * (at - mean).square(), at)
    assert_close(found.mean[0], mean)
    assert_close(found.aleatoric[0] + found.epistemic[0], variance)


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_a_target_is_covered_where_the_distribution_function_says_so(spread):
    """The ends of the interval by bisection; what lies between them is covered, what lies outside is not."""
    predictions = draws(1, 4, spread)
    sd = (predictions[:, 0, 1].double() / 2).exp()
    each = torch.distributions.Normal(predictions[:, 0, 0].double(), sd)

    def quantile(level):
        low, high = -50.0, 50.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (low, middle) if each.cdf(torch.tensor(middle).double()).mean() > level else (middle, high)
        return low

    low, high = quantile(0.05), quantile(0.95)
    for y, covered in ((low - 1e-4, 0), (low + 1e-4, 1), (high - 1e-4, 1), (high + 1e-4, 0)):
        assert evaluate(predictions, torch.tensor([y]).double()).covered[-1] == covered


def test_the_truth_is_covered_as_often_as_every_level_says():
    n = 20_000
    predictions = draws(n, 4, 2.0)
    stream = Stream(0, "truth")
    chosen = (4 * stream.uniform([n])).long()
    mean, log_variance = predictions[chosen, torch.arange(n)].unbind(-1)
    y = mean + (log_variance / 2).exp() * stream.normal([n])
    stats = evaluate(predictions, y)
    found = summarize(stats)
    for level, covered in zip(LEVELS, stats.covered, strict=True):
        assert float(covered) / n == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / n))
    assert found.coverage == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / n))
    assert found.rmse == pytest.approx(math.hypot(found.aleatoric_sd, found.epistemic_sd), rel=0.03)


def test_units_scale_errors_and_shift_the_nll_by_their_logarithm():
    """y = 100 + 7 t: rmse and sds 7 times as large, the nll larger by log 7 (the Jacobian), coverage the same."""
    plain, scaled = summarize(evaluate(PREDICTIONS, Y)), summarize(evaluate(PREDICTIONS, Y, 7.0))
    assert scaled.nll == pytest.approx(plain.nll + math.log(7))
    assert scaled.coverage == plain.coverage
    for name in ("rmse", "aleatoric_sd", "epistemic_sd"):
        assert getattr(scaled, name) == pytest.approx(7 * getattr(plain, name))
    found = mixture(PREDICTIONS, 100.0, 7.0)
    assert_close(found.mean, 100 + 7 * mixture(PREDICTIONS).mean)


def test_the_nll_stays_finite_far_away():
    stats = evaluate(torch.stack([of(0, 1), of(1, 1)])[:, None], torch.tensor([1e4]))
    assert float(stats.nll) == pytest.approx((1e4 - 1) ** 2 / 2 + math.log(2 * math.sqrt(2 * math.pi)))


def test_draws_that_agree_have_no_epistemic_part():
    for predictions in (PREDICTIONS[:1], PREDICTIONS[:1].expand(5, -1, -1)):
        assert evaluate(predictions, Y).epistemic < 1e-20


def test_sums_of_parts_are_the_sums_of_the_whole():
    parts = [evaluate(PREDICTIONS[:, cut], Y[cut]) for cut in (slice(0, 3), slice(3, 150), slice(150, 200))]
    whole = evaluate(PREDICTIONS, Y)
    assert_close(metrics.pooled(trees.stack(parts)), whole)
    assert [REGRESSION.of_client(trees.stack(parts), k) for k in range(len(parts))] == [
        summarize(part) for part in parts
    ]
    assert REGRESSION.measure(trees.stack(parts)).keys() == set(REGRESSION.measures)
    assert {shown.name for shown in REGRESSION.shown} <= set(REGRESSION.measures)


@pytest.mark.parametrize(("clients", "worst"), [(3, [2]), (10, [9]), (11, [10, 9])])
def test_the_worst_rmse_is_the_mean_of_the_highest_tenth_rounded_up(clients, worst):
    one = evaluate(PREDICTIONS, Y)
    errors = [one._replace(squared_error=one.examples * k**2) for k in range(clients)]
    assert worst_rmse(trees.stack(errors)) == pytest.approx(sum(worst) / len(worst))
    assert LEVELS[-1] == 0.9  # what is called the coverage
