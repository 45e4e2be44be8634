"""python -m fedray.truth [options]: how far the methods' posteriors are from the exact ones."""

from __future__ import annotations

from fedray.cli import enter

if __name__ == "__main__":
    enter("truth")

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedray import cli, registry
from fedray.running.files import write_json, write_table, write_whole
from fedray.terminal import bar, check_packages, say
from fedray.truth import meter, reference, report
from fedray.truth.problem import PROBLEMS
from fedray.types import FedRayError, RunError, require


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure the posteriors of all Bayesian methods on small models whose exact posteriors are known."""

    problems: tuple[str, ...] = tuple(PROBLEMS)
    """Which problems, of the list above."""
    sets: int = 25
    """Simulated data sets per method with a global posterior, in which the true parameters are ranked; 1: none are."""
    quick: bool = False
    """Only the problem orthogonal, and one data set: a minute."""
    processes: int = 2
    """Processes that share the work."""
    output: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/truth")
    """Folder for table.csv, ranks.csv, truth.json, table.md and figures/ranks.png, which are replaced."""
    json: bool = False
    """Print truth.json instead of the tables."""


def measure(options: Options) -> list[meter.Contest]:
    """All rows; raises FedRayError for options that cannot be, before the first federation."""
    for name in options.problems:
        registry.pick(PROBLEMS, "`problems`", name)
    for name in ("sets", "processes"):
        require(getattr(options, name) >= 1, name, getattr(options, name), "at least one is needed", "leave it out")
    reason = "nothing would be measured, and the files of --output would be empty"
    require(bool(options.problems), "problems", "", reason, f"choose from {', '.join(PROBLEMS)}")
    own = options.problems in (tuple(PROBLEMS), (report.EXACT,))
    reason, remedy = f"with `quick` only {report.EXACT} is measured", "leave either out"
    require(own or not options.quick, "problems", " ".join(options.problems), reason, remedy)
    problems = (report.EXACT,) if options.quick else tuple(dict.fromkeys(options.problems))
    for name in problems:
        reference.check(PROBLEMS[name])
    claim(options.output)
    sets = sets_of(options)
    with bar("federations", meter.count(problems, sets), "starting") as moved:
        return meter.play(problems, sets, options.processes, moved)


def sets_of(options: Options) -> int:
    """How many data sets there are per method with a global posterior."""
    return 1 if options.quick else options.sets


def claim(folder: Path) -> None:
    """Make the folder of the files; raises FedRayError where they could not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FedRayError(_unwritten(folder, error)) from None


def _unwritten(folder: Path, error: OSError) -> str:
    return f"--output {folder}: cannot be written ({error.strerror}); choose a folder that can be, with room for files"


def keep(options: Options, rows: Sequence[meter.Contest]) -> None:
    """Write the files."""
    folder = options.output
    write_table(folder / "table.csv", [report.record(row) for row in rows])
    write_table(folder / "ranks.csv", report.histogram(rows))
    write_json(folder / "truth.json", report.summary(rows, {"sets": sets_of(options), "quick": options.quick}))
    write_whole(folder / "table.md", report.markdown(rows) + "\n")
    report.save_figure(folder, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Exit codes: 0 done, 1 a method that must be exact is not, 2 invalid request."""

    def body() -> int:
        check_packages()
        described = "\n".join(f"  {name:<20}{problem.summary}" for name, problem in PROBLEMS.items())
        options = cli.read_options(
            Options,
            sys.argv[1:] if argv is None else argv,
            "python -m fedray.truth",
            f"How far the methods' posteriors are from the exact ones. Problems are\n\n{described}",
        )
        rows = measure(options)
        try:
            keep(options, rows)
        except OSError as error:
            print(report.markdown(rows))  # what took so long to measure is not lost
            raise RunError(_unwritten(options.output, error)) from None
        print((options.output / "truth.json").read_text().rstrip() if options.json else report.markdown(rows))
        found = report.bars(rows)
        for method, passed in found.items():
            say(f"{report.EXACT}: {method}: KL below {report.BAR:g} nats: {'yes' if passed else 'NO'}")
        say(f"result   {options.output}")
        return cli.DONE if all(found.values()) else cli.FAILED

    return cli.run_command(body, "interrupted: nothing was written")
