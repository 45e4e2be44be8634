"""Stein variational gradient descent, KSD and HIP: closed forms, limits and identities."""

import math

import pytest
import torch
from torch.testing import assert_close

from fedray.arrays.rng import Stream
from fedray.bayes import stein
from fedray.bayes.kde import code_gradient, kde_gradient, median_width
from fedray.bayes.stein import (
    Descent,
    descend,
    direction,
    hip,
    ksd,
    rbf,
    reference,
    stein_matrix,
    u_statistic,
    v_statistic,
)
from tests.helpers import fixed_kernel

pytestmark = pytest.mark.usefixtures("one_thread")


def normals(name, *shape):
    return Stream(0, name).normal(shape).double()


X, S, T = normals("x", 7, 5), normals("s", 7, 5), normals("t", 7, 5)
PLAIN = Descent(0.1, rule="plain")


def kernel_of(x, y, h):
    return torch.exp(-(x - y).square().sum() / h)


def test_the_direction_is_the_papers_sum_with_the_gradient_in_the_first_argument():
    h, expected = rbf(X).h, []
    for x in X:
        terms = []
        for other, s in zip(X, S, strict=True):
            at = other.clone().requires_grad_()
            (slope,) = torch.autograd.grad(kernel_of(at, x, h), at)
            terms.append(kernel_of(other, x, h) * s + slope)
        expected.append(torch.stack(terms).mean(0))
    assert_close(direction(X, S, rbf(X)), torch.stack(expected), rtol=0, atol=1e-13)


def test_one_particle_follows_its_score():
    assert torch.equal(direction(X[:1], S[:1], rbf(X[:1])), S[:1])


def test_repulsion_drives_apart_and_moves_no_centre():
    repulsion = direction(X, torch.zeros_like(X), rbf(X))
    assert_close(repulsion.sum(0), torch.zeros(5).double(), rtol=0, atol=1e-14)
    pair = torch.tensor([[0.0], [1.0]]).double()
    a, b = direction(pair, torch.zeros_like(pair), rbf(pair))
    assert a < 0 < b


@pytest.mark.parametrize("n", [4, 7])  # an even number of pairs, whose median is a mean of two, and an odd one
def test_the_kernel_is_symmetric_positive_and_one_on_the_diagonal(n):
    x = X[:n]
    kernel = rbf(x)
    assert_close(kernel.k, kernel.k.t(), rtol=1e-13, atol=0)
    assert torch.equal(kernel.k.diagonal(), torch.ones(n).double())
    assert torch.linalg.eigvalsh(kernel.k).min() > 0
    apart = torch.pdist(x).square()
    assert_close(kernel.h, torch.quantile(apart, 0.5) / math.log(n + 1))
    whole = torch.cdist(x, x).square().flatten()
    assert_close(rbf(x, "code").h, torch.quantile(whole, 0.5) / math.log(n + 1))
    assert_close(rbf(x, "paper").h, torch.quantile(apart, 0.5) / math.log(n))


def test_steps_commute_with_permutations_translations_and_rotations():
    def score(x):
        return -(x - 1)

    def moved(x, f):
        return descend(PLAIN, x, f, 4)

    order, shift = torch.tensor([3, 1, 0, 6, 5, 2, 4]), normals("shift", 5)
    turn, _ = torch.linalg.qr(normals("turn", 5, 5))
    after = moved(X, score)
    assert_close(moved(X[order], score), after[order], rtol=0, atol=1e-13)
    assert_close(moved(X + shift, lambda x: score(x - shift)), after + shift, rtol=0, atol=1e-12)
    assert_close(moved(X @ turn, lambda x: score(x @ turn.t()) @ turn), after @ turn, rtol=0, atol=1e-12)


def test_rmsprop_starts_with_steps_of_one_size_and_decays():
    first, v = stein.move(Descent(0.1, fudge=0.0), X, torch.full_like(X, 9.0), True, S)
    assert_close(first, X + 0.1 * S.sign())
    second, _ = stein.move(Descent(0.1, fudge=0.0), X, v, False, T)
    assert_close(second, X + 0.1 * T / (0.9 * S.square() + 0.1 * T.square()).sqrt())


def test_adagrad_divides_by_the_root_of_the_sum_of_all_squares():
    how, x, v = Descent(0.1, fudge=0.0, rule="adagrad"), X, torch.full_like(X, 9.0)
    for number in range(1, 6):  # along one direction the n-th step is ε/√n: it never stops, and never grows again
        before, (x, v) = x, stein.move(how, x, v, number == 1, S)
        assert_close(x - before, 0.1 * S.sign() / number**0.5)
    assert_close(v, 5 * S.square())
    assert_close(stein.move(how, X, v, False, T)[0], X + 0.1 * T / (5 * S.square() + T.square()).sqrt())


def test_float32_distances_of_large_close_particles_do_not_cancel():
    base = Stream(0, "far").normal([1, 80_000]) * 3
    x = base + 1e-3 * Stream(0, "near").normal([6, 80_000])
    x[1] = x[0] + 1e-5 * Stream(0, "nearer").normal([80_000])  # a pair much closer than the rest: the hard case
    expected = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    found = stein.squared_distances(x)
    assert torch.equal(found.diagonal(), torch.zeros(6).double())
    assert_close(found, expected, rtol=1e-4, atol=0)
    assert_close(stein.squared_distances(x, x[:2]), expected[:, :2], rtol=1e-4, atol=1e-12)


def test_slices_of_the_parameters_add_up(monkeypatch):
    kernel = rbf(X)
    whole = stein_matrix(X, S, T, kernel, 5), hip(S, reference(X, T, kernel, 5))
    monkeypatch.setattr(stein, "SLICE", 2)
    assert_close((stein_matrix(X, S, T, kernel, 5), hip(S, reference(X, T, kernel, 5))), whole, rtol=1e-13, atol=0)


def test_the_stein_matrix_is_theorem_1_term_by_term():
    kernel, d = rbf(X), 5
    expected = torch.zeros(7, 7).double()
    for i, (x, s) in enumerate(zip(X, S, strict=True)):
        for j, (y, t) in enumerate(zip(X, T, strict=True)):

            def k(pair):
                return kernel_of(pair[:d], pair[d:], kernel.h)

            pair = torch.cat([x, y])
            slope, hessian = torch.func.grad(k)(pair), torch.func.hessian(k)(pair)
            expected[i, j] = k(pair) * (s @ t) + s @ slope[d:] + slope[:d] @ t + hessian[:d, d:].trace()
    assert_close(stein_matrix(X, S, T, kernel, d), expected, rtol=0, atol=1e-12)


def test_padding_does_not_enter_and_its_length_would():
    def padded(a):
        return torch.cat([a, torch.zeros(7, 59).double()], 1)

    kernel, wide = rbf(X), rbf(padded(X))
    assert torch.equal(kernel.h, wide.h)
    assert_close(direction(padded(X), padded(S), wide), padded(direction(X, S, kernel)))
    for statistic in ("v", "u"):
        assert_close(ksd(padded(X), padded(S), wide, 5, statistic), ksd(X, S, kernel, 5, statistic))
    assert_close(hip(padded(S), reference(padded(X), padded(T), wide, 5)), hip(S, reference(X, T, kernel, 5)))
    assert ksd(padded(X), padded(S), wide, 64) > ksd(X, S, kernel, 5) + 1


def test_ksd_is_not_negative_and_is_the_mean_stein_operator_of_its_direction():
    for name in "abcdef":
        s, kernel = normals(name, 7, 5) * 3, rbf(X)
        assert ksd(X, s, kernel, 5) >= 0
        phi = direction(X, s, kernel)

        def at(y, s=s, h=kernel.h):
            k = torch.exp(-(X - y).square().sum(1) / h)
            return (k[:, None] * s + (2 / h) * k[:, None] * (y - X)).mean(0)

        divergence = torch.stack([torch.func.jacrev(at)(y).trace() for y in X])
        assert_close(ksd(X, s, kernel, 5), ((s * phi).sum(1) + divergence).mean(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("d", [1, 6])
def test_ksd_of_standard_normals_has_its_expectation(d):
    """q = p = N(0, I), fixed h: E V = (d/N)(1 + 2/h), E U = 0; p = N(μ, I): ‖μ‖²(1 + 4/h)^(-d/2)."""
    n, h, mu = 40, 3.0, 0.7
    v, u, shifted = [], [], []
    for x in normals("draws", 200, n, d):
        kernel = fixed_kernel(x, h)
        v.append(ksd(x, -x, kernel, d))
        u.append(ksd(x, -x, kernel, d, "u"))
        shifted.append(ksd(x, mu - x, kernel, d, "u"))
    for found, expected in ((v, d / n * (1 + 2 / h)), (u, 0.0), (shifted, d * mu**2 * (1 + 4 / h) ** (-d / 2))):
        found = torch.stack(found)
        assert abs(found.mean() - expected) < 4 * found.std() / 200**0.5


def test_a_u_statistic_is_the_mean_over_all_pairs_and_zero_without_any():
    matrix = normals("matrix", 5, 5)
    assert_close(u_statistic(matrix), matrix[~torch.eye(5).bool()].mean())
    assert u_statistic(matrix[:1, :1]) == 0


def test_discrepancies_do_not_see_the_order_of_the_particles():
    order, kernel = torch.tensor([3, 1, 0, 6, 5, 2, 4]), rbf(X)
    x, s, t = (leaf[order] for leaf in (X, S, T))
    mixed = rbf(x)
    assert_close(mixed.h, kernel.h, rtol=1e-13, atol=0)
    for statistic in ("v", "u"):
        assert_close(ksd(x, s, mixed, 5, statistic), ksd(X, S, kernel, 5, statistic), rtol=1e-12, atol=0)
    assert_close(hip(s, reference(x, t, mixed, 5)), hip(S, reference(X, T, kernel, 5)), rtol=1e-12, atol=0)


def test_hips_of_shifted_normals_are_the_product_of_the_shifts():
    """p_i = N(μ_i, I), q = N(0, I): μ_1·μ_2 (1 + 4/h)^(-d/2), negative when they are opposed."""
    h, d, found = 3.0, 2, {1: [], -1: []}
    a = torch.tensor([0.8, 0.3]).double()
    for x in normals("draws", 200, 40, d):
        kernel = fixed_kernel(x, h)
        for sign, values in found.items():
            values.append(u_statistic(stein_matrix(x, a - x, sign * a - x, kernel, d)))
    for sign, values in found.items():
        values = torch.stack(values)
        assert abs(values.mean() - sign * a.square().sum() * (1 + 4 / h) ** (-d / 2)) < 4 * values.std() / 200**0.5


def test_hip_of_a_score_with_itself_is_ksd_and_obeys_cauchy_and_schwarz():
    kernel = rbf(X)
    both = hip(S, reference(X, T, kernel, 5))
    assert_close(hip(S, reference(X, S, kernel, 5)), ksd(X, S, kernel, 5), rtol=1e-12, atol=0)
    assert both**2 <= ksd(X, S, kernel, 5) * ksd(X, T, kernel, 5)
    assert_close(both, hip(T, reference(X, S, kernel, 5)), rtol=1e-12, atol=0)


def test_the_cheap_form_is_the_double_sum_and_lemma_3_holds():
    kernel, scores = rbf(X), normals("clients", 9, 7, 5)
    mean = scores.mean(0)
    cheap = torch.stack([hip(s, reference(X, mean, kernel, 5)) for s in scores])
    double = torch.stack([v_statistic(stein_matrix(X, s, mean, kernel, 5)) for s in scores])
    assert_close(cheap, double, rtol=1e-10, atol=0)
    for k, s in enumerate(scores):
        total = sum(v_statistic(stein_matrix(X, s, other, kernel, 5)) for other in scores)
        assert_close(total, 9 * cheap[k], rtol=1e-10, atol=0)
    assert_close(cheap.sum(), 9 * ksd(X, mean, kernel, 5), rtol=1e-10, atol=0)


def test_svgd_recovers_a_gaussian_in_one_dimension():
    mean, sd = 1.5, 0.4

    def score(x):
        return (mean - x) / sd**2

    x = descend(Descent(0.05), normals("start", 50, 1), score, 1500)
    x = descend(Descent(0.005), x, score, 500)
    assert abs(x.mean() - mean) < 0.02 * sd
    assert 0.9 < x.var(correction=0) / sd**2 < 1.02


@pytest.mark.parametrize("gradient", [kde_gradient, code_gradient])
def test_density_estimates_have_the_gradient_of_their_logarithm(gradient):
    width, centres, (n, d) = 0.8, X[:4, :2], (4, 2)

    def log_density(x):
        distance = (x - centres).square().sum(1)
        if gradient is kde_gradient:
            return torch.logsumexp(-distance / (2 * width**2), 0)
        scale = (n * 2 * math.pi * width**2) ** (-d / 2)
        return torch.log(scale * (torch.exp(-distance / (2 * width**2)) + 1e-9).sum() + 1e-10)

    expected = torch.stack([torch.func.grad(log_density)(x) for x in T[:, :2]])
    assert_close(gradient(T[:, :2], centres, width, d), expected, rtol=1e-9, atol=1e-12)


def test_the_ratio_of_density_estimates_is_bounded_by_the_spread_of_the_centres():
    far = X + 1e6
    q, r = kde_gradient(far, X, 0.5, 5), kde_gradient(far, X[:3] + 1, 0.5, 5)
    assert q.isfinite().all()
    reach = torch.cdist(X, X[:3] + 1).max() / 0.25
    assert ((q - r).norm(dim=1) <= reach * (1 + 1e-6)).all()
    assert ((kde_gradient(T, X, 0.5, 5) - kde_gradient(T, X[:3] + 1, 0.5, 5)).norm(dim=1) <= reach).all()


def test_the_public_codes_estimate_is_flat_in_many_dimensions_and_not_in_few():
    for d, flat in ((1, False), (54, True), (400, True)):
        x = 0.05 * normals("cloud", 20, d)
        found = code_gradient(x, x.flip(0)[:6] + 0.1, 0.55, d)
        assert found.isfinite().all()
        assert (float(found.abs().max()) < 1e-15) is flat
        assert kde_gradient(x, x[:6] + 0.1, 0.55, d).abs().max() > 1e-2


def test_the_public_codes_estimate_of_a_narrow_kernel_is_that_without_a_floor():
    """(2πλ²M)^(-d/2) is beyond any float64 there, and 1e-10 nothing beside it."""
    x, width, d = normals("narrow", 6, 400) / 1000, 0.02, 400
    weights = torch.exp(-torch.cdist(x, x[:3]).square() / (2 * width**2))
    share = weights / (weights + 1e-9).sum(1, keepdim=True)
    expected = (share @ x[:3] - share.sum(1, keepdim=True) * x) / width**2
    assert_close(code_gradient(x, x[:3], width, d), expected)


def test_the_shared_width_is_that_of_the_kernel():
    """exp(-D/2λ²) at λ² = h/2 is the kernel itself."""
    width, kernel = median_width(X), rbf(X)
    assert_close(torch.exp(-kernel.distance / (2 * width**2)), kernel.k)


def test_a_wide_kernel_finds_the_variances_of_a_gaussian_that_a_narrow_one_understates():
    sd = torch.tensor([0.5, 2.0])
    x = normals("wide", 50, 2) * sd

    def ratio(width):
        moved = descend(Descent(0.05, rule="plain", width=width), x, lambda x: -x / sd**2, 1500)
        return moved.std(0, correction=0) / sd

    assert (ratio(1.0) < 0.95).all()
    assert_close(ratio(16.0), torch.ones_like(x[0]), rtol=0, atol=0.03)
