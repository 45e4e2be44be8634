"""What a study plays: its options, its runs, and what it leaves out. The studies lie in named/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from fedray.config import Execution, Experiment, fingerprint, override
from fedray.federate.planning import refusal, resolve
from fedray.studies.cell import Cell
from fedray.studies.named import STUDIES
from fedray.studies.tracked import finished
from fedray.types import FedRayError, check_types, require


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where the datasets are, and whether to download them."""

    root: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the datasets, in torchvision's layout; by default $FEDRAY_DATA_ROOT or ~/.cache/fedray."""
    download: bool = False
    """Let torchvision download a missing dataset into the root."""


@dataclass(frozen=True, kw_only=True)
class Playing(Execution):
    """How the runs of a study are played."""

    runtime: Literal["ray", "local"] = "ray"
    """ray: the clients of a run are Ray actors; local: every run is a process of its own, without Ray."""
    name: str | None = None
    """Not for studies: a run is named after its cell and seed."""
    output: str | Path | None = None
    """Folder of the study, by default runs/STUDY, or runs/results for `all`; it goes on where its runs are there."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How much of a study to run, and where."""

    seeds: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Runs per cell, with consecutive seeds; by default 2, in uncertainty studies 3, in selection studies 5."""
    seed_start: int = 0
    """The first seed."""
    rounds: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Communication rounds; by default those of the study (800 for the paper's tables)."""
    eval_every: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Evaluate after every k-th round and after the last; by default as the study does."""
    eval_last: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Evaluate after each of the last so many rounds, too; by default as the study does."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="CELL|TAG ...")] = ()
    """Only these cells, or all with these tags, such as zeta, rho_init or lr of table2, or an algorithm of
    table1-mnist."""
    size: Literal["small", "medium", "large", "all"] = "all"
    """Only the cells with this size of the data."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Run at most N of the runs that are not finished yet."""
    concurrency: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Runs at a time; by default as many as the cluster has room for, and with --runtime local as many as there are
    CPU cores. Results do not depend on it."""
    record: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Write a line of data for every finished run into DIR/STUDY.csv, such as docs/results; needs --runtime local, for
    CPU seconds and the kind of machine are those of this one."""
    list: bool = False
    """List the runs and which of them are finished, without running any."""
    data: Data = field(default_factory=Data)
    execution: Annotated[Execution, tyro.conf.arg(name="", constructor=Playing)] = field(default_factory=Playing)

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("seeds", "limit", "concurrency"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least one is needed", "leave it out")
        require(self.seed_start >= 0, "seed_start", self.seed_start, "must be at least zero", "leave it out")
        require(
            self.execution.name is None,
            "name",
            self.execution.name,
            "a study names its runs itself",
            "choose their folder with --output",
        )
        local = self.record is None or self.execution.runtime == "local"
        reason = "the kind of machine that played a run is only known without Ray"
        require(local, "record", self.record, reason, "add --runtime local, on the machine that plays")
        uri = self.execution.tracking.uri
        require(
            uri != "none",
            "tracking.uri",
            uri,
            "a study needs a store to know which runs are finished",
            "give sqlite:///FILE.db",
        )


class PlannedRun(NamedTuple):
    """A cell with a seed."""

    cell: str
    experiment: Experiment
    uncertainty: bool = False  # whether it ends with the uncertainty report

    @property
    def name(self) -> str:
        """The run's name."""
        return f"{self.cell}-s{self.experiment.seed}"

    @property
    def fingerprint(self) -> str:
        """The fingerprint under which the tracking store holds the run."""
        return fingerprint(resolve(self.experiment))


class Agenda(NamedTuple):
    """What a study plays, and what it leaves out."""

    runs: tuple[PlannedRun, ...]
    left_out: Mapping[str, str]  # name of a cell -> why it cannot be played

    @property
    def omissions(self) -> list[str]:
        """A line for each reason why cells are left out."""
        return [f"left out  {line}" for line in _grouped(self.left_out)]


def plan_runs(study: str, options: Options) -> Agenda:
    """The selected cells of a study that can be played, once per seed: all with the first seed, then all with the next.

    A cell is left out where its settings alone speak against it, such as a method that does not take the network.
    Raises FedRayError if the options select no cell, or none that can be played.
    """
    settings: dict[str, Any] = {f"data.{key}": value for key, value in vars(options.data).items()}
    given = {name: getattr(options, name) for name in ("rounds", "eval_every", "eval_last")}
    settings |= {name: value for name, value in given.items() if value is not None}
    selected = [each._replace(experiment=override(each.experiment, settings)) for each in _select(study, options)]
    reasons = {cell.name: refusal(cell.experiment) for cell in selected}
    left_out = {name: reason for name, reason in reasons.items() if reason is not None}
    cells = [cell for cell in selected if cell.name not in left_out]
    if not cells:
        raise FedRayError(f"{study}: none of the selected cells can be played; {'; '.join(_grouped(left_out))}")
    runs = []
    for number in range(max(_seeds(cell, options) for cell in cells)):
        seed = options.seed_start + number
        for cell in cells:
            if number < _seeds(cell, options):
                runs.append(PlannedRun(cell.name, override(cell.experiment, {"seed": seed}), cell.uncertainty))
    return Agenda(tuple(runs), left_out)


def _grouped(left_out: Mapping[str, str]) -> list[str]:
    """One line for each reason why cells are left out."""
    names: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        names.setdefault(reason, []).append(name)
    return [f"{', '.join(cells)}: {reason}" for reason, cells in names.items()]


def _select(study: str, options: Options) -> list[Cell]:
    """The cells of a study that --only and --size select."""
    cells = every = STUDIES[study]()
    known = dict.fromkeys([*(tag for cell in cells for tag in cell.tags), *(cell.name for cell in cells)])
    for word in options.only:
        require(word in known, "only", word, f"no cell and no tag of {study}", f"choose from {', '.join(known)}")
    sizes = ("all", *dict.fromkeys(cell.experiment.data.size for cell in cells))
    require(options.size in sizes, "size", options.size, f"{study} has no such cell", f"choose from {', '.join(sizes)}")
    if options.size != "all":
        cells = [cell for cell in cells if cell.experiment.data.size == options.size]
    if options.only:
        names = {cell.name for cell in every}
        chosen, tags = names.intersection(options.only), set(options.only) - names
        cells = [cell for cell in cells if cell.name in chosen or tags.intersection(cell.tags)]
        reason = f"no such cell of {study} has the size {options.size}"
        require(bool(cells), "only", " ".join(options.only), reason, "give another size, or `size=all`")
    return cells


def _seeds(cell: Cell, options: Options) -> int:
    return cell.seeds if options.seeds is None else options.seeds


def listing(study: str, options: Options) -> list[str]:
    """A line for each run of a study, which says whether it is finished, and for what the study leaves out.

    *later* are runs beyond ``--limit``.
    """
    tracking = options.execution.tracking
    done = finished(study, tracking.uri, tracking.experiment)
    agenda = plan_runs(study, options)
    todo = [run.fingerprint for run in agenda.runs if run.fingerprint not in done]
    state = dict.fromkeys(todo, "later") | dict.fromkeys(todo[: options.limit], "to run")
    lines = [f"{state.get(run.fingerprint, 'finished'):<8}  {run.name}" for run in agenda.runs]
    return lines + agenda.omissions
