"""From the folder of a finished run to its line of data."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedray.config import Experiment
from fedray.config.decode import decode, refuse_damage
from fedray.federate import report
from fedray.federate.measures.tasks import TASKS
from fedray.federate.uncertainty import summary as uncertain
from fedray.running.files import read_measures
from fedray.running.folder import notes
from fedray.studies.agenda import PlannedRun
from fedray.studies.results import machine
from fedray.studies.results.data import BEST, EVERY, LATE, Line

LAST = 10  # evaluations that a figure averages, but at most half of them: the first are of a model that knows little
EIGHTH = 1 / 8  # of the rounds: 700 to 800 of 800
CPU = "time/cpu_seconds"
MEASURED = ("train/", "selection/")  # beside the evaluations


def line(study: str, planned: PlannedRun, folder: Path, commit: str) -> Line | None:
    """The line of a run that was played without Ray on a machine of this kind; None where it is not finished.

    Raises FedRayError for a damaged folder.
    """
    if not (folder / notes.FINISHED).exists():
        return None
    with refuse_damage(f"{folder}: the result cannot be read", "remove the folder and play the run again"):
        summary = decode((folder / "summary.json").read_bytes())
        played = read_measures(folder)
        cfg = planned.experiment
        device = summary.get("device", machine.CPU)  # earlier results do not name it
        return Line(
            study=study,
            cell=planned.cell,
            seed=cfg.seed,
            rounds=cfg.rounds,
            eval_every=cfg.eval_every,
            eval_last=cfg.eval_last,
            config=planned.fingerprint,
            protocol=_protocol(summary["protocol"]),
            commit=commit,
            command=command(study, planned, "uncertainty" in summary, device != machine.CPU),
            machine=machine.kind(device),
            cpu_seconds=round(sum(row.get(CPU, 0.0) for row in played), 1),
            digest=digest(folder),
            metrics=measured(played, cfg) | uncertain.tracked(summary),
        )


def command(study: str, planned: PlannedRun, uncertainty: bool, on_gpu: bool = False) -> str:
    """What to type to play one run, with the uncertainty report where its study does not ask for it by itself."""
    cfg = planned.experiment
    words = ["python", "-m", "fedray.studies", study, "--only", planned.cell, "--size", "all"]
    words += ["--seeds", "1", "--seed-start", str(cfg.seed), "--rounds", str(cfg.rounds)]
    words += ["--eval-every", str(cfg.eval_every), *(["--eval-last", str(cfg.eval_last)] if cfg.eval_last else [])]
    words += ["--runtime", "local", *(["--gpus", "1"] if on_gpu else [])]
    return shlex.join([*words, *(["--uncertainty"] if uncertainty and not planned.uncertainty else [])])


def measured(rows: Sequence[Mapping[str, float]], cfg: Experiment) -> dict[str, float]:
    """Of every measure of the models the mean over the last ten evaluations, and of accuracies and errors the best.

    Evaluations that only ``eval_last`` asks for count in none of these, so that a run has the same with it and without.
    The best with them are a measure of their own. Bytes are those of the whole run, measures of training and selection
    the mean over all rounds.
    """
    every, rows = rows, _usual(rows, cfg)
    found: dict[str, float] = {}
    for name in sorted({name for row in rows for name in row}):
        if name.startswith("comm/"):
            found[name] = sum(row[name] for row in rows)
        elif name.startswith(MEASURED):
            found[name] = _mean([row[name] for row in rows if name in row])
        elif report.is_measured(name):
            found[name] = _mean(_latest([row[name] for row in rows if name in row]))
    late = (1 - EIGHTH) * cfg.rounds
    choices = {BEST: rows, LATE: [row for row in rows if row["round"] >= late]}
    if cfg.eval_last and cfg.eval_last >= cfg.rounds - late:
        choices[EVERY] = [row for row in every if row["round"] >= late]
    for prefix, chosen in choices.items():
        for name, best in _headlines():
            values = [row[name] for row in chosen if name in row]
            found |= {f"{prefix}{name}": best(values)} if values else {}
    for kind in report.KINDS:
        if (spread := report.stability(rows, kind)) is not None:
            found[f"{kind}/stability"] = spread
    return found


def _usual(rows: Sequence[Mapping[str, float]], cfg: Experiment) -> list[Mapping[str, float]]:
    """The rows without evaluations that only ``eval_last`` asks for; the last round has one anyway."""
    dense = range(cfg.rounds - cfg.eval_last + 1, cfg.rounds)
    added = {number for number in dense if number % cfg.eval_every}
    return [
        {name: value for name, value in row.items() if not (row["round"] in added and report.is_measured(name))}
        for row in rows
    ]


def _latest(values: Sequence[float]) -> Sequence[float]:
    return values[-min(LAST, math.ceil(len(values) / 2)) :]


def digest(folder: Path) -> str:
    """SHA-256 of the states in a run's folder, by the names of their files."""
    summed = hashlib.sha256()
    for path in sorted(folder.glob("**/*.safetensors")):
        if "checkpoints" not in path.relative_to(folder).parts:
            summed.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
            summed.update(path.read_bytes())
    return summed.hexdigest()


def _headlines() -> list[tuple[str, Any]]:
    """The measures by which a paper would choose a round, and which of their values is best."""
    return [
        (f"{kind}/{task.headline}", max if task.headline == "accuracy" else min)
        for task in TASKS
        for kind in (*report.KINDS, report.NOVEL)
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _protocol(facts: Mapping[str, Any]) -> str:
    """What a run's numbers mean, in one line."""
    names = ("clients", "prediction", "dataset", "partition")
    sizes = f"{facts['train_examples']} training and {facts['test_examples']} test examples"
    return "; ".join([*(str(facts[name]) for name in names), sizes])
