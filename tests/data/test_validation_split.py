"""The validation split: exact counts, equal chances, one stream per client, files, and what is refused."""

import numpy as np
import pytest
import torch

from fedray.arrays.rng import Stream
from fedray.config import DataConfig, Experiment
from fedray.data import loading
from fedray.data import partition as parts
from fedray.data.partition import Partition, hold_out_validation
from fedray.data.partitions.iid import iid
from fedray.data.shards import Shards
from fedray.federate.planning import make_plan
from fedray.types import FedRayError
from tests.helpers import each_of, experiment, small_plan

LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 60))


def keyed(seed=0):
    return lambda client: Stream(seed, "validation", client).numpy


def dealt(clients=7):
    return iid(LABELS, clients, 0.25, np.random.default_rng(0))


def counts(indices, labels=LABELS):
    return np.bincount(labels[indices], minlength=10)


@pytest.mark.parametrize("share", [0.01, 0.2, 1 / 3, 0.5, 0.99])
def test_every_class_gives_its_share_and_nothing_else_moves(share):
    before = dealt()
    after = hold_out_validation(before, share, LABELS, keyed())
    assert after.test is before.test
    for shard, train, held in zip(before.train, after.train, after.validation, strict=True):
        n = len(shard)
        m = min(max(round(share * n), 1), n - 1)
        assert (len(held), len(train)) == (m, n - m)
        assert np.array_equal(train, shard[np.isin(shard, train)])  # in the order that it had
        assert np.array_equal(np.sort(np.concatenate([train, held])), np.sort(shard))
        expected = counts(shard) * m / n
        assert (np.abs(counts(held) - expected) < 1).all()
    parts.check_disjoint(after)


def test_every_example_of_a_client_has_the_same_chance():
    shard = np.arange(13)
    labels = np.array([0] * 2 + [1] * 4 + [2] * 7)
    of = Partition((shard,), (np.array([13]),))
    draws = 4000
    drawn = np.zeros(13)
    neighbours = 0
    for seed in range(draws):
        (held,) = hold_out_validation(of, 0.3, labels, keyed(seed)).validation
        drawn[held] += 1
        neighbours += (np.diff(held) == 1).any()
    assert neighbours > draws / 10  # not every third one of the order in which they lie
    chance = 4 / 13
    assert np.abs(drawn / draws - chance).max() < 4.5 * np.sqrt(chance * (1 - chance) / draws)


def test_a_split_is_that_of_its_seed_and_client_alone():
    whole = dealt()
    found = hold_out_validation(whole, 0.2, LABELS, keyed()).validation
    again = hold_out_validation(whole, 0.2, LABELS, keyed()).validation
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
    others = hold_out_validation(whole, 0.2, LABELS, keyed(1)).validation
    assert not any(np.array_equal(a, b) for a, b in zip(found, others, strict=True))
    # Neither the other clients nor the test examples have a say.
    rest = Partition((whole.train[0], *whole.train[3:]), (whole.test[5], *whole.test[3:]))
    alone = hold_out_validation(rest, 0.2, LABELS, lambda k: keyed()(k + 2 if k else 0)).validation
    assert np.array_equal(alone[0], found[0])
    assert np.array_equal(alone[1], found[3])
    twins = Partition((whole.train[0], whole.train[0] + 1000), (whole.test[0], whole.test[1]))
    first, second = hold_out_validation(twins, 0.2, np.tile(np.arange(10), 200), keyed()).validation
    assert not np.array_equal(first, second - 1000)


def test_targets_that_are_real_numbers_are_spread_over_their_range():
    y = np.random.default_rng(0).normal(size=400)
    (held,) = hold_out_validation(Partition((np.arange(400),), (np.array([0]),)), 0.25, y, keyed()).validation
    ranks = np.sort(np.argsort(np.argsort(y))[held])
    assert np.array_equal(ranks // 4, np.arange(100))  # one of every four neighbours


def test_the_share_comes_out_of_the_training_examples_of_a_plan():
    plain, split = small_plan("fedavg"), small_plan("fedavg", {"data.validation": 0.2})
    assert plain.partition.validation == ()
    assert all(np.array_equal(a, b) for a, b in zip(plain.partition.test, split.partition.test, strict=True))
    for shard, train, held in zip(
        plain.partition.train, split.partition.train, split.partition.validation, strict=True
    ):
        assert set(train) | set(held) == set(shard)
    labels = loading.load(split.cfg.data).y
    expected = hold_out_validation(plain.partition, 0.2, labels, keyed(split.cfg.seed)).validation
    assert all(np.array_equal(a, b) for a, b in zip(split.partition.validation, expected, strict=True))
    assert split.facts.shard == max(map(len, split.partition.train)) < plain.facts.shard


def test_shards_hold_the_validation_examples():
    dataset = loading.Dataset(np.arange(6, dtype=np.float32)[:, None], np.arange(6) % 3, 3, None)
    lists = [np.array([0, 1]), np.array([2, 3])], [np.array([4]), np.array([5])]
    (plain,) = each_of(Shards(dataset, parts.checked(*lists), [0]))
    assert plain.validation is None
    split = Partition((np.array([0]), np.array([3])), lists[1], validation=(np.array([1]), np.array([2])))
    (shard,) = each_of(Shards(dataset, split, [1]))
    assert shard.train_x.tolist() == [[3]]
    x, y = shard.validation
    assert (x.dtype, x.tolist(), y.dtype, y.tolist()) == (torch.float32, [[2]], torch.int64, [2])


def test_a_split_survives_its_file_and_older_files_have_none(tmp_path):
    split = hold_out_validation(dealt(), 0.2, LABELS, keyed())
    parts.save(tmp_path / "split", split)
    loaded = parts.load(tmp_path / "split")
    for name in ("train", "test", "validation"):
        assert all(np.array_equal(a, b) for a, b in zip(getattr(loaded, name), getattr(split, name), strict=True))
    # Six lists of an older run are three clients, not two with validation examples.
    np.savez(tmp_path / "old.npz", indices=np.arange(6), offsets=np.arange(7))
    old = parts.load(tmp_path / "old.npz")
    assert (len(old.train), len(old.test), old.validation) == (3, 3, ())


@pytest.mark.parametrize("lists", [0, 1, 4, -1])
def test_a_file_with_another_number_of_lists_is_refused(tmp_path, lists):
    np.savez(tmp_path / "deal.npz", indices=np.arange(12), offsets=np.arange(13), lists=lists)
    with pytest.raises(FedRayError, match=r"deal\.npz"):
        parts.load(tmp_path / "deal.npz")


def test_small_shards_keep_an_example_to_train_on_and_single_ones_are_refused():
    of = Partition((np.array([0, 1]), np.array([2])), (np.array([3]), np.array([4])))
    for share in (0.001, 0.999):
        two = of._replace(train=of.train[:1], test=of.test[:1])
        after = hold_out_validation(two, share, LABELS, keyed())
        assert (len(after.train[0]), len(after.validation[0])) == (1, 1)
    with pytest.raises(FedRayError, match=r"data.validation 0.2: client 1 has one training example.*deal every client"):
        hold_out_validation(of, 0.2, LABELS, keyed())


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, float("nan"), "0.2"])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(FedRayError, match=r"data.validation"):
        DataConfig(validation=share)


def test_a_caller_may_give_validation_examples_of_her_own():
    given = Partition((np.array([0]), np.array([1])), (np.array([2]), np.array([3])))
    own = given._replace(validation=(np.array([4]), np.array([5])))
    settings = {"clients": None, "clients_per_round": None}
    assert make_plan(experiment(settings=settings), partition=own).partition is own
    for wrong, words in (
        (given._replace(validation=(np.array([4]),)), "of some clients only"),
        (given._replace(validation=(np.array([4]), np.array([0]))), "example 0 occurs twice"),
        (given._replace(validation=(np.array([4]), np.array([], np.int64))), "a list is empty"),
        (given._replace(validation=(np.array([4]), np.array([5.0]))), "flat int64"),
    ):
        with pytest.raises(FedRayError, match=words):
            make_plan(experiment(settings=settings), partition=wrong)
    with pytest.raises(FedRayError, match=r"data.validation 0.2: the partition holds out .* of its own; leave it out"):
        make_plan(experiment(settings=settings | {"data.validation": 0.2}), partition=own)
    split = make_plan(experiment(settings=settings | {"data.validation": 0.2}), partition=dealt())
    assert len(split.partition.validation) == 7


def test_wrong_labels_of_a_protocol_are_the_classes_that_are_shared_out():
    """Half of the client's zeros carry the label 1: each of the two labels gives its share."""
    train = np.flatnonzero(LABELS == 0)[:40]
    of = Partition((train,), (np.array([int(np.flatnonzero(LABELS == 1)[0])]),))
    wrong = np.stack([train[:20], np.ones(20, np.int64)], 1)
    dataset = loading.Dataset(np.zeros((600, 1), np.float32), LABELS, 10, None)
    plan = make_plan(
        Experiment(algorithm=experiment().algorithm, data=DataConfig(validation=0.5)),
        dataset,
        of._replace(relabel=wrong),
    )
    (held,) = plan.partition.validation
    assert np.isin(held, train[:20]).sum() == 10
