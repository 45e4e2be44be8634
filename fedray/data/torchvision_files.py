"""The files of a torchvision dataset below the root, downloaded where they are missing and the user allows it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedray.config import DataConfig
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
