"""A sweep from its options to its table: check it, let Tune play it, record it, and resume it if interrupted."""

from __future__ import annotations

import dataclasses
import math
import shlex
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray import tune as ray_tune

from actors.machines import demand, sight
from actors.machines.cluster import connect, here, this_node
from actors.machines.offer import need_of_trials
from actors.machines.placement import Layout, arrange_trials
from fedray import cli, registry
from fedray.config import Execution, Experiment, TrackingConfig, flatten, override, to_dict
from fedray.config.decode import decode, record, refuse_damage
from fedray.data import loading
from fedray.federate.compiled.choice import may_compile
from fedray.federate.failures import failure_policy
from fedray.running import progress
from fedray.running.files import remove_leftovers, write_json, write_table
from fedray.running.mlflow_store import locate, shown
from fedray.running.progress import Status
from fedray.running.published import page
from fedray.running.tracking import MLflowTracker, NullTracker, Tracker
from fedray.terminal import same_handlers
from fedray.types import FedRayError, require
from tune import results, search
from tune.children import ParentRun, child_run
from tune.options import TEST, Sweep, by_test, complete, validation_share
from tune.planner import Planner, Preview, preview
from tune.play import Programme
from tune.play import play as play_trials
from tune.record import UNFINISHED, Recorder
from tune.space import Domain, make, show
from tune.trial import CommonToTrials, Trial

REFUSED = {  # settings of the execution that a sweep decides itself: why, and what to do instead
    "runtime": ("a sweep runs on Ray", "leave the option out"),
    "client_states": ("the trials of a sweep keep their clients' states in memory", "leave the option out"),
    "loss_deviation": ("a sweep keeps metrics only", "launch its best configuration with the option"),
    "uncertainty": ("a sweep keeps metrics only", "launch its best configuration with the option"),
    "ood": ("a sweep keeps metrics only", "launch its best configuration with the option"),
    "register": ("a sweep keeps no models", "launch its best configuration with the option"),
    "tracking.system_metrics": (
        "its trials share the machines",
        "see Ray's dashboard, or launch its best configuration",
    ),
    "figures": ("a sweep draws no figures of its trials", "launch its best configuration with the option"),
    "elastic": ("a trial keeps its machines, and begins again elsewhere where one is lost", "leave the option out"),
    "checkpoint.every": ("a sweep keeps every trial after each evaluated round", "use --eval-every"),
    "checkpoint.keep": ("the scheduler decides which checkpoints of a trial are kept", "leave the option out"),
    "checkpoint.url": ("a sweep keeps its checkpoints in its own folder", "use --output"),
    "checkpoint.on_error": ("Tune repeats a trial whose checkpoint cannot be written", "leave the option out"),
}
TRACKED = "parent.json"
LOADED = ("data.name", "data.root", "data.classes", "data.embedding")  # settings that decide which examples there are


class SweepRequest(NamedTuple):
    """A checked sweep."""

    name: str
    folder: Path
    base: Experiment  # of every trial; rounds are the most that one plays
    execution: Execution
    sweep: Sweep
    space: dict[str, Domain]
    seeds: list[int]
    trials: int
    preview: Preview
    examples: tuple[str, ...] = ()  # digests of the user's own: a sweep goes on with the same ones only


class Report(NamedTuple):
    """What a sweep found."""

    request: SweepRequest
    table: list[results.TrialResult]
    best: list[results.TrialResult]  # of the best configuration, one per seed
    command: str  # that plays it again
    tested: dict[str, dict[str, float]]  # its measures on test examples, which had no part in the choice
    refit: str  # the command that trains it on all training examples; both are empty before the end, and by_test
    hint: str  # where to look
    interrupted: bool


def check(name: str, folder: Path, base: Experiment, execution: Execution, sweep: Sweep) -> SweepRequest:
    """Everything that can be refused before Ray starts; raises FedRayError."""
    given, usual = (flatten(to_dict(settings)) for settings in (execution, Execution()))
    for setting, (reason, remedy) in REFUSED.items():
        require(given[setting] == usual[setting], setting, given[setting], reason, remedy)
    reason = "the settings that a sweep varies are constants of compiled code"
    require(execution.backend != "compiled", "backend", "compiled", reason, "use `backend=auto`")
    if execution.tracking.uri != "none":
        locate(execution.tracking.uri)
    record = registry.algorithm_of(base.algorithm)
    planner = Planner()
    sweep = complete(sweep, record, base.rounds, planner.plan(base).task)
    share = validation_share(sweep.metric, base.data.validation)
    # An address in this folder would be another file where the sweep is resumed.
    data = dataclasses.replace(loading.given_paths(base.data), validation=share)
    base = override(base, {"rounds": sweep.max_rounds, "data": data})
    space = make(sweep.space, record.space, base)
    seeds = [base.seed + i for i in range(sweep.seeds)]
    search.parameters(space, sweep.search, seeds)
    search.searcher(sweep, space, 1, seeds)
    search.scheduler(sweep, space)
    trials = search.count(space, sweep.search, sweep.samples, len(seeds))
    seen = preview(planner, base, space, seeds)
    return SweepRequest(name, folder, base, execution, sweep, space, seeds, trials, seen, planner.digests())


def play(
    request: SweepRequest, resume: bool, say: Callable[[str], object], move: Callable[[int, str], object]
) -> Report:
    """Run or go on with a sweep; ``move`` gets the number of finished trials and a note.

    Raises FedRayError, before any trial, for what the cluster cannot hold or a store that is down.
    """
    with same_handlers():
        own = connect(request.execution.address)
    try:
        sweep = request.sweep
        execution = request.execution
        clients = request.preview.clients
        concurrency = None if sweep.concurrency == "auto" else int(sweep.concurrency)
        wish = demand.wish(execution)
        wanted = need_of_trials(clients, concurrency or request.trials, wish)
        cluster = demand.survey(wanted, execution.start_timeout)
        apart = execution.round_timeout is not None  # nobody could stop a process that hangs with its own clients
        layout, at_once = arrange_trials(clients, request.trials, cluster.nodes, concurrency, wish, apart)
        demand.bring_up(layout.bundles, cluster)
        tied = _tied(request, layout, say)
        if tied and layout.inside:  # the processes of trials are all that there is, and have to be on this machine
            layout, at_once = arrange_trials(clients, request.trials, [this_node()], concurrency, wish, apart)
        where = "the trial's own process" if layout.inside else f"{len(layout.blocks)} actor(s) each"
        say(f"{_trials(request)}, {at_once} at a time: {clients} clients in {where}")
        say(results.basis(sweep.metric, request.base.data.validation))
        for line in request.preview.messages:
            say(line)
        tracker, parent = _records(request)
        show = partial(_show_progress, request, time.monotonic(), move)
        planner = Planner()
        recorder = Recorder(partial(child_run, parent, request.base, sweep, planner), show)
        trials: list[Any] = []
        try:
            show([])
            trials = play_trials(_programme(request, layout, at_once, resume, planner, tied), recorder)
        finally:
            if not trials:
                tracker.finish("KILLED")
                progress.end(request.folder, "interrupted")
        return _conclude(request, trials, tracker, layout.gpus > 0)
    finally:
        if own:
            ray.shutdown()


def _tied(request: SweepRequest, layout: Layout, say: Callable[[str], object]) -> dict[str, float]:
    """What ties the processes of trials to this machine: nothing where all machines see its folder, where they write.

    Raises FedRayError where they do not, and this machine has no CPU for trials.
    """
    unseen = sight.blind(request.folder.parent)
    if not unseen:
        return {}
    tied = here()
    who = f"{', '.join(unseen)} {'does' if len(unseen) == 1 else 'do'} not see {request.folder.parent}"
    if not tied:
        raise FedRayError(
            f"--output {request.folder}: {who}, where trials write; give a folder that all machines see, or let the "
            "machine on which you start offer CPUs"
        )
    rest = "" if layout.inside else ", only their clients elsewhere"
    say(f"warning: {who}: trials play on this machine{rest}; give --output a folder that all machines see")
    return tied


def concluded(request: SweepRequest) -> Report | None:
    """What a sweep has found that is finished, from its files, without Ray and its store; None where trials are left.

    Raises FedRayError where a file is damaged.
    """
    folder = request.folder / "result"
    if not (folder / "best.json").exists():
        return None
    with refuse_damage(f"{folder}: cannot be read", "start a new sweep in another folder"):
        found = decode((folder / "best.json").read_bytes())
        if not found.get("finished"):  # it was cut off as it concluded
            return None
        table = results.read_table(folder / "trials.csv", request.space, request.sweep.metric)
        best = [row for row in table if row.trial in found["trials"]]
        told = found["command"], found["tested"], found["refit"]
        return Report(request, table, best, *told, found["hint"], False)


def _programme(
    request: SweepRequest, layout: Layout, at_once: int, resume: bool, planner: Planner, tied: Mapping[str, float]
) -> Programme:
    sweep = request.sweep
    base = request.base
    dataset = None if request.space.keys() & set(LOADED) else ray.put(planner.dataset(base))
    common = CommonToTrials(
        base,
        layout,
        request.execution.backend,
        sweep.metric,
        registry.plug_ins(),
        dataset,
        request.execution.round_timeout,
        request.name,
    )
    return Programme(
        Trial,
        common,
        search.parameters(request.space, sweep.search, request.seeds),
        lambda config: layout,
        dict(tied),
        search.searcher(sweep, request.space, at_once, request.seeds),
        search.scheduler(sweep, request.space, request.base.eval_every),
        samples=search.draws(request.space, sweep.search, sweep.samples),
        seed=base.seed,
        folder=request.folder,
        checkpoints=ray_tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=_kept(sweep)),
        retries=failure_policy(base).attempts - 1,  # a trial whose process is lost starts from its last checkpoint
        resume=resume and any(request.folder.glob("experiment_state-*.json")),  # else nothing was begun
    )


def command(folder: Path) -> str:
    """What to type to go on with the sweep of a folder."""
    return f"python -m tune --resume {shlex.quote(str(folder))}"


def _show_progress(request: SweepRequest, began: float, move: Callable[[int, str], object], trials: list[Any]) -> None:
    """Tell ``move`` and the status how many trials have ended, and the best score so far."""
    sweep = request.sweep
    last = [trial.last_result or {} for trial in trials]
    scores = [score for result in last if (score := result.get("score")) is not None and math.isfinite(score)]
    best = (max if sweep.mode == "max" else min)(scores, default=None)
    done = sum(trial.is_finished() for trial in trials)
    failed = sum("failure" in result for result in last)
    measures = {} if best is None else {sweep.metric: best}
    seconds = (time.monotonic() - began) / done if done else 0.0
    go_on = command(request.folder)
    status = Status(request.name, "running", done, request.trials, measures, seconds, failed, None, go_on, unit="trial")
    progress.write(request.folder, status)
    move(done, "" if best is None else f"best {sweep.metric} {best:.4f}")


def _kept(sweep: Sweep) -> int | None:
    """Checkpoints kept per trial: population based training may still want an older one of a donor."""
    return None if sweep.scheduler == "pbt" else 1


class Tracked(NamedTuple):
    """Where a sweep is tracked."""

    uri: str  # without a password
    run_id: str | None
    experiment: str


def noted(folder: Path) -> Tracked | None:
    """Where the sweep of a folder is tracked so far; None: nowhere. Raises FedRayError where the note is damaged."""
    note = folder / TRACKED
    if not note.exists():
        return None
    with refuse_damage(f"{note}: cannot be read", "start a new sweep in another folder"):
        return record(Tracked, decode(note.read_bytes()))


def _records(request: SweepRequest) -> tuple[Tracker, ParentRun | None]:
    """The run of the sweep, which the note in its folder leads back to, and where its children go."""
    where = request.execution.tracking
    if where.uri == "none":
        return NullTracker(), None
    uri = locate(where.uri)[0]
    known = noted(request.folder)
    same = known is not None and (known.uri, known.experiment) == (shown(uri), where.experiment)
    run_id = known.run_id if known and same else None
    algorithm = registry.algorithm_name(request.base.algorithm)
    tags = {"fedray.kind": "sweep", "sweep": request.name, "algorithm": algorithm, "dataset": request.base.data.name}
    tags[page.NOTE] = _description(request)
    space = {f"space.{name}": show(domain) for name, domain in request.space.items()}
    options = to_dict(dataclasses.replace(request.sweep, resume="", space=()))
    params = {"algorithm.name": algorithm} | flatten(to_dict(request.base)) | space
    params |= {f"sweep.{name}": value for name, value in options.items()}
    tracker = MLflowTracker(uri, where.experiment, request.name, {} if run_id else params, tags, run_id=run_id)
    write_json(request.folder / TRACKED, Tracked(shown(uri), tracker.run_id, where.experiment)._asdict())
    return tracker, ParentRun(uri, where.experiment, tracker.run_id, request.name, algorithm)


def _trials(request: SweepRequest) -> str:
    return f"{request.trials} trial{'s' if request.trials > 1 else ''}"


def _description(request: SweepRequest, best: str = "") -> str:
    """Markdown for the page of the sweep in the store: what is searched, and the best that was found."""
    name, data = registry.algorithm_name(request.base.algorithm), request.base.data
    searched = ((setting.removeprefix("algorithm."), domain) for setting, domain in request.space.items())
    space = ", ".join(f"`{setting}={show(domain)}`" for setting, domain in searched)
    rank = results.basis(request.sweep.metric, data.validation)
    head, tail = f"**{name}** on **{data.name}**: a sweep of {_trials(request)} over ", f"; {rank}\n\n{best}"
    room = page.MAX_NOTE - len(head + tail)  # MLflow would cut the end, the best
    return head + (space if len(space) <= room else f"{space[: room - 4]} ...") + tail


def _best_command(request: SweepRequest, chosen: Experiment, gpus: bool) -> str:
    """The launch command that computes as the trials did: with backend auto a long launch compiles its steps on CPUs,
    which round otherwise, and no trial does."""
    backend = request.execution.backend
    if backend == "auto" and not gpus and may_compile(Planner().plan(chosen)):
        backend = "vmap"
    return cli.command(chosen) + (f" --backend {backend}" if backend != "auto" else "")


def _conclude(request: SweepRequest, trials: list[Any], tracker: Tracker, gpus: bool = False) -> Report:
    """Rank, write the table, the best configuration and the figures, and hand them to the tracker."""
    sweep = request.sweep
    folder = request.folder / "result"
    table = results.rows(trials, request.space, request.base.rounds)
    order = results.ranked(table, sweep.mode)
    best = order[0] if order else []
    chosen = override(request.base, best[0].settings | {"seed": best[0].seed}) if best else None
    command = _best_command(request, chosen, gpus) if chosen else ""
    interrupted = len(trials) < request.trials or any(row.outcome == UNFINISHED for row in table)
    final = (
        chosen is not None and not interrupted and not by_test(sweep.metric)
    )  # nobody tests before the choice is made
    tested = results.tested(best) if final else {}
    refit = cli.command(override(chosen, {"data.validation": 0.0})) if final else ""
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)  # of one that was killed as it concluded
    write_table(folder / "trials.csv", results.csv_rows(table, sweep.metric))
    write_json(folder / "space.json", {name: show(domain) for name, domain in request.space.items()})
    results.draw(table, request.space, sweep, folder)
    found = {
        "metric": sweep.metric,
        "score": results.mean(best) if best else None,
        "basis": results.basis(sweep.metric, request.base.data.validation),
        "settings": best[0].settings if best else {},
        "trials": [row.trial for row in best],
        "command": command,
        "tested": tested,
        "refit": refit,
    }
    write_json(folder / "best.json", found)  # for the store
    if best:
        kind, name = sweep.metric.split("/")[1:]
        alike = {f"best/{TEST}/{kind}/{name}": tested[kind][name]} if tested else {}
        tracker.log(0, {f"best/{sweep.metric}": results.mean(best)} | alike)
        tracker.tag("best", command)
        so_far = "The best configuration so far" if interrupted else "The best configuration"
        play = page.block(f"{so_far} has {sweep.metric} {results.mean(best):.4f}", command)
        tracker.tag(page.NOTE, _description(request, play))
    tracker.finish("KILLED" if interrupted else "FINISHED", folder)
    # Last: whoever is killed before concludes again.
    hint = tracker.hint()
    write_json(folder / "best.json", {"finished": not interrupted, "hint": hint} | found)
    progress.end(request.folder, "interrupted" if interrupted else "finished")
    return Report(request, table, best, command, tested, refit, hint, interrupted)


def identity(base: Experiment, execution: Execution, sweep: Sweep) -> dict[str, Any]:
    """What two command lines must agree on to be the same sweep."""
    options = to_dict(dataclasses.replace(sweep, resume="", concurrency="auto"))
    where = to_dict(dataclasses.replace(execution, tracking=TrackingConfig()))
    return options | flatten(to_dict(base) | where) | {"algorithm": registry.algorithm_name(base.algorithm)}
