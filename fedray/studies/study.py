"""A study: many runs behind one table, side by side on the whole cluster, or in processes of this machine.

Each run stores the name of its study and the fingerprint of its settings with its MLflow run. A study that is started
again skips the runs that are finished there and resumes those that were interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedray import registry
from fedray.compare import comparison
from fedray.config import TrackingConfig, override
from fedray.federate.planning import make_plan
from fedray.federate.report import KINDS
from fedray.running import mlflow_store, progress, session, side_by_side, stages
from fedray.running.folder import lock, notes
from fedray.running.progress import Status
from fedray.running.side_by_side import Ended
from fedray.running.tracking import MLflowTracker, NullTracker, Tracker
from fedray.studies.agenda import Options, PlannedRun, plan_runs
from fedray.studies.named import COMPARISONS
from fedray.studies.results import data, record
from fedray.studies.tracked import Parent, finished, parent_of
from fedray.terminal import bar, headlines, say
from fedray.types import FedRayError, for_command_line


def play(study: str, options: Options, command: str, table: bool = True) -> Mapping[str, str]:
    """Play what the tracking store lacks of a study, tell how it went, and print its ``table`` if it is complete.

    ``command`` is what the user typed. A run that fails costs no other; the names of those that failed come back, with
    the reasons. Raises FedRayError before the first run if the store, the data or the cluster cannot be used, or if
    another process plays runs of the study there.
    """
    agenda = plan_runs(study, options)
    tracking = options.execution.tracking
    done = finished(study, tracking.uri, tracking.experiment)
    todo = [each for each in agenda.runs if each.fingerprint not in done]
    skipped = len(agenda.runs) - len(todo)
    chosen = todo[: options.limit]
    for line in agenda.omissions:
        say(line)
    say(f"{study}: {len(agenda.runs)} in all, {skipped} finished before, {len(chosen)} to run now")
    if chosen:
        session.check_gpu(options.execution)
        make_plan(chosen[0].experiment)
    if options.record is not None:
        data.prepare(options.record)
        known = {line.config for line in data.read(options.record, study)}
        if again := sum(each.fingerprint in known for each in chosen):
            say(f"in {options.record} already, but played again: {again}; `studies all` plays only what is missing")
    _record(study, options, [each for each in agenda.runs if each.fingerprint in done])
    with lock.locked(_folder(study, options)) if chosen else contextlib.nullcontext():
        known = parent_of(study, tracking.uri, tracking.experiment)
        goes_on = chosen or (known is not None and known.cut_off)
        parent = _parent(study, options, known) if goes_on else NullTracker()
        try:
            failed = _play(study, options, chosen, parent, command) if chosen else {}
            ran = len(chosen) - len(failed)
            say(f"{study}: {ran} run, {skipped} finished before, {len(failed)} failed")
            if options.record is not None and (options.record / f"{study}.csv").exists():
                say(f"data     {options.record / study}.csv")
            say(f"compare  {_compare_command(study, options)}")
            folder = _compare(study, options) if table and ran + skipped == len(agenda.runs) else None
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            progress.end(_folder(study, options), "interrupted" if stopped else "failed")
            parent.finish("KILLED" if stopped else "FAILED")
            raise
        progress.end(_folder(study, options), "failed" if failed else "finished")
        parent.finish("FAILED" if failed else "FINISHED", folder)
    return failed


def _parent(study: str, options: Options, known: Parent | None) -> Tracker:
    """The MLflow run of the study, above those of its runs; every command that plays a part of it continues it."""
    where = options.execution.tracking
    tags = {"fedray.kind": "study", "study": study}
    return MLflowTracker(where.uri, where.experiment, study, {}, tags, run_id=known.run_id if known else None)


class _Board:
    """Shows how far all runs of a study are: on one bar, by a line for each that has ended, and in its status.

    ``keep`` writes the data of a run that has ended well. Each is written at once: the machine may die before the next.
    """

    def __init__(
        self,
        folder: Path,
        status: Status,
        rounds: Mapping[str, int],
        move: Callable[[int, str], object],
        keep: Callable[[str], object],
    ):
        self._folder = folder
        self._status = status
        self._began = time.monotonic()
        self._rounds = rounds
        self._reached = dict.fromkeys(rounds, 0)
        self._move = move
        self._keep = keep
        self._ended = 0
        self.failed: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)
        progress.write(folder, status)

    def reached(self, name: str, round_number: int) -> None:
        """A run has ended a round."""
        self._reached[name] = round_number
        self._move(sum(self._reached.values()), f"{self._ended} of {len(self._rounds)} runs")

    def ended(self, ended: Ended) -> None:
        """A run has ended; one that failed is not waited for."""
        self._ended += 1
        if ended.summary is None:
            self.failed[ended.name] = ended.failure
        outcome = f"failed: {for_command_line(ended.failure)}" if ended.summary is None else _line(ended.summary)
        say(f"[{self._ended}/{len(self._rounds)}] {ended.name}  {outcome}")
        self.reached(ended.name, self._rounds[ended.name])
        if ended.summary is not None:
            try:
                self._keep(ended.name)
            except FedRayError as error:
                self.failed[ended.name] = f"no data: {error}"
        seconds = (time.monotonic() - self._began) / self._ended
        self._status = self._status._replace(round=self._ended, seconds=seconds, failures=len(self.failed))
        progress.write(self._folder, self._status)


def _play(
    study: str, options: Options, chosen: Sequence[PlannedRun], parent: Tracker, command: str
) -> Mapping[str, str]:
    """Play the chosen runs; those that failed come back, with the reasons."""
    planned = {each.name: each for each in chosen}
    rounds = {name: _rounds(each) for name, each in planned.items()}
    requests = [request(study, each, options) for each in chosen]
    tags = {"study": study, "mlflow.parentRunId": str(parent.run_id)}
    with bar("round", sum(rounds.values()), f"0 of {len(rounds)} runs") as move:
        status = Status(study, "running", 0, len(rounds), {}, 0.0, 0, None, command, unit="run")
        board = _Board(
            _folder(study, options), status, rounds, move, lambda name: _record(study, options, [planned[name]])
        )
        # What was killed after its result was written only has to reach the store.
        written = [each for each in requests if each.resume and (Path(each.resume) / notes.FINISHED).exists()]
        side_by_side.play(written, tags, 1, board)
        left = [each for each in requests if each not in written]
        if left and options.execution.runtime == "local":
            side_by_side.play(left, tags, options.concurrency, board)
        elif left:
            from tune import runs

            runs.play(left, tags, options.concurrency, board)
    return board.failed


def _rounds(planned: PlannedRun) -> int:
    """How many rounds a run has, those in which newcomers adapt included."""
    cfg = planned.experiment
    return cfg.rounds + (cfg.adapt_rounds if cfg.novel_clients else 0)


def _folder(study: str, options: Options) -> Path:
    return Path(options.execution.output or Path("runs") / study).expanduser()


def _record(study: str, options: Options, runs: Sequence[PlannedRun]) -> None:
    """Write the data of those of the runs that are finished; code that no commit has leaves none."""
    if options.record is None or not runs:
        return
    tracking = options.execution.tracking
    commits = finished(study, tracking.uri, tracking.experiment)
    lines = []
    for each in runs:
        commit = commits.get(each.fingerprint)
        if commit is None:
            continue
        if "+dirty" in commit or commit == "unknown":
            say(f"no data  {each.name}: it was played by code that no commit has; commit, remove it, and play it again")
        elif found := record.line(study, each, place := _place(study, each, options), commit):
            lines.append(found)
        else:
            say(f"no data  {each.name}: it is finished, but not in {place}; give the --output that it had")
    data.add(options.record, lines)


def _place(study: str, planned: PlannedRun, options: Options) -> Path:
    """The folder of a run, named after its settings, so that no other run uses it."""
    return _folder(study, options) / f"{planned.name}-{planned.fingerprint[:6]}"


def request(study: str, planned: PlannedRun, options: Options) -> stages.Request:
    """The request of one run. If its folder holds an interrupted run, the request resumes it."""
    output = _place(study, planned, options)
    interrupted = (output / notes.NOTE).exists()
    # The loss deviation is about personal models; a study may also have methods without them.
    method = registry.algorithm_of(planned.experiment.algorithm)
    deviation = options.execution.loss_deviation and method.predict_personal is not None
    checkpoints = options.execution.checkpoint
    if checkpoints.url:  # runs that are played at the same time need places of their own
        checkpoints = dataclasses.replace(checkpoints, url=f"{checkpoints.url.rstrip('/')}/{output.name}")
    execution = dataclasses.replace(
        options.execution,
        name=planned.name,
        output=output,
        loss_deviation=deviation,
        uncertainty=options.execution.uncertainty or planned.uncertainty,
        checkpoint=checkpoints,
    )
    return stages.Request(planned.experiment, execution, resume=str(output) if interrupted else "")


def _line(summary: Mapping[str, Any]) -> str:
    values = {f"{kind}/{name}": value for kind in KINDS for name, value in (summary[kind] or {}).items()}
    shown = headlines(values, digits=2)
    return f"{'  '.join(shown)}  {summary['seconds']:.0f} s"


def _compare_command(study: str, options: Options) -> str:
    tracking = options.execution.tracking
    default = TrackingConfig()
    words = ["python", "-m", "fedray.compare", "--study", study]
    if tracking.uri != default.uri:
        words += ["--uri", mlflow_store.shown(tracking.uri)]
    if tracking.experiment != default.experiment:
        words += ["--experiment", tracking.experiment]
    for name, value in COMPARISONS.get(study, {}).items():
        words += [f"--{name}", value]
    return shlex.join(words)


def _compare(study: str, options: Options) -> Path | None:
    """Print the table of a complete study; the folder of its figures, or None where there is nothing to compare."""
    tracking = options.execution.tracking
    output = _folder(study, options) / "comparison"
    wanted = comparison.Options(study=study, uri=tracking.uri, experiment=tracking.experiment, output=output)
    try:
        print(comparison.compare(override(wanted, COMPARISONS.get(study, {}))), end="")
        say(f"figures and report.html in {output}")
        return output
    except FedRayError as error:  # for example, no selected run has one of the study's metrics
        say(f"no table: {error}")
        return None
