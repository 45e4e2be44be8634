"""Datasets: a name and a root -> raw examples, and a client's own share of them as normalised tensors.

The official training and test sets are pooled, training first, as the tables of pFedBayes require: no
accuracy compares with one on an official test set. Nothing here executes what a dataset file says.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray import partition as parts
from fedray.config import DataConfig, Experiment
from fedray.types import FedRayError, require


class Dataset(NamedTuple):
    """Pooled examples, raw as stored."""

    x: np.ndarray  # [N, ...]: images uint8 [N, channels, height, width], or float32 features
    y: np.ndarray  # [N] labels 0..C-1, int64
    classes: int  # C
    scale: float | None  # raw values lie in [0, scale]; None: used as they are


class Shard(NamedTuple):
    """The private examples of one client; x is float32 and normalised, y int64."""

    train_x: Tensor  # [n, ...]
    train_y: Tensor  # [n]
    test_x: Tensor  # [m, ...]
    test_y: Tensor  # [m]


class Protocol(NamedTuple):
    """The paper's federation for a dataset; a size is (train, test) examples per client and class."""

    clients: int
    clients_per_round: int
    model: str
    small: tuple[int, int] | None = None  # None: as many examples as the scarcest class allows
    medium: tuple[int, int] | None = None
    large: tuple[int, int] | None = None


_MNIST = Protocol(10, 10, "mlp", (50, 950), (200, 800), (900, 300))
PROTOCOLS = {
    "digits": Protocol(10, 10, "mlp", (7, 27), (17, 17), (24, 10)),  # ours: 5 owners of 34 in a class of 174
    "mnist": _MNIST,
    "fashion_mnist": _MNIST,
    "cifar10": Protocol(20, 10, "vgg", (25, 475), (100, 400), (450, 150)),
}

_REPLACE = "delete it and add --data.download, or choose another --data.root"
_BATCHES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
_IDX = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
_FILES = {  # name -> torchvision's class and the files that it leaves in the root
    "mnist": ("MNIST", [f"MNIST/raw/{name}" for name in _IDX]),
    "fashion_mnist": ("FashionMNIST", [f"FashionMNIST/raw/{name}" for name in _IDX]),
    "cifar10": ("CIFAR10", [f"cifar-10-batches-py/{name}" for name in _BATCHES]),
}


def protocol(name: str) -> Protocol:
    """The paper's federation for a dataset; raises FedRayError for an unknown name. Source: pFedBayes."""
    known = f"choose from {', '.join(PROTOCOLS)}, or the path of an .npz file with x [N, ...] and y [N]"
    require(name in PROTOCOLS or name.endswith(".npz"), "data.name", name, "not a dataset", known)
    return PROTOCOLS.get(name, Protocol(10, 10, "mlp"))


def resolve(cfg: DataConfig) -> DataConfig:
    """The same config with absolute paths (root, and name of an .npz), so that any working folder will do."""
    root = cfg.root or Path(os.environ.get("FEDRAY_DATA_ROOT") or "~/.cache/fedray")
    name = os.path.abspath(os.path.expanduser(cfg.name)) if cfg.name.endswith(".npz") else cfg.name
    return replace(cfg, name=name, root=Path(os.path.abspath(root.expanduser())))


def load(cfg: DataConfig) -> Dataset:
    """The pooled dataset; raises FedRayError with file, reason and remedy where it is missing or corrupt."""
    protocol(cfg.name)  # refuses an unknown name
    cfg = resolve(cfg)
    if cfg.name == "digits":
        return _digits()
    if cfg.name.endswith(".npz"):
        return _npz(Path(cfg.name))
    files = _present(cfg)
    pairs = map(_batch, files) if cfg.name == "cifar10" else map(_idx_pair, files[::2], files[1::2])
    x, y = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    return Dataset(x, y, 10, 255.0)


def partition_for(cfg: Experiment, labels: np.ndarray, classes: int, rng: np.random.Generator) -> parts.Partition:
    """Deal the examples with labels [N] to the clients; raises FedRayError where they are too few."""
    data, clients = cfg.data, cfg.clients
    assert clients is not None, "the number of clients is resolved before the data are dealt"
    if data.partition == "dirichlet":
        return parts.dirichlet(labels, clients, data.alpha, data.test_fraction, rng)
    if data.partition == "iid":
        return parts.iid(labels, clients, data.test_fraction, rng)
    owners = parts.owners(clients, data.labels_per_client, classes, data.layout)
    size = getattr(protocol(data.name), data.size) or parts.even_size(labels, owners, data.test_fraction)
    return parts.label_shards(labels, clients, data.labels_per_client, size[0], size[1], data.layout, rng)


def shards(dataset: Dataset, partition: parts.Partition, ids: Sequence[int]) -> list[Shard]:
    """The shards of the clients ``ids``; x = (v/scale - 0.5)/0.5, constants, so that no test data leak."""
    return [Shard(*examples(dataset, partition.train[i]), *examples(dataset, partition.test[i])) for i in ids]


def examples(dataset: Dataset, indices: np.ndarray) -> tuple[Tensor, Tensor]:
    """The examples of the given positions, x normalised."""
    x = torch.from_numpy(dataset.x[indices]).float()  # advanced indexing copies: the dataset stays as it is
    if dataset.scale is not None:
        x.div_(dataset.scale).sub_(0.5).div_(0.5)
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


@contextmanager
def _reading(path: Path, remedy: str) -> Iterator[None]:
    """Whatever is wrong with a file becomes a FedRayError that names it."""
    try:
        yield
    except Exception as error:  # pickle, zipfile, zlib and numpy raise whatever the damage leads them to
        reason = error if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise FedRayError(f"{path}: {reason}; {remedy}") from error


def _labels(values: Any, count: int, classes: int) -> np.ndarray:
    y = np.asarray(values)
    if y.shape != (count,) or y.dtype.kind not in "iu" or count == 0 or y.min() < 0 or y.max() >= classes:
        raise ValueError(f"its labels are not {count} integers that number {classes} classes without gaps")
    return y.astype(np.int64)


def _digits() -> Dataset:
    # The file inside scikit-learn, not its loader: the import would cost every actor seconds and 100 MB.
    path = Path(str(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")))
    with _reading(path, "reinstall scikit-learn"):
        table = np.loadtxt(path, np.uint8, delimiter=",")
        return Dataset(table[:, :-1].reshape(-1, 1, 8, 8), _labels(table[:, -1], len(table), 10), 10, 16.0)


def _npz(path: Path) -> Dataset:
    remedy = "give an .npz of x [N, ...], uint8 images or float features, and y [N], labels 0..C-1"
    with _reading(path, remedy), np.load(path, allow_pickle=False) as archive:
        x, y = archive["x"], archive["y"]
        if x.ndim < 2 or not (x.dtype == np.uint8 or x.dtype.kind == "f"):
            raise ValueError(f"x has shape {list(x.shape)} and type {x.dtype}")
        classes = len(np.unique(y))
        y = _labels(y, len(x), classes)
        if x.dtype == np.uint8:
            return Dataset(x, y, classes, 255.0)
        x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise ValueError("x holds NaN, infinity, or a number too large for float32")
        return Dataset(x, y, classes, None)


def _idx_pair(images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
    x, y = _idx(images, (28, 28)), _idx(labels, ())
    with _reading(labels, _REPLACE):
        return x[:, None], _labels(y, len(x), 10)


def _idx(path: Path, item: tuple[int, ...]) -> np.ndarray:
    """A file of LeCun's idx format: magic 0x800 + dimensions, sizes in big-endian int32, uint8 values."""
    with _reading(path, _REPLACE):
        raw = path.read_bytes()
        count = int.from_bytes(raw[4:8], "big")
        header = np.array([0x801 + len(item), count, *item], ">u4").tobytes()
        if not raw.startswith(header) or len(raw) != len(header) + count * np.prod(item):
            raise ValueError(f"its {len(raw)} bytes are not an idx file of uint8 items {list(item)}")
        return np.frombuffer(raw, np.uint8, offset=len(header)).reshape(count, *item)


def _batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A pickled CIFAR-10 batch {"data": uint8 [n, 3072], "labels": [n]}, of Python 2 or 3."""
    with _reading(path, _REPLACE), path.open("rb") as file:
        content = _Unpickler(file, encoding="latin1").load()
        _, shape, dtype, fortran, raw = content["data"].state
        if shape[1:] != (3072,) or dtype.args[0] not in ("u1", "uint8"):
            raise ValueError(f"its data are {dtype.args[0]} {list(shape)}, expected uint8 [n, 3072]")
        raw = raw.encode("latin1") if isinstance(raw, str) else raw  # Python 2 had no bytes
        x = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")
        return x.reshape(-1, 3, 32, 32), _labels(content["labels"], len(x), 10)


class _Stub:
    """Stands for a NumPy object of a pickle: unpickling real ones is unsafe where the file is crafted."""

    def __init__(self, *args: Any):
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Reads plain values and, as stubs, arrays; refuses a pickle that names anything else to be called."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return _Stub
        raise ValueError(f"refused: it asks to call {module}.{name}, which no image needs")
