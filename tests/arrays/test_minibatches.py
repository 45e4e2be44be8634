"""Minibatches of a step taken apart, and random ones of a shard."""

import torch
from torch.nn import functional
from torch.testing import assert_close

from fedray.arrays import trees
from fedray.arrays.minibatches import fine_tune, random_batch, split, tuning_noise
from fedray.arrays.rng import Stream
from fedray.nets.likelihood import nll_and_grad
from fedray.types import Batch, Facts
from tests.helpers import NETS, differing, examples, joined

MODEL = NETS["mlp"]


def shard(n, size):
    """n random examples, padded to ``size`` by rows that would be noticed."""
    full = examples(size, total=n)
    real = torch.arange(size) < n
    x = torch.where(real[:, None, None], full.x, 1e6)
    return full._replace(x=x, weight=real.double())


def noise(steps, batch_size, size, seed=0):
    return Stream(seed, "noise").normal(tuning_noise(steps, Facts(1, 1, 1, 1, batch_size, size)))


def gradient(theta, batch):
    return nll_and_grad(MODEL, theta, batch.x, batch.y, batch.weight / batch.weight.sum())


def test_a_steps_batch_is_taken_apart_into_its_minibatches():
    parts = [examples(5), shard(3, 5), shard(4, 5)]
    for found, part in zip(split(joined(*parts), 3), parts, strict=True):
        assert differing(found._replace(total=part.total), part) == []
    assert split(parts[0], 1) == (parts[0],)


def test_a_random_batch_holds_different_real_examples():
    for n, size, batch_size, expected in ((30, 40, 7, 7), (3, 40, 7, 3), (7, 7, 7, 7), (5, 5, 20, 5), (13, 13, 5, 5)):
        data = shard(n, size)
        batch = random_batch(data, noise(1, batch_size, size)[0])
        real = batch.weight > 0
        places = batch.place[real]
        assert int(real.sum()) == len(set(places.tolist())) == expected
        assert int(places.max()) < n
        assert len(real) <= batch_size
        assert torch.equal(batch.x[real], data.x[places])
        assert torch.equal(batch.y[real], data.y[places])


def test_every_example_is_as_likely_as_any_other():
    data, counts, draws = shard(10, 14), torch.zeros(14), 3000
    for seed in range(draws):
        counts[random_batch(data, noise(1, 4, 14, seed)[0]).place] += 1
    assert counts[10:].sum() == 0
    assert ((counts[:10] / draws - 0.4).abs() < 4 * (0.24 / draws) ** 0.5).all()


def test_padding_of_the_shard_does_not_matter():
    eps = noise(1, 7, 40)[0]
    data = shard(30, 40)
    spoiled = data._replace(x=torch.where(data.weight[:, None, None] > 0, data.x, -5.0), place=torch.arange(40))
    assert differing(random_batch(data, eps), random_batch(spoiled, eps)) == []


def test_fine_tuning_is_sgd_on_these_batches_and_leaves_its_argument_alone():
    theta, data, rates = MODEL.init(Stream(0, "server")).double(), shard(30, 40), [0.3, 0.1, 0.7]
    start, live, eps = theta.clone(), theta.clone().requires_grad_(), noise(3, 7, 40)
    seen = []
    for rate, own in zip(rates, eps, strict=True):
        batch = random_batch(data, own)
        seen.append(frozenset(batch.place.tolist()))
        (grad,) = torch.autograd.grad(functional.cross_entropy(MODEL.apply(live, batch.x), batch.y), live)
        live = (live - rate * grad).detach().requires_grad_()
    assert_close(fine_tune(gradient, theta, data, rates, eps), live.detach())
    assert torch.equal(theta, start)
    assert len(set(seen)) == 3
    assert fine_tune(gradient, theta, data, [], eps[:0]) is theta


def test_fine_tuning_stacks():
    theta, eps = MODEL.init(Stream(0, "server")).double(), noise(2, 7, 40)
    several: Batch = trees.stack([shard(30, 40), shard(3, 40)])
    stacked = torch.vmap(lambda data: fine_tune(gradient, theta, data, [0.3, 0.3], eps))(several)
    for k in range(2):
        assert_close(stacked[k], fine_tune(gradient, theta, trees.row(several, k), [0.3, 0.3], eps))
