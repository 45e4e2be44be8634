"""The files of a torchvision dataset below the root, downloaded where they are missing and the user allows it, and
LeCun's idx format, which MNIST and its successors have."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedray.config import DataConfig
from fedray.data.readers import REPLACE, Dataset, checked_labels, reading
from fedray.data.scaling import within
from fedray.types import FedRayError, SettingError


def files(cfg: DataConfig, kind: str, names: Sequence[str]) -> list[Path]:
    """The files ``names`` below the root; ``kind`` is torchvision's class of the dataset.

    Raises FedRayError where one is missing, or does not arrive.
    """
    assert cfg.root is not None
    root = Path(cfg.root)
    missing = [name for name in names if not (root / name).exists()]
    if missing and cfg.download:
        _download(kind, root, missing)
    elif missing:
        remedy = "add `data.download`, or point `data.root` or $FEDRAY_DATA_ROOT to a folder that has it"
        raise SettingError("data.name", cfg.name, f"{root / missing[0]} is missing", remedy)
    return [root / name for name in names]


def _download(kind: str, root: Path, missing: list[str]) -> None:
    """Download into a scratch folder, then move whole files into the root: several actors may do so at once."""
    try:
        from torchvision import datasets

        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as folder:
            getattr(datasets, kind)(folder, download=True)
            for name in missing:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(Path(folder, name), root / name)
    except Exception as error:  # urllib, ssl, tarfile and torchvision raise what they like
        remedy = "check the network and the folder, or copy the dataset there in torchvision's layout"
        raise FedRayError(f"`data.download`: {kind} did not arrive in {root} ({error}); {remedy}") from error


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
