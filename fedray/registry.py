"""Finds the plug-ins: algorithms, selection policies, datasets, partitions and networks, one file with one record each.

The file name is the name. Built-in files lie in this package. Others come from installed packages, by entry points, or
from a module that the user names (``--plugin``).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import pkgutil
import typing
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fedray.types import Algorithm, FedRayError, Selection

if TYPE_CHECKING:
    from fedray.data.records import DatasetRecord, PartitionRecord
    from fedray.nets.network import NetworkRecord


class Kind(NamedTuple):
    """A kind of plug-in. Packages and types are named, not imported: the rooms of the data lie above this module."""

    package: str  # the folder of the built-in files
    attribute: str  # the name of the record in each of them
    record: str  # the type of the record, module:class


ALGORITHM = Kind("fedray.algorithms", "ALGORITHM", "fedray.types:Algorithm")
SELECTION = Kind("fedray.selection", "SELECTION", "fedray.types:Selection")
DATASET = Kind("fedray.data.datasets", "DATASET", "fedray.data.records:DatasetRecord")
PARTITION = Kind("fedray.data.partitions", "PARTITION", "fedray.data.records:PartitionRecord")
NETWORK = Kind("fedray.nets.networks", "NETWORK", "fedray.nets.network:NetworkRecord")
KINDS = (ALGORITHM, SELECTION, DATASET, PARTITION, NETWORK)

Record = TypeVar("Record", bound=tuple[Any, ...])
Entry = TypeVar("Entry")


def _discover(package: ModuleType, attribute: str, kind: type[Record]) -> dict[str, Record]:
    found: dict[str, Record] = {}
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
        if kind in (Algorithm, Selection):
            check_functions(module.__name__, record)
        found[info.name] = record
    return found


def check_functions(module: str, record: tuple[Any, ...]) -> None:
    """Raise FedRayError for a function of a record that cannot be called with the parameters of its protocol.

    ``record`` is a NamedTuple such as :class:`Algorithm`; the protocols are the types of its fields.
    """
    for field, hint in typing.get_type_hints(type(record)).items():
        function = getattr(record, field)
        if field == "scores":
            for stage in itertools.chain.from_iterable(function.values()):
                check_functions(module, stage)
        protocols = [kind for kind in (hint, *typing.get_args(hint)) if getattr(kind, "_is_protocol", False)]
        if not protocols or (function is None and type(None) in typing.get_args(hint)):
            continue
        expected = list(inspect.signature(protocols[0].__call__).parameters)[1:]
        if not callable(function):
            raise FedRayError(f"{module}: {field} is {function!r}, not a function; it takes ({', '.join(expected)})")
        signature = inspect.signature(function)
        try:
            signature.bind(*expected)
        except TypeError:
            name = getattr(function, "__name__", repr(function))
            raise FedRayError(
                f"{module}: {name}, the {field} of its {type(record).__name__}, takes "
                f"({', '.join(signature.parameters)}), but is called with ({', '.join(expected)}); "
                "change its parameters"
            ) from None


@functools.cache
def _built_in(kind: Kind) -> Mapping[str, Any]:
    return _discover(importlib.import_module(kind.package), kind.attribute, pkgutil.resolve_name(kind.record))


def _table(kind: Kind) -> Mapping[str, Any]:
    return _built_in(kind)


def algorithms() -> Mapping[str, Algorithm]:
    """Every algorithm by name. A module that cannot be imported fails here, loudly."""
    return _table(ALGORITHM)


def selections() -> Mapping[str, Selection]:
    """Every selection policy by name."""
    return _table(SELECTION)


def datasets() -> Mapping[str, DatasetRecord]:
    """Every dataset and file format by name."""
    return _table(DATASET)


def partitions() -> Mapping[str, PartitionRecord]:
    """Every partition by name."""
    return _table(PARTITION)


def networks() -> Mapping[str, NetworkRecord]:
    """Every network by name."""
    return _table(NETWORK)


def pick(table: Mapping[str, Entry], kind: str, name: str) -> Entry:
    """An entry of a registry; an unknown name raises FedRayError with the known ones."""
    if name not in table:
        raise FedRayError(f"{kind} {name!r} is not known; choose from {', '.join(table)}")
    return table[name]


def algorithm_of(cfg: Any) -> Algorithm:
    """The algorithm of a config: its record, under these settings."""
    record = algorithms()[algorithm_name(cfg)]
    return record.configure(record, cfg)


def algorithm_name(cfg: Any) -> str:
    """The name under which the algorithm of a config is registered."""
    return next(name for name, record in algorithms().items() if type(cfg) is record.config)
