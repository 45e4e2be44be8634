"""Finds the plug-ins: algorithms, selection policies, datasets, partitions and networks, one file with one record each.

The file name is the name. Built-in files lie in this package. Others come from installed packages, by entry points, or
from a module that the user names (``--plugin``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fedray.types import Algorithm, FedRayError, Selection, first_line, suggestion
from fedray.types.records import check_parameters, check_record

if TYPE_CHECKING:
    from fedray.data.records import DatasetRecord, PartitionRecord
    from fedray.nets.network import NetworkRecord


class Kind(NamedTuple):
    """A kind of plug-in. Packages and types are named, not imported: the rooms of the data lie above this module."""

    package: str  # the folder of the built-in files
    attribute: str  # the name of the record in each of them
    record: str  # the type of the record, module:class
    group: str  # of the entry points by which installed packages offer theirs
    functions: tuple[tuple[str, tuple[str, ...]], ...] = ()  # of a record whose type has no protocols: their parameters


DATASETS = (("load", ("cfg", "classes")),)
PARTITIONS = (("deal", ("dataset", "settings", "rng")), ("describe", ("cfg", "protocol")))
NETWORKS = (("layers", ("cfg", "input_shape", "classes")),)
ALGORITHM = Kind("fedray.algorithms", "ALGORITHM", "fedray.types:Algorithm", "fedray.algorithms")
SELECTION = Kind("fedray.selection", "SELECTION", "fedray.types:Selection", "fedray.selection")
DATASET = Kind("fedray.data.datasets", "DATASET", "fedray.data.records:DatasetRecord", "fedray.datasets", DATASETS)
PARTITION = Kind(
    "fedray.data.partitions", "PARTITION", "fedray.data.records:PartitionRecord", "fedray.partitions", PARTITIONS
)
NETWORK = Kind("fedray.nets.networks", "NETWORK", "fedray.nets.network:NetworkRecord", "fedray.networks", NETWORKS)
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
        check_record(module.__name__, record)
        found[info.name] = record
    return found


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
        _check(where, record, kind)
        _check_free(kind, point.name, record, where, {**_built_in(kind), **found})
        found[point.name] = record
    return found


def _check(where: str, record: Any, kind: Kind) -> None:
    """Raise FedRayError for a record of a plug-in that no run could use."""
    check_record(where, record)
    for field, parameters in kind.functions:
        check_parameters(where, record, field, parameters)
    for field, usual in record._field_defaults.items():
        value = getattr(record, field)
        if hasattr(usual, "_fields") and not isinstance(value, type(usual)):
            raise FedRayError(f"{where}: {field} is {value!r}; it must be a {type(usual).__name__}")


def _table(kind: Kind) -> Mapping[str, Any]:
    named = {_last(module): records[kind] for module, records in _named.items() if kind in records}
    return dict(sorted({**_built_in(kind), **_installed(kind), **named}.items()))


def line_of(error: BaseException, *modules: str) -> str:
    """The last line of these modules, or of the plug-ins that the user named, on the way to where an error was raised;
    empty where they have none, as of a module that cannot be found or parsed."""
    loaded = [sys.modules.get(module) for module in (*_named, *modules)]
    files = {str(getattr(module, "__file__", "")) for module in loaded if module is not None}
    # A module that could not be imported is none of those that are loaded.
    ends = tuple(f"{os.sep}{module.replace('.', os.sep)}.py" for module in modules if module not in sys.modules)
    trace = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in trace if frame.filename in files or frame.filename.endswith(ends)]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""


@contextlib.contextmanager
def calling(kind: Kind, name: str, function: str) -> Generator[None, None, None]:
    """Around the call of a record's function: what a plug-in raises becomes a FedRayError that names it."""
    try:
        yield
    except FedRayError:  # of an author who says why
        raise
    except Exception as error:
        if not is_plug_in(kind, name):
            raise
        record = _table(kind)[name]
        line = line_of(error, *(getattr(getattr(record, field), "__module__", "") for field, _ in kind.functions))
        where = f"{kind.attribute.lower()} {name}: {function} raises {type(error).__name__}: {first_line(error)}"
        raise FedRayError(f"{where}{f' ({line})' if line else ''}; correct it") from error


def plug_in(module: str) -> None:
    """Register the records of a module under the last part of its name; a second call changes nothing.

    The module is imported from Python's path or from the current folder. Raises FedRayError where it cannot be
    imported, defines no record, or has a name that is taken.
    """
    if module in _named:
        return
    where = f"--plugin {module}"
    if not is_name(module):
        stem = Path(module.removesuffix(".py")).name.strip(".") or "mine"
        name = stem.replace("-", "_")
        file = "" if name == stem else f"; rename the file to {name}.py"
        remedy = f"give {name}, with {name}.py on PYTHONPATH or in the current folder{file}"
        raise FedRayError(f"{where}: is not the name of a module; {remedy}")
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever the module raises while it is imported
        reason, remedy = f"{type(error).__name__}: {error}", "correct the module"
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            remedy = "give the name of a module (not a path) on PYTHONPATH or in the current folder"
        line = line_of(error, module)
        because = f" because of its line {line.rpartition(' ')[2]}" if line else ""
        raise FedRayError(f"{where}: cannot be imported{because} ({reason}); {remedy}") from error
    records: dict[Kind, Any] = {}
    for kind in KINDS:
        record = getattr(imported, kind.attribute, None)
        if record is None:
            continue
        if not isinstance(record, pkgutil.resolve_name(kind.record)):
            raise FedRayError(f"{where}: {kind.attribute} is {record!r}; it must be a {kind.record.partition(':')[2]}")
        _check(where, record, kind)
        _check_free(kind, _last(module), record, where, _table(kind))
        records[kind] = record
    if not records:
        names = ", ".join(kind.attribute for kind in KINDS)
        raise FedRayError(f"{where}: defines none of {names}; see docs/add-a-dataset.md")
    _named[module] = records
    with contextlib.suppress(OSError, TypeError):
        programs[module] = inspect.getsource(imported)  # now: the file may change while this process goes on


def is_name(module: str) -> bool:
    """Whether a module can have this name."""
    return not module.endswith(".py") and all(part.isidentifier() for part in module.split("."))


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
        if not isinstance(module, str) or not is_name(module):
            raise FedRayError(f"{run}: notes the plug-in {module!r}, which is not the name of a module; it is damaged")
        try:
            plug_in(module)
        except FedRayError as error:
            raise FedRayError(f"{run}: used the plug-in {module}, which cannot be used here; {error}") from error


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
