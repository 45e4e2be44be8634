"""Sums over clients: the same in any order and grouping, exact where they can be, within the bound elsewhere."""

import random
from fractions import Fraction

import pytest
import torch

from fedray.arrays.sums import BITS, fixed_sum, largest, unit, value


def uploads(clients=100, size=40, spread=8.0, seed=0):
    """Values whose magnitudes differ by many powers of ten, and shard sizes."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(clients, size, generator=rng) * torch.exp(spread * torch.randn(clients, size, generator=rng))
    return x, torch.randint(1, 5000, (clients,), generator=rng).float()


def summed(x, n):
    exponent = unit(float(largest(x, n).max()) if len(x) else 0.0, len(x))
    return value(fixed_sum(x, n, exponent), exponent)


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
    whole = summed(x, n)
    rng = random.Random(parts)
    for _ in range(10):
        order = torch.tensor(rng.sample(range(len(x)), len(x)))
        pieces = list(zip(x[order].tensor_split(parts), n[order].tensor_split(parts), strict=True))
        exponent = unit(max(float(largest(*piece).max()) for piece in pieces), len(x))
        nodes = [fixed_sum(*piece, exponent) for piece in pieces]
        while len(nodes) > 1:
            i = rng.randrange(len(nodes) - 1)
            nodes[i : i + 2] = [nodes[i] + nodes[i + 1]]
        assert torch.equal(value(nodes[0], exponent), whole)


@pytest.mark.parametrize("clients", [1, 3, 100, 5000])
@pytest.mark.parametrize("spread", [0.0, 8.0])
def test_the_error_is_within_the_bound(clients, spread):
    x, n = uploads(clients, 5, spread)
    most = Fraction(float(largest(x, n).max()))
    bound = clients * most / 2**BITS * max(1, Fraction(clients, 2**11))
    for found, true in zip(summed(x, n).tolist(), exactly(x, n), strict=True):
        assert abs(Fraction(found) - true) <= bound


def test_whole_numbers_are_added_exactly():
    x = torch.tensor([[1.5, 2.0**20], [-3.25, 3.0], [1.5, -(2.0**20)]])
    assert summed(x, torch.tensor([2.0, 1.0, 2.0])).tolist() == [2.75, 3.0]


def test_large_terms_cancel_and_leave_the_small_one():
    assert summed(torch.tensor([[1e8], [1.25], [-1e8]]), torch.ones(3)).item() == 1.25


@pytest.mark.parametrize("count", [1, 2, 2**11, 2**11 + 1, 10**6])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_equal_terms_as_many_as_were_announced_do_not_overflow(count, sign):
    """The worst case for the sum: each term is as large as a term may be."""
    x = torch.full((1, 2), sign * (2.0 - 2.0**-23))
    exponent = unit(float(largest(x, torch.ones(1))), count)
    total = count * fixed_sum(x, torch.ones(1), exponent)
    assert abs(Fraction(value(total, exponent)[0].item()) / count / Fraction(float(x[0, 0])) - 1) < 2**-40


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-38, 3e38])
def test_the_extremes_of_float32(scale):
    x = torch.tensor([[scale], [scale]], dtype=torch.float32)
    assert summed(x, torch.tensor([2.0, 2.0**20])).item() == float(x[0]) * (2 + 2**20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_terms_are_only_read(dtype):
    x, n = uploads(7, 24)
    x = x.to(dtype)
    before = x.clone()
    assert torch.equal(summed(x, n), summed(x, n))
    assert torch.equal(x, before)


def test_terms_of_any_shape_and_no_terms_at_all():
    x, n = uploads(7, 24)
    assert torch.equal(summed(x.view(7, 2, 3, 4), n), summed(x, n).view(2, 3, 4))
    assert summed(x[:, 0], n).shape == ()
    assert summed(torch.zeros(0, 3), torch.ones(0)).tolist() == [0, 0, 0]
