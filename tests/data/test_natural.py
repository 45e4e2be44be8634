"""Users as clients, and groups of users."""

import numpy as np
import pytest

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import DataConfig, Experiment, override
from fedray.data import loading, papers
from fedray.data import partition as parts
from fedray.data.partitions.natural import natural
from fedray.federate.planning import make_plan, resolve
from fedray.types import FedRayError


def rng(seed=0):
    return np.random.default_rng(seed)


def users_of(count, each=4):
    """Examples of users 0..count-1 in any order."""
    return rng(9).permutation(np.repeat(np.arange(count), each))


def of_client(users, partition):
    return [np.unique(users[np.concatenate(pair)]) for pair in zip(partition.train, partition.test, strict=True)]


@pytest.mark.parametrize("alpha", [0.01, 0.5, 100.0])
def test_as_many_clients_as_users_are_the_users(alpha):
    users = users_of(12)
    partition = natural(users, 12, alpha, 0.25, rng())
    assert [own.tolist() for own in of_client(users, partition)] == [[u] for u in range(12)]
    assert {len(part) for part in partition.train} == {3}
    assert {len(part) for part in partition.test} == {1}
    parts.check_disjoint(partition)


@pytest.mark.parametrize("alpha", [1e-320, 1e-3, 0.5, 1e9, 1e308])
@pytest.mark.parametrize(("count", "clients", "least"), [(7086, 10, 10), (101, 10, 10), (57, 10, 5), (10, 9, 1)])
def test_a_group_is_ten_consecutive_users_at_least_and_no_user_is_left_out(count, clients, least, alpha):
    users = users_of(count, 2)
    groups = of_client(users, natural(users, clients, alpha, 0.5, rng()))
    assert np.array_equal(np.concatenate(groups), np.arange(count))
    assert min(map(len, groups)) >= least


def test_group_sizes_have_the_moments_of_the_distribution():
    """Of what exceeds ten users, each client has a share of mean 1/N and variance (1/N)(1 - 1/N)/(Nα + 1)."""
    users, alpha, clients = np.arange(4050).repeat(2), 0.5, 5
    shares = []
    for seed in range(300):
        groups = of_client(users, natural(users, clients, alpha, 0.5, rng(seed)))
        shares.append([(len(group) - 10) / 4000 for group in groups])
    mean = 1 / clients
    assert np.allclose(np.mean(shares, axis=0), mean, atol=4 * np.std(shares) / 300**0.5)
    assert np.var(shares) == pytest.approx(mean * (1 - mean) / (clients * alpha + 1), rel=0.15)


def test_what_rounding_leaves_is_dealt_at_random():
    """Of an alpha this large, all shares come out as zero."""
    groups = of_client(users_of(1000, 2), natural(users_of(1000, 2), 5, 1e308, 0.5, rng()))
    assert all(150 < len(group) < 250 for group in groups)


def test_the_generator_decides():
    users = users_of(300)
    a, b, c = (natural(users, 5, 0.5, 0.25, rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(x, y) for x, y in zip(a.train, b.train, strict=True))
    assert [len(x) for x in a.train] != [len(x) for x in c.train]


@pytest.mark.parametrize(
    ("clients", "each", "alpha", "fraction", "match"),
    [
        (31, 4, 0.5, 0.25, r"clients 31: the dataset has 30 users; lower it to at most 30"),
        (0, 4, 0.5, 0.25, r"clients 0"),
        (30, 1, 0.5, 0.25, r"clients 30: client 0 has 1 example, and needs .*users are grouped"),
        (3, 4, 0.5, 1.0, r"data.test_fraction 1.0"),
    ],
)
def test_what_cannot_be_dealt_is_refused(clients, each, alpha, fraction, match):
    with pytest.raises(FedRayError, match=match):
        natural(users_of(30, each), clients, alpha, fraction, rng())


def test_an_owner_with_one_example_is_named():
    with pytest.raises(FedRayError, match=r"clients 3: client solo has 1 example, .*; leave that one out, or ask"):
        natural(np.array([0, 0, 1, 2, 2]), 3, 0.5, 0.25, rng(), ("a", "solo", "c"))


def test_datasets_without_users_are_refused():
    cfg = Experiment(clients=10, data=DataConfig(partition="natural"))
    with pytest.raises(FedRayError, match=r"data.partition natural: .*choose another, such as dirichlet"):
        papers.deal(cfg, loading.load(DataConfig()), rng())


def test_a_file_without_owners_is_refused_where_they_are_the_clients(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.zeros((8, 2), np.float32), y=np.arange(8) % 2)
    cfg = Experiment(algorithm=FedAvg(), data=DataConfig(name=str(tmp_path / "mine.npz"), partition="natural"))
    for clients in (None, 2):
        with pytest.raises(
            FedRayError, match=r"data.partition natural: the dataset does not say whose .*choose another"
        ):
            make_plan(override(cfg, {"clients": clients}))


def test_the_settings_are_passed_on():
    users = users_of(200)
    dataset = loading.Dataset(np.zeros((800, 2), np.float32), users % 2, 2, None, users)
    cfg = Experiment(clients=4, data=DataConfig(name="a.json", alpha=3.0, test_fraction=0.5))
    got, expected = papers.deal(cfg, dataset, rng()), natural(users, 4, 3.0, 0.5, rng())
    assert all(np.array_equal(a, b) for a, b in zip(got.test, expected.test, strict=True))
    assert papers.describe(cfg.data) == "by user, groups of users with alpha 3"


def test_a_tenth_of_leafs_datasets_is_tested_unless_told_otherwise():
    def tested(**settings):
        return resolve(Experiment(data=DataConfig(**settings))).data.test_fraction

    assert [tested(name=name) for name in ("sent140", "femnist", "a.json", "digits")] == [0.1, 0.1, 0.25, 0.25]
    assert tested(name="femnist", test_fraction=0.25) == 0.25
    users = np.arange(3).repeat(100)
    dataset = loading.Dataset(np.zeros((300, 2), np.float32), users % 2, 2, None, users)
    cfg = Experiment(clients=3, data=DataConfig(name="femnist"))
    assert [len(part) for part in papers.deal(cfg, dataset, rng()).test] == [10, 10, 10]


@pytest.mark.parametrize(
    ("name", "federation"),
    [("sent140", (10, 4, "lstm")), ("femnist", (198, 20, "dnn")), ("a.jsonl", (None, None, "auto"))],
)
def test_leafs_datasets_are_dealt_by_user_unless_told_otherwise(name, federation):
    cfg = resolve(Experiment(data=DataConfig(name=name)))
    assert cfg.data.partition == "natural"
    assert (cfg.clients, cfg.clients_per_round, cfg.model.name) == federation
    cfg = resolve(Experiment(data=DataConfig(name=name, partition="iid")))
    assert cfg.data.partition == "iid"
    assert cfg.clients == (federation[0] or 10)
    assert resolve(Experiment()).data.partition == "labels"
