"""The command lines: ``fedray COMMAND``, exit codes, and options that are made of the config dataclasses."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import select
import shlex
import signal
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, TypeVar

import tyro

import fedray
from fedray.config import Execution, Experiment, helptext, override
from fedray.terminal import INTERRUPTS, interruptible, say
from fedray.types import FedRayError, RunError, for_command_line, suggestion

if TYPE_CHECKING:
    from fedray.types import Algorithm

T = TypeVar("T")

DONE, FAILED, REFUSED, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141  # exit codes of every command
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
    """Show an optional setting as ``INT``, not as tyro's ``{None}|INT``."""
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


class Door(NamedTuple):
    """A command: the module with its ``main(argv) -> exit code``, and its line in --help."""

    module: str
    summary: str


DOORS = {
    "launch": Door("fedray.launch", "run one federation, track it, and keep its result"),
    "tune": Door("tune.__main__", "search the settings of a federation, with Ray Tune"),
    "compare": Door("fedray.compare.__main__", "make tables and figures of finished runs"),
    "studies": Door("fedray.studies.__main__", "run all experiments behind a table"),
    "truth": Door("fedray.truth.__main__", "measure the methods' posteriors against exact ones"),
    "status": Door("fedray.status", "show how far the runs are"),
    "serve": Door("fedray.serve", "answer requests over HTTP with the models of a finished run"),
    "newcomers": Door("fedray.newcomers", "adapt a finished run to clients that it has never met"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """``fedray COMMAND [options]``: run a command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else "--help"
    if name == "--version":
        print(f"fedray {fedray.__version__}")
        return DONE
    if name in ("-h", "--help"):
        print(_help())
        return DONE

    def body() -> int:
        if name not in DOORS:
            raise FedRayError(
                f"{name}: not a command; {suggestion(name, DOORS)}choose from {', '.join(DOORS)}, --help or --version"
            )
        return import_module(DOORS[name].module).main(words[1:])

    return run_command(body)


def console() -> NoReturn:
    """The ``fedray`` command of the terminal."""
    leave(main)


def _help() -> str:
    commands = "\n".join(f"  {name:<10} {door.summary}" for name, door in DOORS.items())
    return (
        "usage: fedray COMMAND [options]\n\n"
        "Personalized Bayesian federated learning on Ray. COMMAND is one of\n\n"
        f"{commands}\n\n"
        "A first session:\n\n"
        "  fedray launch --rounds 5                 train the default algorithm on the digits of scikit-learn\n"
        "  fedray launch fedavg --lr 0.1            another algorithm\n"
        "  fedray compare                           compare the runs so far\n\n"
        "fedray COMMAND --help lists the options of a command, fedray --version prints the version. Every command\n"
        "also runs as a module: python -m fedray.launch, python -m tune, and so on."
    )


def run_command(body: Callable[[], int], interrupted: str = "interrupted") -> int:
    """Run a command and return its exit code.

    The body returns DONE or FAILED. A FedRayError is printed: FAILED if a run had begun, else REFUSED. SIGINT and
    SIGTERM stop the body with a KeyboardInterrupt: INTERRUPTED, after the given text.
    """
    try:
        with interruptible():
            return body()
    except FedRayError as error:
        say(f"error: {for_command_line(error)}")
        return FAILED if isinstance(error, RunError) else REFUSED
    except KeyboardInterrupt:
        say(interrupted)
        return INTERRUPTED


def leave(main: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its code; signals that arrive after its end do not change the code.

    Where the reader of stdout leaves before the end, as ``| head`` does, the command ends in silence: UNREAD.
    """
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)  # what run_command restores; Python's own exit takes seconds
    try:
        try:
            code = main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _unread(sys.stdout.fileno()):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush at exit
        code = UNREAD
    sys.exit(code)


def _unread(pipe: int) -> bool:
    """Whether nobody reads a pipe any more."""
    poll = select.poll()
    poll.register(pipe, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def read_options(kind: type[T], argv: Sequence[str], prog: str, description: str, pairs: bool = False) -> T:
    """A command line as a dataclass of options; tyro prints help and mistakes and leaves with exit code 0 or 2.

    A switch is only turned away from its default unless there are ``pairs``: --x beside --no-x.
    """
    off = () if pairs else (tyro.conf.FlagCreatePairsOff,)
    return tyro.cli(
        kind,
        prog=prog,
        description=description,
        args=list(argv),
        config=(*off, tyro.conf.HelptextFromCommentsOff, tyro.conf.SuppressFixed),
        registry=_tyro,
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
    exits with code 0 or 2. --help-all shows all options in groups; with a ``brief`` description --help shows those that
    matter first. Raises FedRayError for an unknown algorithm or preset.
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
        settings = helptext.short(name, experiment.algorithm, (experiment, execution))
        raise _shown_help(f"{prog} [ALGORITHM] [OPTIONS]", brief(names, name), settings)
    if "--help-all" in argv:
        boxes = [_box(title, some) for title, some in _grouped(fields, name).items()]
        raise _shown_help(f"{prog} [ALGORITHM] [OPTIONS]", describe(names, name), *boxes)
    options: type[Any] = dataclasses.make_dataclass("Options", fields, frozen=True)
    usage = f"{prog} {name}" if given else prog
    parsed = read_options(
        options, argv, usage, describe(names, name), pairs=base is not None
    )  # a switch may be repeated
    experiment = dataclasses.replace(parsed.experiment, algorithm=parsed.algorithm)
    return Parsed(experiment, parsed.execution, parsed.preset, parsed)


def _grouped(fields: Sequence[tuple[str, Any, Any]], name: str) -> dict[str, list[tuple[str, Any, Any]]]:
    """The options by what they are about; data, model, checkpoints and tracking have boxes of their own in these."""
    titles = {"algorithm": f"options of {name}", "experiment": "federation", "execution": "execution"}
    grouped: dict[str, list[tuple[str, Any, Any]]] = {title: [] for title in ("this command", *titles.values())}
    for field in fields:
        grouped[titles.get(field[0], "this command")].append(field)
    return grouped


def _box(title: str, fields: Sequence[tuple[str, Any, Any]]) -> str:
    """The help of some options in a box with a title, as tyro prints it."""
    kind: type[Any] = dataclasses.make_dataclass("Options", fields, frozen=True)
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="utf-8")  # with an encoding, for which tyro draws lines
    with contextlib.redirect_stdout(stream), contextlib.suppress(SystemExit):
        read_options(kind, ["--help"], "", "")
    stream.flush()
    return helptext.boxed(title, content.getvalue().decode())


def _shown_help(usage: str, *parts: str) -> SystemExit:
    """Print a help text; returns what ends the command."""
    print("\n\n".join([f"usage: {usage}", *parts]))
    return SystemExit(DONE)


def early(argv: Sequence[str], option: str) -> str:
    """The value of an option that must be read first, because it changes the defaults of the others; "" without one.

    Raises FedRayError for an empty value, as of a variable of the shell that is not set.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(option, default=None, nargs="?", dest="value")
    value = parser.parse_known_args(list(argv))[0].value
    if value == "":
        raise FedRayError(f"{option} '': is empty; give its value, or leave it out")
    return value or ""


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


def listed(names: Mapping[str, Algorithm]) -> str:
    """The algorithms with their summaries, for a description."""
    width = max(map(len, names))
    return "\n".join(f"  {name:<{width}}  {record.summary}" for name, record in names.items())


def wrapped(names: Iterable[str]) -> str:
    """Names alone, for a short description."""
    return textwrap.fill(", ".join(names), helptext.WIDTH, initial_indent="  ", subsequent_indent="  ")


def named_plug_ins() -> str:
    """The names of the datasets, partitions, networks and selection policies, for a short description."""
    shown = {option: dict.fromkeys(_shown(*item) for item in table.items()) for option, table in _tables().items()}
    return "\n".join(f"{option} is one of\n{wrapped(names)}" for option, names in shown.items())


def _tables() -> dict[str, Mapping[str, Any]]:
    """The plug-ins by the option that names them."""
    from fedray import registry

    return {
        "--selection": registry.selections(),
        "--data.name": registry.datasets(),
        "--data.partition": registry.partitions(),
        "--model.name": registry.networks(),
    }


def listed_plug_ins() -> str:
    """The selection policies, datasets, partitions and networks with their summaries, for a description."""
    parts: list[str] = []
    for option, table in _tables().items():
        width = max(map(len, table))
        lines = [f"  {_shown(name, record):<{width}}  {record.summary}" for name, record in table.items()]
        parts.append("\n".join([f"{option} is one of", *lines]))
    return "\n\n".join(parts)


def _shown(name: str, record: Any) -> str:
    """A name as the user types it: a file format stands for the path of a file, a family for one of its tables."""
    if getattr(record, "suffixes", ()):
        return "PATH"
    return f"{name}-NAME" if getattr(record, "tables", ()) else name


def command(experiment: Experiment) -> str:
    """The launch command of an experiment: every setting that is not a default, floats to the last bit."""
    from fedray import registry

    name = registry.algorithm_name(experiment.algorithm)
    record = registry.algorithms()[name]
    default = override(Experiment(algorithm=record.config()), dict(record.defaults))
    words = ["python -m fedray.launch", name, *(f"--plugin {module}" for module in registry.plug_ins())]
    words += _options(experiment, default, "")
    return " ".join(words + _options(experiment.algorithm, default.algorithm, ""))


def _options(cfg: Any, default: Any, prefix: str) -> list[str]:
    words: list[str] = []
    for field in dataclasses.fields(cfg):
        value, usual = getattr(cfg, field.name), getattr(default, field.name)
        name = field.name.replace("_", "-")
        option = prefix + name
        if field.name == "algorithm" or value == usual or value is None:
            continue
        if dataclasses.is_dataclass(value):
            words += _options(value, usual, f"{option}.")
        elif isinstance(value, bool):
            words += [f"--{option}" if value else f"--{prefix}no-{name}"]
        else:
            items = value if isinstance(value, tuple) else (value,)
            words += [f"--{option}", *(shlex.quote(str(item)) for item in items)]
    return words
