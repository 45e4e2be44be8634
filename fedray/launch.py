"""python -m fedray.launch [ALGORITHM] [options]: run one federation, track it, and keep its result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fedray.terminal import bar, check_packages, say

if TYPE_CHECKING:
    from fedray.checkpoint import Checkpoint, Store
    from fedray.config import Execution, Experiment
    from fedray.plan import Plan
    from fedray.result import Writer
    from fedray.rounds import Snapshot, State
    from fedray.runfolder import Note
    from fedray.tracking import Tracker
    from fedray.types import Algorithm, Failure, RoundMetrics


class Request(NamedTuple):
    """What the command line asks for."""

    experiment: Experiment
    execution: Execution
    preset: str = ""
    json: bool = False
    resume: Path | None = None  # folder of the run to go on with


def parse(argv: Sequence[str]) -> Request:
    """The request of a command line; tyro prints help and mistakes and leaves with its own exit code (0, 2)."""
    import tyro

    from fedray import cli, runfolder

    as_json = Annotated[bool, tyro.conf.arg(help="Print one JSON object on stdout and nothing else.")]
    text = "Go on with the interrupted run of this folder; options of the execution may differ, others not."
    resume = Annotated[str, tyro.conf.arg(help=text, metavar="DIR")]
    folder = cli.early(argv, "--resume")
    note = runfolder.read(Path(folder)) if folder else None
    base = (note.experiment, note.execution) if note else None
    options = [("json", as_json, False), ("resume", resume, "")]
    parsed = cli.parse(argv, "python -m fedray.launch", _description, options, base)
    if note:
        runfolder.check_same(Path(folder), note.experiment, parsed.experiment)
    return Request(
        parsed.experiment, parsed.execution, parsed.preset, parsed.more.json, Path(folder) if folder else None
    )


def _description(names: Mapping[str, Algorithm], chosen: str) -> str:
    from fedray import cli

    return (
        "Run one federation: every client a Ray actor, the result under runs/, the numbers in MLflow.\n\n"
        f"ALGORITHM, the first argument, is one of\n{cli.listed(names)}\n\n"
        "  python -m fedray.launch                                   10 clients on the digits of scikit-learn\n"
        "  python -m fedray.launch fedavg --lr 0.1 --rounds 30\n"
        "  python -m fedray.launch pfedbayes --data.name mnist --data.root DIR --zeta 5 --rounds 100\n"
        "  python -m fedray.launch --resume runs/NAME                go on with a run that was interrupted\n\n"
        f"Options below are those of {chosen}; `python -m fedray.launch ALGORITHM --help` shows another's."
    )


class Run(NamedTuple):
    """A run under way: what it plays, and where what it finds goes."""

    plan: Plan
    request: Request
    name: str
    writer: Writer
    tracker: Tracker
    store: Store


def run(request: Request, tags: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run the request, with more tags in the store, and return its summary.

    Raises FedRayError before any actor starts where it cannot run, and RunError where it must stop.
    """
    from fedray import runfolder
    from fedray.plan import make_plan
    from fedray.result import Writer

    check_packages()
    plan = make_plan(request.experiment)
    if request.preset:
        say(f"warning: {plan.algorithm.presets[request.preset].warning}")
    note = runfolder.read(request.resume) if request.resume else None
    name = note.name if note else _name(plan, request.execution)
    folder = Path(os.path.abspath(request.resume or request.execution.output or Path("runs") / name))
    with runfolder.locked(folder):
        writer = Writer(folder, note is not None)
        try:
            tracker = open_tracker(plan, request.execution, name, tags or {}, note)
            started = Run(plan, request, name, writer, tracker, runfolder.store(folder, request.execution))
            summary = _guarded(started)
        finally:
            writer.discard()
    if not request.json:
        _show(plan, summary, tracker, writer.destination)
    return summary


def _guarded(run: Run) -> dict[str, Any]:
    """Play; where that ends early, say so in the store and tell the user how to go on."""
    from fedray import runfolder

    folder = run.writer.destination
    try:
        return _finish_again(run) if (folder / runfolder.FINISHED).exists() else _play(run)
    except BaseException as error:
        run.tracker.finish("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED", None)
        if (folder / runfolder.NOTE).exists():
            say(f"go on    python -m fedray.launch --resume {folder}")
        raise


def _play(run: Run) -> dict[str, Any]:
    """Play the rounds that are left, write the result, and hand it to the tracker."""
    from fedray import checkpoint, report, runfolder

    plan, request, tracker = run.plan, run.request, run.tracker
    begun = checkpoint.newest(run.store, plan, lambda text: say(f"warning: {text}")) if request.resume else None
    before = begun.state.rows if begun else ()
    evaluated: RoundMetrics | None = None
    failures: list[Failure] = []
    with (
        open_federation(plan, request.execution, run.store, begun) as federation,
        progress(plan, len(before)) as advance,
    ):
        execution = runfolder.absolute(request.execution, tracker.uri)
        runfolder.write(run.writer.destination, runfolder.Note(run.name, plan.cfg, execution, tracker.run_id))
        for row in before:  # some may have been on their way to the store when the run was interrupted
            tracker.log(int(row["round"]), {name: value for name, value in row.items() if name != "round"})
        began = time.perf_counter()
        for metrics in federation:
            values = report.measures(metrics)
            failures += metrics.failures
            evaluated = metrics if metrics.personal is not None or metrics.global_ is not None else evaluated
            tracker.log(metrics.round, values)
            advance(values)
        seconds = time.perf_counter() - began + sum(row["time/round_seconds"] for row in before)
        snapshot, history = federation.snapshot(), federation.history()
    summary = report.summarize(plan, history.rows, tracker.run_id, seconds)
    _write(run, summary, snapshot, history, evaluated, failures)
    tracker.finish("FINISHED", run.writer.destination)
    if failures and not request.json:
        print_failures(failures)
    return summary


def _write(
    run: Run,
    summary: dict[str, Any],
    snapshot: Snapshot,
    history: State,
    evaluated: RoundMetrics | None,
    failures: Sequence[Failure],
) -> None:
    """The result in the run's folder, instead of its checkpoints."""
    from fedray import checkpoint, plots, report

    writer = run.writer
    writer.run(run.plan, snapshot, history.spotlights)
    writer.json("summary.json", summary)
    writer.table("metrics.csv", history.rows)
    if evaluated is not None:
        writer.table("clients.csv", report.client_rows(evaluated, run.plan))
        writer.table("calibration.csv", report.calibration_rows(evaluated))
    if failures:
        writer.table("failures.csv", [failure._asdict() for failure in failures])
    try:
        plots.draw_all(writer.folder)
    except Exception as error:  # a figure must not cost the result
        say(f"warning: the figures could not be drawn ({error}); the data for them are in the result")
    run.tracker.flush()
    writer.commit()
    checkpoint.clear(run.store)


def _finish_again(run: Run) -> dict[str, Any]:
    """The summary of a run that was interrupted after its result was written: only the tracker has to know."""
    say(f"{run.writer.destination} is finished; its result goes to the tracking store again")
    run.tracker.finish("FINISHED", run.writer.destination)
    return json.loads((run.writer.destination / "summary.json").read_text())


def open_federation(plan: Plan, execution: Execution, store: Store, begun: Checkpoint | None) -> Any:
    """The federation on Ray or in this process, as a context manager over its rounds."""
    if execution.runtime == "local":
        from fedray.federation import LocalFederation

        return LocalFederation(plan, execution.backend, "cpu", store, begun, execution.on_failure == "skip")
    from actors.federation import RayFederation, announce

    federation = RayFederation(plan, execution, store, begun)
    announce(federation.layout, plan.clients)
    return federation


def open_tracker(
    plan: Plan, execution: Execution, name: str, tags: Mapping[str, str], note: Note | None = None
) -> Tracker:
    """The MLflow run of this federation with its own and these tags, or the noted one, or nothing where it is off."""
    from fedray import registry, tracking
    from fedray.config import fingerprint, flatten, to_dict

    if execution.tracking.uri == "none":
        return tracking.NullTracker()
    algorithm = registry.algorithm_name(plan.cfg.algorithm)
    tags = dict(tags) | {
        "algorithm": algorithm,
        "dataset": plan.cfg.data.name,
        "seed": str(plan.cfg.seed),
        "config": fingerprint(plan.cfg),
        "git_commit": tracking.git_commit() or "unknown",
    }
    run_id = note.run_id if note and note.execution.tracking.uri == execution.tracking.uri else None
    params = {"algorithm.name": algorithm} | flatten(to_dict(plan.cfg)) | {"runtime": execution.runtime}
    uri, experiment = execution.tracking.uri, execution.tracking.experiment
    return tracking.MLflowTracker(
        uri, experiment, name, {} if run_id else params, tags, lambda text: say(f"warning: {text}"), run_id
    )


@contextlib.contextmanager
def progress(plan: Plan, done: int) -> Iterator[Any]:
    """A progress bar on stderr; yields a function that takes the measures of a finished round."""
    with bar("round", plan.cfg.rounds, "starting the clients") as move:
        move(done, "")

        def advance(values: dict[str, float]) -> None:
            nonlocal done
            done += 1
            shown = [f"{kind} {values[f'{kind}/accuracy']:.1%}" for kind in ("personal", "global")
                     if f"{kind}/accuracy" in values]  # fmt: skip
            move(done, "  ".join(shown))

        yield advance


def _show(plan: Plan, summary: dict[str, Any], tracker: Tracker, folder: Path) -> None:
    from rich.console import Console

    from fedray import report

    console = Console()
    console.print(report.table(plan, summary, summary["seconds"]))
    console.print(f"result   {folder}\nfigures  {folder / 'figures'}\ntracked  {tracker.hint()}", soft_wrap=True)
    console.print(
        f'use it   python -c "import fedray; print(fedray.load({str(folder)!r}))"', soft_wrap=True, markup=False
    )


def print_failures(failures: Sequence[Failure]) -> None:
    """The table of what went wrong and what was made of it."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=f"{len(failures)} failures", title_justify="left")
    for column in ("round", "who", "what", "reason", "then"):
        shown.add_column(column)
    for failure in failures:
        shown.add_row(str(failure.round), failure.who, failure.kind, failure.reason[:80], failure.action)
    Console().print(shown)


def _name(plan: Plan, execution: Execution) -> str:
    from fedray import registry
    from fedray.types import FedRayError

    if execution.name:
        if Path(execution.name).name != execution.name:
            raise FedRayError(f"--name {execution.name}: is not a plain name; use --output for a folder elsewhere")
        return execution.name
    dataset = Path(plan.cfg.data.name).stem
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return f"{registry.algorithm_name(plan.cfg.algorithm)}-{dataset}-s{plan.cfg.seed}-{stamp}"


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 1 training failed, 2 the request was at fault, 130 interrupted."""
    from fedray.types import FedRayError, RunError

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)  # a terminated run cleans up like an interrupted one
    try:
        request = parse(sys.argv[1:] if argv is None else argv)
        summary = run(request)
    except FedRayError as error:
        say(f"error: {error}")
        return 1 if isinstance(error, RunError) else 2
    except KeyboardInterrupt:
        say("interrupted: the actors are stopped, the rounds so far are in the tracking store")
        return 130
    if request.json:
        print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
