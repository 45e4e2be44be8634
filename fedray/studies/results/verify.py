"""Play a published run again, and say whether it comes out the same."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from fedray import registry
from fedray.compare.groups import of_runs
from fedray.config import Execution, TrackingConfig, override
from fedray.running import session
from fedray.studies.agenda import Data, Options, plan_runs
from fedray.studies.named import STUDIES
from fedray.studies.results import data, judgement, machine, record
from fedray.studies.results.data import Line
from fedray.types import FedRayError, require

DEVIATIONS = 2  # of a cell's sample standard deviation over seeds, within which another kind of machine may be
ROUNDING = 1e-12  # of metrics of the same states whose sums were added in another order
TIMES = ("time/", "comm/")


class Answer(NamedTuple):
    """What a repeated run says of a published one."""

    same: bool  # to the bit, or, on another kind of machine, within the deviation
    text: str


def verify(folder: Path, name: str, seed: int | None, rounds: int | None, where: Data) -> Answer:
    """Play the published run of a cell again, STUDY/CELL, by default that of its first seed with the most rounds.

    Raises FedRayError where nothing is published under that name, or the study has other settings today.
    """
    lines = find(folder, name, rounds)
    known = ", ".join(str(line.seed) for line in lines)
    chosen = [line for line in lines if seed is None or line.seed == seed]
    require(bool(chosen), "seed", seed, f"{name} is not published with it", f"choose from {known}")
    line = chosen[0]
    return judge(line, again(line, where), lines)


def find(folder: Path, name: str, rounds: int | None = None) -> list[Line]:
    """The published runs of a cell with these rounds, by default the most; raises FedRayError where there are none."""
    study, _, cell = name.partition("/")
    lines = data.read(folder, study)
    found = [line for line in lines if line.cell == cell]
    if not found:
        cells = ", ".join(dict.fromkeys(f"{line.study}/{line.cell}" for line in lines))
        remedy = f"choose from {cells}" if cells else f"choose STUDY/CELL of the files in {folder}"
        raise FedRayError(f"verify {name}: no such figure is published; {remedy}")
    lengths = sorted({line.rounds for line in found})
    remedy = f"choose from {', '.join(map(str, lengths))}"
    require(rounds is None or rounds in lengths, "rounds", rounds, f"{name} is not published with them", remedy)
    return [line for line in found if line.rounds == (rounds or lengths[-1])]


def again(line: Line, where: Data) -> Line:
    """The line that the same run makes here and now; raises FedRayError for a study that is no more."""
    registry.pick(STUDIES, "study", line.study)
    options = Options(
        only=(line.cell,),
        seeds=1,
        seed_start=line.seed,
        rounds=line.rounds,
        eval_every=line.eval_every,
        eval_last=line.eval_last,
        data=where,
    )
    [planned] = [run for run in plan_runs(line.study, options).runs if run.cell == line.cell]
    if planned.fingerprint != line.config:
        raise FedRayError(f"{line.study}/{line.cell}: the study has other settings today; check out {line.commit}")
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "run"
        asked = any(name.endswith("/aurc") for name in line.metrics)
        gpus = 1 if machine.has_gpu(line.machine) and torch.cuda.is_available() else 0
        tracking = TrackingConfig(uri="none")
        execution = Execution(runtime="local", gpus=gpus, output=output, uncertainty=asked, tracking=tracking)
        session.run_experiment(planned.experiment, override(execution, {"name": planned.name}))
        played = record.line(line.study, planned, output, line.commit)
    assert played is not None
    return played


def judge(line: Line, played: Line, lines: Sequence[Line]) -> Answer:
    """Compare a repeated run with the published one; ``lines`` are those of all seeds of the cell."""
    names = [name for name in line.metrics if not name.startswith(TIMES)]
    differing = [name for name in names if played.metrics.get(name) != line.metrics[name]]
    if played.digest == line.digest and not differing:
        return Answer(True, "the same to the bit: the states of server and clients, and every metric")
    if played.digest == line.digest and all(_near(played.metrics.get(name), line.metrics[name]) for name in differing):
        count = f"{len(differing)} of {len(names)} metrics differ by less than {ROUNDING:g}"
        return Answer(True, f"the states of server and clients are the same to the bit; {count}")
    if played.machine == line.machine:
        what = f"{len(differing)} of {len(names)} metrics differ, such as {differing[0]}" if differing else "the states"
        return Answer(False, f"not the same to the bit, on the same kind of machine ({what})")
    far = [name for name in differing if _accuracy(name) and not _within(name, line, played, lines)]
    where = f"published: {line.machine}; here: {played.machine}"
    if far:
        return Answer(False, f"farther off than {DEVIATIONS} deviations in {', '.join(far)}; {where}")
    return Answer(True, f"within {DEVIATIONS} deviations, on another kind of machine; {where}")


def _near(one: float | None, other: float) -> bool:
    return one is not None and abs(one - other) < ROUNDING


def _accuracy(name: str) -> bool:
    return name.endswith(("accuracy", "rmse"))


def _within(name: str, line: Line, played: Line, lines: Sequence[Line]) -> bool:
    """Whether a metric is within the deviation over seeds; within a point where there is one seed."""
    sd = of_runs([each.metrics[name] for each in lines if name in each.metrics]).sd
    allowed = judgement.POINT if sd is None else DEVIATIONS * sd
    return name in played.metrics and abs(played.metrics[name] - line.metrics[name]) <= allowed
