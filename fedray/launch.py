"""python -m fedray.launch [ALGORITHM] [options]: run one federation, track it, and keep its result."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

if TYPE_CHECKING:
    from fedray.config import Execution, Experiment
    from fedray.plan import Plan
    from fedray.result import Writer
    from fedray.tracking import Tracker
    from fedray.types import Algorithm, RoundMetrics, Spotlight

DEFAULT_ALGORITHM = "pfedbayes"


class Request(NamedTuple):
    """What the command line asks for."""

    experiment: Experiment
    execution: Execution
    preset: str
    json: bool


def parse(argv: Sequence[str]) -> Request:
    """The request of a command line; tyro prints help and mistakes and leaves with its own exit code (0, 2)."""
    import tyro

    from fedray import registry
    from fedray.config import Execution, Experiment, override
    from fedray.types import FedRayError

    names = registry.algorithms()
    given = bool(argv) and not argv[0].startswith("-")
    name, argv = (argv[0], argv[1:]) if given else (DEFAULT_ALGORITHM, argv)
    record = registry.pick(names, "algorithm", name)
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # a preset changes the defaults of the rest
    early.add_argument("--preset", default="", nargs="?")
    preset = early.parse_known_args(argv)[0].preset
    if preset and preset not in record.presets:
        raise FedRayError(f"--preset {preset}: {name} has {', '.join(record.presets) or 'no presets'}; leave it out")
    settings = dict(record.defaults) | (dict(record.presets[preset].overrides) if preset else {})
    experiment = override(Experiment(algorithm=record.config()), settings)
    flat = tyro.conf.arg(name="")
    options = dataclasses.make_dataclass(
        "Options",
        [
            ("algorithm", Annotated[record.config, flat], dataclasses.field(default=experiment.algorithm)),
            ("experiment", Annotated[Experiment, flat], dataclasses.field(default=experiment)),
            ("execution", Annotated[Execution, flat], dataclasses.field(default=Execution())),
            ("preset", Annotated[str, tyro.conf.arg(help=_preset_help(record))], ""),
            ("json", Annotated[bool, tyro.conf.arg(help="Print one JSON object on stdout and nothing else.")], False),
        ],
        frozen=True,
    )
    parsed: Any = tyro.cli(
        options,
        prog=f"python -m fedray.launch {name}" if given else "python -m fedray.launch",
        description=_description(names, name),
        args=list(argv),
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff),
    )
    experiment = dataclasses.replace(parsed.experiment, algorithm=parsed.algorithm)
    return Request(experiment, parsed.execution, parsed.preset, parsed.json)


def _description(names: Any, chosen: str) -> str:
    width = max(map(len, names))
    listed = "\n".join(f"  {name:<{width}}  {record.summary}" for name, record in names.items())
    return (
        "Run one federation: every client a Ray actor, the result under runs/, the numbers in MLflow.\n\n"
        f"ALGORITHM, the first argument, is one of\n{listed}\n\n"
        "  python -m fedray.launch                                   10 clients on the digits of scikit-learn\n"
        "  python -m fedray.launch fedavg --lr 0.1 --rounds 30\n"
        "  python -m fedray.launch pfedbayes --data.name mnist --data.root DIR --zeta 5 --rounds 100\n\n"
        f"Options below are those of {chosen}; `python -m fedray.launch ALGORITHM --help` shows another's."
    )


def _preset_help(record: Algorithm) -> str:
    return f"Named settings, applied before the other options: {', '.join(record.presets) or 'none here'}."


def run(request: Request) -> dict[str, Any]:
    """Run the request and return its summary; raises FedRayError before any actor starts where it cannot run."""
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
        tracker = open_tracker(plan, request.execution, name)
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


def open_tracker(plan: Plan, execution: Execution, name: str) -> Tracker:
    """The MLflow run of this federation, or nothing where tracking is off."""
    from fedray import registry, tracking
    from fedray.config import flatten, to_dict

    if execution.tracking.uri == "none":
        return tracking.NullTracker()
    algorithm = registry.algorithm_name(plan.cfg.algorithm)
    tags = {
        "algorithm": algorithm,
        "dataset": plan.cfg.data.name,
        "seed": str(plan.cfg.seed),
        "git_commit": tracking.git_commit() or "unknown",
    }
    params = {"algorithm.name": algorithm} | flatten(to_dict(plan.cfg)) | {"runtime": execution.runtime}
    uri, experiment = execution.tracking.uri, execution.tracking.experiment
    return tracking.MLflowTracker(uri, experiment, name, params, tags, warn=lambda text: say(f"warning: {text}"))


@contextlib.contextmanager
def progress(plan: Plan) -> Iterator[Any]:
    """A progress bar on stderr; yields a function that takes the measures of a finished round."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=plan.cfg.rounds, note="starting the clients")

        def advance(values: dict[str, float]) -> None:
            shown = [f"{kind} {values[f'{kind}/accuracy']:.1%}" for kind in ("personal", "global")
                     if f"{kind}/accuracy" in values]  # fmt: skip
            bar.advance(task)
            if shown:
                bar.update(task, note="  ".join(shown))

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


def check_packages() -> None:
    """Refuse to start where another package of the name ``actors`` or ``tune`` shadows ours."""
    from fedray.types import FedRayError

    home = Path(__file__).resolve().parent.parent
    for name in ("actors", "tune"):
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve().parent.parent if spec and spec.origin else None
        if found != home:
            raise FedRayError(
                f"the package {name!r} was found in {found}, not beside fedray in {home}; run from {home}, or remove "
                "the other one from the Python path"
            )


def say(text: str) -> None:
    """A line for the person at the terminal; stdout belongs to the result."""
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 1 training failed, 2 the request was at fault, 130 interrupted."""
    from fedray.types import FedRayError

    if threading.current_thread() is threading.main_thread():
        # A terminated run cleans up like an interrupted one.
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
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
