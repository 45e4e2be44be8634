"""Streams: the right distribution, independent between keys, and minibatches that need no history."""

import numpy as np
import pytest
import torch
from scipy import stats

from fedray.arrays.rng import LANES, Passes, Stream, box_muller

KEYS = [(1, "noise", 3, 2), (0, "nosie", 3, 2), (0, "noise", 4, 2), (0, "noise", 3, 3), (0, "noise", 2, 3)]


@pytest.mark.parametrize("size", [200_000, 199_999])
def test_normals_are_standard_normal(size):
    z = Stream(0, "noise").normal([size]).double().numpy()
    assert stats.kstest(z, "norm").pvalue > 0.01
    assert 4 < np.abs(z).max() <= 6.7
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - moment) < 4 * np.sqrt(variance / size)


def test_the_tail_of_the_normals_is_exact():
    bits = torch.ones(1, 2, LANES, dtype=torch.int32)
    bits[0, 0, 0], bits[0, 0, 1], bits[0, 0, 2] = 0, -(2**31), 1
    pairs = bits.float()
    radius = torch.stack(box_muller(pairs[0, 0], pairs[0, 1])).double().square().sum(0).sqrt()
    expected = torch.tensor([64 * np.log(2), 0, 62 * np.log(2)]).sqrt()
    torch.testing.assert_close(radius[:3], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lag", [1, 8, 50_000])
def test_the_normals_of_a_stream_are_uncorrelated_in_value_and_in_size(lag):
    z = Stream(0, "noise").normal([100_000]).double().numpy()
    for f in (lambda z: z, np.square, np.abs):
        assert abs(np.corrcoef(f(z[:-lag]), f(z[lag:]))[0, 1]) < 4 / np.sqrt(len(z) - lag)


def test_uniforms_are_uniform_and_below_one():
    u = Stream(0, "server").uniform([300, 400])
    assert u.dtype == torch.float32
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 0.01


def test_one_key_is_one_stream():
    first, second = Stream(0, "noise", 3, 2), Stream(0, "noise", 3, 2)
    for shape in ([5], [2, 3], []):
        assert torch.equal(first.normal(shape), second.normal(shape))


@pytest.mark.parametrize("key", KEYS)
def test_streams_with_different_keys_are_uncorrelated(key):
    a, b = Stream(0, "noise", 3, 2).normal([50_000]), Stream(*key).normal([50_000])
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 4 / 50_000**0.5


def test_a_fill_stays_within_its_tensor():
    table = torch.zeros(3, 7)
    Stream(0, "noise").fill_normal(table[1])
    assert torch.equal(table[1], Stream(0, "noise").normal([7]))
    assert table[[0, 2]].abs().sum() == 0


@pytest.mark.parametrize(("examples", "size"), [(95, 32), (96, 32), (5, 8), (1, 1)])
def test_every_pass_covers_every_example_once_and_its_last_batch_is_partial(examples, size):
    per_pass, passes = -(-examples // size), Passes(0, 4, examples, size)
    for number in range(3):
        batches = [passes[number * per_pass + place] for place in range(per_pass)]
        assert sorted(np.concatenate(batches)) == list(range(examples))
        assert [len(b) for b in batches[:-1]] == [size] * (per_pass - 1)
        assert len(batches[-1]) == examples - size * (per_pass - 1)


def test_minibatches_need_no_history_and_differ_between_passes_clients_and_seeds():
    one, other = Passes(0, 4, 95, 32), Passes(0, 4, 95, 32)
    forward = [one[position] for position in range(12)]
    backward = [other[position] for position in reversed(range(12))]
    assert all(map(np.array_equal, forward, reversed(backward)))
    assert not np.array_equal(forward[0], forward[3])
    for seed, client in ((1, 4), (0, 5)):
        assert not np.array_equal(forward[0], Passes(seed, client, 95, 32)[0])
