"""The forest cover types of Blackard and Dean, class 2 against the others, as in the papers on particle methods.

A root holds them as covertype/covertype.npz, or an excerpt of them as covertype/covertype_subset.npz: X [N, 54] in the
dataset's own units and y [N], classes 1..7, integers. --data.download writes the first by means of scikit-learn.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from fedray.config import DataConfig
from fedray.data.readers import REPLACE, Dataset, reading
from fedray.data.records import DatasetRecord, Protocol
from fedray.types import FedRayError, require

NAMES = ("covertype/covertype.npz", "covertype/covertype_subset.npz")
CLASS = 2  # lodgepole pine, label 1 of ours
# Ranges over all 581,012 rows of elevation, aspect, slope, four distances (two of them to water), three hillshades,
# ordered as in the file; the other 44 columns are 0 or 1. Constants, so that no test data leak.
LOW = np.array([1859, 0, 0, 0, -173, 0, 0, 0, 0, 0], np.float32)
HIGH = np.array([3858, 360, 66, 1397, 601, 7117, 254, 254, 254, 7173], np.float32)


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """x [N, 54] in [0, 1], y 1 for class 2 and 0 for the others; raises FedRayError where the file is not usable."""
    assert cfg.root is not None
    root = Path(cfg.root)
    present = [root / name for name in NAMES if (root / name).exists()]
    if not present and cfg.download:
        present = [fetch(root)]
    remedy = "add `data.download`, or point `data.root` or $FEDRAY_DATA_ROOT to a folder that has it"
    require(bool(present), "data.name", "covertype", f"{root / NAMES[0]} is missing", remedy)
    path = present[0]
    with reading(path, REPLACE), np.load(path, allow_pickle=False) as archive:
        raw, kind = archive["X"], archive["y"]
        if raw.ndim != 2 or raw.shape[1] != 54 or raw.dtype.kind not in "iu" or kind.shape != raw.shape[:1]:
            raise ValueError(f"X has shape {list(raw.shape)} and type {raw.dtype}, y shape {list(kind.shape)}")
        x = raw.astype(np.float32)
        x[:, :10] = (x[:, :10] - LOW) / (HIGH - LOW)
        if kind.dtype.kind not in "iu" or not np.isin(kind, range(1, 8)).all() or x.min() < 0 or x.max() > 1:
            raise ValueError("its classes are not 1..7, or its columns are not in the dataset's own units")
        return Dataset(x, (kind == CLASS).astype(np.int64), 2, None)


def fetch(root: Path) -> Path:
    """Download the whole dataset by scikit-learn into a scratch folder, and keep it without pickle in the root."""
    path = root / NAMES[0]
    try:
        from sklearn.datasets import fetch_covtype

        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            x, y = fetch_covtype(data_home=folder, return_X_y=True)
            whole = Path(folder, path.name)
            np.savez_compressed(whole, X=x.astype(np.int16), y=y.astype(np.int8))
            os.replace(whole, path)  # actors may do so at once
    except Exception as error:  # urllib, tarfile and scikit-learn raise what they like
        remedy = "check the network and the folder, or put the file there"
        raise FedRayError(f"`data.download`: covertype did not arrive in {path} ({error}); {remedy}") from error
    return path


DATASET = DatasetRecord(
    summary="forest cover types, class 2 against the others, 54 features",
    load=load,
    shape=(54,),
    classes=2,
    protocol=Protocol(
        30, 1, "blr", scaling="feature", held_out=0.2
    ),  # "Client Selection for Federated Bayesian Learning"
    floored=True,
    partition="ratio",
)
