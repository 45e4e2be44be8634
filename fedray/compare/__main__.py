"""python -m fedray.compare [options]: tables and figures of the finished runs in a tracking store."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tyro

from fedray.compare.comparison import FORMATS, Options, compare, listed
from fedray.terminal import say
from fedray.types import FedRayError


def parse(argv: Sequence[str]) -> Options:
    """The options of a command line. tyro prints help and errors, and exits with code 0 or 2."""
    return tyro.cli(
        Options,
        prog="python -m fedray.compare",
        description="Tables and figures of finished runs: mean and standard deviation over seeds, the best result in "
        "bold, and published results beside them where there are any.",
        args=list(argv),
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Exit codes: 0 done, 2 invalid request, 130 interrupted."""
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        print(compare(options), end="")
    except FedRayError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    for name in listed("format", options.format):
        say(f"{name:<8} {options.output / FORMATS[name]}")
    say(f"figures  {options.output / 'figures'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
