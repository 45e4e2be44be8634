"""Shards: the normalised examples of a client, with the labels of its partition."""

import numpy as np
import pytest
import torch

from fedray.arrays import trees
from fedray.data import loading, shards
from fedray.data import partition as parts
from fedray.data.partition import hold_out_validation
from fedray.data.partitions.iid import iid
from fedray.data.scaling import moments, standard, within
from fedray.data.shards import Shards
from tests.helpers import differing, each_of, schema


def rng(seed=0):
    return np.random.default_rng(seed)


def test_shards_are_the_clients_own_examples_normalised():
    x = rng().integers(0, 256, (40, 1, 3, 3), dtype=np.uint8)
    x[0].flat[:2] = 0, 255
    dataset = loading.Dataset(x, np.arange(40) % 4, 4, within(255))
    partition = iid(dataset.y, 4, 0.25, rng())
    got = Shards(dataset, partition, [2, 0])
    for client, shard in zip([2, 0], each_of(got), strict=True):
        for part, images, labels in (
            (partition.train[client], shard.train_x, shard.train_y),
            (partition.test[client], shard.test_x, shard.test_y),
        ):
            assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
            assert labels.tolist() == dataset.y[part].tolist()
            assert np.allclose(images.numpy(), (x[part] / 255 - 0.5) / 0.5, atol=1e-6)


def test_normalisation_spans_minus_one_to_one():
    dataset = loading.Dataset(np.array([[0], [8], [16], [4]], np.uint8), np.zeros(4, np.int64), 1, within(16))
    (shard,) = each_of(Shards(dataset, parts.Partition((np.array([0, 1]),), (np.array([2, 3]),)), [0]))
    assert shard.train_x.flatten().tolist() == [-1, 0]
    assert shard.test_x.flatten().tolist() == [1, -0.5]


def test_labels_are_the_datasets_but_where_the_partition_says_otherwise():
    dataset = loading.Dataset(np.zeros((6, 2), np.float32), np.arange(6) % 3, 3, None)
    wrong = parts.Partition((np.array([0, 1, 5]),), (np.array([2, 4]),), np.array([[1, 2], [2, 0], [3, 1]]))
    (shard,) = each_of(Shards(dataset, wrong, [0]))
    assert (shard.train_y.tolist(), shard.test_y.tolist()) == ([0, 2, 2], [0, 1])
    assert dataset.y.tolist() == [0, 1, 2] * 2


def test_features_are_used_as_they_are_and_the_dataset_is_not_touched():
    x = rng().normal(size=(8, 3)).astype(np.float32)
    dataset = loading.Dataset(x.copy(), np.arange(8) % 2, 2, None)
    (shard,) = each_of(Shards(dataset, iid(dataset.y, 1, 0.25, rng()), [0]))
    assert np.array_equal(np.sort(torch.cat([shard.train_x, shard.test_x]).numpy(), 0), np.sort(x, 0))
    for part in (shard.train_x, shard.train_y, shard.test_x, shard.test_y):
        part.zero_()
    assert np.array_equal(dataset.x, x)
    assert dataset.y.tolist() == [0, 1] * 4


@pytest.mark.parametrize("kind", ["images", "words", "real"])
def test_examples_converted_when_used_are_those_converted_at_once(kind, monkeypatch):
    """Whole shards, their parts, padded batches and minibatches: bitwise, whatever is kept."""
    x = rng().integers(0, 256, (60, 1, 3, 3), dtype=np.uint8)
    dataset = loading.Dataset(x, np.arange(60) % 4, 4, moments(x, each=True))
    if kind == "words":
        words = rng().integers(0, 9, (60, 5), dtype=np.int32)
        dataset = loading.Dataset(words, np.arange(60) % 2, 2, None, vectors=rng(1).random((9, 3), np.float32))
    if kind == "real":
        y = rng(2).normal(size=60)
        dataset = loading.Dataset(rng().random((60, 4), np.float32), y, 1, None, target=standard(y))
    partition = iid(np.zeros(60), 4, 0.25, rng())
    partition = hold_out_validation(partition, 0.2, np.zeros(60, np.int64), rng)
    at_once = Shards(dataset, partition, [2, 0])
    monkeypatch.setattr(shards, "CONVERTED_BYTES", 0)
    when_used = Shards(dataset, partition, [2, 0])
    place, weight = np.array([[[1, 0, 3], [2, 2, 0]], [[0, 0, 1], [3, 2, 1]]]), np.ones((2, 2, 3), np.float32)
    for one, other in (
        (each_of(at_once), each_of(when_used)),
        (at_once.padded([1, 0], 20), when_used.padded([1, 0], 20)),
        (at_once.padded([1], 0), when_used.padded([1], 0)),
        (list(at_once.minibatches([1, 0], place, weight)), list(when_used.minibatches([1, 0], place, weight))),
    ):
        assert differing(one, other) == []
        assert schema(one) == schema(other)


def test_a_padded_shard_and_a_minibatch_are_rows_of_the_shard():
    dataset = loading.Dataset(1 + np.arange(12, dtype=np.float32)[:, None], np.arange(12) % 3, 3, None)
    lists = (np.array([0, 1, 2]), np.array([7, 5])), (np.array([3]), np.array([4]))
    found = Shards(dataset, parts.Partition(*lists), [0, 1])
    batch = found.padded([1, 0], 4)
    assert batch.x[..., 0].tolist() == [[8, 6, 0, 0], [1, 2, 3, 0]]
    assert batch.y.tolist() == [[1, 2, 0, 0], [0, 1, 2, 0]]
    assert batch.weight.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert (batch.place.tolist(), batch.total.tolist()) == ([[0, 1, 2, 3]] * 2, [2, 3])
    place, weight = np.array([[[1, 0], [2, 1]], [[0, 0], [0, 2]]]), np.array([[[1, 1], [1, 1]], [[1, 0], [1, 1.0]]])
    small, other = found.minibatches([1, 0], place, weight.astype(np.float32))
    assert small.x[..., 0].tolist() == [[6, 8], [3, 2]]
    assert other.x[..., 0].tolist() == [[8, 8], [1, 3]]
    assert (other.place.tolist(), other.weight.tolist()) == ([[0, 0], [0, 2]], [[1, 0], [1, 1]])
    assert found.padded([0], 0).total.tolist() == [3]
    small.x.zero_()
    assert each_of(found)[0].train_x.flatten().tolist() == [1, 2, 3]


def test_minibatches_do_not_depend_on_how_many_are_gathered_at_a_time(monkeypatch):
    dataset = loading.Dataset(rng().random((12, 3), np.float32), np.arange(12) % 3, 3, None)
    lists = tuple(np.array_split(np.arange(9), 3)), tuple(np.array_split(np.arange(9, 12), 3))
    found = Shards(dataset, parts.Partition(*lists), [0, 1, 2])
    place, weight = rng(1).integers(0, 3, (7, 2, 4)), rng(2).random((7, 2, 4), np.float32)
    at_once = list(found.minibatches([2, 0], place, weight))
    alone = list(found.minibatches(2, place[:, 0], weight[:, 0]))
    for numbers in (1, 2 * 2 * 4 * 3, 3 * 2 * 4 * 3):  # of one step, of two, and of three
        monkeypatch.setattr(shards, "GATHERED", numbers)
        assert differing(list(found.minibatches([2, 0], place, weight)), at_once) == []
        assert differing(list(found.minibatches(2, place[:, 0], weight[:, 0])), alone) == []
    assert differing([trees.row(batch, 0) for batch in at_once], alone) == []
    assert [tuple(leaf.shape) for leaf in alone[0]] == [(4, 3), (4,), (4,), (4,), ()]
