"""A dataset's name and root -> pooled examples, and a client's own share of them as normalised tensors.

The official training and test sets are pooled, training first, as the tables of pFedBayes require: no
accuracy compares with one on an official test set.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.config import DataConfig
from fedray.data import covertype, leaf, readers
from fedray.data.partition import Partition
from fedray.data.readers import Dataset
from fedray.data.scaling import Scaling, moments, unit, within
from fedray.types import FedRayError, require


class Shard(NamedTuple):
    """The private examples of one client; x is float32 and normalised, y int64."""

    train_x: Tensor  # [n, ...]
    train_y: Tensor  # [n]
    test_x: Tensor  # [m, ...]
    test_y: Tensor  # [m]


_BATCHES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
_IDX = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
_FILES = {  # name -> torchvision's class and the files that it leaves in the root
    "mnist": ("MNIST", [f"MNIST/raw/{name}" for name in _IDX]),
    "fashion_mnist": ("FashionMNIST", [f"FashionMNIST/raw/{name}" for name in _IDX]),
    "cifar10": ("CIFAR10", [f"cifar-10-batches-py/{name}" for name in _BATCHES]),
}
NAMES = ("digits", *_FILES, "covertype", *leaf.CLASSES)


def check_name(name: str) -> None:
    """Raise FedRayError, with the names that are known, unless a dataset has this name."""
    own = "the path of an .npz file with x [N, ...] and y [N], or of a .json or .jsonl file as LEAF's"
    require(
        name in NAMES or is_file(name), "data.name", name, "not a dataset", f"choose from {', '.join(NAMES)}, {own}"
    )


def is_file(name: str) -> bool:
    """Whether a dataset's name is the path of a file."""
    return name.endswith((".npz", *leaf.SUFFIXES))


def resolve(cfg: DataConfig) -> DataConfig:
    """The same config with absolute paths (of root, file and embedding), so that any working folder will do."""
    root = cfg.root or Path(os.environ.get("FEDRAY_DATA_ROOT") or "~/.cache/fedray")
    name = str(_absolute(Path(cfg.name))) if is_file(cfg.name) else cfg.name
    return replace(cfg, name=name, root=_absolute(root), embedding=cfg.embedding and _absolute(cfg.embedding))


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path.expanduser()))


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """The pooled dataset; raises FedRayError with file, reason and remedy where it is missing or corrupt.

    ``classes`` is how many an .npz file may have, where not all of them need occur in it.
    """
    check_name(cfg.name)
    cfg = resolve(cfg)
    classes = classes if cfg.classes is None else None
    dataset = readers.npz(Path(cfg.name), classes) if cfg.name.endswith(".npz") else _load(cfg)
    reason, remedy = "the dataset has no texts", "leave it out, or choose --data.name sent140"
    require(cfg.embedding is None or dataset.vectors is not None, "data.embedding", cfg.embedding, reason, remedy)
    return dataset if cfg.classes is None else _first(dataset, cfg.classes)


def _first(dataset: Dataset, classes: int) -> Dataset:
    """The examples of the classes 0..``classes`` - 1 only; users without any are left out."""
    reason = f"the dataset has {dataset.classes} classes"
    require(classes <= dataset.classes, "data.classes", classes, reason, "lower it, or leave it out for all")
    kept = dataset.y < classes
    users = None if dataset.users is None else np.unique(dataset.users[kept], return_inverse=True)[1]
    return dataset._replace(x=dataset.x[kept], y=dataset.y[kept], classes=classes, users=users)


def scaling(kind: str, dataset: Dataset) -> Scaling | None:
    """A scaling of a setting's kind; raises FedRayError where the dataset cannot have it."""
    if kind == "auto":
        return dataset.scaling
    require(dataset.vectors is None, "data.scaling", kind, "the vectors of words are used as they are", "leave it out")
    if kind in ("standard", "feature"):
        return moments(dataset.x, each=kind == "feature")
    reason, remedy = "the range of these features is not known", "choose standard or feature"
    require(dataset.scaling is not None, "data.scaling", kind, reason, remedy)
    assert dataset.scaling is not None
    return unit(dataset.scaling) if kind == "unit" else dataset.scaling


def _load(cfg: DataConfig) -> Dataset:
    if cfg.name == "digits":
        return readers.digits()
    if cfg.name == "covertype":
        return covertype.load(cfg.root or Path(), cfg.download)
    if is_file(cfg.name):
        return leaf.load([Path(cfg.name)], None, cfg.embedding)
    if cfg.name in leaf.CLASSES:
        assert cfg.root is not None
        return leaf.load(leaf.files(cfg.name, cfg.root), leaf.CLASSES[cfg.name], cfg.embedding)
    files = _present(cfg)
    pairs = map(readers.batch, files) if cfg.name == "cifar10" else map(readers.idx_pair, files[::2], files[1::2])
    x, y = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    return Dataset(x, y, 10, within(255))


def shards(dataset: Dataset, partition: Partition, ids: Sequence[int]) -> list[Shard]:
    """The shards of the clients ``ids``, in a network's units.

    Labels are the dataset's, but where the partition says otherwise. Words are replaced by their vectors.
    """
    dataset = relabelled(dataset, partition)
    return [Shard(*examples(dataset, partition.train[i]), *examples(dataset, partition.test[i])) for i in ids]


def relabelled(dataset: Dataset, partition: Partition) -> Dataset:
    """The dataset with the labels of the partition's protocol, where they are not its own."""
    if partition.relabel is None:
        return dataset
    y = dataset.y.copy()
    y[partition.relabel[:, 0]] = partition.relabel[:, 1]
    return dataset._replace(y=y)


def examples(dataset: Dataset, indices: np.ndarray) -> tuple[Tensor, Tensor]:
    """The examples of the given positions, x normalised."""
    raw = dataset.x[indices]  # advanced indexing copies: the dataset stays as it is
    x = torch.from_numpy(raw if dataset.vectors is None else dataset.vectors[raw]).float()
    x = x if dataset.scaling is None else dataset.scaling.apply(x)
    return x, torch.from_numpy(dataset.y[indices])


def _present(cfg: DataConfig) -> list[Path]:
    kind, names = _FILES[cfg.name]
    root = cfg.root or Path()
    missing = [name for name in names if not (root / name).exists()]
    if missing and cfg.download:
        _download(kind, root, missing)
    elif missing:
        remedy = "add --data.download, or point --data.root or $FEDRAY_DATA_ROOT to a folder that has it"
        require(False, "data.name", cfg.name, f"{root / missing[0]} is missing", remedy)
    return [root / name for name in names]


def _download(kind: str, root: Path, missing: list[str]) -> None:
    """Download into a scratch folder, then move whole files into the root: actors may do so at once."""
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
        raise FedRayError(f"--data.download: {kind} did not arrive in {root} ({error}); {remedy}") from error
