"""MNIST: 70,000 handwritten digits of 28 x 28 pixels."""

from __future__ import annotations

from fedray.config import DataConfig
from fedray.data.readers import Dataset
from fedray.data.records import DatasetRecord, Protocol
from fedray.data.torchvision_files import files, idx_images

PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
# The tables of pFedBayes.
PFEDBAYES = Protocol(sizes={"small": (50, 950), "medium": (200, 800), "large": (900, 300)})


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """x uint8 [70000, 1, 28, 28] and y [70000], training examples first."""
    return idx_images(files(cfg, "MNIST", [f"MNIST/raw/{part}-ubyte" for part in PARTS]))


DATASET = DatasetRecord(
    summary="handwritten digits, 28 x 28 pixels",
    load=load,
    shape=(1, 28, 28),
    classes=10,
    protocol=PFEDBAYES,
    protocols={"lognormal": Protocol(100, 20, "dnn", labels=3, scaling="feature")},  # pFedBreD
)
