"""The label skews of client selection: exact, disjoint, fair, and refused where they cannot be had."""

import numpy as np
import pytest

from fedray.config import DataConfig, Experiment, override
from fedray.data import papers
from fedray.data.loading import Dataset
from fedray.data.partition import check_disjoint
from fedray.data.partitions.ratio import ratio
from fedray.data.partitions.shards import dealt, shards
from fedray.federate.planning import make_plan, resolve
from fedray.studies.cell import experiment
from fedray.types import FedRayError


def rng(seed=0):
    return np.random.default_rng(seed)


def labels_of(*counts):
    return rng(9).permutation(np.repeat(np.arange(len(counts)), counts))


def counts(labels, parts, classes):
    """[K, C] examples by client and class."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


@pytest.mark.parametrize(("clients", "majority"), [(1, 9), (2, 9), (7, 9), (10, 3), (4, 1)])
def test_two_classes_are_one_to_r_at_every_client_in_training_and_testing(clients, majority):
    labels = labels_of(2000, 1700)
    partition = ratio(labels, clients, majority, 0.2, rng())
    check_disjoint(partition)
    for parts, share in ((partition.train, 0.8), (partition.test, 0.2)):
        found = counts(labels, parts, 2)
        frequent = np.arange(clients) % 2
        more, less = found[np.arange(clients), frequent], found[np.arange(clients), 1 - frequent]
        assert (more == majority * less).all()
        assert len(set(found.sum(1))) == 1
        assert less[0] >= 1
        # One example more of the rare class per client would exceed what a class has of this part.
        need = [((frequent == c) * majority + (frequent != c)).sum() * (less[0] + 1) for c in (0, 1)]
        assert any(need[c] > round(share * (2000, 1700)[c]) for c in (0, 1))


def test_the_second_class_is_frequent_at_every_so_many_th_client_only():
    labels = labels_of(20000, 20000)
    partition = ratio(labels, 30, 99, 0.2, rng(), alternate=10)
    for parts in partition.train, partition.test:
        found = counts(labels, parts, 2)
        assert np.flatnonzero(found[:, 1] > found[:, 0]).tolist() == [9, 19, 29]
        assert (found.max(1) == 99 * found.min(1)).all()
        assert len(set(found.sum(1))) == 1
    turns = ratio(labels, 4, 9, 0.2, rng(), alternate=2)
    assert all(np.array_equal(a, b) for a, b in zip(turns.train, ratio(labels, 4, 9, 0.2, rng()).train, strict=True))


def test_what_is_for_testing_does_not_depend_on_the_seed_but_who_has_it_does():
    labels = labels_of(500, 500)
    a, b = (ratio(labels, 4, 9, 0.2, rng(seed)) for seed in (1, 2))
    assert not set(np.concatenate(a.test)) & set(np.concatenate(b.train))
    assert not np.array_equal(a.test[0], b.test[0])
    again = ratio(labels, 4, 9, 0.2, rng(1))
    assert all(np.array_equal(x, y) for x, y in zip(a.train + a.test, again.train + again.test, strict=True))


def test_too_many_clients_are_refused_with_the_largest_number():
    labels = labels_of(100, 400)  # 20 test examples of class 0: 9 + 1 for every two clients
    with pytest.raises(FedRayError, match=r"^clients 30: classes of 100 and 400 examples serve 4 clients at 1:9"):
        ratio(labels, 30, 9, 0.2, rng())
    with pytest.raises(FedRayError, match=r"^clients 5: .* serve 4 clients"):
        ratio(labels_of(100, 400), 5, 9, 0.2, rng())
    ratio(labels, 4, 9, 0.2, rng())
    with pytest.raises(FedRayError, match=r"serve 0 clients at 1:90; lower `data.majority`"):
        ratio(labels, 2, 90, 0.2, rng())
    with pytest.raises(FedRayError, match=r"^data.partition ratio: it is for two classes, and the data have 3"):
        ratio(labels_of(9, 9, 9), 2, 9, 0.2, rng())


def test_numbers_beyond_all_examples_are_refused_at_once():
    labels = labels_of(2000, 2000)
    with pytest.raises(FedRayError, match=r"^clients 1000000000: classes of 2000 and 2000 examples serve 80 clients"):
        ratio(labels, 10**9, 9, 0.2, rng())
    with pytest.raises(FedRayError, match=r"^data.majority 1[0]{30}: there are 4000 examples; lower it"):
        ratio(labels, 4, 10**30, 0.2, rng())
    with pytest.raises(FedRayError, match=r"^clients 1000000000: 1797 examples give not .*; lower it to at most 898"):
        make_plan(experiment("fedavg", {"clients": 10**9}))


@pytest.mark.parametrize(("clients", "held", "classes"), [(27, 3, 9), (120, 3, 9), (3, 3, 9), (10, 4, 5), (9, 9, 9),
                                                          (5, 1, 5), (15, 4, 6)])  # fmt: skip
def test_shards_of_distinct_classes_are_dealt_evenly(clients, held, classes):
    for seed in range(20):
        hands = dealt(clients, held, classes, rng(seed))
        assert all(len(set(hand)) == held for hand in hands)
        assert (np.bincount(hands.ravel(), minlength=classes) == clients * held // classes).all()
    labels = labels_of(*(700 + 30 * c for c in range(classes)))
    partition = shards(labels, clients, held, 1 / 7, rng(3))
    check_disjoint(partition)
    train, test = (counts(labels, parts, classes) for parts in partition[:2])
    count = clients * held // classes
    for label in range(classes):
        size = (700 + 30 * label) // count  # every shard of a class has one size, and the class is used up
        holders = train[:, label] > 0
        assert holders.sum() == count
        assert set(test[holders, label]) == {max(1, round(size / 7))}
        assert set(train[holders, label]) == {size - max(1, round(size / 7))}
    assert ((train > 0).sum(1) == held).all()


def test_the_deal_depends_on_the_seed_and_favours_nobody():
    hands = np.stack([dealt(9, 3, 9, rng(seed)) for seed in range(900)])
    held = np.stack([(hands == label).any(-1) for label in range(9)]).mean(1)  # [C, K] how often, 1/3 expected
    assert (abs(held - 1 / 3) < 5 * np.sqrt(2 / 9 / 900)).all()
    together = np.mean([len(set(three.ravel())) == 9 for three in skewed_rows(300)])
    assert together < 0.2  # neighbours do not make up for each other


def skewed_rows(deals):
    return [dealt(27, 3, 9, rng(seed))[:3] for seed in range(deals)]


def test_uneven_or_too_many_shards_are_refused():
    labels = labels_of(*[60] * 9)
    with pytest.raises(FedRayError, match=r"^clients 28: 28 x 3 shards .* 9 classes; choose a multiple of 3"):
        shards(labels, 28, 3, 0.2, rng())
    with pytest.raises(FedRayError, match=r"^clients 120: class 0 has 60 .* 40 shards.*lower it to at most 90"):
        shards(labels, 120, 3, 0.2, rng())
    shards(labels, 90, 3, 0.2, rng())
    with pytest.raises(FedRayError, match=r"^data.labels_per_client 10"):
        shards(labels, 9, 10, 0.2, rng())
    labels = labels_of(*[15] * 10)  # 7 shards of each would do for 17 clients, but only a multiple of 5 comes out even
    with pytest.raises(FedRayError, match=r"^clients 20: class 0 has 15 .* 8 shards.*lower it to at most 15$"):
        shards(labels, 20, 4, 0.2, rng())
    shards(labels, 15, 4, 0.2, rng())


def test_the_federations_of_client_selection():
    cfg = resolve(Experiment(data=DataConfig(name="covertype")))
    assert (cfg.clients, cfg.clients_per_round, cfg.model.name) == (30, 1, "blr")
    assert (cfg.data.partition, cfg.data.test_fraction) == ("ratio", 0.2)
    labels = labels_of(3000, 2800)
    two = Dataset(np.zeros((5800, 1), np.float32), labels, 2, None)
    dealt, own = papers.deal(cfg, two, rng()), ratio(labels, 30, 9, 0.2, rng())
    assert all(np.array_equal(a, b) for a, b in zip(dealt.train, own.train, strict=True))
    cfg = resolve(Experiment(data=DataConfig(name="mnist", classes=9, partition="shards")))
    assert (cfg.clients, cfg.clients_per_round, cfg.model.name, cfg.data.labels_per_client) == (27, 1, "mlp", 3)
    assert cfg.data.test_fraction == 1 / 7
    labels = labels_of(*[300] * 9)
    nine = Dataset(np.zeros((2700, 1), np.float32), labels, 9, None)
    dealt, own = papers.deal(cfg, nine, rng()), shards(labels, 27, 3, 1 / 7, rng())
    assert all(np.array_equal(a, b) for a, b in zip(dealt.test, own.test, strict=True))
    changed = override(cfg, {"data.test_fraction": 0.5, "data.labels_per_client": 1})
    assert len(papers.deal(changed, nine, rng()).test[0]) == 50
    assert "1:9" in papers.describe(DataConfig(name="covertype"))
    assert "3 classes per client" in papers.describe(cfg.data)
