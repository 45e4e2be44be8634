"""The stages of a run, whoever plays its rounds: accepted, ready, begun, accounted for, collected, concluded."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedray.config import Execution, Experiment
from fedray.data import loading
from fedray.data.digests import EXAMPLES, of_examples
from fedray.federate import report
from fedray.federate.compiled.choice import choose
from fedray.federate.compiled.package import Package
from fedray.federate.failures import described
from fedray.federate.federation import Source
from fedray.federate.measures import loss_deviation
from fedray.federate.messages import Failure, RoundMetrics, Saved
from fedray.federate.plan import PLUG_IN, Plan
from fedray.federate.rounds import Snapshot, State
from fedray.federate.storage import checkpoint
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.federate.storage.checkpoint_files import Checkpoint
from fedray.federate.uncertainty import questions
from fedray.federate.uncertainty import summary as uncertain
from fedray.federate.uncertainty.reply import Uncertainty
from fedray.running import failure_list, progress
from fedray.running.drawing import all_figures
from fedray.running.folder import checkpoint_place, naming, notes
from fedray.running.folder.notes import Note
from fedray.running.log import Log
from fedray.running.progress import Status
from fedray.running.published.publish import Finished
from fedray.running.resumed import asked, start
from fedray.running.tracking import Tracker
from fedray.running.writer import PERSONAL, Writer
from fedray.terminal import headlines, say
from fedray.types import FedRayError, for_command_line, writing

RECENT_ROUNDS = 10  # whose mean time tells how long the rest will take


class Request(NamedTuple):
    """What a run is asked to do."""

    experiment: Experiment
    execution: Execution
    preset: str = ""
    resume: str = ""  # the folder of the run to go on with, or the URL of its checkpoints


class ActiveRun(NamedTuple):
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


class Tally(NamedTuple):
    """What a run has found so far, and what its status says of it."""

    status: Status
    evaluated: RoundMetrics | None = None  # the last round with an evaluation
    failures: tuple[Failure, ...] = ()
    recent: tuple[float, ...] = ()  # seconds of the last rounds
    unsaved: bool = False  # whether a checkpoint could not be written, which is said once
    diverged: bool = False  # whether a model predicted NaN, which is said once


class Played(NamedTuple):
    """The rounds of a run, played: what its result is made of."""

    snapshot: Snapshot
    history: State
    evaluated: RoundMetrics | None  # the last round with an evaluation
    failures: tuple[Failure, ...]
    device: str  # what the clients computed on
    uncertainty: Uncertainty | None = None  # of the last round's models, where it was asked for


def accepted(request: Request, note: Note | None, plan_of: Callable[[Experiment], Plan]) -> Plan:
    """The plan of a request, by ``plan_of``; ``note`` is that of the run that it goes on with.

    Raises FedRayError where it cannot run, cannot answer what is asked of its models, or began with other examples.
    """
    cfg = request.experiment
    try:
        plan = plan_of(cfg)
    except FedRayError:
        if note and EXAMPLES in note.digests:  # that they changed may be why, and is what the user can mend
            asked.check_examples(request.resume, note, cfg.data.name, of_examples(loading.load(cfg.data)))
        raise
    if note:
        asked.check_examples(request.resume, note, cfg.data.name, plan.examples)
    if request.execution.loss_deviation:
        loss_deviation.check(plan)
    questions.check(plan, request.execution)
    return plan


def announcements(plan: Plan, name: str = "") -> list[str]:
    """How the data of a run, perhaps of one among others, were read, and what one must know to quote a number."""
    who = f"{name}: " if name else ""
    notes = [f"data     {who}{for_command_line(note)}" for note in plan.notes]
    return notes + [f"warning: {who}{for_command_line(remark)}" for remark in plan.remarks]


@contextlib.contextmanager
def guarded(run: ActiveRun) -> Iterator[None]:
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


def ready(run: ActiveRun, on_gpus: bool) -> tuple[ActiveRun, Checkpoint | None]:
    """The run with the compiled step that it trains with, and the checkpoint from which it goes on."""
    if not on_gpus:
        known = run.begun.package if run.begun else None
        run = run._replace(package=choose(run.plan, run.request.execution.backend, known, say))
    if checkpoint_place.elsewhere(run.folder, run.store):
        before = checkpoint_place.store(run.folder, run.begun.execution).url if run.begun else ""
        checkpoint_place.claim(run.store, _note(run), run.plan, before)
    begun = start.newest(run.folder, run.store, run.plan, run.begun) if run.begun else None
    return (_mended(run, run.begun) if begun and run.begun else run), begun


def _mended(run: ActiveRun, begun: Note) -> ActiveRun:
    """A run that goes on, perhaps with plug-ins that have changed: these have both digests, also in the store."""
    kept = {name: digest for name, digest in begun.digests.items() if name.startswith(PLUG_IN)}
    changed = start.mended(begun, run.plan)
    for name, digests in changed.items():
        say(
            f"warning: the plug-in {name.removeprefix(PLUG_IN)} has changed since this run began: its rounds are of "
            "two programs. So nobody can repeat it, and it averages with no other; start a new one to publish a result"
        )
        run.tracker.tag(name, digests)
    return run._replace(plan=run.plan._replace(digests={**run.plan.digests, **kept, **changed}))


def begin(run: ActiveRun, begun: Checkpoint | None) -> Tally:
    """Note what is played in the run's folder, and log the rounds that were played before an interruption."""
    with writing(run.folder):
        notes.write(run.folder, _note(run))
    run.log.open(run.folder)
    before = tuple(begun.state.rows) if begun else ()
    for row in before:  # some may have been on their way to the store when the run was interrupted
        run.tracker.log(int(row["round"]), report.stored({name: x for name, x in row.items() if name != "round"}))
    done = len(before)
    if done:
        run.log.write(f"goes on after round {done}")
    failures = failure_list.begin(run.folder, done)
    go_on = naming.command(run.folder)
    saved = None if notes.finished_rounds(run.folder) else done or None  # a result is no checkpoint
    status = Status(run.name, "running", done, run.plan.rounds, {}, 0.0, len(failures), saved, go_on)
    progress.write(run.folder, status)
    return Tally(status, failures=failures)


def account(run: ActiveRun, tally: Tally, metrics: RoundMetrics) -> Tally:
    """Log one more round, update the status, and keep what the result needs of it."""
    values = report.measures(metrics)
    recent = (*tally.recent, metrics.seconds["round"])[-RECENT_ROUNDS:]
    evaluated = tally.evaluated
    if metrics.personal is not None or metrics.global_ is not None:
        evaluated = metrics
    if evaluated is not None and metrics.novel is not None:
        evaluated = report.with_newcomers(evaluated, metrics, run.plan)
    run.tracker.log(metrics.round, report.stored(values))
    _log(run, metrics, values)
    status = _after(run, tally.status, metrics, values, recent)
    progress.write(run.folder, status)
    failure_list.add(run.folder, metrics.failures)
    failures = (*tally.failures, *metrics.failures)
    unsaved = next((failure for failure in metrics.failures if failure.kind == checkpoint.KIND), None)
    if unsaved and not tally.unsaved:  # it may be the same in every round
        say(f"warning: round {metrics.round}: no checkpoint ({unsaved.reason}); later ones are listed at the end")
    diverged = report.diverged(values)
    if diverged and not tally.diverged:
        say(
            f"warning: round {metrics.round}: NaN among the predictions of the {' and the '.join(diverged)}: training "
            "has diverged, and accuracies mean nothing from here on; lower the learning rates, check the data"
        )
    return tally._replace(
        status=status,
        evaluated=evaluated,
        failures=failures,
        recent=recent,
        unsaved=tally.unsaved or unsaved is not None,
        diverged=tally.diverged or bool(diverged),
    )


def collect(run: ActiveRun, federation: Source, tally: Tally) -> Played:
    """What the result is made of, taken from a federation that has played its last round."""
    history = federation.history()
    with writing(run.folder):
        snapshot = _saved(run, federation, history) if run.store.states else federation.snapshot()
    if run.request.execution.loss_deviation:
        say("loss deviation: every personal model predicts the test examples of all clients")
        losses = loss_deviation.rows(federation.class_losses())
        with writing(run.folder):
            run.writer.table(loss_deviation.TABLE, losses)
    asked = run.request.execution.uncertainty
    found = _uncertainty(run, federation) if asked else None
    return Played(snapshot, history, tally.evaluated, tally.failures, federation.device, found)


def conclude(run: ActiveRun, played: Played) -> RunResult:
    """Write the result into the run's folder and hand it to the tracker."""
    summary = report.summarize(run.plan, played.history.rows, run.tracker.run_id)
    if played.uncertainty:
        summary |= {"uncertainty": uncertain.summarize(run.plan, run.request.execution, played.uncertainty)}
    track(run, summary)
    package = run.package if played.device == "cpu" else None  # a GPU's clients have no use for it
    summary |= {
        "backend": "compiled" if package else run.request.execution.backend,
        "package": package.key if package else "",
        "device": played.device,
    }
    with writing(run.folder):
        _write(run, summary, played)
    _draw(run)
    run.tracker.flush()
    progress.end(run.folder, "finished", run.writer.folder)
    with writing(run.folder):
        run.writer.commit()
    checkpoint_place.clear(run.folder, run.store)
    run.log.write(f"finished: {run.folder}")
    run.tracker.finish("FINISHED", run.folder)
    run.tracker.publish(Finished(run.plan, run.folder, run.request.execution.register))
    return RunResult(run.plan, summary, run.folder, run.tracker.hint(), played.failures)


def track(run: ActiveRun, summary: Mapping[str, Any]) -> None:
    """Record the summary's own numbers beside those of the rounds, and of which rounds they are."""
    run.tracker.log(run.plan.cfg.rounds, report.averaged(run.plan, summary) | uncertain.tracked(summary))
    run.tracker.tag(report.AVERAGED, summary["protocol"]["rounds"])
    run.tracker.tag(report.PLAYED, str(run.plan.cfg.rounds))


def _note(run: ActiveRun) -> Note:
    execution = notes.absolute(run.request.execution, run.tracker.uri)
    package = run.package.key if run.package else ""
    return Note(run.name, run.plan.cfg, execution, run.tracker.run_id, package, run.plan.digests)


def _log(run: ActiveRun, metrics: RoundMetrics, values: Mapping[str, float]) -> None:
    """A line of the log for a round, and one for each of its failures, with what is known of it."""
    for failure in metrics.failures:
        then = f" ({failure.action})" if failure.action else ""
        run.log.write(f"{failure.kind}: {described(failure)}{then}\n{failure.traceback}")
    words = [f"round {metrics.round}/{run.plan.rounds}", *headlines(values), f"{metrics.seconds['round']:.2g} s"]
    run.log.write("  ".join(words))


def _after(
    run: ActiveRun, last: Status, metrics: RoundMetrics, values: Mapping[str, float], recent: Sequence[float]
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


def _uncertainty(run: ActiveRun, federation: Source) -> Uncertainty:
    """The uncertainty report of the models after the last round."""
    say("uncertainty: every client's models predict their test examples, corrupted ones and strange ones")
    ood = run.request.execution.ood
    return federation.uncertainty(questions.far(run.plan, ood) if ood else None)


def _saved(run: ActiveRun, federation: Source, history: State) -> Snapshot:
    """The federation with the clients' states in the files of its result, for they may not fit into memory."""
    folder = run.writer.folder / PERSONAL
    folder.mkdir()
    return Snapshot(history.server, Saved(str(folder), history.round, tuple(federation.save(str(folder)))))


def _write(run: ActiveRun, summary: dict[str, Any], played: Played) -> None:
    """Write the tables and models of the result."""
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
        writer.table(failure_list.FILE, failure_list.rows(played.failures))


def _draw(run: ActiveRun) -> None:
    """Draw the figures of the result from its tables."""
    folder = run.writer.folder
    try:
        if (also := run.request.execution.figures) != "none":
            all_figures.draw_all(folder, also)
    except Exception as error:  # a figure must not cost the result
        say(f"warning: the figures could not be drawn ({error}); the data for them are in the result")
