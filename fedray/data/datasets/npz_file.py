"""A file of the user's own with arrays: x [N, ...]; y [N], labels or real targets."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedray.config import DataConfig
from fedray.data import own
from fedray.data.readers import Dataset, reading
from fedray.data.records import DatasetRecord

REMEDY = "give an .npz of x [N, ...], images or features, and y [N], labels or real targets"


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """The examples of the file, as :func:`fedray.data.own.from_arrays`; raises FedRayError naming the file."""
    path = Path(cfg.name)
    with reading(path, REMEDY), np.load(path, allow_pickle=False) as archive:
        return own.from_arrays(archive["x"], archive["y"], None, classes)


DATASET = DatasetRecord(
    summary="your file: .npz with arrays x [N, ...] and y [N]",
    load=load,
    suffixes=(".npz",),
)
