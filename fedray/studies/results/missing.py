"""The whole set: which published runs are missing, what they will cost, and how to play them, cheapest first."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedray.config import Execution, TrackingConfig, override
from fedray.config.decode import decode, refuse_damage
from fedray.federate.compiled.choice import choose
from fedray.federate.planning import make_plan
from fedray.running import session
from fedray.running.files import read_measures, write_json
from fedray.studies import study
from fedray.studies.agenda import Data, Options, PlannedRun
from fedray.studies.results import data, record
from fedray.studies.results.table import Table
from fedray.studies.results.tables import TABLES
from fedray.terminal import say
from fedray.types import FedRayError

COSTS = "costs.json"  # CPU seconds of cells that were only tried, beside the data
NO_DATA = (
    "the store has it as finished, but it left no data: it was played elsewhere, or by code that no commit has; give "
    "another store with --tracking.uri"
)
TRIED = 3  # rounds: the first is warm-up, the second has no evaluation, the third has one


class Work(NamedTuple):
    """A cell of a table, and what of it is missing."""

    table: Table
    runs: tuple[PlannedRun, ...]  # those that are not in the data, one per seed
    cpu_seconds: float | None  # of one run: that of another seed, or an estimate of some rounds; None: not known

    @property
    def name(self) -> str:
        """STUDY/CELL."""
        return f"{self.table.study}/{self.runs[0].cell}"


def missing(folder: Path) -> list[Work]:
    """What is missing in the data, in order of cost; cells of which no cost is known come last."""
    estimates = _estimates(folder)
    found = []
    for table in TABLES:
        lines = data.read(folder, table.study)
        played = {line.config for line in lines}
        left: dict[str, list[PlannedRun]] = {}
        for fingerprint, run in table.runs().items():
            if fingerprint not in played:
                left.setdefault(run.cell, []).append(run)
        for cell, runs in left.items():
            known = [line.cpu_seconds for line in lines if (line.cell, line.rounds) == (cell, table.rounds)]
            seconds = sum(known) / len(known) if known else estimates.get(runs[0].fingerprint)
            found.append(Work(table, tuple(runs), seconds))
    return sorted(found, key=lambda work: (work.cpu_seconds is None, work.cpu_seconds or 0.0))


def listing(works: Sequence[Work]) -> list[str]:
    """A line for each cell, and the sum."""
    lines = []
    for work in works:
        cost = "?" if work.cpu_seconds is None else f"{work.cpu_seconds / 60:.1f}"
        lines.append(f"{work.name:<44} {len(work.runs)} runs x {cost:>6} CPU min")
    return [*lines, total(works)]


def total(works: Sequence[Work]) -> str:
    """How many runs are missing, and what they will cost."""
    runs = sum(len(work.runs) for work in works)
    known = [work.cpu_seconds * len(work.runs) for work in works if work.cpu_seconds is not None]
    unknown = f", and {len(works) - len(known)} cells of unknown cost" if len(known) < len(works) else ""
    return f"{runs} runs are missing: {sum(known) / 3600:.1f} CPU hours{unknown}"


def measure(works: Sequence[Work], folder: Path, where: Data) -> None:
    """Play a few rounds of every cell of unknown cost, and keep the estimates; what was measured is not again."""
    for work in works:
        if work.cpu_seconds is None:
            try:
                seconds = _tried(work.runs[0], where)
            except FedRayError as error:
                say(f"{work.name}: {str(error).splitlines()[0]}")
                continue
            say(f"{work.name}: {seconds / 60:.1f} CPU minutes per run")
            write_json(folder / COSTS, dict(_estimates(folder)) | {work.runs[0].fingerprint: round(seconds, 1)})


def play(works: Sequence[Work], options: Options, folder: Path, output: Path, command: str) -> Mapping[str, str]:
    """Play what is missing, cell after cell, its seeds side by side; the names of runs without data, with reasons.

    Everything that ends is in the data at once: an interruption costs nothing but the runs under way, and those go on
    from their checkpoints.
    """
    failed: dict[str, str] = {}
    for number, work in enumerate(works, start=1):
        name = work.table.study
        runs = _lacking(work, folder)  # others may have played some since
        say(f"[{number}/{len(works)}] {work.name}{'' if runs else ' is in the data by now'}")
        execution = dataclasses.replace(options.execution, output=output / name)
        for seeds in _stretches([run.experiment.seed for run in runs]):
            chosen = dataclasses.replace(
                options,
                only=(work.runs[0].cell,),
                seed_start=seeds.start,
                seeds=len(seeds),
                rounds=work.table.rounds,
                eval_every=work.table.eval_every,
                eval_last=work.table.eval_last,
                record=folder,
                execution=execution,
            )
            try:
                lost = study.play(name, chosen, command, table=False)
            except FedRayError as error:  # such as data that are not here: the other cells may have theirs
                say(f"{work.name}: {error}")
                failed |= {f"{name}/{run.name}": str(error) for run in runs if run.experiment.seed in seeds}
                continue
            failed |= {f"{name}/{run}": why for run, why in lost.items()}
        for run in _lacking(work, folder):
            failed.setdefault(f"{name}/{run.name}", NO_DATA)
    return failed


def _lacking(work: Work, folder: Path) -> list[PlannedRun]:
    """The runs of a cell that are not in the data now."""
    known = {line.config for line in data.read(folder, work.table.study)}
    return [run for run in work.runs if run.fingerprint not in known]


def _stretches(numbers: Sequence[int]) -> list[range]:
    """Numbers as ranges without gaps."""
    found: list[range] = []
    for number in sorted(numbers):
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


def _tried(run: PlannedRun, where: Data) -> float:
    """CPU seconds that a run will take, from three of its rounds; those of compiling its step are not counted."""
    whole = override(run.experiment, {f"data.{name}": value for name, value in vars(where).items()})
    compiled = choose(make_plan(whole), "auto", None, say) is not None  # so short a run would not be, by itself
    cfg = override(whole, {"rounds": TRIED, "eval_every": TRIED, "eval_last": 0})
    with tempfile.TemporaryDirectory() as place:
        execution = Execution(
            runtime="local",
            backend="compiled" if compiled else "auto",
            output=Path(place) / "run",
            tracking=TrackingConfig(uri="none"),
        )
        session.run_experiment(cfg, execution)
        rows = read_measures(Path(place) / "run")
    train, both = (row[record.CPU] for row in rows[1:TRIED])
    adapting = sum(row[record.CPU] for row in rows[TRIED:])  # of newcomers, after the rounds
    rounds = run.experiment.rounds
    evaluations = sum(number == rounds or run.experiment.evaluates(number) for number in range(1, rounds + 1))
    return rounds * train + evaluations * max(0.0, both - train) + adapting


def _estimates(folder: Path) -> Mapping[str, float]:
    path = folder / COSTS
    if not path.exists():
        return {}
    with refuse_damage(f"{path}: not a file of costs", "delete it"):
        return {str(name): float(value) for name, value in decode(path.read_bytes()).items()}
