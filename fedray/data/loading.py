"""The settings of a dataset -> its pooled examples.

The official training and test sets are pooled, training first, as the tables of pFedBayes require. No accuracy
compares with one on an official test set.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedray import registry
from fedray.config import DataConfig, differing
from fedray.data import own
from fedray.data.readers import Dataset, checked_dataset, reading
from fedray.data.records import DatasetRecord
from fedray.data.scaling import Scaling, moments, standard, unit
from fedray.types import FedRayError, SettingError, first_line, require, suggestion


def record(name: str) -> DatasetRecord:
    """The record of a dataset's name, or of a file's format; raises FedRayError with the names that are known."""
    return _GIVEN if name == own.GIVEN else registry.datasets()[record_name(name)]


def _not_here(cfg: DataConfig, classes: int | None) -> Dataset:
    """Refuse to load examples that no file holds."""
    raise FedRayError(
        "the examples of this run were given from Python and are in no file; give them again, `load(folder, data=...)`"
    )


_GIVEN = DatasetRecord("examples that the caller gives from Python", _not_here, protocols={"natural": own.OWNED})


def of_the_users(name: str) -> bool:
    """Whether a dataset's examples are the user's own: given from Python, in a file, or from a plug-in."""
    return name == own.GIVEN or bool(record(name).suffixes) or registry.is_plug_in(registry.DATASET, record_name(name))


def record_name(name: str) -> str:
    """The name of a dataset, or of the format of a file; raises as :func:`record`."""
    if name == own.GIVEN:
        return name
    table = registry.datasets()
    family, _, table_name = name.partition("-")
    if family in table and table_name in table[family].tables:
        return family
    formats = [key for key, found in table.items() if found.suffixes and name.endswith(found.suffixes)]
    if formats:
        return formats[0]
    known = [each for key, found in table.items() if not found.suffixes for each in names(key, found)]
    if name not in known:  # the nearest name takes a while to find
        files = "the path of your file: " + ", ".join(end for found in table.values() for end in found.suffixes)
        remedy = f"{suggestion(name, known)}choose from {', '.join(known)}, or {files}"
        raise SettingError("data.name", name, "not a dataset", remedy)
    return name


def names(key: str, found: DatasetRecord) -> list[str]:
    """The names by which --data.name calls a record that is no file format."""
    return [f"{key}-{each}" for each in found.tables] or [key]


def absolute_paths(cfg: DataConfig) -> DataConfig:
    """The same settings with absolute paths (of root, file and embedding), so that any working folder will do."""
    return given_paths(replace(cfg, root=cfg.root or os.environ.get("FEDRAY_DATA_ROOT") or "~/.cache/fedray"))


def given_paths(cfg: DataConfig, folder: str = "") -> DataConfig:
    """The same settings, whose paths, those that were given, are absolute: from ``folder``, or from this one."""
    return replace(
        cfg,
        name=str(_absolute("data.name", cfg.name, folder)) if record(cfg.name).suffixes else cfg.name,
        root=None if cfg.root is None else _absolute("data.root", cfg.root, folder),
        embedding=None if cfg.embedding is None else _absolute("data.embedding", cfg.embedding, folder),
    )


def files(cfg: DataConfig) -> DataConfig:
    """The settings that decide which examples there are; all others are left at their defaults."""
    return DataConfig(name=cfg.name, root=cfg.root, download=cfg.download, embedding=cfg.embedding, classes=cfg.classes)


def check_no_files(cfg: DataConfig) -> None:
    """Raise FedRayError for settings that decide which examples of a file there are: the caller's are all taken."""
    usual = absolute_paths(DataConfig(name=own.GIVEN))  # root is among the settings of a finished run
    for name in differing(files(absolute_paths(cfg)), usual):
        remedy = "leave it out with data of your own"
        raise SettingError(f"data.{name}", getattr(cfg, name), "is for data in files", remedy)


def _absolute(option: str, path: str | Path, folder: str) -> Path:
    try:
        return Path(os.path.abspath(folder / Path(path).expanduser()))
    except RuntimeError:  # ~name/... of nobody on this machine
        raise FedRayError(f"--{option} {path}: there is no such user on this machine; give the whole path") from None


def load(cfg: DataConfig, classes: int | None = None, labels: tuple[str, ...] = ()) -> Dataset:
    """The pooled dataset; raises FedRayError with file, reason and remedy where it is missing or corrupt.

    ``classes`` is how many a trained model has, where not all of them need occur in a file of the user's own, and
    ``labels`` are their names, by which they are numbered then; without any their names are their numbers.
    """
    cfg = absolute_paths(cfg)
    try:
        with registry.calling(registry.DATASET, record_name(cfg.name), "load"):
            dataset = record(cfg.name).load(cfg, classes if cfg.classes is None else None)
    except OSError as error:  # even whether a file is there cannot be told of a folder that is another user's
        reason = f"cannot be searched for {cfg.name} ({(error.strerror or first_line(error)).lower()})"
        remedy = "point `data.root` or $FEDRAY_DATA_ROOT to a folder that you may read"
        raise SettingError("data.root", cfg.root, reason, remedy) from None
    if registry.is_plug_in(registry.DATASET, record_name(cfg.name)):
        dataset = checked_dataset(dataset, f"data.name {cfg.name}: load", "correct this function of the plug-in")
    reason, remedy = "the dataset has no texts", "leave it out, or choose `data.name=sent140`"
    require(cfg.embedding is None or dataset.vectors is not None, "data.embedding", cfg.embedding, reason, remedy)
    dataset = dataset if cfg.classes is None else _first(dataset, cfg.classes)
    labels = labels or tuple(map(str, range(classes or 0)))
    if dataset.real or labels == dataset.names.classes or len(labels) < 2:  # one output: of real targets
        return dataset
    with reading(Path(cfg.name), "give examples of those classes"):
        return own.renumbered(dataset, labels)


def _first(dataset: Dataset, classes: int) -> Dataset:
    """The examples of the classes 0..``classes`` - 1 only; users without any are left out."""
    reason = "its targets are real numbers" if dataset.real else f"the dataset has {dataset.classes} classes"
    require(
        classes <= dataset.classes and not dataset.real,
        "data.classes",
        classes,
        reason,
        "lower it, or leave it out for all",
    )
    kept = dataset.y < classes
    found, users = (None, None) if dataset.users is None else np.unique(dataset.users[kept], return_inverse=True)
    named = tuple(dataset.names.users[u] for u in found) if found is not None and dataset.names.users else ()
    names = dataset.names._replace(classes=dataset.names.classes[:classes], users=named)
    return dataset._replace(x=dataset.x[kept], y=dataset.y[kept], classes=classes, users=users, names=names)


def scaling(cfg: DataConfig, dataset: Dataset, train: Sequence[np.ndarray]) -> Scaling | None:
    """The scaling that the settings ask for; raises FedRayError where the dataset cannot have it.

    ``train`` are the positions of the clients' training shards: moments are theirs, or by `moments=all` the dataset's.
    """
    kind = cfg.scaling
    if kind == "auto":
        return dataset.scaling
    require(dataset.vectors is None, "data.scaling", kind, "the vectors of words are used as they are", "leave it out")
    if kind in ("standard", "feature"):
        known = dataset.x if cfg.moments == "all" else dataset.x[np.sort(np.concatenate(train))]
        each = kind == "feature"
        floored = record(cfg.name).floored or known.dtype.kind != "f"
        if floored and not (each and dataset.real):
            return moments(known, each)
        known = known.astype(np.float32, copy=False)  # as the network gets them
        return standard(known, each)  # in any units, in which the floor of `moments` may be large
    reason, remedy = "the range of these features is not known", "choose standard or feature"
    require(dataset.scaling is not None, "data.scaling", kind, reason, remedy)
    assert dataset.scaling is not None
    return unit(dataset.scaling) if kind == "unit" else dataset.scaling
