"""CIFAR-10: 60,000 colour pictures of 32 x 32 pixels, published as pickles. Nothing here executes what these say."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedray.config import DataConfig
from fedray.data.readers import REPLACE, Dataset, checked_labels, reading
from fedray.data.records import DatasetRecord, LognormalSizes, Protocol
from fedray.data.scaling import within
from fedray.data.torchvision_files import files

PARTS = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """x uint8 [60000, 3, 32, 32] and y [60000], training examples first."""
    batches = [_batch(path) for path in files(cfg, "CIFAR10", [f"cifar-10-batches-py/{part}" for part in PARTS])]
    x, y = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return Dataset(x, y, 10, within(255))


def _batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A pickled CIFAR-10 batch {"data": uint8 [n, 3072], "labels": [n]}, of Python 2 or 3."""
    with reading(path, REPLACE), path.open("rb") as file:
        content = _Unpickler(file, encoding="latin1").load()
        _, shape, dtype, fortran, raw = content["data"].state
        if shape[1:] != (3072,) or dtype.args[0] not in ("u1", "uint8"):
            raise ValueError(f"its data are {dtype.args[0]} {list(shape)}, expected uint8 [n, 3072]")
        raw = raw.encode("latin1") if isinstance(raw, str) else raw  # Python 2 had no bytes
        x = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")
        return x.reshape(-1, 3, 32, 32), checked_labels(content["labels"], len(x), 10)


class _Stub:
    """Stands for a NumPy object of a pickle: unpickling real ones is unsafe where the file is crafted."""

    def __init__(self, *args: Any):
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Reads plain values and, as stubs, arrays; refuses a pickle that names anything else to be called."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return _Stub
        raise ValueError(f"refused: it asks to call {module}.{name}, which no image needs")


DATASET = DatasetRecord(
    summary="colour pictures of ten kinds of things, 32 x 32 pixels",
    load=load,
    shape=(3, 32, 32),
    classes=10,
    # pFedBayes
    protocol=Protocol(20, 10, "vgg", sizes={"small": (25, 475), "medium": (100, 400), "large": (450, 150)}),
    # pFedBreD
    protocols={"lognormal": Protocol(20, 4, "cnn", labels=3, lognormal=LognormalSizes(20, (1, 1), (300, 600)))},
)
