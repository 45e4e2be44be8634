"""Sums over clients: exact where floats are, within the bound elsewhere, and the same in any order and grouping."""

import random
from fractions import Fraction

import pytest
import torch

from fedray.arrays.sums import LIMBS, MOST_TERMS, WIDTH, ExactSum, exact_sum, merged, value


def uploads(clients=100, size=40, spread=8.0, seed=0):
    """Values whose magnitudes differ by many powers of ten, and shard sizes."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(clients, size, generator=rng) * torch.exp(spread * torch.randn(clients, size, generator=rng))
    return x, torch.randint(1, 5000, (clients,), generator=rng).float()


def exactly(x, n):
    """Σ_k n_k x_k as fractions."""
    return [
        sum((Fraction(v) * Fraction(w) for v, w in zip(column.tolist(), n.tolist(), strict=True)), Fraction(0))
        for column in x.double().T
    ]


@pytest.mark.parametrize("spread", [0.0, 3.0, 8.0])
@pytest.mark.parametrize("parts", [1, 2, 7, 100])
def test_any_tree_over_any_order_gives_the_same_bits(parts, spread):
    x, n = uploads(spread=spread)
    whole = value(exact_sum(x, n))
    rng = random.Random(parts)
    for _ in range(10):
        order = torch.tensor(rng.sample(range(len(x)), len(x)))
        nodes = [
            exact_sum(*part) for part in zip(x[order].tensor_split(parts), n[order].tensor_split(parts), strict=True)
        ]
        while len(nodes) > 1:
            i = rng.randrange(len(nodes) - 1)
            j = rng.randrange(i + 2, len(nodes) + 1)
            nodes[i:j] = [merged(nodes[i:j])]
        assert torch.equal(value(nodes[0]), whole)


@pytest.mark.parametrize("spread", [0.0, 8.0])
def test_the_error_is_within_the_bound(spread):
    x, n = uploads(spread=spread)
    bound = len(x) * Fraction(float((x.double().abs() * n[:, None]).max())) / 2**53
    for found, true in zip(value(exact_sum(x, n)).tolist(), exactly(x, n), strict=True):
        assert abs(Fraction(found) - true) <= bound + abs(true) / 2**52  # and the rounding of the result


def test_what_float64_holds_is_exact():
    x = torch.tensor([[1.5, -(2.0**20)], [2.0**-10, 2.0**21], [-1.5, 3.0]])
    assert value(exact_sum(x, torch.tensor([2.0, 1.0, 2.0]))).tolist() == [2.0**-10, 6.0]


def test_large_terms_cancel_and_leave_the_small_one():
    x = torch.tensor([[1e8], [1.25], [-1e8]])
    assert value(exact_sum(x)).item() == 1.25


def test_a_larger_term_elsewhere_drops_what_it_would_have_dropped_at_once():
    """The small term lies below the places of the large one, in whatever order they meet."""
    small, large = torch.tensor([[1e-30]]), torch.tensor([[1e10]])
    together = value(exact_sum(torch.cat([small, large])))
    assert torch.equal(value(merged([exact_sum(small), exact_sum(large)])), together)
    assert together.item() == float(large)


def test_ties_round_alike_under_every_top():
    """Terms half way between two multiples of the lowest unit: the trap of rounding twice."""
    halves = torch.tensor([[2.0 ** (-2 * WIDTH - 1) * k] for k in (1.0, 3.0, 5.0, -1.0, -7.0)])
    large = torch.tensor([[1.0]])
    at_once = exact_sum(torch.cat([halves, large]))
    for order in ([halves, large], [large, halves], [halves[:2], large, halves[2:]]):
        assert torch.equal(value(merged([exact_sum(part) for part in order])), value(at_once))


def test_a_sum_is_rounded_once_whatever_its_limbs():
    """Limbs of many terms overlap; the value is the float64 nearest to the number that they stand for."""
    rng = random.Random(0)
    for _ in range(200):
        units = [rng.randrange(-(2**50), 2**50) for _ in range(LIMBS)]
        units[0] = rng.choice([units[0], -(units[1] >> WIDTH)])  # in half of the cases the first two cancel
        limbs = torch.tensor([[unit * 2.0 ** (-WIDTH * k)] for k, unit in enumerate(units)], dtype=torch.float64)
        number = sum(Fraction(unit, 2 ** (WIDTH * k)) for k, unit in enumerate(units))
        assert value(ExactSum(limbs, 0)).item() == float(number)


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-38, 3e38])
def test_the_extremes_of_float32(scale):
    x = torch.tensor([[scale], [scale]], dtype=torch.float32)
    assert value(exact_sum(x, torch.tensor([2.0, 2.0**20]))).item() == float(x[0]) * (2 + 2**20)


def test_as_many_terms_as_promised_stay_exact():
    """A limb holds the largest parts of MOST_TERMS terms: doubling a sum of two as often overflows nothing."""
    one = exact_sum(torch.tensor([[2.0 - 2.0**-23]]))
    total, count = one, 1
    while count < MOST_TERMS:
        total, count = merged([total, total]), 2 * count
    assert value(total).item() == (2.0 - 2.0**-23) * MOST_TERMS


def test_no_terms_sum_to_zero():
    assert value(exact_sum(torch.zeros(0, 3))).tolist() == [0, 0, 0]
