"""Real targets: the UCI sets' files, own files, and partitions that deal them."""

import numpy as np
import pytest

from fedray import registry
from fedray.config import DataConfig, Experiment
from fedray.data import loading, papers
from fedray.data.datasets.uci import TABLES
from fedray.data.readers import Dataset, checked_dataset
from fedray.data.scaling import standard
from fedray.types import FedRayError

rng = np.random.default_rng


def pooled(n=1000):
    y = rng(0).normal(size=n) ** 3  # far from uniform
    return Dataset(rng(1).normal(size=(n, 2)).astype(np.float32), y, 1, None)


def written(folder, **arrays):
    """A root with one of the sets."""
    (folder / "uci_regression").mkdir(exist_ok=True)
    np.savez(folder / "uci_regression" / "yacht.npz", **arrays)
    return DataConfig(name="uci-yacht", root=folder)


def test_a_set_is_read_as_it_is(tmp_path):
    x, y = rng(0).normal(size=(30, 6)), 1e3 + rng(1).normal(size=30)
    found = loading.load(written(tmp_path, X=x, y=y, test_mask=np.zeros((2, 30), bool)))
    assert np.array_equal(found.x, x.astype(np.float32))
    assert np.array_equal(found.y, y)
    assert (found.classes, found.real, found.scaling, found.input_shape) == (1, True, None, (6,))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"X": np.zeros((4, 2))}, "y is not a file"),
        ({"X": np.zeros((4, 2)), "y": np.zeros(4)}, "4 finite numbers that differ"),
        ({"X": np.zeros((4, 2)), "y": np.arange(3.0)}, "4 finite numbers"),
        ({"X": np.zeros((4, 2)), "y": np.arange(4)}, "4 finite numbers"),
        ({"X": np.zeros((4, 2)), "y": np.array([0, 1, np.nan, 2])}, "4 finite numbers"),
        ({"X": np.full((4, 2), np.inf), "y": np.arange(4.0)}, "NaN or infinity"),
        ({"X": np.zeros(4), "y": np.arange(4.0)}, r"shape \[4\]"),
    ],
)
def test_a_damaged_set_is_refused(tmp_path, arrays, reason):
    with pytest.raises(FedRayError, match=rf"yacht\.npz: .*{reason}"):
        loading.load(written(tmp_path, **arrays))


def test_every_set_has_a_name_and_shares_one_record():
    names = loading.names("uci", registry.datasets()["uci"])
    assert names == [f"uci-{table}" for table in TABLES]
    assert {id(loading.record(name)) for name in names} == {id(registry.datasets()["uci"])}
    for wrong in ("uci", "uci-mars", "mnist-yacht"):
        with pytest.raises(FedRayError, match=f"data.name {wrong}: not a dataset; .*choose from .*uci-boston"):
            loading.record(wrong)


def test_an_own_file_with_fractions_has_real_targets(tmp_path):
    path = tmp_path / "mine.npz"
    x, y = rng(0).normal(size=(30, 2)), rng(1).normal(size=30)
    np.savez(path, x=x, y=y)
    found = loading.load(DataConfig(name=str(path)))
    assert (found.real, found.classes) == (True, 1)
    assert np.array_equal(found.y, y)
    np.savez(path, x=x, y=np.round(y))
    labels = loading.load(DataConfig(name=str(path)))
    assert (labels.real, [float(name) for name in labels.names.classes]) == (False, np.unique(np.round(y)).tolist())
    np.savez(path, x=x, y=y)
    with pytest.raises(FedRayError, match=r"data.classes 2: its targets are real numbers"):
        loading.load(DataConfig(name=str(path), classes=2))


def test_own_arrays_can_be_real():
    assert checked_dataset(pooled()).real
    with pytest.raises(FedRayError, match="labels are not"):
        checked_dataset(pooled()._replace(classes=2))
    with pytest.raises(FedRayError, match="finite numbers"):
        checked_dataset(pooled()._replace(y=np.full(1000, np.inf)))


def test_strata_are_tenths_of_the_target():
    dataset = pooled()
    strata = dataset.strata
    assert np.bincount(strata).tolist() == [100] * 10
    for tenth in range(9):
        assert dataset.y[strata == tenth].max() < dataset.y[strata == tenth + 1].min()
    assert np.array_equal(dataset._replace(y=np.arange(1000) % 3).strata, np.arange(1000) % 3)
    ties = dataset._replace(y=np.repeat([1.0, 2.0, 3.0, 4.0], 250)).strata
    assert len({*zip(ties.tolist(), np.repeat([1, 2, 3, 4], 250).tolist(), strict=True)}) == 4  # equals stay together


def dealt(partition, **settings):
    cfg = Experiment(clients=5, data=DataConfig(name="uci-yacht", partition=partition, **settings))
    return papers.deal(cfg, pooled(), rng(0))


def test_a_small_concentration_gives_clients_their_own_range_of_the_target():
    y = pooled().y

    def between(alpha):
        """Share of the targets' rank variance that lies between clients."""
        rank = np.argsort(np.argsort(y))
        means = [rank[np.concatenate([a, b])].mean() for a, b in zip(*dealt("dirichlet", alpha=alpha)[:2], strict=True)]
        return np.var(means) / np.var(rank)

    assert between(0.1) > 0.05 > 0.005 > between(1000.0)


def test_by_default_examples_are_dealt_evenly_and_at_random():
    """Five clients with as many examples each, a tenth of them for testing, from the whole range of the target."""
    partition = dealt("auto")
    assert [len(train) for train in partition.train] == [180] * 5
    assert [len(test) for test in partition.test] == [20] * 5
    everything = np.concatenate([*partition.train, *partition.test])
    assert np.array_equal(np.sort(everything), np.arange(1000))
    tenths = pooled().strata
    for train in partition.train:
        assert np.bincount(tenths[train], minlength=10).min() >= 8  # of 18 expected


@pytest.mark.parametrize("partition", ["labels", "shards", "lognormal", "ratio"])
def test_partitions_by_label_refuse_real_targets(partition):
    with pytest.raises(FedRayError, match=rf"data.partition {partition}: it deals by labels.* dirichlet or iid$"):
        dealt(partition)


def test_constants_and_tiny_numbers_are_standardised_too():
    x = np.stack([np.full(1000, 7.3), 1e-4 * rng(0).normal(size=1000), 1e4 + rng(1).normal(size=1000)], 1)
    found = standard(x.astype(np.float32))
    z = (x.astype(np.float32) - found.shift) / found.divisor
    assert np.abs(z[:, 0]).max() < 1e-5
    assert np.allclose(z[:, 1:].std(0), 1, atol=0.01)
    assert np.allclose(z[:, 1].mean(), 0, atol=1e-3)
