"""Covertype: what its files must hold, its scale and its download; the first classes of a dataset."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fedray.config import DataConfig
from fedray.data import loading
from fedray.data.datasets import covertype
from fedray.types import FedRayError

ROOT = os.environ.get("FEDRAY_DATA_ROOT")
real = pytest.mark.skipif(
    not ROOT or not any(os.path.exists(os.path.join(ROOT, name)) for name in covertype.NAMES),
    reason="FEDRAY_DATA_ROOT names no folder with covertype",
)


def raw(n=40):
    """Rows in the dataset's units, the first and last at the ends of the ranges."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 2, (n, 54))
    x[:, :10] = generator.integers(covertype.LOW.astype(int), covertype.HIGH.astype(int) + 1, (n, 10))
    x[0, :10], x[-1, :10] = covertype.LOW, covertype.HIGH
    return x.astype(np.int16), (np.arange(n) % 7 + 1).astype(np.int8)


def write(root, x, y, name=covertype.NAMES[1]):
    (root / "covertype").mkdir(exist_ok=True)
    np.savez(root / name, X=x, y=y)
    return DataConfig(name="covertype", root=root)


def test_columns_are_scaled_by_fixed_ranges_and_class_2_is_told_from_the_others(tmp_path):
    x, y = raw()
    dataset = loading.load(write(tmp_path, x, y))
    assert (dataset.classes, dataset.scaling, dataset.x.dtype) == (2, None, np.float32)
    assert (dataset.y == (y == 2)).all()
    assert (dataset.x[0, :10] == 0).all()
    assert (dataset.x[-1, :10] == 1).all()
    assert (dataset.x[:, 10:] == x[:, 10:]).all()
    back = dataset.x[:, :10] * (covertype.HIGH - covertype.LOW) + covertype.LOW
    assert np.abs(back - x[:, :10]).max() < 0.01
    write(tmp_path, x[:5], y[:5], covertype.NAMES[0])  # the whole dataset goes before an excerpt
    assert len(loading.load(DataConfig(name="covertype", root=tmp_path)).y) == 5


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x, y: (x[:, :10], y), r"X has shape \[40, 10\]"),
        (lambda x, y: (x.astype(float), y), "type float64"),
        (lambda x, y: (x, y - 1), r"classes are not 1\.\.7"),
        (lambda x, y: (np.where(x == x.max(), 30_000, x), y), "own units"),
        (lambda x, y: (x, np.array(["a"] * 40, object)), "pickle"),
    ],
)
def test_other_files_are_refused(tmp_path, spoil, message):
    with pytest.raises(FedRayError, match=message) as caught:
        loading.load(write(tmp_path, *spoil(*raw())))
    assert "covertype_subset.npz" in str(caught.value)


def test_a_missing_file_is_named_or_downloaded_without_pickle(tmp_path, monkeypatch):
    cfg = DataConfig(name="covertype", root=tmp_path)
    with pytest.raises(FedRayError, match=r"covertype/covertype.npz is missing; add `data.download`"):
        loading.load(cfg)
    x, y = raw()
    asked = []

    def fetch(data_home, return_X_y):
        asked.append(data_home)
        return x.astype(float), y.astype(np.int32)

    monkeypatch.setitem(sys.modules, "sklearn.datasets", SimpleNamespace(fetch_covtype=fetch))
    found = loading.load(DataConfig(name="covertype", root=tmp_path, download=True))
    assert (found.y == (y == 2)).all()
    assert [path.name for path in (tmp_path / "covertype").iterdir()] == ["covertype.npz"]
    assert (loading.load(cfg).x == found.x).all()
    assert len(asked) == 1

    def broken(**_):
        raise OSError("no route")

    monkeypatch.setitem(sys.modules, "sklearn.datasets", SimpleNamespace(fetch_covtype=broken))
    with pytest.raises(FedRayError, match=r"`data.download`: covertype did not arrive .*no route"):
        loading.load(DataConfig(name="covertype", root=tmp_path / "other", download=True))


def test_the_first_classes_of_a_dataset(tmp_path):
    whole, first = loading.load(DataConfig()), loading.load(DataConfig(classes=9))
    assert first.classes == 9
    assert (first.y == whole.y[whole.y < 9]).all()
    assert (first.x == whole.x[whole.y < 9]).all()
    with pytest.raises(FedRayError, match=r"^data.classes 11: the dataset has 10 classes"):
        loading.load(DataConfig(classes=11))
    with pytest.raises(FedRayError, match=r"^data.classes 1: a classifier needs two"):
        DataConfig(classes=1)
    np.savez(tmp_path / "own.npz", x=np.zeros((6, 2)), y=np.arange(6) % 3)
    own = DataConfig(name=str(tmp_path / "own.npz"), classes=2)
    assert loading.load(own, 2).classes == 2  # as a finished run with a model of two classes asks


@real
def test_the_real_file_has_the_known_shares():
    dataset = loading.load(DataConfig(name="covertype"))
    assert dataset.y.mean() == pytest.approx(283_301 / 581_012, abs=0.001)
    assert dataset.x.min() == 0
    assert dataset.x.max() == 1
    assert (dataset.x[:, 10:14].sum(1) == 1).all()  # one of four wildernesses
    assert (dataset.x[:, 14:].sum(1) == 1).all()  # one of forty soils
