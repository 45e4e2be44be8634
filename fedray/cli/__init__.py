"""Command lines: the ``fedray`` command, options that are made of the settings, and how a command ends."""

from fedray.cli.doors import DOORS, console, enter, main
from fedray.cli.exits import DONE, FAILED, INTERRUPTED, REFUSED, UNREAD, leave, run_command
from fedray.cli.names import listed, listed_plug_ins, named_plug_ins, wrapped
from fedray.cli.parsing import Parsed, parse
from fedray.cli.reading import early, read_options
from fedray.cli.written import command, load_command

__all__ = [
    "DONE",
    "DOORS",
    "FAILED",
    "INTERRUPTED",
    "REFUSED",
    "UNREAD",
    "Parsed",
    "command",
    "console",
    "early",
    "enter",
    "leave",
    "listed",
    "listed_plug_ins",
    "load_command",
    "main",
    "named_plug_ins",
    "parse",
    "read_options",
    "run_command",
    "wrapped",
]
