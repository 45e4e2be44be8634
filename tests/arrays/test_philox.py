"""Philox: the published answers, standard normals, and a draw that depends on its key and place only."""

import numpy as np
import pytest
import torch
from scipy import stats

from fedray.arrays import philox
from fedray.arrays.rng import Stream

ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)  # digits of π
KNOWN = [  # Random123's kat_vectors, philox4x32, 10 rounds: counter, key, answer
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI[:4], PI[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


def words(*values):
    return tuple(torch.tensor([value]) for value in values)


def keys(*clients, seed=0, round_number=1):
    return torch.tensor(np.stack([Stream(seed, "noise", i, round_number).key() for i in clients]))


def normals(key, step, count):
    return philox.normals(key, torch.tensor(step), count)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_the_published_answers_come_out(counter, key, answer):
    assert tuple(map(int, philox.philox(words(*counter), words(*key)))) == answer


@pytest.mark.slow  # compiles for half a minute
def test_compiled_words_and_normals_are_the_same():
    for clients, count in ((1, 1000), (2, 300), (5, 300)):  # as a GPU has it: compiled once for all of them
        key = keys(*range(clients))
        torch.testing.assert_close(philox._compiled()(key, torch.tensor([3]), count), normals(key, 3, count))
    compiled = torch.compile(philox.philox)
    for counter, key, answer in KNOWN:
        assert tuple(map(int, compiled(words(*counter), words(*key)))) == answer


@pytest.mark.parametrize("count", [200_000, 199_999])
def test_normals_are_standard_normal(count):
    z = normals(keys(0), 0, count)[0].double().numpy()
    assert z.shape == (count,)
    assert stats.kstest(z, "norm").pvalue > 0.01
    assert 4 < np.abs(z).max() <= 6.7
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - moment) < 4 * np.sqrt(variance / count)


@pytest.mark.parametrize("lag", [1, 32, 64, 96, 128, 50_000])
def test_the_normals_of_a_step_are_uncorrelated_in_value_and_in_size(lag):
    z = normals(keys(0), 0, 100_000)[0].double().numpy()
    for f in (lambda z: z, np.square, np.abs):
        assert abs(np.corrcoef(f(z[:-lag]), f(z[lag:]))[0, 1]) < 4 / np.sqrt(len(z) - lag)


def test_other_clients_rounds_seeds_and_steps_are_uncorrelated():
    one = normals(keys(3), 2, 50_000)
    others = [(keys(4), 2), (keys(3, round_number=2), 2), (keys(3, seed=1), 2), (keys(3), 1), (keys(3), 3)]
    for key, step in others:
        assert abs(torch.corrcoef(torch.cat([one, normals(key, step, 50_000)]))[0, 1]) < 4 / 50_000**0.5


def test_a_draw_depends_on_its_key_and_step_only():
    alone = [normals(keys(i), step, 300) for step in range(3) for i in (2, 7, 9)]
    for clients in ((2, 7, 9), (9, 2, 7)):
        stacks = [normals(keys(*clients), step, 300) for step in range(3)]
        for place, z in enumerate(alone):
            client, step = (2, 7, 9)[place % 3], place // 3
            assert torch.equal(stacks[step][clients.index(client)], z[0])


def test_steps_do_not_overlap_and_whole_groups_do_not_depend_on_the_count():
    assert torch.equal(normals(keys(1), 0, 1000)[:, :896], normals(keys(1), 0, 896))  # 7 groups of 128
    steps = torch.cat([normals(keys(1), step, 256) for step in range(50)]).flatten()
    assert torch.equal(steps, normals(keys(1), 0, 50 * 256).flatten())
    assert steps.unique().numel() > 0.99 * steps.numel()


def test_far_steps_use_both_words_of_the_counter():
    far = 2**32 // 32  # the first step of 128 normals whose counter needs the second word
    near, there = normals(keys(1), 0, 128), normals(keys(1), far, 128)
    assert not torch.equal(near, there)
    at, key = torch.arange(32), keys(1)
    expected = philox.philox((at, torch.ones(1, dtype=torch.int64), key[:, 2], key[:, 3]), (key[:, 0], key[:, 1]))
    first, _ = philox.box_muller(philox._signed(expected[0]), philox._signed(expected[1]))
    assert torch.equal(there[0, :32], first)


def test_keys_of_neighbours_share_no_word():
    found = keys(*range(200)).flatten()
    assert found.unique().numel() == found.numel()
    assert found.min() >= 0
    assert found.max() <= ONES
