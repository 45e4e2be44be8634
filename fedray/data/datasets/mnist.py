"""MNIST: 70,000 handwritten digits of 28 x 28 pixels, in LeCun's idx format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedray.config import DataConfig
from fedray.data.readers import REPLACE, Dataset, checked_labels, reading
from fedray.data.records import DatasetRecord, Protocol
from fedray.data.scaling import within
from fedray.data.torchvision_files import files

PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
# The tables of pFedBayes.
PFEDBAYES = Protocol(sizes={"small": (50, 950), "medium": (200, 800), "large": (900, 300)})


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """x uint8 [70000, 1, 28, 28] and y [70000], training examples first."""
    return idx_images(files(cfg, "MNIST", [f"MNIST/raw/{part}-ubyte" for part in PARTS]))


def idx_images(files: Sequence[Path]) -> Dataset:
    """Images uint8 [N, 1, 28, 28] of ten classes; the files are images, labels, images, labels, and so on."""
    xs: list[np.ndarray] = []
    ys: list[np.ndarray] = []
    for images, labels in zip(files[::2], files[1::2], strict=True):
        x = _idx(images, (28, 28))
        y = _idx(labels, ())
        with reading(labels, REPLACE):
            xs.append(x[:, None])
            ys.append(checked_labels(y, len(x), 10))
    return Dataset(np.concatenate(xs), np.concatenate(ys), 10, within(255))


def _idx(path: Path, item: tuple[int, ...]) -> np.ndarray:
    """A file of LeCun's idx format: magic 0x800 + dimensions, sizes in big-endian int32, uint8 values."""
    with reading(path, REPLACE):
        raw = path.read_bytes()
        count = int.from_bytes(raw[4:8], "big")
        header = np.array([0x801 + len(item), count, *item], ">u4").tobytes()
        if not raw.startswith(header) or len(raw) != len(header) + count * np.prod(item):
            raise ValueError(f"its {len(raw)} bytes are not an idx file of uint8 items {list(item)}")
        return np.frombuffer(raw, np.uint8, offset=len(header)).reshape(count, *item)


DATASET = DatasetRecord(
    summary="handwritten digits, 28 x 28 pixels",
    load=load,
    shape=(1, 28, 28),
    classes=10,
    protocol=PFEDBAYES,
    protocols={"lognormal": Protocol(100, 20, "dnn", labels=3, scaling="feature")},  # pFedBreD
)
