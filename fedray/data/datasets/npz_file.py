"""A file of the user's own with arrays: x [N, ...]; y [N], labels or real targets; client [N], owners."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
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
    with reading(path, REMEDY):
        if path.is_file() and not zipfile.is_zipfile(path):
            raise ValueError("it is not an .npz file: no numpy.savez wrote it, or it is cut short")
        with np.load(path, allow_pickle=False) as archive:
            owners = _array(archive, own.CLIENT) if own.CLIENT in archive else None
            return own.from_arrays(_array(archive, "x"), _array(archive, "y"), owners, classes, cfg.embedding)


def owned(cfg: DataConfig) -> bool:
    """Whether the file has an array ``client``; False where it cannot be read, which :func:`load` will say."""
    try:
        with zipfile.ZipFile(Path(cfg.name).expanduser()) as archive:
            return f"{own.CLIENT}.npy" in archive.namelist()
    except (OSError, RuntimeError, zipfile.BadZipFile):
        return False


def _array(archive: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """An array of the file; raises ValueError where it is missing, or holds Python objects."""
    if name not in archive:
        raise ValueError(f"it has no array {name}, but {', '.join(archive) or 'none at all'}")
    try:
        return archive[name]
    except ValueError:  # without pickle, of which only crafted files have need, numpy reads no objects
        raise ValueError(
            f"{name} holds Python objects, such as pandas' texts, lists of different lengths, dicts or None; save "
            f"numbers, or texts as {name}.astype(str)"
        ) from None


DATASET = DatasetRecord(
    summary="your file: .npz with arrays x [N, ...], y [N] and, where examples have owners, client [N]",
    load=load,
    protocols={"natural": own.OWNED},
    owned=owned,
    suffixes=(".npz",),
)
