"""The mathematics of dealing examples: exact counts, label sets, disjointness, determinism, refusals."""

import re
import time

import numpy as np
import pytest

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import DataConfig, Experiment
from fedray.data import own
from fedray.data import partition as parts
from fedray.data.partitions.dirichlet import dirichlet
from fedray.data.partitions.iid import iid
from fedray.data.partitions.labels import even_size, label_shards
from fedray.data.readers import Dataset, Names
from fedray.federate.planning import make_plan
from fedray.types import FedRayError

MNIST_POOLED = (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)  # official train + test


def rng(seed=0):
    return np.random.default_rng(seed)


def labels_of(counts, seed=1):
    return rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


def everything(partition):
    return np.concatenate([*partition.train, *partition.test])


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip([*a.train, *a.test], [*b.train, *b.test], strict=True))


BUILDERS = {
    "cluster": lambda y, r: label_shards(y, 10, 5, 17, 17, "cluster", r),
    "window": lambda y, r: label_shards(y, 10, 5, 17, 17, "window", r),
    "dirichlet": lambda y, r: dirichlet(y, 10, 0.5, 0.25, r),
    "iid": lambda y, r: iid(y, 10, 0.25, r),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_every_builder_is_disjoint_and_follows_its_generator(build):
    labels = labels_of([180] * 10)
    partition = build(labels, rng(3))
    indices = everything(partition)
    assert len(np.unique(indices)) == len(indices)
    assert indices.min() >= 0
    assert indices.max() < len(labels)
    assert all(part.dtype == np.int64 and len(part) for part in (*partition.train, *partition.test))
    assert len(partition.train) == len(partition.test) == 10
    assert same(partition, build(labels, rng(3)))
    assert not same(partition, build(labels, rng(4)))


@pytest.mark.parametrize(
    ("layout", "expected", "kinds"),
    [
        ("cluster", lambda u: {(5 * u + j) % 10 for j in range(5)}, 2),
        ("window", lambda u: {(u + j) % 10 for j in range(5)}, 10),
    ],
)
def test_label_shards_are_exact_and_stratified(layout, expected, kinds):
    labels = labels_of([180] * 10)
    partition = label_shards(labels, 10, 5, 24, 10, layout, rng())
    for client, (train, test) in enumerate(zip(partition.train, partition.test, strict=True)):
        for part, size in ((train, 24), (test, 10)):
            held, counts = np.unique(labels[part], return_counts=True)
            assert set(held) == expected(client)
            assert (counts == size).all()
    assert len({tuple(np.unique(labels[part])) for part in partition.train}) == kinds


def test_cluster_layout_follows_the_number_of_labels():
    assert parts.held_labels(2, 2, 10, "cluster").tolist() == [4, 5]
    assert parts.held_labels(2, 2, 10, "window").tolist() == [2, 3]
    assert parts.held_labels(3, 3, 10, "cluster").tolist() == [9, 0, 1]


def test_owners_count_every_label_of_every_client():
    of = parts.owners(10, 5, 10, "window")
    assert [len(holders) for holders in of] == [5] * 10
    assert of[0] == [0, 6, 7, 8, 9]


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_shard_is_in_no_order(part):
    """The first examples of a shard are a sample of it: whoever looks at some takes them."""
    y = labels_of([4000] * 10)
    for shard in getattr(label_shards(y, 10, 5, 300, 300, "cluster", rng()), part):
        for label in np.unique(y[shard]):
            places = np.flatnonzero(y[shard] == label)
            sd = len(shard) / (12 * len(places)) ** 0.5
            assert abs(places.mean() - (len(shard) - 1) / 2) < 4.5 * sd


def test_label_shards_draw_from_the_whole_class_at_random():
    labels = np.repeat(np.arange(2), 1000)
    train = label_shards(labels, 1, 2, 100, 100, "cluster", rng()).train[0]
    assert 350 < train[labels[train] == 0].mean() < 650  # the first 100 would have a mean of 50


@pytest.mark.parametrize(("train", "test", "n"), [(50, 950, 250), (200, 800, 1000), (900, 300, 4500)])
def test_the_papers_mnist_fits_ten_clients(train, test, n):
    for layout in ("cluster", "window"):
        partition = label_shards(labels_of(MNIST_POOLED), 10, 5, train, test, layout, rng())
        assert {len(part) for part in partition.train} == {n}
        assert {len(part) for part in partition.test} == {5 * test}


@pytest.mark.parametrize(("train", "test", "n"), [(25, 475, 125), (100, 400, 500), (450, 150, 2250)])
def test_the_papers_cifar_fits_twenty_clients(train, test, n):
    for layout in ("cluster", "window"):
        partition = label_shards(labels_of([6000] * 10), 20, 5, train, test, layout, rng())
        assert {len(part) for part in partition.train} == {n}
        assert len(everything(partition)) == 20 * 5 * (train + test)


def test_an_infeasible_split_names_class_need_and_remedy():
    labels = labels_of(MNIST_POOLED)
    with pytest.raises(FedRayError) as refusal:
        label_shards(labels, 20, 5, 200, 800, "cluster", rng())
    message = str(refusal.value)
    assert "clients 20: class 5 has 6313 examples, its 10 owners need 10 x 1000" in message
    assert "regression" not in message
    assert "lower `clients` to at most 12" in message


def test_a_class_is_refused_by_the_name_that_the_user_gave_it():
    names = Names(("cat", "dog", "owl"), ())
    dataset = own.from_arrays(np.zeros((41, 2), np.float32), np.repeat(names.classes, (20, 20, 1)))
    assert dataset.names == names
    with pytest.raises(FedRayError, match="class owl has 1 examples, its 4 owners need 4 x 2"):
        make_plan(Experiment(algorithm=FedAvg(), clients=4, data=DataConfig(name="given")), dataset)


def test_a_class_that_does_not_occur_is_refused_and_does_not_shrink_the_others():
    named = Dataset(np.zeros((4000, 2), np.float32), np.arange(4000) % 4, 5, None)
    with pytest.raises(FedRayError, match="class 4 has 0 examples"):
        make_plan(Experiment(algorithm=FedAvg(), clients=10, data=DataConfig(name="given")), named)


@pytest.mark.parametrize("layout", ["cluster", "window"])
@pytest.mark.parametrize("counts", [(50, 90, 70, 400), (400, 400, 31, 400), (35, 400, 400, 400)])
def test_the_advice_of_a_refusal_is_the_largest_that_works(layout, counts):
    labels = labels_of(counts)
    for clients in range(30, 0, -1):  # the truth, by trying
        try:
            label_shards(labels, clients, 2, 6, 4, layout, rng())
            break
        except FedRayError:
            pass
    with pytest.raises(FedRayError, match=f"lower `clients` to at most {clients},"):
        label_shards(labels, 30, 2, 6, 4, layout, rng())


def test_a_class_without_enough_for_one_client_gets_no_impossible_advice():
    with pytest.raises(FedRayError) as refusal:
        label_shards(labels_of([1, 50]), 1, 2, 5, 5, "cluster", rng())
    assert "lower `clients`" not in str(refusal.value)
    assert "dirichlet" in str(refusal.value)


@pytest.mark.parametrize(
    ("clients", "held", "layout", "named"),
    [
        (0, 5, "cluster", "clients 0"),
        (4, 11, "cluster", "data.labels_per_client 11"),
        (4, 0, "window", "data.labels_per_client 0"),
        (4, 5, "circle", "data.layout circle"),
    ],
)
def test_impossible_settings_are_refused_by_name(clients, held, layout, named):
    with pytest.raises(FedRayError, match=named):
        label_shards(labels_of([50] * 10), clients, held, 1, 1, layout, rng())


def test_sizes_without_training_or_testing_are_refused():
    for train, test in ((0, 1), (1, 0)):
        with pytest.raises(FedRayError):
            label_shards(labels_of([50] * 10), 2, 5, train, test, "cluster", rng())


def test_even_size_uses_up_the_class_with_the_least_room():
    of = parts.owners(4, 2, 4, "window")  # two owners for each of four classes
    assert even_size(labels_of([100, 41, 100, 100]), of, 0.25) == (15, 5)
    assert even_size(labels_of([100, 5, 100, 100]), of, 0.01) == (1, 1)
    assert even_size(labels_of([100, 1, 100, 100]), of, 0.5) == (1, 1)  # refused when dealt
    assert even_size(labels_of([100, 100, 100, 1]), parts.owners(1, 2, 4, "cluster"), 0.1) == (90, 10)


@pytest.mark.parametrize("alpha", [1e-320, 1e-9, 0.01, 0.3, 10.0, 1e9, 1e308])
def test_dirichlet_ends_quickly_for_every_alpha(alpha):
    labels = labels_of([200] * 10)
    start = time.perf_counter()
    if 0.3 <= alpha <= 1e9:
        partition = dirichlet(labels, 30, alpha, 0.25, rng())
        assert np.array_equal(np.sort(everything(partition)), np.arange(len(labels)))
        assert min(map(len, (*partition.train, *partition.test))) >= 1
    else:
        with pytest.raises(FedRayError, match=re.escape(f"data.alpha {alpha}: 100 draws")):
            dirichlet(labels, 30, alpha, 0.25, rng())
    assert time.perf_counter() - start < 5


def test_dirichlet_gives_every_client_two_examples_where_luck_must_help():
    for seed in range(20):
        partition = dirichlet(labels_of([30] * 3), 10, 0.3, 0.5, rng(seed))
        assert min(map(len, partition.train)) >= 1
        assert min(map(len, partition.test)) >= 1


def test_dirichlet_shares_have_the_moments_of_the_distribution():
    alpha, clients, n = 0.5, 5, 200
    labels = np.repeat(np.arange(1000), n)  # a thousand independent classes
    partition = dirichlet(labels, clients, alpha, 0.5, rng())
    dealt = [np.concatenate(pair) for pair in zip(partition.train, partition.test, strict=True)]
    shares = np.stack([np.bincount(labels[part], minlength=1000) for part in dealt]) / n
    mean = 1 / clients
    assert np.allclose(shares.sum(axis=0), 1)
    assert np.allclose(shares.mean(axis=1), mean, atol=0.03)  # four standard errors
    assert shares.var() == pytest.approx(mean * (1 - mean) / (clients * alpha + 1), rel=0.1)


def test_the_test_set_is_drawn_from_all_classes_of_a_client():
    labels = np.repeat(np.arange(4), 1000)
    partition = dirichlet(labels, 3, 100.0, 0.25, rng())
    for train, test in zip(partition.train, partition.test, strict=True):
        share = np.bincount(labels[test], minlength=4) / len(test)
        assert np.abs(share - np.bincount(labels[train], minlength=4) / len(train)).max() < 0.12  # four sd


def test_a_small_alpha_is_more_heterogeneous():
    labels = labels_of([500] * 10)

    def largest_share(alpha):
        partition = dirichlet(labels, 5, alpha, 0.25, rng())
        return np.mean([np.bincount(labels[part]).max() / len(part) for part in partition.train])

    assert largest_share(100) < 0.2 < largest_share(0.1)


def test_iid_is_balanced_in_size_and_in_class():
    labels = np.repeat(np.arange(10), 1000)
    partition = iid(labels, 7, 0.25, rng())
    sizes = [len(train) + len(test) for train, test in zip(partition.train, partition.test, strict=True)]
    assert sum(sizes) == len(labels)
    assert max(sizes) - min(sizes) <= 1
    assert all(len(test) == round(0.25 * size) for test, size in zip(partition.test, sizes, strict=True))
    for part in partition.train:
        share = np.bincount(labels[part], minlength=10) / len(part)
        assert np.abs(share - 0.1).max() < 0.05  # five standard deviations


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_an_extreme_test_fraction_leaves_one_example_on_either_side(fraction):
    partition = iid(labels_of([10, 10]), 10, fraction, rng())
    assert {len(part) for part in (*partition.train, *partition.test)} == {1}


@pytest.mark.parametrize("build", [iid, lambda y, n, f, r: dirichlet(y, n, 1.0, f, r)])
def test_too_many_clients_and_bad_fractions_are_refused(build):
    with pytest.raises(FedRayError, match=r"clients 6: 11 examples .* at most 5"):
        build(labels_of([6, 5]), 6, 0.25, rng())
    with pytest.raises(FedRayError, match="clients 0"):
        build(labels_of([6, 5]), 0, 0.25, rng())
    for fraction in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(FedRayError, match=r"data.test_fraction"):
            build(labels_of([6, 5]), 2, fraction, rng())


@pytest.mark.parametrize(
    ("train", "test"),
    [(([0, 1], [1, 2]), ([3], [4])), (([0, 1], [2]), ([3], [0])), (([0, 0], [1]), ([2], [3]))],
    ids=["two clients", "train and test", "one client twice"],
)
def test_a_shared_example_is_found(train, test):
    with pytest.raises(FedRayError, match=r"example [01] occurs twice"):
        parts.check_disjoint(parts.Partition(tuple(map(np.array, train)), tuple(map(np.array, test))))


def test_save_and_load_are_inverse_and_deterministic(tmp_path):
    partition = dirichlet(labels_of([100] * 10), 7, 0.5, 0.25, rng())
    parts.save(tmp_path / "deal", partition)
    parts.save(tmp_path / "again", partition)
    loaded = parts.load(tmp_path / "deal")
    assert same(loaded, partition)
    assert all(part.dtype == np.int64 for part in (*loaded.train, *loaded.test))
    assert (tmp_path / "deal").read_bytes() == (tmp_path / "again").read_bytes()
    assert (tmp_path / "deal").stat().st_size < 8 * 1000


def test_a_damaged_file_is_refused_by_name(tmp_path):
    path = tmp_path / "deal.npz"
    parts.save(path, iid(labels_of([100] * 10), 4, 0.25, rng()))
    whole = path.read_bytes()
    for damaged in (b"", b"nonsense", whole[:100], whole[:-30], whole[:200] + b"xxxxxxxx" + whole[208:]):
        path.write_bytes(damaged)
        with pytest.raises(FedRayError, match=r"deal\.npz"):
            parts.load(path)
    with pytest.raises(FedRayError, match=r"none\.npz"):
        parts.load(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("indices", "offsets"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 4]),  # an odd number of parts
        ([0, 1, 2, 3], [0, 1, 3]),  # an index that belongs to nobody
        ([0, 1, 2, 3], [1, 2, 4]),
        ([0, 1, 2, 3], [0, 3, 2, 3, 4]),
        ([0, 1, 2, 3], [0, 0, 2, 3, 4]),  # a client without examples to train on
        ([0, 1, 2, 3, 4], [0, 1, 1, 2, 3, 4, 5]),
        ([0, 1, 2, 3], [0, 1, 2, 2, 4]),  # or to test on
        ([0, -1], [0, 1, 2]),
        ([1, 1], [0, 1, 2]),  # shared
        ([0.0, 1.0], [0, 1, 2]),
        ([0], [0]),
    ],
)
def test_a_file_that_is_no_partition_is_refused(tmp_path, indices, offsets):
    np.savez(tmp_path / "deal.npz", indices=indices, offsets=offsets)
    with pytest.raises(FedRayError, match=r"deal\.npz"):
        parts.load(tmp_path / "deal.npz")


def test_a_pickle_in_a_partition_is_not_opened(tmp_path):
    np.savez(tmp_path / "deal.npz", indices=np.array([{}], dtype=object), offsets=[0, 1, 1])
    with pytest.raises(FedRayError, match="allow_pickle"):
        parts.load(tmp_path / "deal.npz")
