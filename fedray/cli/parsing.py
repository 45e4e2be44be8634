"""A command line as an experiment and its execution: the options are the fields of the settings."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from fedray.cli import helptext
from fedray.cli.exits import DONE
from fedray.cli.reading import early, read_options, strays
from fedray.config import Execution, Experiment, override
from fedray.types import FedRayError

if TYPE_CHECKING:
    from fedray.types import Algorithm

DEFAULT_ALGORITHM = "pfedbayes"
PLUGIN_HELP = (
    "Modules of your own, on PYTHONPATH or in this folder, that define an ALGORITHM, SELECTION, DATASET, PARTITION or "
    "NETWORK; the module's name is the name of each. May be repeated."
)


class Parsed(NamedTuple):
    """A command line."""

    experiment: Experiment
    execution: Execution
    preset: str
    more: Any  # all options, with those that only this command has


def parse(
    argv: Sequence[str],
    prog: str,
    describe: Callable[[Mapping[str, Algorithm], str], str],
    more: Sequence[tuple[str, Any, Any]],
    base: tuple[Experiment, Execution] | None = None,
    brief: Callable[[Mapping[str, Algorithm], str], str] | None = None,
    lead: Sequence[tuple[str, Any, Any]] = (),
) -> Parsed:
    """Parse ``[ALGORITHM] [options]``; ``more`` lists further options as (name, type, default), and ``lead`` those that
    --help shows before all others.

    Defaults are the algorithm's or, to resume a run, those of ``base``. For help and mistakes, tyro prints a text and
    exits with code 0 or 2. --help-all shows all options in groups. With a ``brief`` description --help shows those of
    ``lead``, or those that matter first. Raises FedRayError for an unknown algorithm or preset.
    """
    from fedray import registry  # imports PyTorch, for which `fedray status` does not wait

    modules = _named_plug_ins(argv)
    for module in modules:
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
        *lead,
        ("algorithm", Annotated[record.config, flat], dataclasses.field(default=experiment.algorithm)),
        # The settings of the algorithm have options of their own, above.
        (
            "experiment",
            Annotated[Experiment, flat],
            dataclasses.field(default=override(experiment, {"algorithm": None})),
        ),
        ("execution", Annotated[Execution, flat], dataclasses.field(default=execution)),
        ("preset", Annotated[str, tyro.conf.arg(help=_preset_help(record))], ""),
        ("plugin", Annotated[tuple[str, ...], tyro.conf.arg(help=PLUGIN_HELP, metavar="MODULE")], modules),
        *more,
    ]
    if brief and {"-h", "--help"} & set(argv):
        first = helptext.box("this command", lead) if lead else helptext.first((experiment, execution))
        own = helptext.own(name, experiment.algorithm)
        raise _shown_help(f"{prog} [ALGORITHM] [OPTIONS]", brief(names, name), first, own)
    if "--help-all" in argv:
        raise _shown_help(f"{prog} [ALGORITHM] [OPTIONS]", describe(names, name), helptext.long(name, fields))
    _check_free(name, record, [field[0] for field in (*lead, *more)])
    options: type[Any] = dataclasses.make_dataclass("Options", fields, frozen=True)
    usage = f"{prog} {name}" if given else prog
    try:
        # A switch may be repeated where a run goes on.
        parsed = read_options(options, argv, usage, describe(names, name), pairs=base is not None)
    except SystemExit as stop:
        late = [word for word in strays(options, argv, base is not None) if word in names]
        if late and not given and stop.code != DONE:
            raise FedRayError(f"{late[0]}: an algorithm comes before the options; {prog} {late[0]} ...") from None
        raise
    experiment = dataclasses.replace(parsed.experiment, algorithm=parsed.algorithm)
    return Parsed(experiment, parsed.execution, parsed.preset, parsed)


def _check_free(algorithm: str, record: Algorithm, more: Sequence[str]) -> None:
    """Raise FedRayError for an algorithm's setting that is named like another option."""
    others = [field.name for kind in (Experiment, Execution) for field in dataclasses.fields(kind)]
    taken = {*others, *more, "preset", "plugin"}
    for field in dataclasses.fields(record.config):
        if field.name in taken:
            option = field.name.replace("_", "-")
            raise FedRayError(f"{algorithm}: its setting {field.name} has the name of --{option}; rename it")


def _shown_help(usage: str, *parts: str) -> SystemExit:
    """Print a help text; returns what ends the command."""
    print("\n\n".join([f"usage: {usage}", *parts]))
    return SystemExit(DONE)


def _named_plug_ins(argv: Sequence[str]) -> tuple[str, ...]:
    """The values of --plugin, which must be read first, because plug-ins add names that other options accept."""
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
