"""Command lines made of the config dataclasses: ``[ALGORITHM] [options]``, with presets."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from fedray import registry
from fedray.config import Execution, Experiment, override
from fedray.types import Algorithm, FedRayError

DEFAULT_ALGORITHM = "pfedbayes"
PLUGIN_HELP = (
    "Modules of your own, on PYTHONPATH or in this folder, that define an ALGORITHM, SELECTION, DATASET, PARTITION or "
    "NETWORK; the module's name is the name of each. May be repeated."
)


METAVARS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}
_tyro = tyro.constructors.ConstructorRegistry()


@_tyro.primitive_rule
def _optional(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | tyro.constructors.UnsupportedTypeAnnotationError | None:
    """A setting that may stay open takes a value of its type; tyro itself would show ``{None}|INT``."""
    if info.type is type(None):  # the algorithm's own settings: no option
        return tyro.constructors.UnsupportedTypeAnnotationError(())
    options = typing.get_args(info.type)
    if type(None) not in options:
        return None
    kinds = [Path] if Path in options else [option for option in options if option in METAVARS]
    if len(kinds) != 1 or (len(kinds) < len(options) - 1 and Path not in options):
        return None
    (kind,) = kinds
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=METAVARS[kind],
        instance_from_str=lambda words: None if words[0] == "None" else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, options),
        str_from_instance=lambda value: [str(value)],
    )


class Parsed(NamedTuple):
    """A command line."""

    experiment: Experiment
    execution: Execution
    preset: str
    more: Any  # the options beside those of every command


def parse(
    argv: Sequence[str],
    prog: str,
    describe: Callable[[Mapping[str, Algorithm], str], str],
    more: Sequence[tuple[str, Any, Any]],
    base: tuple[Experiment, Execution] | None = None,
) -> Parsed:
    """Parse ``[ALGORITHM] [options]``; ``more`` are (name, type, default) of further options.

    Defaults are the algorithm's, or those of ``base``, a run to go on with.

    tyro prints help and mistakes and leaves with its own exit code (0, 2). Raises FedRayError for an unknown
    algorithm or preset.
    """
    plug_ins = _plug_ins(argv)
    for module in plug_ins:
        registry.plug_in(module)
    names = registry.algorithms()
    given = bool(argv) and not argv[0].startswith("-")
    usual = registry.algorithm_name(base[0].algorithm) if base else DEFAULT_ALGORITHM
    name, argv = (argv[0], argv[1:]) if given else (usual, argv)
    record = registry.pick(names, "algorithm", name)
    preset = _preset(argv, name, record)
    settings = dict(record.defaults) | (dict(record.presets[preset].overrides) if preset else {})
    experiment = override(Experiment(algorithm=record.config()), settings)
    if base and name == usual and not preset:
        experiment = base[0]
    execution = base[1] if base else Execution()
    flat = tyro.conf.arg(name="")
    fields = [
        ("algorithm", Annotated[record.config, flat], dataclasses.field(default=experiment.algorithm)),
        # The settings of the algorithm have options of their own, above.
        (
            "experiment",
            Annotated[Experiment, flat],
            dataclasses.field(default=override(experiment, {"algorithm": None})),
        ),
        ("execution", Annotated[Execution, flat], dataclasses.field(default=execution)),
        ("preset", Annotated[str, tyro.conf.arg(help=_preset_help(record))], ""),
        ("plugin", Annotated[tuple[str, ...], tyro.conf.arg(help=PLUGIN_HELP, metavar="MODULE")], plug_ins),
        *more,
    ]
    parsed: Any = tyro.cli(
        dataclasses.make_dataclass("Options", fields, frozen=True),
        prog=f"{prog} {name}" if given else prog,
        description=describe(names, name),
        args=list(argv),
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff, tyro.conf.SuppressFixed),
        registry=_tyro,
    )
    experiment = dataclasses.replace(parsed.experiment, algorithm=parsed.algorithm)
    return Parsed(experiment, parsed.execution, parsed.preset, parsed)


def early(argv: Sequence[str], option: str) -> str:
    """The value of an option that is read before the rest, because it changes the defaults of the rest."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(option, default="", nargs="?", dest="value")
    return parser.parse_known_args(list(argv))[0].value or ""


def _plug_ins(argv: Sequence[str]) -> tuple[str, ...]:
    """The values of --plugin, which are read before the rest, because they bring names for the rest."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--plugin", action="extend", nargs="*", default=[])
    return tuple(parser.parse_known_args(list(argv))[0].plugin)


def _preset(argv: Sequence[str], name: str, record: Algorithm) -> str:
    preset = early(argv, "--preset")
    if preset and preset not in record.presets:
        raise FedRayError(f"--preset {preset}: {name} has {', '.join(record.presets) or 'no presets'}; leave it out")
    return preset


def _preset_help(record: Algorithm) -> str:
    return f"Named settings, applied before the other options: {', '.join(record.presets) or 'none here'}."


def listed(names: Mapping[str, Algorithm]) -> str:
    """The algorithms with their summaries, for a description."""
    width = max(map(len, names))
    return "\n".join(f"  {name:<{width}}  {record.summary}" for name, record in names.items())


def plug_ins() -> str:
    """The selection policies, datasets, partitions and networks with their summaries, for a description."""
    tables = {
        "--selection": registry.selections(),
        "--data.name": registry.datasets(),
        "--data.partition": registry.partitions(),
        "--model.name": registry.networks(),
    }
    parts: list[str] = []
    for option, table in tables.items():
        width = max(map(len, table))
        lines = [f"  {_shown(name, record):<{width}}  {record.summary}" for name, record in table.items()]
        parts.append("\n".join([f"{option} is one of", *lines]))
    return "\n\n".join(parts)


def _shown(name: str, record: Any) -> str:
    """A name as the user types it: a file format stands for the path of a file."""
    return "PATH" if getattr(record, "suffixes", ()) else name


def command(experiment: Experiment) -> str:
    """The launch command of an experiment: every setting that is not a default, floats to the last bit."""
    name = registry.algorithm_name(experiment.algorithm)
    record = registry.algorithms()[name]
    default = override(Experiment(algorithm=record.config()), dict(record.defaults))
    words = ["python -m fedray.launch", name, *(f"--plugin {module}" for module in registry.plug_ins())]
    words += _options(experiment, default, "")
    return " ".join(words + _options(experiment.algorithm, default.algorithm, ""))


def _options(cfg: Any, default: Any, prefix: str) -> list[str]:
    import shlex

    words: list[str] = []
    for field in dataclasses.fields(cfg):
        value, usual = getattr(cfg, field.name), getattr(default, field.name)
        option = prefix + field.name.replace("_", "-")
        if field.name == "algorithm" or value == usual or value is None:
            continue
        if dataclasses.is_dataclass(value):
            words += _options(value, usual, f"{option}.")
        elif isinstance(value, bool):
            words += [f"--{option}"] if value else []
        else:
            items = value if isinstance(value, tuple) else (value,)
            words += [f"--{option}", *(shlex.quote(str(item)) for item in items)]
    return words
