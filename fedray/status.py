"""python -m fedray.status [RUN_FOLDER ...]: how far the federations are, asked from another terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from fedray import cli
from fedray.running.progress import RUNS, entry, line, read, unfinished
from fedray.terminal import say
from fedray.types import require

REFRESH_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """Whose status, and how it is shown."""

    folders: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs; by default every run below runs/ that is not finished."""
    json: bool = False
    """Print a JSON list of the statuses on stdout, with 'folder' and 'seconds_left'."""
    watch: bool = False
    """Show it again every two seconds until no run is running."""


def show(options: Options) -> None:
    """Print the statuses once; raises FedRayError for a folder without one."""
    folders = options.folders or unfinished()
    found = {folder: read(folder) for folder in folders}
    if options.json:
        print(json.dumps([entry(*item) for item in found.items()], indent=2))
        return
    for status in found.values():
        print(line(status))
    if not found:
        remedy = "give the folder of a finished one, or start one: python -m fedray.launch"
        say(f"no unfinished run below {RUNS}/; {remedy}")


def watch(options: Options) -> None:
    """Show the statuses until no run is running; those that end meanwhile stay."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    folders: dict[Path, None] = {}
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            folders |= dict.fromkeys(options.folders or unfinished())
            found = [read(folder) for folder in folders]
            live.update(Text("\n".join(map(line, found)), overflow="fold"), refresh=True)
            if not any(status.state == "running" for status in found):
                return
            time.sleep(REFRESH_SECONDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 2 the request was at fault, 130 interrupted."""

    def body() -> int:
        options = cli.read_options(
            Options,
            sys.argv[1:] if argv is None else argv,
            "python -m fedray.status",
            "One line per federation: round, accuracies, seconds per round, time left, failures, last checkpoint, and "
            "when its driver last wrote. It reads files only and disturbs no run.\n\n"
            "  python -m fedray.status                  every run below runs/ that is not finished\n"
            "  python -m fedray.status runs/NAME        one run, finished or not\n"
            "  python -m fedray.status --watch          again every two seconds",
        )
        both = options.watch and options.json
        require(not both, "watch", "--json", "a list that grows is not JSON", "choose one of them")
        (watch if options.watch else show)(options)
        return cli.DONE

    return cli.run_command(body)


if __name__ == "__main__":
    cli.leave(main)
