"""python -m fedray.launch [ALGORITHM] [options]: run one federation, track it, and keep its result."""

from __future__ import annotations

import contextlib
import json
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
    from fedray.config import Execution, Experiment
    from fedray.plan import Plan
    from fedray.result import Writer
    from fedray.tracking import Tracker
    from fedray.types import Algorithm, RoundMetrics, Spotlight


class Request(NamedTuple):
    """What the command line asks for."""

    experiment: Experiment
    execution: Execution
    preset: str
    json: bool


def parse(argv: Sequence[str]) -> Request:
    """The request of a command line; tyro prints help and mistakes and leaves with its own exit code (0, 2)."""
    import tyro

    from fedray import cli

    as_json = Annotated[bool, tyro.conf.arg(help="Print one JSON object on stdout and nothing else.")]
    parsed = cli.parse(argv, "python -m fedray.launch", _description, [("json", as_json, False)])
    return Request(parsed.experiment, parsed.execution, parsed.preset, parsed.more.json)


def _description(names: Mapping[str, Algorithm], chosen: str) -> str:
    from fedray import cli

    return (
        "Run one federation: every client a Ray actor, the result under runs/, the numbers in MLflow.\n\n"
        f"ALGORITHM, the first argument, is one of\n{cli.listed(names)}\n\n"
        "  python -m fedray.launch                                   10 clients on the digits of scikit-learn\n"
        "  python -m fedray.launch fedavg --lr 0.1 --rounds 30\n"
        "  python -m fedray.launch pfedbayes --data.name mnist --data.root DIR --zeta 5 --rounds 100\n\n"
        f"Options below are those of {chosen}; `python -m fedray.launch ALGORITHM --help` shows another's."
    )


def run(request: Request, tags: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run the request, with more tags in the store, and return its summary.

    Raises FedRayError before any actor starts where it cannot run.
    """
    from fedray.plan import make_plan
    from fedray.result import Writer
    from fedray.types import FedRayError

    check_packages()
    plan = make_plan(request.experiment)
    if request.preset:
        say(f"warning: {plan.algorithm.presets[request.preset].warning}")
    name = request.execution.name or _default_name(plan)
    if Path(name).name != name:
        raise FedRayError(f"--name {name}: is not a plain name; use --output for a folder elsewhere")
    writer = Writer(request.execution.output or Path("runs") / name)
    try:
        tracker = open_tracker(plan, request.execution, name, tags or {})
        try:
            summary = _play(plan, request, writer, tracker)
        except BaseException as error:
            tracker.finish("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED", None)
            raise
    finally:
        writer.discard()
    if not request.json:
        _show(plan, summary, tracker, writer.destination)
    return summary


def _play(plan: Plan, request: Request, writer: Writer, tracker: Tracker) -> dict[str, Any]:
    """Play all rounds, write the result, and hand it to the tracker."""
    from fedray import plots, report

    rows: list[dict[str, float]] = []
    spotlights: list[Spotlight] = []
    evaluated: RoundMetrics | None = None
    with open_federation(plan, request.execution) as federation, progress(plan) as advance:
        began = time.perf_counter()
        for metrics in federation:
            values = report.measures(metrics)
            rows.append({"round": metrics.round} | values)
            spotlights += metrics.spotlights
            evaluated = metrics if metrics.personal is not None or metrics.global_ is not None else evaluated
            tracker.log(metrics.round, values)
            advance(values)
        seconds = time.perf_counter() - began
        snapshot = federation.snapshot()
    summary = report.summarize(plan, rows, tracker.run_id, seconds)
    writer.run(plan, snapshot, spotlights)
    writer.json("summary.json", summary)
    writer.table("metrics.csv", rows)
    if evaluated is not None:
        writer.table("clients.csv", report.client_rows(evaluated, plan))
        writer.table("calibration.csv", report.calibration_rows(evaluated))
    try:
        plots.draw_all(writer.folder)
    except Exception as error:  # a figure must not cost the result
        say(f"warning: the figures could not be drawn ({error}); the data for them are in the result")
    tracker.finish("FINISHED", writer.commit())
    return summary


def open_federation(plan: Plan, execution: Execution) -> Any:
    """The federation on Ray or in this process, as a context manager over its rounds."""
    if execution.runtime == "local":
        from fedray.federation import LocalFederation

        return LocalFederation(plan, execution.backend)
    from actors.federation import RayFederation, announce

    federation = RayFederation(plan, execution)
    announce(federation.layout, plan.clients)
    return federation


def open_tracker(plan: Plan, execution: Execution, name: str, tags: Mapping[str, str]) -> Tracker:
    """The MLflow run of this federation with its own and these tags, or nothing where tracking is off."""
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
    params = {"algorithm.name": algorithm} | flatten(to_dict(plan.cfg)) | {"runtime": execution.runtime}
    uri, experiment = execution.tracking.uri, execution.tracking.experiment
    return tracking.MLflowTracker(uri, experiment, name, params, tags, warn=lambda text: say(f"warning: {text}"))


@contextlib.contextmanager
def progress(plan: Plan) -> Iterator[Any]:
    """A progress bar on stderr; yields a function that takes the measures of a finished round."""
    with bar("round", plan.cfg.rounds, "starting the clients") as move:
        done = 0

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


def _default_name(plan: Plan) -> str:
    from fedray import registry

    dataset = Path(plan.cfg.data.name).stem
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return f"{registry.algorithm_name(plan.cfg.algorithm)}-{dataset}-s{plan.cfg.seed}-{stamp}"


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 1 training failed, 2 the request was at fault, 130 interrupted."""
    from fedray.types import FedRayError

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)  # a terminated run cleans up like an interrupted one
    try:
        request = parse(sys.argv[1:] if argv is None else argv)
        summary = run(request)
    except FedRayError as error:
        from fedray.federation import TrainingError

        say(f"error: {error}")
        return 1 if isinstance(error, TrainingError) else 2
    except KeyboardInterrupt:
        say("interrupted: the actors are stopped, the rounds so far are in the tracking store")
        return 130
    if request.json:
        print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
