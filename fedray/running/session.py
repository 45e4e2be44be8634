"""One run from the request to its result, in this process or on Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

import fedray
from fedray import registry
from fedray.config import Execution, Experiment, fingerprint, flatten, to_dict
from fedray.config.decode import decode, refuse_damage
from fedray.federate import report
from fedray.federate.compiled.package import Package
from fedray.federate.federation import Federation
from fedray.federate.in_process import LocalFederation
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.federate.storage.checkpoint_files import Checkpoint, CheckpointError
from fedray.running import mlflow_store, progress, tracking
from fedray.running.files import read_measures, remove_leftovers
from fedray.running.folder import checkpoint_place, lock, naming, notes
from fedray.running.folder.notes import Note
from fedray.running.log import Log
from fedray.running.published import page
from fedray.running.published.publish import Finished, registration
from fedray.running.published.system_metrics import sampled
from fedray.running.resumed import extension
from fedray.running.stages import (
    ActiveRun,
    Request,
    RunResult,
    accepted,
    account,
    announcements,
    begin,
    collect,
    conclude,
    guarded,
    ready,
    track,
)
from fedray.running.tracking import Tracker
from fedray.running.writer import Writer
from fedray.terminal import bar, check_packages, headlines, heard, same_handlers, say, stop_if_interrupted
from fedray.types import for_command_line, require

OF_RAY = (
    "address", "clients_per_actor", "gpus_per_client", "cpus", "start_timeout", "round_timeout", "elastic"
)  # fmt: skip


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
    note = notes.read(request.resume) if request.resume else None
    plan = accepted(request, note, make_plan)
    if not (request.resume and notes.finished_rounds(Path(request.resume)) >= plan.cfg.rounds):
        check_gpu(request.execution)
    if request.preset:
        say(f"warning: {plan.algorithm.presets[request.preset].warning}")
    for line in announcements(plan):
        say(line)
    if idle := _idle(request.execution):
        say(f"warning: --runtime local has no use for {for_command_line(', '.join(idle))}")
    longer = note is not None and plan.cfg.rounds > note.experiment.rounds
    if note and longer:
        extension.check(plan, note.experiment.rounds)
    name = note.name if note else naming.name(plan, request.execution)
    folder = naming.place(request.resume, request.execution.output, name)
    algorithm = registry.algorithm_name(plan.cfg.algorithm)
    say(f"{algorithm} on {plan.cfg.data.name}: {plan.clients} clients, {plan.rounds} rounds; result in {folder}")
    store = checkpoint_place.store(folder, request.execution)
    option = "--resume" if note else "--output"
    with lock.locked(folder, option), checkpoint_place.locked_place(folder, store):
        writer = Writer(folder, note is not None and notes.holds(folder, note))
        try:
            # The store does not change parameters: with more rounds it is another run there.
            tracker = open_tracker(plan, request.execution, name, tags, None if longer else note)
            return _guarded(ActiveRun(plan, request, name, writer, tracker, store, log, note), tell)
        finally:
            writer.discard()


def _idle(execution: Execution) -> list[str]:
    """The options of Ray that were given to a run without it."""
    usual = Execution()
    given = [name for name in OF_RAY if getattr(execution, name) != getattr(usual, name)]
    given = [f"`{name}=False`" if getattr(execution, name) is False else f"`{name}`" for name in given]
    return given if execution.runtime == "local" else []


def _guarded(run: ActiveRun, tell: Callable[[int], object] | None) -> RunResult:
    """Play; if that ends early, note it, and tell the user how to go on."""
    try:
        with guarded(run):
            finished = notes.finished_rounds(run.folder) >= run.plan.cfg.rounds
            return _finish_again(run) if finished else _play(run, tell)
    except BaseException as error:
        if (run.folder / notes.NOTE).exists() and not isinstance(error, CheckpointError):  # that cannot go on
            say(f"go on    {naming.command(run.folder)}")
        raise


def _play(run: ActiveRun, tell: Callable[[int], object] | None) -> RunResult:
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
    if execution.runtime == "local":
        return execution.gpus == 1
    for_cpus = 0 in (execution.gpus, execution.gpus_per_client) or execution.cpus != "auto"
    return not for_cpus and torch.cuda.is_available()


def check_gpu(execution: Execution) -> None:
    """Raise SettingError where a run without Ray shall compute on a GPU that is not there."""
    seen = execution.runtime == "ray" or not on_gpus(execution) or torch.cuda.is_available()
    require(seen, "gpus", execution.gpus, "PyTorch sees no GPU on this machine", "use 0 to compute on its CPUs")


def _finish_again(run: ActiveRun) -> RunResult:
    """Finish a run that was interrupted after its result was written: send the result to the tracker again."""
    tracked = not isinstance(run.tracker, tracking.NullTracker)
    then = "its result goes to the tracking store again" if tracked else "there is nothing left to do"
    say(f"{run.folder} is finished; {then}")
    written = (run.folder / notes.FINISHED).stat().st_mtime
    checkpoint_place.clear(run.folder, run.store)
    remove_leftovers(run.folder)
    with refuse_damage(f"{run.folder}: the result cannot be read", "run it again in a new folder"):
        for row in read_measures(run.folder):
            run.tracker.log(int(row.pop("round")), report.stored(row))
        summary = decode((run.folder / "summary.json").read_bytes())
        track(run, summary)
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
    ahead: bool = True,
) -> Federation:
    """The federation on Ray or in this process, as a context manager over its rounds.

    Where none runs ``ahead`` of the caller, the federation can be stopped after any of them.
    """
    if execution.runtime == "local":
        device = "cuda" if on_gpus(execution) else "cpu"
        return LocalFederation(plan, package or execution.backend, device, store, begun)
    from actors.federation import RayFederation, announce

    with same_handlers():
        federation = RayFederation(plan, dataclasses.replace(execution, name=name), store, begun, package, ahead)
    announce(federation.layout, plan.clients)
    return federation


def watched(run: ActiveRun, federation: Federation) -> contextlib.AbstractContextManager[None]:
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
    kept_at = (note.execution.tracking.uri, note.execution.tracking.experiment) if note else None
    run_id = note.run_id if note and kept_at == (address, where.experiment) else None
    params = {"algorithm.name": algorithm} | flatten(to_dict(plan.cfg)) | {**plan.digests, "runtime": execution.runtime}
    kept = {} if run_id else params
    return tracking.MLflowTracker(where.uri, where.experiment, name, kept, tags, run_id=run_id)


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
