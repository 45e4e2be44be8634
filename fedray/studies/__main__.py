"""python -m fedray.studies STUDY [options]: run the experiments behind a table, one after the other."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence

import tyro

from fedray import registry
from fedray.studies.named import STUDIES
from fedray.studies.study import Options, conclude, list_runs, run
from fedray.terminal import check_packages, say
from fedray.types import FedRayError


def parse(argv: Sequence[str]) -> tuple[str, Options]:
    """The name of a study and its options. tyro prints help and errors, and exits with code 0 or 2."""
    named = bool(argv) and not argv[0].startswith("-")
    if named:
        registry.pick(STUDIES, "study", argv[0])
    elif "-h" not in argv and "--help" not in argv:
        raise FedRayError(f"no study is given; choose from {', '.join(STUDIES)}")
    studies = "\n".join(f"  {name:<16}  {(study.__doc__ or '').splitlines()[0]}" for name, study in STUDIES.items())
    options = tyro.cli(
        Options,
        prog=f"python -m fedray.studies {argv[0] if named else 'STUDY'}",
        description=(
            "Run a study. Runs that the tracking store holds as finished are skipped. Results go to folders in "
            f"--output, by default runs/STUDY. STUDY is one of\n\n{studies}"
        ),
        args=list(argv[1:] if named else argv),
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff),
    )
    return argv[0], options


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt  # not a second SIGINT, which background jobs of a shell may ignore


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Exit codes: 0 done, 1 some run failed, 2 invalid request, 130 interrupted."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)  # clean up after SIGTERM as after Ctrl-C
    try:
        check_packages()
        study, options = parse(sys.argv[1:] if argv is None else argv)
        if options.list:
            for name, done in list_runs(study, options).items():
                print(f"{'finished' if done else 'to run':<8}  {name}")
            return 0
        tally = run(study, options)
    except FedRayError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted: finished runs are kept; the same command continues where this one stopped")
        return 130
    conclude(study, options, tally)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
