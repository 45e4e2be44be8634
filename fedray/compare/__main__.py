"""python -m fedray.compare [options]: tables and figures of the finished runs in a tracking store."""

from __future__ import annotations

from fedray.cli import enter

if __name__ == "__main__":
    enter("compare")

import sys
from collections.abc import Sequence

from fedray import cli
from fedray.compare.comparison import FORMATS, Options, compare, listed
from fedray.terminal import say


def parse(argv: Sequence[str]) -> Options:
    """The options of a command line."""
    return cli.read_options(
        Options,
        argv,
        "python -m fedray.compare",
        "Tables and figures of finished runs: mean over seeds ± half its 95 % interval, the best result in bold, and "
        "published results beside them where there are any.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Exit codes: 0 done, 2 invalid request, 130 interrupted."""

    def body() -> int:
        options = parse(sys.argv[1:] if argv is None else argv)
        print(compare(options), end="")
        for name in listed("format", options.format):
            say(f"{name:<8} {options.output / FORMATS[name]}")
        say(f"figures  {options.output / 'figures'}")
        return cli.DONE

    return cli.run_command(body)
