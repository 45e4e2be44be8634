"""Finds the plug-ins: algorithms, selection policies, datasets, partitions and networks, one file with one record each.

The file name is the name. Built-in files lie in this package. Others come from installed packages, by entry points, or
from a module that the user names (``--plugin``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
import itertools
import os
import pkgutil
import sys
import traceback
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fedray.types import Algorithm, FedRayError, Selection, Stage, Sums, suggestion

if TYPE_CHECKING:
    from fedray.data.records import DatasetRecord, PartitionRecord
    from fedray.nets.network import NetworkRecord


class Kind(NamedTuple):
    """A kind of plug-in. Packages and types are named, not imported: the rooms of the data lie above this module."""

    package: str  # the folder of the built-in files
    attribute: str  # the name of the record in each of them
    record: str  # the type of the record, module:class
    group: str  # of the entry points by which installed packages offer theirs


ALGORITHM = Kind("fedray.algorithms", "ALGORITHM", "fedray.types:Algorithm", "fedray.algorithms")
SELECTION = Kind("fedray.selection", "SELECTION", "fedray.types:Selection", "fedray.selection")
DATASET = Kind("fedray.data.datasets", "DATASET", "fedray.data.records:DatasetRecord", "fedray.datasets")
PARTITION = Kind("fedray.data.partitions", "PARTITION", "fedray.data.records:PartitionRecord", "fedray.partitions")
NETWORK = Kind("fedray.nets.networks", "NETWORK", "fedray.nets.network:NetworkRecord", "fedray.networks")
KINDS = (ALGORITHM, SELECTION, DATASET, PARTITION, NETWORK)

Record = TypeVar("Record", bound=tuple[Any, ...])
Entry = TypeVar("Entry")
_named: dict[str, dict[Kind, Any]] = {}  # module -> its records, of the plug-ins that the user named
programs: dict[str, str] = {}  # module -> its source as it was imported; none of a compiled one


def _discover(package: ModuleType, attribute: str, record_type: type[Record]) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        if info.name.startswith("_"):  # what several of them share
            continue
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        if info.ispkg:  # a family
            family = _discover(module, attribute, record_type)
            twice = sorted(set(family) & set(found))
            if twice:
                raise FedRayError(f"{module.__name__}.{twice[0]}: the name {twice[0]!r} is taken; rename the file")
            found |= family
            continue
        record = getattr(module, attribute, None)
        if not isinstance(record, record_type):
            raise FedRayError(
                f"{package.__name__}.{info.name}: {attribute} is {record!r}, not an instance of "
                f"{record_type.__name__}; define {attribute} in that file or move the file elsewhere"
            )
        check_functions(module.__name__, record)
        found[info.name] = record
    return found


def check_functions(where: str, record: tuple[Any, ...]) -> None:
    """Raise FedRayError for a function of a record that cannot be called with the parameters of its protocol.

    Algorithms, selection policies and stages of scores have protocols: the types of their fields.
    """
    if not isinstance(record, Algorithm | Selection | Stage | Sums):
        return
    if isinstance(record, Algorithm):
        _check_settings(where, record.config)
    for field, hint in typing.get_type_hints(type(record)).items():
        function = getattr(record, field)
        if field == "scores":
            for stage in itertools.chain.from_iterable(function.values()):
                check_functions(where, stage)
        if isinstance(function, Sums):
            check_functions(where, function)
            continue
        protocols = [option for option in (hint, *typing.get_args(hint)) if getattr(option, "_is_protocol", False)]
        if not protocols or (function is None and type(None) in typing.get_args(hint)):
            continue
        expected = list(inspect.signature(protocols[0].__call__).parameters)[1:]
        if not callable(function):
            raise FedRayError(f"{where}: {field} is {function!r}, not a function; it takes ({', '.join(expected)})")
        signature = inspect.signature(function)
        try:
            signature.bind(*expected)
        except TypeError:
            name = getattr(function, "__name__", repr(function))
            raise FedRayError(
                f"{where}: {name}, the {field} of its {type(record).__name__}, takes "
                f"({', '.join(signature.parameters)}), but is called with ({', '.join(expected)}); "
                "change its parameters"
            ) from None


def _check_settings(where: str, config: type) -> None:
    """Raise FedRayError unless an algorithm's settings are a dataclass with a default for each."""
    name = getattr(config, "__name__", repr(config))
    if not dataclasses.is_dataclass(config):
        raise FedRayError(f"{where}: its config {name} is no dataclass; decorate it with @dataclass(frozen=True)")
    for field in dataclasses.fields(config):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise FedRayError(f"{where}: the setting {field.name} of {name} has no default; give it one")


@functools.cache
def _built_in(kind: Kind) -> Mapping[str, Any]:
    return _discover(importlib.import_module(kind.package), kind.attribute, pkgutil.resolve_name(kind.record))


@functools.cache
def _installed(kind: Kind) -> Mapping[str, Any]:
    """The records that installed packages offer by entry points NAME = module or module:ATTRIBUTE."""
    found: dict[str, Any] = {}
    for point in sorted(importlib.metadata.entry_points(group=kind.group), key=lambda point: point.name):
        where = f"entry point {point.name} = {point.value} of {kind.group}"
        try:
            target = point.load()
        except Exception as error:  # whatever the package raises while it is imported
            reason = f"{type(error).__name__}: {error}"
            raise FedRayError(f"{where}: cannot be imported ({reason}); mend or uninstall the package") from error
        record: Any = getattr(target, kind.attribute, None) if isinstance(target, ModuleType) else target
        if not isinstance(record, pkgutil.resolve_name(kind.record)):
            raise FedRayError(f"{where}: is {record!r}; it must be a module with {kind.attribute}, or that record")
        check_functions(where, record)
        _check_free(kind, point.name, record, where, {**_built_in(kind), **found})
        found[point.name] = record
    return found


def _table(kind: Kind) -> Mapping[str, Any]:
    named = {_last(module): records[kind] for module, records in _named.items() if kind in records}
    return dict(sorted({**_built_in(kind), **_installed(kind), **named}.items()))


def _line(error: Exception, module: str) -> str:
    """Where a module raised an error while it was imported; empty for one that cannot be found or parsed."""
    own = f"{_last(module)}.py"
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == own]
    return f" because of its line {lines[-1].lineno}" if lines else ""


def plug_in(module: str) -> None:
    """Register the records of a module under the last part of its name; a second call changes nothing.

    The module is imported from Python's path or from the current folder. Raises FedRayError where it cannot be
    imported, defines no record, or has a name that is taken.
    """
    if module in _named:
        return
    where = f"--plugin {module}"
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # whatever the module raises while it is imported
        reason, remedy = f"{type(error).__name__}: {error}", "correct the module"
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            remedy = "give the name of a module (not a path) on PYTHONPATH or in the current folder"
        raise FedRayError(f"{where}: cannot be imported{_line(error, module)} ({reason}); {remedy}") from error
    records: dict[Kind, Any] = {}
    for kind in KINDS:
        record = getattr(imported, kind.attribute, None)
        if record is None:
            continue
        if not isinstance(record, pkgutil.resolve_name(kind.record)):
            raise FedRayError(f"{where}: {kind.attribute} is {record!r}; it must be a {kind.record.partition(':')[2]}")
        check_functions(where, record)
        _check_free(kind, _last(module), record, where, _table(kind))
        records[kind] = record
    if not records:
        names = ", ".join(kind.attribute for kind in KINDS)
        raise FedRayError(f"{where}: defines none of {names}; see docs/add-a-dataset.md")
    _named[module] = records
    with contextlib.suppress(OSError, TypeError):
        programs[module] = inspect.getsource(imported)  # now: the file may change while this process goes on


def _check_free(kind: Kind, name: str, record: Any, where: str, table: Mapping[str, Any]) -> None:
    """Raise FedRayError where a name is taken, or an algorithm has the settings class of another one."""
    if name in table:
        raise FedRayError(f"{where}: the name {name!r} is taken by another {kind.attribute}; rename the module")
    # A run knows its algorithm by the class of its settings.
    if kind == ALGORITHM:
        for other, known in table.items():
            if known.config is record.config:
                raise FedRayError(
                    f"{where}: its settings class {record.config.__name__} is that of {other}; define a subclass"
                )


def _last(module: str) -> str:
    return module.rpartition(".")[2]


def plug_ins() -> tuple[str, ...]:
    """The modules that the user named in this process."""
    return tuple(_named)


def is_plug_in(kind: Kind, name: str) -> bool:
    """Whether the record of this name is none of FedRay's own."""
    return name not in _built_in(kind)


def plug_ins_of(used: Mapping[Kind, str]) -> tuple[str, ...]:
    """The modules that the user named and that define one of these records: what a run must import to be resumed."""
    return tuple(
        module
        for module, records in _named.items()
        if any(kind in records and name == _last(module) for kind, name in used.items())
    )


def plug_in_again(modules: Iterable[object], run: str) -> None:
    """Register the plug-ins that a run has noted; raises FedRayError naming the run and the plug-in that is missing."""
    for module in modules:
        if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
            raise FedRayError(f"{run}: notes the plug-in {module!r}, which is not the name of a module; it is damaged")
        try:
            plug_in(module)
        except FedRayError as error:
            raise FedRayError(f"{run}: used the plug-in {module}, which is not here; {error}") from error


def sources(modules: Sequence[str]) -> list[Path]:
    """The file or, of a module in a package, the folder of the outermost package of each plug-in."""
    found: list[Path] = []
    for module in modules:
        outermost = importlib.import_module(module.partition(".")[0])
        file = Path(str(outermost.__file__))
        found.append(file.parent if hasattr(outermost, "__path__") else file)
    return found


def algorithms() -> Mapping[str, Algorithm]:
    """Every algorithm by name; a plug-in that cannot be imported raises here."""
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
        there = name.isidentifier() and Path(f"{name}.py").exists()
        here = f"{name}.py here is not loaded (`plugin`); " if there else ""
        raise FedRayError(
            f"{kind} {name!r} is not known; {here}{suggestion(name, table)}choose from {', '.join(table)}"
        )
    return table[name]


def algorithm_of(cfg: Any) -> Algorithm:
    """The algorithm of a config: its record, under these settings."""
    record = algorithms()[algorithm_name(cfg)]
    return record.configure(record, cfg)


def algorithm_name(cfg: Any) -> str:
    """The name under which the algorithm of a config is registered; raises FedRayError for settings of none."""
    found = next((name for name, record in algorithms().items() if type(cfg) is record.config), None)
    if found is None:
        raise FedRayError(
            f"algorithm={cfg!r}: is not the settings of an algorithm; give some, such as PFedBayes() of "
            f"fedray.algorithms.bayesian.pfedbayes, or to fedray.run a name ({', '.join(algorithms())})"
        )
    return found
