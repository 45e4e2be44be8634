"""The papers' federations: their numbers, and that every partition is dealt by its settings."""

import numpy as np
import pytest

from fedray import registry
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import DataConfig, Experiment, override
from fedray.data import loading, papers
from fedray.data.datasets import cifar10
from fedray.data.partitions.dirichlet import dirichlet
from fedray.data.partitions.iid import iid
from fedray.data.partitions.labels import label_shards
from fedray.data.partitions.lognormal import lognormal, skipped
from fedray.data.records import LognormalSizes, Protocol
from fedray.federate.planning import make_plan, resolve
from fedray.types import FedRayError

MNIST = LognormalSizes()
CIFAR10 = cifar10.DATASET.protocols["lognormal"].lognormal


def rng(seed=0):
    return np.random.default_rng(seed)


def dataset_of(labels):
    """Examples without features."""
    return loading.Dataset(np.zeros((len(labels), 1), np.float32), labels, int(labels.max()) + 1, None)


@pytest.mark.parametrize(
    ("name", "clients", "n", "m"),
    [
        ("mnist", 10, (250, 1000, 4500), (4750, 4000, 1500)),
        ("fashion_mnist", 10, (250, 1000, 4500), (4750, 4000, 1500)),
        ("cifar10", 20, (125, 500, 2250), (2375, 2000, 750)),
        ("digits", 10, (35, 85, 120), (135, 85, 50)),
    ],
)
def test_protocols_give_the_papers_numbers(name, clients, n, m):
    protocol = papers.protocol(DataConfig(name=name))
    assert (protocol.clients, protocol.clients_per_round) == (clients, 10)
    assert protocol.network == ("vgg" if name == "cifar10" else "mlp")
    assert list(protocol.sizes) == ["small", "medium", "large"]
    assert tuple(5 * train for train, _ in protocol.sizes.values()) == n
    assert tuple(5 * test for _, test in protocol.sizes.values()) == m


def test_files_of_ones_own_have_no_table():
    assert papers.protocol(DataConfig(name="some/where.npz")) == Protocol(10, 10, "mlp")


def experiment(clients, **settings):
    return Experiment(clients=clients, data=DataConfig(**settings))


@pytest.mark.parametrize("layout", ["cluster", "window"])
@pytest.mark.parametrize(("size", "train", "test"), [("small", 7, 27), ("medium", 17, 17), ("large", 24, 10)])
def test_digits_are_dealt_as_the_table_says(layout, size, train, test):
    digits = loading.load(DataConfig())
    partition = papers.deal(experiment(10, size=size, layout=layout), digits, rng())
    assert {len(part) for part in partition.train} == {5 * train}
    assert {len(part) for part in partition.test} == {5 * test}
    expected = label_shards(digits.y, 10, 5, train, test, layout, rng())
    assert all(np.array_equal(a, b) for a, b in zip(partition.train, expected.train, strict=True))


def test_npz_files_are_dealt_as_far_as_the_scarcest_class_goes():
    labels = rng().permutation(np.repeat(np.arange(4), (100, 41, 100, 100)))
    cfg = experiment(4, name="mine.npz", labels_per_client=2, layout="window", test_fraction=0.25)
    partition = papers.deal(cfg, dataset_of(labels), rng())
    for client in range(4):
        held = np.unique(labels[partition.train[client]])
        assert set(held) == {client, (client + 1) % 4}
        assert np.bincount(labels[partition.train[client]])[held].tolist() == [15, 15]
        assert np.bincount(labels[partition.test[client]])[held].tolist() == [5, 5]
    with pytest.raises(FedRayError, match="class 0 has 1 examples, its 2 owners need 2 x 2"):
        papers.deal(cfg, dataset_of(np.repeat(np.arange(4), (1, 9, 9, 9))), rng())


def test_whole_numbers_that_look_like_measurements_are_said_to_be_taken_for_classes():
    """Prices without cents: 40 classes of one example each are no labels."""
    cfg = experiment(4, name="mine.npz", labels_per_client=2, layout="window", test_fraction=0.25)
    with pytest.raises(FedRayError) as refusal:
        papers.deal(cfg, dataset_of(np.arange(40)), rng())
    remedy = str(refusal.value).partition("; ")[2]
    assert remedy.startswith(
        "choose `data.partition=dirichlet` or iid, or for a regression give y as floats that are not"
    )
    assert "y holds 40 different whole numbers" in remedy


@pytest.mark.parametrize(
    ("settings", "build"),
    [
        ({"partition": "dirichlet", "alpha": 2.0}, lambda y: dirichlet(y, 12, 2.0, 0.4, rng())),
        ({"partition": "iid"}, lambda y: iid(y, 12, 0.4, rng())),
        ({"partition": "lognormal"}, lambda y: lognormal(y, 12, 3, MNIST, 0.4, False, rng())),
        ({"partition": "lognormal", "name": "mnist"}, lambda y: lognormal(y, 12, 3, MNIST, 0.4, False, rng())),
        ({"partition": "lognormal", "name": "fashion_mnist"}, lambda y: lognormal(y, 12, 2, MNIST, 0.4, False, rng())),
        ({"partition": "lognormal", "name": "cifar10"}, lambda y: lognormal(y, 12, 3, CIFAR10, 0.4, False, rng())),
        (
            {"partition": "lognormal", "name": "mnist", "labels_per_client": 4, "label_bug": True},
            lambda y: lognormal(y, 12, 4, MNIST, 0.4, True, rng()),
        ),
    ],
)
def test_every_partition_is_passed_its_settings(settings, build):
    labels = np.repeat(np.arange(10), 2000)
    got = papers.deal(experiment(12, test_fraction=0.4, **settings), dataset_of(labels), rng())
    for name, mine, theirs in zip(got._fields, got, build(labels), strict=True):
        assert len(mine or ()) == len(theirs or ()) if name != "relabel" else np.array_equal(mine, theirs)
        assert name == "relabel" or all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize(
    ("name", "clients", "per_round", "model", "labels"),
    [("mnist", 100, 20, "dnn", 3), ("fashion_mnist", 100, 20, "dnn", 2), ("cifar10", 20, 4, "cnn", 3)],
)
def test_lognormal_sizes_bring_the_federation_of_pfedbred(name, clients, per_round, model, labels):
    cfg = resolve(Experiment(data=DataConfig(name=name, partition="lognormal")))
    assert (cfg.clients, cfg.clients_per_round, cfg.model.name) == (clients, per_round, model)
    assert cfg.data.labels_per_client == labels
    assert resolve(Experiment(data=DataConfig(name=name))).data.labels_per_client == 5
    own = {"clients": 30, "clients_per_round": 3, "model.name": "mclr", "data.labels_per_client": 4}
    cfg = resolve(override(Experiment(data=DataConfig(name=name, partition="lognormal")), own))
    assert (cfg.clients, cfg.clients_per_round, cfg.model.name, cfg.data.labels_per_client) == (30, 3, "mclr", 4)


@pytest.mark.parametrize("partition", ["labels", "dirichlet", "iid"])
def test_only_lognormal_partitions_have_seeds_to_mislabel(partition):
    cfg = experiment(10, partition=partition, label_bug=True)
    with pytest.raises(FedRayError, match=r"data.label_bug True: .*`data.partition=lognormal`"):
        papers.deal(cfg, loading.load(DataConfig()), rng())


@pytest.mark.parametrize(
    ("partition", "setting", "value", "able"),
    [
        ("labels", "alpha", 0.1, ["dirichlet", "natural"]),
        ("shards", "alpha", 0.1, ["dirichlet", "natural"]),
        ("dirichlet", "size", "small", ["labels"]),
        ("iid", "layout", "window", ["labels"]),
        ("iid", "majority", 3, ["ratio"]),
        ("dirichlet", "alternate", 3, ["ratio"]),
    ],
)
def test_a_setting_that_the_partition_does_not_read_is_named(partition, setting, value, able):
    dataset = dataset_of(np.repeat(np.arange(10), 40))
    remedy = " or ".join(f"`data.partition={name}`" for name in able)
    cfg = DataConfig(partition=partition, **{setting: value})
    (remark,) = papers.remarks(cfg, dataset, iid(dataset.y, 4, 0.25, rng()))
    assert remark.startswith(f"`data.{setting}` {value} changes nothing: the {partition} partition, ")
    assert remark.endswith(f"does not read it; {remedy} would")


def test_a_partition_that_reads_a_setting_or_does_not_say_so_gets_no_remark(monkeypatch):
    dataset = dataset_of(np.repeat(np.arange(10), 40))
    assert papers.remarks(DataConfig(partition="dirichlet", alpha=0.1), dataset, iid(dataset.y, 4, 0.25, rng())) == ()
    record = registry.partitions()["iid"]._replace(reads=None)
    monkeypatch.setattr(papers, "partition_record", lambda cfg: record)
    assert papers.remarks(DataConfig(partition="iid", alpha=0.1), dataset, iid(dataset.y, 4, 0.25, rng())) == ()
    with pytest.raises(FedRayError, match=r"data.label_bug True: "):  # which needs a partition that says it does it
        papers.deal(experiment(10, partition="iid", label_bug=True), dataset, rng())


def test_what_one_must_know_of_a_partition_is_said():
    dataset = dataset_of(np.repeat(np.arange(10), 1200))
    cfg = experiment(20, name="mnist", partition="lognormal")
    partition = papers.deal(cfg, dataset, rng())
    missing = skipped(dataset.y, partition)
    assert missing > 0
    (remark,) = papers.remarks(cfg.data, dataset, partition)
    assert remark.startswith(f"{missing} shares")
    wrong = partition._replace(relabel=np.array([[partition.test[0][0], 9], [partition.train[0][0], 9]]))
    remark = papers.remarks(cfg.data, dataset, wrong)[1]
    share = 1 / sum(map(len, partition.test))
    assert f"label_bug`: 2 examples carry a wrong label, {share:.1%} of those for testing" in remark
    texts = dataset._replace(vectors=np.zeros((3, 2)))
    (remark,) = papers.remarks(DataConfig(), texts, iid(dataset.y, 4, 0.25, rng()))
    assert "without `data.embedding`" in remark
    assert papers.remarks(DataConfig(embedding="v.txt"), texts, iid(dataset.y, 4, 0.25, rng())) == ()
    assert papers.remarks(DataConfig(), dataset, iid(dataset.y, 4, 0.25, rng())) == ()


@pytest.mark.parametrize(("shape", "scaling"), [((40, 3), "feature"), ((40, 1, 2, 2), "standard")])
def test_inputs_far_from_a_networks_units_are_named(shape, scaling):
    y = np.repeat(np.arange(4), 10)
    x = rng().standard_normal(shape).astype(np.float32)
    partition = iid(y, 4, 0.25, rng())
    dataset = dataset_of(y)._replace(x=x, scaling=None)
    assert papers.remarks(DataConfig(name="mine.npz"), dataset, partition) == ()
    wild = x.copy()
    wild.flat[0] = -254.5
    (remark,) = papers.remarks(DataConfig(name="mine.npz"), dataset._replace(x=wild), partition)
    assert "the largest has the size 254.5: " in remark
    assert f"`data.scaling={scaling}`" in remark
    assert papers.remarks(DataConfig(name="mine.npz", scaling=scaling), dataset._replace(x=wild), partition) == ()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "medium, 5 labels per client, cluster layout"),
        ({"name": "mine.npz", "layout": "window"}, "5 labels per client, window layout"),
        ({"partition": "lognormal", "name": "mnist"}, "lognormal sizes, windows of 3 labels"),
        (
            {"partition": "lognormal", "label_bug": True, "labels_per_client": 2},
            "lognormal sizes, windows of 2 labels, seeds mislabelled as published",
        ),
        ({"partition": "dirichlet", "alpha": 0.1}, "dirichlet, alpha 0.1"),
        ({"partition": "iid"}, "iid"),
    ],
)
def test_the_split_in_words(settings, words):
    assert papers.describe(DataConfig(**settings)) == words


def test_a_share_for_testing_changes_nothing_where_a_table_says_how_many_examples_there_are():
    def said(**settings):
        plan = make_plan(Experiment(algorithm=FedAvg(), data=DataConfig(**settings)))
        return [remark for remark in plan.remarks if "`data.test_fraction` 0.5 changes nothing: a table" in remark]

    assert len(said(test_fraction=0.5)) == 1
    assert said(test_fraction=0.5, partition="iid") == said() == []
