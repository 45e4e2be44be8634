"""python -m fedray.studies STUDY [options]: run the experiments behind a table, one after the other.

A run carries its study's name and the fingerprint of its settings into the tracking store: a study that is started
again skips what is finished there. What the studies are is in cells.py.
"""

from __future__ import annotations

import dataclasses
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from fedray import registry
from fedray.compare import comparison
from fedray.compare.runs import finished
from fedray.config import Execution, TrackingConfig, fingerprint, override
from fedray.federate.plan import make_plan, resolve
from fedray.run import mlflow_store, runfolder, session
from fedray.studies.named import STUDIES, TABLES, Cell
from fedray.terminal import check_packages, say
from fedray.types import FedRayError, check_choices, require


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where the datasets are."""

    root: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder that holds the dataset in torchvision's layout; by default $FEDRAY_DATA_ROOT or ~/.cache/fedray."""
    download: bool = False
    """Let torchvision download the dataset into the root when it is missing."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How much of a study to run, and where."""

    seeds: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Runs per cell, with seeds that follow each other; by default the study's (2; 5 where it compares selections)."""
    seed_start: int = 0
    """The first seed."""
    rounds: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Communication rounds; by default the study's (800 for the paper's tables)."""
    eval_every: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Evaluate after every k-th round (and after the last); by default the study's."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ROW ...")] = ()
    """Cells of these rows, such as zeta, rho_init or lr of table2, or an algorithm of table1-mnist."""
    size: Literal["small", "medium", "large", "all"] = "all"
    """Cells of this size of the data."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Run at most N of the cells that are not finished yet."""
    list: bool = False
    """Show the cells and which are finished, and run none."""
    data: Data = field(default_factory=Data)
    execution: Annotated[Execution, tyro.conf.arg(name="")] = field(default_factory=Execution)

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("seeds", "limit"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least one is needed", "leave it out")
        require(self.execution.name is None, "name", self.execution.name, "a study names its runs", "use --output")
        uri = self.execution.tracking.uri
        require(uri != "none", "tracking.uri", uri, "the store knows what is finished", "give sqlite:///FILE.db")


def parse(argv: Sequence[str]) -> tuple[str, Options]:
    """The study's name and options of a command line; tyro prints help and mistakes and leaves (exit code 0, 2)."""
    given = bool(argv) and not argv[0].startswith("-")
    if given:
        registry.pick(STUDIES, "study", argv[0])
    elif "-h" not in argv and "--help" not in argv:
        raise FedRayError(f"no study is given; choose from {', '.join(STUDIES)}")
    listed = "\n".join(f"  {name:<16}  {(study.__doc__ or '').splitlines()[0]}" for name, study in STUDIES.items())
    options = tyro.cli(
        Options,
        prog=f"python -m fedray.studies {argv[0] if given else 'STUDY'}",
        description=(
            "Run a study, skipping the cells that the tracking store holds. Results go to folders in --output, by "
            f"default runs/STUDY. STUDY is one of\n\n{listed}"
        ),
        args=list(argv[1:] if given else argv),
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff),
    )
    return argv[0], options


def runs(name: str, options: Options) -> list[Cell]:
    """The cells of a study that the options select, once per seed; raises FedRayError where there are none."""
    cells = STUDIES[name]()
    known = dict.fromkeys(axis for cell in cells for axis in cell.axes)
    for word in options.only:
        require(word in known, "only", word, f"no row of {name}", f"choose from {', '.join(known)}")
    sizes = dict.fromkeys(cell.experiment.data.size for cell in cells)
    right = options.size == "all" or options.size in sizes
    require(right, "size", options.size, f"{name} has no such cell", f"choose from {', '.join(sizes)}")
    chosen = [cell for cell in cells if options.size in ("all", cell.experiment.data.size)]
    chosen = [cell for cell in chosen if not options.only or set(options.only) & set(cell.axes)]
    settings = {f"data.{key}": value for key, value in vars(options.data).items()}
    settings |= {key: value for key in ("rounds", "eval_every") if (value := getattr(options, key)) is not None}
    return [
        cell._replace(name=f"{cell.name}-s{seed}", experiment=override(cell.experiment, settings | {"seed": seed}))
        for seed in range(options.seed_start, options.seed_start + max(_seeds(cell, options) for cell in chosen))
        for cell in chosen
        if seed < options.seed_start + _seeds(cell, options)
    ]


def _seeds(cell: Cell, options: Options) -> int:
    return cell.seeds if options.seeds is None else options.seeds


class Tally(NamedTuple):
    """How a study went."""

    ran: int
    skipped: int
    failed: tuple[str, ...]  # names of cells


def run(study: str, options: Options) -> Tally:
    """Run the cells that the store lacks, one after the other; a cell that fails is reported and passed over.

    Raises FedRayError before the first cell where the store or the data are at fault.
    """
    cells, track = runs(study, options), options.execution.tracking
    done = finished(study, track.uri, track.experiment)
    todo = [cell for cell in cells if identity(cell) not in done]
    chosen = todo[: options.limit]
    say(f"{study}: {len(cells)} cells, {len(cells) - len(todo)} finished before, {len(chosen)} to run now")
    if chosen:
        make_plan(chosen[0].experiment)
    ran, failed = 0, []
    for number, cell in enumerate(chosen, 1):
        say(f"[{number}/{len(chosen)}] {cell.name}")
        try:
            say(f"  {_line(session.run(request(study, cell, options), {'study': study}).summary)}")
            ran += 1
        except Exception as error:  # one bad cell must not cost the night
            if not isinstance(error, FedRayError):
                traceback.print_exc()
            say(f"  failed: {error}")
            failed.append(cell.name)
    return Tally(ran, len(cells) - len(todo), tuple(failed))


def identity(cell: Cell) -> str:
    """The fingerprint under which a run of the cell is stored."""
    return fingerprint(resolve(cell.experiment))


def _folder(study: str, options: Options) -> Path:
    return Path(options.execution.output or Path("runs") / study)


def request(study: str, cell: Cell, options: Options) -> session.Request:
    """What launch is to run for a cell; its result goes to a folder that no other settings share."""
    output = _folder(study, options) / f"{cell.name}-{identity(cell)[:6]}"
    begun = str(output) if (output / runfolder.NOTE).exists() else ""  # and was interrupted
    method = registry.algorithm_of(cell.experiment.algorithm)
    deviation = options.execution.loss_deviation and method.predict_personal is not None  # of the cells that have one
    execution = dataclasses.replace(options.execution, name=cell.name, output=output, loss_deviation=deviation)
    return session.Request(cell.experiment, execution, resume=begun)


def _line(summary: dict[str, Any]) -> str:
    shown = [f"{kind} {summary[kind]['accuracy']:.2%}" for kind in ("personal", "global") if summary[kind]]
    return f"{'  '.join(shown)}  {summary['seconds']:.0f} s"


def show(study: str, options: Options) -> None:
    """Print the cells and whether the store holds them."""
    track = options.execution.tracking
    done = finished(study, track.uri, track.experiment)
    for cell in runs(study, options):
        print(f"{'finished' if identity(cell) in done else 'to run':<8}  {cell.name}")


def conclude(study: str, options: Options, tally: Tally) -> None:
    """Say how it went and what to type next; of a study that is complete, print the table and write its figures."""
    say(f"{study}: {tally.ran} run, {tally.skipped} finished before, {len(tally.failed)} failed")
    if tally.failed:
        say(f"failed, tried again by the same command: {', '.join(tally.failed)}")
    track, default = options.execution.tracking, TrackingConfig()
    words = ["python", "-m", "fedray.compare", "--study", study]
    words += ["--uri", mlflow_store.shown(track.uri)] if track.uri != default.uri else []
    words += ["--experiment", track.experiment] if track.experiment != default.experiment else []
    words += [word for name, value in TABLES.get(study, {}).items() for word in (f"--{name}", value)]
    say(f"compare  {shlex.join(words)}")
    if tally.ran + tally.skipped == len(runs(study, options)):
        _compare(study, options)


def _compare(study: str, options: Options) -> None:
    track, output = options.execution.tracking, _folder(study, options) / "comparison"
    wanted = comparison.Options(study=study, uri=track.uri, experiment=track.experiment, output=output)
    try:
        print(comparison.compare(override(wanted, TABLES.get(study, {}))), end="")
        say(f"figures and report.html in {output}")
    except FedRayError as error:  # as where --only left out all that has a metric
        say(f"no table: {error}")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt  # not the signal: a shell may have had background jobs ignore that


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 1 some cell failed, 2 the request was at fault, 130 interrupted."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)  # a terminated study cleans up like an interrupted one
    try:
        check_packages()
        study, options = parse(sys.argv[1:] if argv is None else argv)
        if options.list:
            show(study, options)
            return 0
        tally = run(study, options)
    except FedRayError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted: finished cells are kept, the same command goes on with the next")
        return 130
    conclude(study, options, tally)
    return 1 if tally.failed else 0
