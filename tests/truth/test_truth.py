"""The truth meter: closed forms against brute force, posteriors as they are read, and verdicts about known errors."""

import errno
import json
import os
import re
import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import binom
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from fedray.algorithms.bayesian import pvi
from fedray.bayes.gaussian import sigma
from fedray.nets.densities import GAUSSIAN, known_noise
from fedray.truth import calibration, contestants, meter, reference, report
from fedray.truth.__main__ import main
from fedray.truth.calibration import Calibration
from fedray.truth.contestants import Contestant
from fedray.truth.distance import Distance, distance, kl, wasserstein
from fedray.truth.meter import Contest, Finding, Job
from fedray.truth.posterior import MeanAndCovariance, Reader, moments
from fedray.truth.problem import PROBLEMS, Problem, correlated, orthogonal, simulate

SMALL = Problem("a line", orthogonal(2, 12, 1), prior_sd=1.5, noise_sd=0.5)


def gaussian(seed, d=3):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(d, 2 * d))
    return MeanAndCovariance(rng.normal(size=d), a @ a.T / d)


def test_the_divergence_is_that_of_pytorch_and_zero_of_a_distribution_to_itself():
    q, p = gaussian(0), gaussian(1)
    a, b = (MultivariateNormal(torch.tensor(m.mean), torch.tensor(m.cov)) for m in (q, p))
    assert kl(q, p) == pytest.approx(float(kl_divergence(a, b)), rel=1e-10)
    same = distance(p, p)
    assert_allclose(same, [0, 0, 1, 0, 0.9], atol=1e-6)
    assert kl(MeanAndCovariance(p.mean, np.zeros((3, 3))), p) == np.inf


def test_the_wasserstein_distance_of_commuting_covariances_is_that_of_their_axes():
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    first, second = np.array([1.0, 4.0, 0.25]), np.array([9.0, 1.0, 0.25])
    q = MeanAndCovariance(np.array([1.0, 2.0, 2.0]), rotation @ np.diag(first) @ rotation.T)
    p = MeanAndCovariance(np.zeros(3), rotation @ np.diag(second) @ rotation.T)
    assert wasserstein(q, p) ** 2 == pytest.approx(9 + ((first**0.5 - second**0.5) ** 2).sum(), rel=1e-10)


def test_an_interval_of_half_the_width_holds_what_the_normal_distribution_says():
    p = MeanAndCovariance(np.zeros(1), np.eye(1))
    assert distance(MeanAndCovariance(np.zeros(1), np.eye(1) / 4), p).coverage == pytest.approx(0.589, abs=1e-3)
    assert distance(MeanAndCovariance(np.ones(1), np.eye(1)), p).error == 1


def test_the_closed_form_is_what_integration_finds():
    """Prior times likelihood on a grid of bias and weight, normalised by its sum."""
    world = simulate(SMALL, 3)
    (data,) = zip(*reference.pooled(world), strict=True)
    (exact,) = reference.posteriors(SMALL, reference.pooled(world))
    axes = [m + np.linspace(-6, 6, 201) * s for m, s in zip(exact.mean, exact.sd, strict=True)]
    theta = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    x, y = data
    log_p = -((y - theta @ x.T) ** 2).sum(1) / (2 * 0.5**2) - (theta**2).sum(1) / (2 * 1.5**2)
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    mean = weight @ theta
    assert_allclose(exact.mean, mean, atol=1e-6)
    assert_allclose(exact.cov, (theta - mean).T @ ((theta - mean) * weight[:, None]), rtol=1e-4, atol=1e-8)


def test_no_independent_gaussian_is_nearer_than_the_bound():
    exact = gaussian(2)
    best = reference.independent(exact)
    for change in (0.9, 1.1):
        for j in range(3):
            cov = best.cov.copy()
            cov[j, j] *= change
            assert kl(MeanAndCovariance(best.mean, cov), exact) > kl(best, exact)


def test_a_known_noise_is_a_learned_one_that_stays_where_it_is():
    f, y, weight = torch.randn(2, 5, 1), torch.randn(5), torch.rand(5)
    g, none = torch.full((2, 1), -2 * np.log(0.7)), f.new_zeros(2, 0)
    known = known_noise(0.7)
    assert_close(known.nll(f, none, y, weight), GAUSSIAN.nll(f, g, y, weight))
    value, slopes, own = known.slopes(f, none, y, weight)
    assert_close((value, slopes), GAUSSIAN.slopes(f, g, y, weight)[:2])
    assert own.shape == (2, 0)
    assert_close(known.fisher(f, none, weight)[0], GAUSSIAN.fisher(f, g, weight)[0])
    assert_close(known.predict(f[0], none[0]), GAUSSIAN.predict(f[0], g[0]))


def test_a_gaussian_is_read_to_the_last_digit_and_particles_are_read_as_they_are():
    """From predictions alone, of real targets and of labels."""
    for problem in (SMALL, Problem("a logit", correlated(2, 12, 1, 0.0), prior_sd=1.5)):
        world = simulate(problem, 0)
        federation = contestants.play(Contestant("pvi", {"rounds": 2, "local_steps": 3}), world)
        q = pvi.standard(federation.state.server.q)
        found = Reader(problem, federation).moments()
        assert_allclose(found.mean, q.mu[[1, 0]], atol=1e-5)  # a network keeps its weights before its bias
        assert_allclose(found.cov, np.diag(sigma(q.rho)[[1, 0]].square()), atol=1e-4)
        settings = {"rounds": 1, "local_steps": 2, "algorithm.particles": 7}
        federation = contestants.play(Contestant("dsvgd", settings), world)
        x = federation.state.server.x[:, [1, 0]].double().numpy()
        reader = Reader(problem, federation)
        assert_allclose(reader.draws(None, 99), x, atol=1e-5)
        assert_allclose(reader.moments().cov, np.cov(x.T, ddof=0), atol=1e-5)


def test_targets_reach_the_clients_as_they_were_simulated():
    plan = contestants.plan(Contestant("pvi", {"rounds": 1}), simulate(SMALL, 0))
    assert (plan.target.shift, plan.target.divisor, plan.model.density.noise) == (0, 1, 0)


def test_pvi_finds_the_exact_posterior():
    world = simulate(SMALL, 1)
    settings = {"algorithm.lr": 0.01, "algorithm.mc_samples": 32, "rounds": 16, "local_steps": 50}
    reader = Reader(SMALL, contestants.play(Contestant("pvi", settings, contestants.PRECISION), world))
    (exact,) = reference.posteriors(SMALL, reference.pooled(world))
    assert kl(reader.moments(), exact) < 5e-3


ERRORS = {"calibrated": (0, 1), "too narrow": (0, 0.5), "too wide": (0, 2), "shifted": (0.6, 1)}


@pytest.mark.parametrize("wanted", ERRORS)
def test_verdicts_about_known_errors(wanted):
    """Exact posteriors of 100 data sets, whose draws are moved by their sd or stretched around the mean."""
    shift, stretch = ERRORS[wanted]
    rng = np.random.default_rng(0)
    ranks = []
    for seed in range(100):
        world = simulate(SMALL, seed)
        (p,) = reference.posteriors(SMALL, reference.pooled(world))
        draws = p.mean + shift * p.sd + stretch * rng.multivariate_normal(np.zeros(2), p.cov, 99)
        ranks.append(calibration.rank(world.theta[0], draws))
    found = Calibration(np.stack(ranks), 99)
    assert calibration.verdict(found) == wanted
    low, high = calibration.band(found)
    counts = calibration.counts(found)
    assert (counts.sum(1) == 100).all()
    assert ((counts >= low) & (counts <= high)).all() == (wanted == "calibrated")
    assert (calibration.coverage(found) == pytest.approx(0.9, abs=0.06)) == (wanted in ("calibrated",))


def test_a_band_is_that_of_the_binomial_distribution_even_of_unequal_bins():
    found = Calibration(np.zeros((60, 1), int), 20)  # 21 ranks in 10 bins
    low, high = calibration.band(found, level=0.95)
    shares = calibration.counts(Calibration(np.arange(21)[:, None], 20))[0] / 21
    assert shares.sum() == pytest.approx(1)
    assert len(set(shares)) == 2
    inside = binom.cdf(high, 60, shares) - binom.cdf(low - 1, 60, shares)
    assert (inside >= 0.95).all()
    assert (binom.cdf(high - 1, 60, shares) - binom.cdf(low, 60, shares) < 0.95).all()


def test_draws_that_are_all_alike_have_no_spread():
    same = moments(np.ones((5, 2)))
    assert (same.cov == 0).all()


def test_every_contestant_can_be_planned_and_every_problem_has_some():
    for name, problem in PROBLEMS.items():
        small = problem._replace(x=problem.x[:3])
        known = contestants.of(name)
        assert known
        for contestant in known.values():
            plan = contestants.plan(contestant, simulate(small, 0))
            assert plan.facts.batch_size >= plan.facts.shard  # clients take every step on their whole shard


def test_pieces_of_a_method_become_one_row():
    p = Distance(0.1, 0.2, 1.0, 0.3, 0.9)
    parts = [
        Finding(Job("correlated", "pvi", seeds, found is not None), found, Calibration(np.full((2, 3), rank), 99), 1.5)
        for seeds, found, rank in (((1, 3), None, 4), ((0, 2), p, 7))
    ]
    (row,) = meter.joined(parts)
    assert (row.distance, row.seconds, row.calibration.ranks.shape) == (p, 3.0, (4, 3))


def test_a_bar_is_missed_by_a_kl_that_is_too_large():
    fine, bad = Distance(9e-4, 0, 1, 0, 0.9), Distance(2e-3, 0, 1, 0, 0.9)
    rows = [Contest(problem, "pvi", found, None) for problem, found in (("orthogonal", fine), ("correlated", bad))]
    assert report.bars(rows) == {"pvi": True}
    assert report.bars([Contest("orthogonal", "pvi", bad, None)]) == {"pvi": False}


def test_tables_files_and_the_figure_show_the_same_rows(tmp_path, monkeypatch, capsys):
    ranked = Calibration(np.random.default_rng(0).integers(0, 100, (50, 2)), 99)
    rows = [Contest("orthogonal", "pvi", Distance(5e-4, 0.1, 0.99, 0.02, 0.898), ranked, 2.0)]
    monkeypatch.setattr(meter, "play", lambda *_: rows)
    assert main(["--quick", "--output", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["rows"][0]["sbc"] == "calibrated"
    assert shown["bars"] == {"pvi": True}
    assert (shown["sets"], shown["quick"]) == (1, True)
    assert json.loads((tmp_path / "truth.json").read_text()) == shown
    assert "| pvi | 0.0005 | 0.1 | 0.99 | 0.02 | 89.8% | calibrated (50 sets) |" in (tmp_path / "table.md").read_text()
    assert len((tmp_path / "ranks.csv").read_text().splitlines()) == 1 + 2 * calibration.BINS
    assert (tmp_path / "figures" / "ranks.png").stat().st_size > 1000
    monkeypatch.setattr(meter, "play", lambda *_: [row._replace(calibration=None) for row in rows])
    assert main(["--quick", "--output", str(tmp_path)]) == 0
    assert not list((tmp_path / "figures").iterdir())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--problems"], "nothing would be measured, .*; choose from orthogonal, correlated"),
        (["--quick", "--problems", "correlated"], "--problems correlated: with --quick only orthogonal is measured"),
    ],
)
def test_what_would_not_be_measured_replaces_no_files(words, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(meter, "play", lambda *_: [])
    (tmp_path / "table.csv").write_text("of an hour")
    assert main([*words, "--output", str(tmp_path)]) == 2
    assert re.search(reason, capsys.readouterr().err)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["of an hour"]


def test_a_problem_that_is_named_twice_is_played_once(tmp_path, monkeypatch):
    played = []
    monkeypatch.setattr(meter, "play", lambda problems, *_: played.append(problems) or [])
    assert main(["--problems", "personal", "correlated", "personal", "--output", str(tmp_path)]) == 0
    assert played == [("personal", "correlated")]


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_played(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(meter, "play", lambda *_: pytest.fail("played"))
    (tmp_path / "file").touch()
    assert main(["--quick", "--output", str(tmp_path / "file/truth")]) == 2
    assert re.search(r"--output .*file/truth: cannot be written \(Not a directory\); choose", capsys.readouterr().err)


def test_a_disk_that_is_full_at_the_end_does_not_cost_the_tables(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    rows = [Contest("orthogonal", "pvi", Distance(5e-4, 0.1, 0.99, 0.02, 0.898), None, 2.0)]
    monkeypatch.setattr(meter, "play", lambda *_: rows)
    monkeypatch.setattr(report, "save_figure", full)
    assert main(["--quick", "--output", str(tmp_path)]) == 1
    found = capsys.readouterr()
    assert "cannot be written (No space left on device)" in found.err
    assert "| pvi | 0.0005" in found.out


@pytest.mark.parametrize("words", [["--problems", "lines"], ["--sets", "0"], ["--processes", "0"]])
def test_bad_requests_are_refused(words, capsys):
    assert main(words) == 2
    assert "choose" in capsys.readouterr().err or words[0] != "--problems"


@pytest.mark.slow
def test_nuts_agrees_with_integration_on_a_grid():
    pytest.importorskip("blackjax")
    problem = Problem("a logit", correlated(1, 40, 1, 0.0), prior_sd=1.0)
    world = simulate(problem, 0)
    (found,) = reference.posteriors(problem, reference.pooled(world))
    axis = np.linspace(-5, 5, 401)
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    f = theta @ problem.design[0].T
    log_p = (world.y[0] * f - np.logaddexp(0, f)).sum(1) - (theta**2).sum(1) / 2
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    mean = weight @ theta
    exact = MeanAndCovariance(mean, (theta - mean).T @ ((theta - mean) * weight[:, None]))
    assert kl(found, exact) < 5e-3


def test_without_blackjax_one_is_told_what_to_install_before_anything_is_played(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    monkeypatch.setattr(meter, "play", lambda *_: pytest.fail("played"))
    assert main(["--problems", "orthogonal", "logistic"]) == 2
    assert re.search(r"logistic regression: .*uv sync --group truth", capsys.readouterr().err)
