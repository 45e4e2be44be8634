"""One run from the request to its result: the federation played, tracked, checkpointed, and reported."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import fedray
from fedray import registry
from fedray.config import Execution, Experiment, fingerprint, flatten, to_dict
from fedray.config.decode import decode, refuse_damage
from fedray.federate import checkpoint, loss_deviation, report
from fedray.federate.checkpoint import CheckpointStore
from fedray.federate.checkpoint_files import Checkpoint
from fedray.federate.compiled.choice import choose
from fedray.federate.compiled.package import Package
from fedray.federate.failures import described
from fedray.federate.federation import Federation, Source
from fedray.federate.in_process import LocalFederation
from fedray.federate.messages import Failure, RoundMetrics, Saved
from fedray.federate.plan import Plan, make_plan
from fedray.federate.rounds import Snapshot, State
from fedray.federate.uncertainty import questions
from fedray.federate.uncertainty import summary as uncertain
from fedray.federate.uncertainty.reply import Uncertainty
from fedray.running import (
    client_figures,
    extension,
    figures,
    mlflow_store,
    progress,
    runfolder,
    tracking,
    uncertainty_figures,
)
from fedray.running.files import remove_leftovers
from fedray.running.log import Log
from fedray.running.progress import Status
from fedray.running.published import page
from fedray.running.published.publish import Finished, registration
from fedray.running.published.system_metrics import sampled
from fedray.running.runfolder import Note
from fedray.running.tracking import Tracker
from fedray.running.writer import PERSONAL, Writer
from fedray.terminal import bar, check_packages, headlines, heard, same_handlers, say, stop_if_interrupted
from fedray.types import FedRayError, for_command_line

RECENT_ROUNDS = 10  # whose mean time tells how long the rest will take


class Request(NamedTuple):
    """What a run is asked to do."""

    experiment: Experiment
    execution: Execution
    preset: str = ""
    resume: str = ""  # the folder of the run to go on with, or the URL of its checkpoints


class Run(NamedTuple):
    """A run under way: what it plays, and where what it finds goes."""

    plan: Plan
    request: Request
    name: str
    writer: Writer
    tracker: Tracker
    store: CheckpointStore
    log: Log
    begun: Note | None  # what a resumed run noted at its start
    package: Package | None = None  # the compiled step that its clients train with

    @property
    def folder(self) -> Path:
        """Where the result goes."""
        return self.writer.destination


class RunResult(NamedTuple):
    """A finished run: its summary, where it lies and where it is tracked, and what went wrong."""

    plan: Plan
    summary: dict[str, Any]
    folder: Path
    tracked: str  # how to open the run in the tracking store
    failures: tuple[Failure, ...] = ()


def run_experiment(experiment: Experiment, execution: Execution | None = None) -> RunResult:
    """Run an experiment from Python, as ``fedray launch`` does; raises the errors of :func:`run`."""
    return run(Request(experiment, execution or Execution()))


def run(
    request: Request, tags: Mapping[str, str] | None = None, tell: Callable[[int], object] | None = None
) -> RunResult:
    """Run a request; ``tags`` are added to its run in the tracking store.

    ``tell`` gets the number of every round that ends, and takes the place of the progress bar.

    Raises FedRayError before any actor starts if it cannot run, and RunError if it must stop later.
    """
    log = Log()
    log.write(f"FedRay {fedray.__version__}, PyTorch {torch.__version__}, on {socket.gethostname()}")
    with heard(log.write):
        return _run(request, tags or {}, log, tell)


def _run(request: Request, tags: Mapping[str, str], log: Log, tell: Callable[[int], object] | None) -> RunResult:
    check_packages()
    plan = make_plan(request.experiment)
    if request.execution.loss_deviation:
        loss_deviation.check(plan)
    questions.check(plan, request.execution)
    if request.preset:
        say(f"warning: {plan.algorithm.presets[request.preset].warning}")
    for note in plan.notes:
        say(f"data     {for_command_line(note)}")
    for remark in plan.remarks:
        say(f"warning: {for_command_line(remark)}")
    note = runfolder.read(request.resume) if request.resume else None
    longer = note is not None and plan.cfg.rounds > note.experiment.rounds
    if note and longer:
        extension.check(plan, note.experiment.rounds)
    name = note.name if note else runfolder.name(plan, request.execution)
    folder = runfolder.place(request.resume, request.execution.output, name)
    algorithm = registry.algorithm_name(plan.cfg.algorithm)
    say(f"{algorithm} on {plan.cfg.data.name}: {plan.clients} clients, {plan.rounds} rounds; result in {folder}")
    with runfolder.locked(folder):
        writer = Writer(folder, note is not None and runfolder.holds(folder, note))
        try:
            store = runfolder.store(folder, request.execution)
            # The store does not change parameters: with more rounds it is another run there.
            tracker = open_tracker(plan, request.execution, name, tags, None if longer else note)
            return _guarded(Run(plan, request, name, writer, tracker, store, log, note), tell)
        finally:
            writer.discard()


def _guarded(run: Run, tell: Callable[[int], object] | None) -> RunResult:
    """Play; if that ends early, note it, and tell the user how to go on."""
    try:
        with guarded(run):
            finished = runfolder.finished_rounds(run.folder) >= run.plan.cfg.rounds
            return _finish_again(run) if finished else _play(run, tell)
    except BaseException:
        if (run.folder / runfolder.NOTE).exists():
            say(f"go on    {runfolder.command(run.folder)}")
        raise


@contextlib.contextmanager
def guarded(run: Run) -> Iterator[None]:
    """Where a run ends early, note it in its log, its status and the store."""
    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt | GeneratorExit)
        ours = isinstance(error, FedRayError)
        run.log.write("interrupted" if stopped else str(error) if ours else traceback.format_exc())
        progress.end(run.folder, "interrupted" if stopped else "failed")
        run.tracker.finish("KILLED" if stopped else "FAILED", None)
        raise


class Tally(NamedTuple):
    """What a run has found so far, and what its status says of it."""

    status: Status
    started: float  # time.perf_counter() at the first round that was played now
    before: tuple[Mapping[str, float], ...]  # the measures of the rounds before an interruption
    evaluated: RoundMetrics | None = None  # the last round with an evaluation
    failures: tuple[Failure, ...] = ()
    recent: tuple[float, ...] = ()  # seconds of the last rounds


class Played(NamedTuple):
    """The rounds of a run, played: what its result is made of."""

    snapshot: Snapshot
    history: State
    evaluated: RoundMetrics | None  # the last round with an evaluation
    failures: tuple[Failure, ...]
    seconds: float  # of all rounds, those before an interruption included
    uncertainty: Uncertainty | None = None  # of the last round's models, where it was asked for


def _play(run: Run, tell: Callable[[int], object] | None) -> RunResult:
    """Play the rounds that are left, write the result, and hand it to the tracker."""
    execution = run.request.execution
    run, begun = ready(run, on_gpus(execution))
    done = len(begun.state.rows) if begun else 0
    shown = contextlib.nullcontext() if tell else progress_bar(run.plan, done)
    with (
        open_federation(run.plan, execution, run.name, run.store, begun, run.package) as federation,
        watched(run, federation),
        shown as advance,
    ):
        run = run._replace(plan=federation.plan)
        tally = begin(run, begun)
        for metrics in federation:
            tally = account(run, tally, metrics)
            if advance:
                advance(report.measures(metrics))
            if tell:
                tell(metrics.round)
            stop_if_interrupted()
        played = collect(run, federation, tally)
    return conclude(run, played)


def on_gpus(execution: Execution) -> bool:
    """Whether clients may be placed on GPUs."""
    return execution.runtime == "ray" and execution.gpus_per_client != 0 and torch.cuda.is_available()


def ready(run: Run, on_gpus: bool) -> tuple[Run, Checkpoint | None]:
    """The run with the compiled step that it trains with, and the checkpoint from which it goes on."""
    if not (on_gpus and run.request.execution.backend == "auto"):
        known = run.begun.package if run.begun else None
        run = run._replace(package=choose(run.plan, run.request.execution.backend, known, say))
    if runfolder.elsewhere(run.folder, run.store):
        runfolder.claim(run.store, _note(run), bool(run.request.resume))
    return run, _checkpoint(run)


def _uncertainty(run: Run, federation: Source) -> Uncertainty:
    """The uncertainty report of the models after the last round."""
    say("uncertainty: every client's models predict their test examples, corrupted ones and strange ones")
    ood = run.request.execution.ood
    return federation.uncertainty(questions.far(run.plan, ood) if ood else None)


def _note(run: Run) -> Note:
    execution = runfolder.absolute(run.request.execution, run.tracker.uri)
    return Note(run.name, run.plan.cfg, execution, run.tracker.run_id, run.package.key if run.package else "")


def _checkpoint(run: Run) -> Checkpoint | None:
    """The checkpoint that a resumed run goes on from; None where it begins with the first round."""
    if not run.request.resume:
        return None
    begun = checkpoint.newest(run.store, run.plan, lambda text: say(f"warning: {text}"))
    if begun is None and runfolder.finished_rounds(run.folder):
        return extension.from_result(run.folder, run.plan)
    if begun is None:
        say("no checkpoint was written to its end before the run stopped: it starts again at round 0")
    return begun


def begin(run: Run, begun: Checkpoint | None) -> Tally:
    """Note what is played in the run's folder, and log the rounds that were played before an interruption."""
    runfolder.write(run.folder, _note(run))
    run.log.open(run.folder)
    before = tuple(begun.state.rows) if begun else ()
    for row in before:  # some may have been on their way to the store when the run was interrupted
        run.tracker.log(int(row["round"]), report.stored({name: x for name, x in row.items() if name != "round"}))
    done = len(before)
    if done:
        run.log.write(f"goes on after round {done}")
    go_on = runfolder.command(run.folder)
    status = Status(run.name, "running", done, run.plan.rounds, {}, 0.0, 0, done or None, go_on)
    progress.write(run.folder, status)
    return Tally(status, time.perf_counter(), before)


def account(run: Run, tally: Tally, metrics: RoundMetrics) -> Tally:
    """Log one more round, update the status, and keep what the result needs of it."""
    values = report.measures(metrics)
    recent = (*tally.recent, metrics.seconds["round"])[-RECENT_ROUNDS:]
    evaluated = tally.evaluated
    if metrics.personal is not None or metrics.global_ is not None:
        evaluated = metrics
    if evaluated is not None and metrics.novel is not None:
        evaluated = report.with_newcomers(evaluated, metrics)
    run.tracker.log(metrics.round, report.stored(values))
    _log(run, metrics, values)
    status = _after(run, tally.status, metrics, values, recent)
    progress.write(run.folder, status)
    failures = (*tally.failures, *metrics.failures)
    return tally._replace(status=status, evaluated=evaluated, failures=failures, recent=recent)


def collect(run: Run, federation: Source, tally: Tally) -> Played:
    """What the result is made of, taken from a federation that has played its last round."""
    seconds = time.perf_counter() - tally.started + sum(row["time/round_seconds"] for row in tally.before)
    history = federation.history()
    snapshot = _saved(run, federation, history) if run.store.states else federation.snapshot()
    seconds -= sum(row.get(report.START, 0.0) for row in history.rows[len(tally.before) :])
    if run.request.execution.loss_deviation:
        say("loss deviation: every personal model predicts the test examples of all clients")
        run.writer.table(loss_deviation.TABLE, loss_deviation.rows(federation.class_losses()))
    asked = run.request.execution.uncertainty
    found = _uncertainty(run, federation) if asked else None
    return Played(snapshot, history, tally.evaluated, tally.failures, seconds, found)


def conclude(run: Run, played: Played) -> RunResult:
    """Write the result into the run's folder and hand it to the tracker."""
    summary = report.summarize(run.plan, played.history.rows, run.tracker.run_id, played.seconds)
    if played.uncertainty:
        summary |= {"uncertainty": uncertain.summarize(run.plan, run.request.execution, played.uncertainty)}
    _track(run, summary)
    summary |= {
        "backend": "compiled" if run.package else run.request.execution.backend,
        "package": run.package.key if run.package else "",
    }
    _write(run, summary, played)
    run.log.write(f"finished: {run.folder}")
    run.tracker.finish("FINISHED", run.folder)
    run.tracker.publish(Finished(run.plan, run.folder, run.request.execution.register))
    return RunResult(run.plan, summary, run.folder, run.tracker.hint(), played.failures)


def _log(run: Run, metrics: RoundMetrics, values: Mapping[str, float]) -> None:
    """A line of the log for a round, and one for each of its failures, with what is known of it."""
    for failure in metrics.failures:
        then = f" ({failure.action})" if failure.action else ""
        run.log.write(f"{failure.kind}: {described(failure)}{then}\n{failure.traceback}")
    words = [f"round {metrics.round}/{run.plan.rounds}", *headlines(values), f"{metrics.seconds['round']:.2g} s"]
    run.log.write("  ".join(words))


def _saved(run: Run, federation: Source, history: State) -> Snapshot:
    """The federation with the clients' states in the files of its result, for they may not fit into memory."""
    folder = run.writer.folder / PERSONAL
    folder.mkdir()
    return Snapshot(history.server, Saved(str(folder), history.round, tuple(federation.save(str(folder)))))


def _after(
    run: Run, last: Status, metrics: RoundMetrics, values: Mapping[str, float], recent: Sequence[float]
) -> Status:
    """The status after one more round."""
    saved = run.store.wants(run.plan, metrics.round) and all(f.kind != checkpoint.KIND for f in metrics.failures)
    measures = {name: value for name, value in values.items() if report.is_measured(name)}
    return last._replace(
        round=metrics.round,
        measures=measures or last.measures,
        seconds=sum(recent) / len(recent),
        failures=last.failures + len(metrics.failures),
        checkpoint=metrics.round if saved else last.checkpoint,
        machines=dict(metrics.machines),
        moves=(*last.moves, *(move.line for move in metrics.moves)),
    )


def _write(run: Run, summary: dict[str, Any], played: Played) -> None:
    """Write the result into the run's folder, then remove the checkpoints."""
    writer = run.writer
    writer.run(run.plan, played.snapshot, played.history.spotlights)
    writer.selection(played.history.selection)
    writer.json("summary.json", summary)
    writer.table("metrics.csv", played.history.rows)
    if (evaluated := played.evaluated) is not None:
        writer.stream("clients.csv", report.client_rows(evaluated, run.plan))
        if run.plan.target is None:
            writer.table("calibration.csv", report.calibration_rows(evaluated))
            writer.stream("client_calibration.csv", report.client_calibration_rows(evaluated, run.plan))
        else:
            writer.table("coverage.csv", report.coverage_rows(evaluated))
    if found := played.uncertainty:
        writer.table(uncertain.CLIENTS, uncertain.client_rows(found))
        writer.table(uncertain.RISKS, list(uncertain.risk_rows(found)))
        writer.table(uncertain.SHIFT, list(uncertain.shift_rows(run.plan, found)))
    if played.failures:
        writer.table("failures.csv", [failure._asdict() for failure in played.failures])
    try:
        if (also := run.request.execution.figures) != "none":
            figures.draw_all(writer.folder, also)
            client_figures.draw_all(writer.folder, also)
            uncertainty_figures.draw_all(writer.folder, also)
    except Exception as error:  # a figure must not cost the result
        say(f"warning: the figures could not be drawn ({error}); the data for them are in the result")
    run.tracker.flush()
    progress.end(run.folder, "finished", writer.folder)
    writer.commit()
    runfolder.clear(run.folder, run.store)


def _track(run: Run, summary: Mapping[str, Any]) -> None:
    """Record the summary's own numbers beside those of the rounds, and of which rounds they are."""
    run.tracker.log(run.plan.cfg.rounds, report.averaged(run.plan, summary) | uncertain.tracked(summary))
    run.tracker.tag(report.AVERAGED, summary["protocol"]["rounds"])


def _finish_again(run: Run) -> RunResult:
    """Finish a run that was interrupted after its result was written: send the result to the tracker again."""
    say(f"{run.folder} is finished; its result goes to the tracking store again")
    written = (run.folder / runfolder.FINISHED).stat().st_mtime
    runfolder.clear(run.folder, run.store)
    remove_leftovers(run.folder)
    with refuse_damage(f"{run.folder}: the result cannot be read", "run it again in a new folder"):
        with (run.folder / "metrics.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                values = {name: float(value) for name, value in row.items() if name != "round" and value}
                run.tracker.log(int(row["round"]), report.stored(values))
        summary = decode((run.folder / "summary.json").read_bytes())
        _track(run, summary)
        progress.end(run.folder, "finished")
        run.tracker.finish("FINISHED", run.folder, written)
        run.tracker.publish(Finished(run.plan, run.folder, run.request.execution.register))
        return RunResult(run.plan, summary, run.folder, run.tracker.hint())


def open_federation(
    plan: Plan,
    execution: Execution,
    name: str,
    store: CheckpointStore,
    begun: Checkpoint | None,
    package: Package | None,
) -> Federation:
    """The federation on Ray or in this process, as a context manager over its rounds."""
    if execution.runtime == "local":
        return LocalFederation(plan, package or execution.backend, "cpu", store, begun)
    from actors.federation import RayFederation, announce

    with same_handlers():
        federation = RayFederation(plan, dataclasses.replace(execution, name=name), store, begun, package)
    announce(federation.layout, plan.clients)
    return federation


def watched(run: Run, federation: Federation) -> contextlib.AbstractContextManager[None]:
    """Meanwhile the machines of a federation are sampled, where system metrics were asked for."""
    wanted = run.request.execution.tracking.system_metrics
    return (
        sampled(federation, run.tracker, lambda text: say(f"warning: {text}")) if wanted else contextlib.nullcontext()
    )


def open_tracker(
    plan: Plan, execution: Execution, name: str, tags: Mapping[str, str], note: Note | None = None
) -> Tracker:
    """The MLflow run of this federation, new or noted, with ``tags`` and its own; a NullTracker if tracking is off."""
    if execution.tracking.uri == "none":
        return tracking.NullTracker()
    algorithm = registry.algorithm_name(plan.cfg.algorithm)
    if execution.register:
        registration(execution.register, algorithm)
    tags = (
        page.tags(plan)
        | dict(tags)
        | {
            "algorithm": algorithm,
            "dataset": plan.cfg.data.name,
            "seed": str(plan.cfg.seed),
            "config": fingerprint(plan.cfg),
            "git_commit": tracking.git_commit() or "unknown",
        }
    )
    where = execution.tracking
    address = mlflow_store.shown(mlflow_store.locate(where.uri).uri)
    run_id = note.run_id if note and note.execution.tracking.uri == address else None
    params = {"algorithm.name": algorithm} | flatten(to_dict(plan.cfg)) | {"runtime": execution.runtime}
    kept = {} if run_id else params
    return tracking.MLflowTracker(
        where.uri, where.experiment, name, kept, tags, lambda text: say(f"warning: {text}"), run_id
    )


@contextlib.contextmanager
def progress_bar(plan: Plan, done: int) -> Iterator[Callable[[dict[str, float]], None]]:
    """A progress bar on stderr; yields a function that takes the measures of a finished round."""
    with bar("round", plan.rounds, "starting the clients") as move:
        move(done, "")

        def advance(values: dict[str, float]) -> None:
            nonlocal done
            done += 1
            move(done, "  ".join(headlines(values)))

        yield advance
