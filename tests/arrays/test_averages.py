"""Averages at the server."""

import pytest
import torch
from torch.testing import assert_close

from fedray.arrays.averages import average, damped, total
from fedray.arrays.rng import Stream

UPS = Stream(0, "ups").normal([7, 64])


def test_the_average_is_in_the_type_of_what_it_replaces():
    assert_close(average(UPS.double().sum(0), 7, UPS), UPS.double().mean(0).float(), rtol=0, atol=0)


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
