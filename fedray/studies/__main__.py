"""python -m fedray.studies STUDY [options]: run the experiments behind a table, side by side on the whole cluster.

``page``, ``verify STUDY/CELL`` and ``all`` in the place of a study are about the published results.
"""

from __future__ import annotations

from fedray.cli import enter

if __name__ == "__main__":
    enter("studies")

import shlex
import sys
from collections.abc import Sequence

from fedray import cli, registry
from fedray.running.mlflow_store import shown
from fedray.studies.agenda import Options, listing
from fedray.studies.named import STUDIES
from fedray.studies.results.commands import COMMANDS
from fedray.studies.study import play
from fedray.terminal import check_packages, say
from fedray.types import FedRayError, require


def parse(argv: Sequence[str]) -> tuple[str, Options]:
    """The name of a study and its options."""
    named = bool(argv) and not argv[0].startswith("-")
    if named:
        registry.pick(STUDIES, "study", argv[0])
    elif "-h" not in argv and "--help" not in argv:
        raise FedRayError(f"no study is given; choose from {', '.join(STUDIES)}")
    width = max(map(len, STUDIES))
    studies = "\n".join(
        f"  {name:<{width}}  {(study.__doc__ or '').splitlines()[0]}" for name, study in STUDIES.items()
    )
    options = cli.read_options(
        Options,
        argv[1:] if named else argv,
        f"python -m fedray.studies {argv[0] if named else 'STUDY'}",
        "Run a study. Runs that the tracking store holds as finished are skipped. Results go to folders in --output, "
        "by default runs/STUDY. In the place of a study, page makes the page of the published results, verify "
        "STUDY/CELL plays one of them again, and all plays those that are missing. STUDY is one of"
        f"\n{studies}",
    )
    named_none = "--only" in argv and not options.only
    require(not named_none, "only", "", "no cell is named", "name cells or tags, or leave the option out")
    return argv[0], options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Exit codes: 0 done, 1 some run failed, 2 invalid request, 130 interrupted."""

    words = sys.argv[1:] if argv is None else argv
    again = f"python -m fedray.studies {shlex.join(map(shown, words))}"

    def body() -> int:
        check_packages()
        if words and words[0] in COMMANDS:
            return COMMANDS[words[0]](words[1:], again)
        study, options = parse(words)
        if options.list:
            print("\n".join(listing(study, options)))
            return cli.DONE
        failed = play(study, options, again)
        for name, reason in failed.items():
            say(f"failed   {name}: {reason.splitlines()[0]}")
        if failed:
            say(f"again    {again}")
        return cli.FAILED if failed else cli.DONE

    return cli.run_command(body, f"interrupted: finished runs are kept; the same command continues\ngo on    {again}")
