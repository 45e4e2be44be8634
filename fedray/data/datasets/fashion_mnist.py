"""FashionMNIST: 70,000 pictures of clothes, 28 x 28 pixels."""

from __future__ import annotations

from fedray.config import DataConfig
from fedray.data.datasets import mnist
from fedray.data.readers import Dataset
from fedray.data.records import DatasetRecord, Protocol
from fedray.data.torchvision_files import files


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """x uint8 [70000, 1, 28, 28] and y [70000], training examples first."""
    return mnist.idx_images(files(cfg, "FashionMNIST", [f"FashionMNIST/raw/{part}-ubyte" for part in mnist.PARTS]))


DATASET = DatasetRecord(
    summary="pictures of clothes, 28 x 28 pixels",
    load=load,
    shape=(1, 28, 28),
    classes=10,
    protocol=mnist.PFEDBAYES,
    protocols={"lognormal": Protocol(100, 20, "dnn", labels=2, scaling="standard")},  # pFedBreD
)
