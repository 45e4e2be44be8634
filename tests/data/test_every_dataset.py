"""What is asked of every dataset and every partition in the registry."""

import os

import numpy as np
import pytest

from fedray import registry
from fedray.config import DataConfig, Experiment
from fedray.data import loading, papers
from fedray.data.readers import Dataset
from fedray.types import FedRayError

NAMED = [
    name for key, record in registry.datasets().items() if not record.suffixes for name in loading.names(key, record)
]
FORMATS = [suffix for record in registry.datasets().values() for suffix in record.suffixes]


def pooled(classes):
    """4,000 examples per class, of 60 users."""
    n = 4000 * classes
    users = np.arange(n) % 60
    return Dataset(np.zeros((n, 2), np.float32), np.arange(n) * 7 % classes, classes, None, users)


def dealt(name, seed, clients=30, classes=None):
    classes = classes or (2 if name == "ratio" else 10)
    cfg = Experiment(clients=clients, data=DataConfig(name="mine.npz", partition=name))
    return papers.deal(cfg, pooled(classes), np.random.default_rng(seed))


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("FEDRAY_DATA_ROOT"), reason="FEDRAY_DATA_ROOT names no folder with datasets")
@pytest.mark.parametrize("name", [name for name in NAMED if loading.record(name).shape])
def test_a_record_states_the_shape_and_classes_of_its_files(name):
    record = loading.record(name)
    try:
        dataset = loading.load(papers.fill_from_protocol(DataConfig(name=name)))
    except FedRayError as error:
        pytest.skip(str(error))
    assert (dataset.input_shape, dataset.classes) == (record.shape, record.classes)


@pytest.mark.parametrize("name", registry.partitions())
def test_no_example_is_dealt_twice_and_every_client_has_both_kinds(name):
    partition = dealt(name, 0)
    every = np.concatenate([*partition.train, *partition.test])
    assert len(np.unique(every)) == len(every)
    assert every.min() >= 0
    assert every.max() < 40_000
    assert len(partition.train) == len(partition.test) == 30
    assert min(map(len, (*partition.train, *partition.test))) >= 1
    assert all(part.dtype == np.int64 for part in (*partition.train, *partition.test))


@pytest.mark.parametrize("name", registry.partitions())
def test_the_seed_alone_decides(name):
    first, again, other = dealt(name, 1), dealt(name, 1), dealt(name, 2)
    assert all(map(np.array_equal, (*first.train, *first.test), (*again.train, *again.test)))
    assert not all(map(np.array_equal, first.train, other.train))


@pytest.mark.parametrize("name", registry.partitions())
def test_more_clients_than_examples_are_refused_with_a_remedy(name):
    clients = 3_000 if name == "ratio" else 20_001
    with pytest.raises(FedRayError, match=rf"^clients {clients}: .+; "):
        dealt(name, 0, clients)


@pytest.mark.parametrize("name", registry.partitions())
def test_a_partition_has_words(name):
    assert papers.describe(DataConfig(name="mine.npz", partition=name))
    assert registry.partitions()[name].summary


@pytest.mark.parametrize("name", [name for name in NAMED if name != "digits"])
def test_a_dataset_whose_files_are_missing_says_where_they_should_be(name, tmp_path):
    with pytest.raises(FedRayError, match=rf"^data.name {name}: {tmp_path}.+; .*`data.root`"):
        loading.load(DataConfig(name=name, root=tmp_path))


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_that_is_missing_is_named(suffix, tmp_path):
    with pytest.raises(FedRayError, match=rf"^{tmp_path}/mine{suffix}: there is no such file.*; give "):
        loading.load(DataConfig(name=str(tmp_path / f"mine{suffix}")))


@pytest.mark.parametrize("name", NAMED)
def test_a_dataset_names_a_partition_and_networks_that_exist(name):
    record = loading.record(name)
    assert record.summary
    assert record.partition in registry.partitions()
    for protocol in (record.protocol, *record.protocols.values()):
        assert protocol.network in registry.networks()


@pytest.mark.parametrize("name", NAMED)
def test_examples_have_one_shape_and_labels_in_range(name):
    try:
        dataset = loading.load(DataConfig(name=name))
    except FedRayError as error:
        pytest.skip(f"{error}")
    assert dataset.x.shape[0] == len(dataset.y)
    if dataset.real:
        assert dataset.classes == 1
        assert np.isfinite(dataset.y).all()
        return
    assert dataset.y.dtype == np.int64
    assert (np.bincount(dataset.y, minlength=dataset.classes) > 0).all()
    assert len(np.bincount(dataset.y)) == dataset.classes
