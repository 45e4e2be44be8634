"""Finds the algorithms and selection policies: one module each, the file name is the name."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from fedray import algorithms as algorithm_package
from fedray import selection as selection_package
from fedray.types import Algorithm, FedRayError, Selection


def _discover(package: Any, attribute: str, kind: type) -> dict[str, Any]:
    found = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        if info.name.startswith("_"):  # what several of them share
            continue
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        record = getattr(module, attribute, None)
        if not isinstance(record, kind):
            raise FedRayError(
                f"{package.__name__}.{info.name}: {attribute} is {record!r}, not an instance of {kind.__name__}; "
                f"define {attribute} in that file or move the file elsewhere"
            )
        found[info.name] = record
    return found


@functools.cache
def algorithms() -> Mapping[str, Algorithm]:
    """Every algorithm by name. A module that cannot be imported fails here, loudly."""
    return _discover(algorithm_package, "ALGORITHM", Algorithm)


@functools.cache
def selections() -> Mapping[str, Selection]:
    """Every selection policy by name."""
    return _discover(selection_package, "SELECTION", Selection)


def pick(table: Mapping[str, Any], kind: str, name: str) -> Any:
    """An entry of a registry; an unknown name raises FedRayError with the known ones."""
    if name not in table:
        raise FedRayError(f"{kind} {name!r} is not known; choose from {', '.join(table)}")
    return table[name]


def algorithm_of(cfg: Any) -> Algorithm:
    """The algorithm of a config, with what its settings add to the record or take from it."""
    record = algorithms()[algorithm_name(cfg)]
    return record.configure(record, cfg)


def algorithm_name(cfg: Any) -> str:
    """The name under which the algorithm of a config is registered."""
    return next(name for name, record in algorithms().items() if type(cfg) is record.config)
