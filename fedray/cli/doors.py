"""The ``fedray`` command, which runs the others by their names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn

import fedray
from fedray.cli.exits import DONE, leave, run_command
from fedray.types import FedRayError, suggestion


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


def enter(name: str) -> NoReturn:
    """A command as a module, ``python -m``: called before the imports that take seconds, in which Ctrl-C may come."""
    leave(lambda: main([name, *sys.argv[1:]]))


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
