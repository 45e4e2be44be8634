"""The commands about published results: page, verify and all. Each reads its words and returns an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from fedray import cli
from fedray.config import Execution
from fedray.running.files import write_whole
from fedray.studies.agenda import Data, Options, Playing
from fedray.studies.results import missing, page
from fedray.studies.results import verify as repeat
from fedray.terminal import say
from fedray.types import FedRayError, check_types, require

RESULTS = Path("docs/results")
PROG = "python -m fedray.studies"


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Make the page of published results, and its figures, of the data beside it."""

    results: Annotated[Path, tyro.conf.arg(metavar="DIR")] = RESULTS
    """Folder of the data."""


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Play a published run again, and say whether it comes out the same."""

    seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Seed of the run; by default the first that is published."""
    rounds: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Rounds of the run, where the cell is published with several; by default the most."""
    results: Annotated[Path, tyro.conf.arg(metavar="DIR")] = RESULTS
    """Folder of the data."""
    data: Data = field(default_factory=Data)


@dataclass(frozen=True, kw_only=True)
class AllOptions:
    """Play every published run that is missing in the data, cheapest first."""

    results: Annotated[Path, tyro.conf.arg(metavar="DIR")] = RESULTS
    """Folder of the data."""
    list: bool = False
    """List the missing runs and what they will cost, without playing any."""
    measure: bool = False
    """First play three rounds of every cell of unknown cost; the estimates are kept beside the data."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Play at most N of the cells that are missing."""
    concurrency: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Runs at a time; by default as many as there are CPU cores."""
    data: Data = field(default_factory=Data)
    execution: Annotated[Execution, tyro.conf.arg(name="", constructor=Playing)] = field(
        default_factory=lambda: Playing(runtime="local")
    )

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("limit", "concurrency"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least one is needed", "leave it out")


def _known(folder: Path) -> Path:
    """The folder of the data; raises FedRayError where there is none."""
    remedy = "give the folder of the data, or record a study there with --record"
    require(folder.is_dir(), "results", folder, "it is not a folder", remedy)
    return folder


def make_page(words: Sequence[str], again: str) -> int:
    """``page``: write the page; exit code 1 where a figure that is apart from its paper has no paragraph.

    ``again`` is what the user typed, as in the commands below.
    """
    options = cli.read_options(PageOptions, words, f"{PROG} page", PageOptions.__doc__ or "")
    text = page.make(_known(options.results))
    page.draw(options.results)
    write_whole(options.results / page.PAGE, text)
    say(f"page     {options.results / page.PAGE}")
    gaps = page.gaps(options.results)
    for gap in gaps:
        say(f"missing  {gap}")
    return cli.FAILED if gaps else cli.DONE


def verify(words: Sequence[str], again: str) -> int:
    """``verify STUDY/CELL``: exit code 0 where the run comes out the same."""
    named = bool(words) and not words[0].startswith("-")
    if not named and "-h" not in words and "--help" not in words:
        raise FedRayError("verify: no cell is given; give STUDY/CELL, such as selection/hip")
    prog = f"{PROG} verify {words[0] if named else 'STUDY/CELL'}"
    options = cli.read_options(VerifyOptions, words[1:] if named else words, prog, VerifyOptions.__doc__ or "")
    answer = repeat.verify(_known(options.results), words[0], options.seed, options.rounds, options.data)
    print(f"{words[0]}: {answer.text}")
    return cli.DONE if answer.same else cli.FAILED


def play_all(words: Sequence[str], again: str) -> int:
    """``all``: exit code 1 where some run failed."""
    options = cli.read_options(AllOptions, words, f"{PROG} all", AllOptions.__doc__ or "")
    output = Path(options.execution.output or "runs/results")
    works = missing.missing(_known(options.results))
    if options.measure:
        missing.measure(works[: options.limit], options.results, options.data)
        works = missing.missing(options.results)
    if options.list:
        print("\n".join(missing.listing(works)))
        return cli.DONE
    shared = Options(concurrency=options.concurrency, data=options.data, execution=options.execution)
    failed = missing.play(works[: options.limit], shared, options.results, output, again)
    for name, reason in failed.items():
        say(f"failed   {name}: {reason.splitlines()[0]}")
    return cli.FAILED if failed else cli.DONE


COMMANDS = {"page": make_page, "verify": verify, "all": play_all}
