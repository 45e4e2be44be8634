"""Averages at the server."""

import pytest
import torch
from torch.testing import assert_close

from fedray.arrays.averages import damped, mean, total, weighted_mean
from fedray.arrays.rng import Stream

UPS, N = Stream(0, "ups").normal([7, 64]), torch.tensor([3, 1, 4, 1, 5, 9, 2])


def test_the_weighted_mean_is_the_formula_in_double_precision():
    exact = (N[:, None].double() * UPS.double()).sum(0) / 25
    assert_close(weighted_mean(UPS, N), exact.float(), rtol=2e-7, atol=0)
    assert_close(weighted_mean(UPS.double(), N), exact, rtol=1e-15, atol=1e-15)
    assert_close(mean(UPS), UPS.double().mean(0).float())
    assert torch.equal(weighted_mean(UPS, 10 * N), weighted_mean(UPS, N))


def test_small_clients_are_not_lost_in_float32():
    assert mean(torch.tensor([[1e8], [1.0], [-1e8]])).item() == pytest.approx(1 / 3, rel=1e-6)


def test_the_average_of_equals_is_each_of_them():
    assert torch.equal(weighted_mean(UPS[:1].expand(7, 64), N), UPS[0])
    assert torch.equal(weighted_mean(UPS[:1], N[:1]), UPS[0])


def test_the_order_of_clients_does_not_matter():
    order = [4, 2, 6, 0, 1, 5, 3]
    assert_close(weighted_mean(UPS[order], N[order]), weighted_mean(UPS, N), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0, 2.0])
def test_damping_moves_a_share_of_the_way_or_beyond(beta):
    old, new = UPS[:2]
    assert_close(damped(old, new, beta), (1 - beta) * old + beta * new)
    assert torch.equal(damped(old, old, beta), old)
    assert torch.equal(damped(torch.full_like(old, torch.nan), new, 1), new)


def test_a_total_is_that_of_all_in_double_precision_and_leaves_them_as_they_are():
    kept = UPS.double().clone()
    added, count = total(value for value in UPS.double())
    assert count == 7
    assert_close(added, kept.sum(0), rtol=1e-15, atol=1e-15)
    assert total([torch.tensor(1e8), torch.tensor(1.0), torch.tensor(-1e8)]) == (1, 3)
    double = UPS.double()
    total(double)
    assert torch.equal(double, kept)
