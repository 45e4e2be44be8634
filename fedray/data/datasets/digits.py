"""1,797 handwritten digits of 8 x 8 pixels, which are part of scikit-learn."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from fedray.config import DataConfig
from fedray.data.readers import Dataset, checked_labels, reading
from fedray.data.records import DatasetRecord, Protocol
from fedray.data.scaling import within


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """x uint8 [1797, 1, 8, 8] in 0..16 and y [1797]; raises FedRayError where scikit-learn lacks the file."""
    # The file inside scikit-learn, not its loader: the import would cost every actor seconds and 100 MB.
    path = Path(str(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")))
    with reading(path, "reinstall scikit-learn"):
        table = np.loadtxt(path, np.uint8, delimiter=",")
        return Dataset(table[:, :-1].reshape(-1, 1, 8, 8), checked_labels(table[:, -1], len(table), 10), 10, within(16))


DATASET = DatasetRecord(
    summary="handwritten digits, 8 x 8 pixels, part of scikit-learn",
    load=load,
    # Ours, in the proportions of pFedBayes: a class of 174 has 5 owners of 34 examples.
    protocol=Protocol(sizes={"small": (7, 27), "medium": (17, 17), "large": (24, 10)}),
)
