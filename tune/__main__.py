"""python -m tune [ALGORITHM] [options]: search the settings of a federation; every trial is a whole one."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from fedray import cli, terminal
from fedray.types import Algorithm, FedRayError

if TYPE_CHECKING:
    from fedray.config import Experiment
    from tune.sweep import Report, SweepRequest

NOTE = "sweep.json"


class SweepNote(NamedTuple):
    """What a sweep was asked to do."""

    name: str
    argv: list[str]  # without passwords
    folder: str  # from which the paths among its options lead
    examples: tuple[str, ...] = ()  # digests of the user's own


ABOUT = (
    "Search the settings of a federation with Ray Tune: every trial is a whole federation, and a child\n"
    "run in MLflow. Trials are ranked, and stopped early, on validation examples: a share of every\n"
    "client's training examples on which nobody trains. Only the best configuration is tested.\n\n"
    "  python -m tune                                            8 configurations of pfedbayes on the digits\n"
    "  python -m tune pfedbayes --samples 20 --max-rounds 40 --space 'zeta=loguniform(1,20)'\n"
    "  python -m tune fedavg --search grid --space 'lr=grid(0.01,0.1)' --scheduler none --seeds 3\n"
    "  python -m tune fedper --data.name mine.npz                data of your own\n"
    "  python -m tune --resume runs/NAME                         go on with a sweep that was interrupted"
)


def describe(names: Mapping[str, Algorithm], chosen: str) -> str:
    """The text above all options."""
    return (
        f"{ABOUT}\n\nALGORITHM, the first argument, is one of\n{cli.listed(names)}\n\n{cli.listed_plug_ins()}\n\n"
        f"Options of `python -m fedray.launch {chosen}` are fixed values here, but for those that a sweep\n"
        "decides itself and refuses; --space names what is searched."
    )


def brief(names: Mapping[str, Algorithm], chosen: str) -> str:
    """What --help begins with."""
    from tune import space

    searched = "\n".join(f"  {name}={space.show(domain)}" for name, domain in names[chosen].space.items())
    return (
        f"{ABOUT}\n\nALGORITHM is one of\n{cli.wrapped(names)}\n\n"
        "  python -m tune ALGORITHM --help                           the same for another algorithm\n"
        "  python -m tune ALGORITHM --help-all                       all options, and what they mean\n\n"
        f"Options of `python -m fedray.launch {chosen}` are fixed values here, but for those that a sweep\n"
        f"decides itself and refuses. Without --space, these are searched:\n{searched or '  none: give --space'}"
    )


def read(argv: Sequence[str]) -> tuple[SweepRequest, bool]:
    """(request, whether to resume) of a command line; raises FedRayError for what could not run."""
    from fedray import registry
    from fedray.running.folder import naming
    from fedray.running.writer import taken
    from tune.sweep import check

    folder = cli.early(argv, "--resume")
    if folder:
        return _resumed(folder, argv), True
    parsed = _parsed(argv)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    algorithm = registry.algorithm_name(parsed.experiment.algorithm)
    name = naming.given_name(parsed.execution) or f"sweep-{algorithm}-{Path(parsed.experiment.data.name).stem}-{stamp}"
    target = naming.place("", parsed.execution.output, name)
    if taken(target):
        raise FedRayError(f"--output {target}: already holds something; choose another, or --resume {target}")
    return check(name, target, parsed.experiment, parsed.execution, parsed.more.sweep), False


def _parsed(argv: Sequence[str], old: cli.Parsed | None = None) -> cli.Parsed:
    """A command line; its defaults are the options of an old one, where there is one."""
    from tune.options import Sweep

    usual = dataclasses.replace(old.more.sweep, space=()) if old else Sweep()  # the parser appends to a space
    lead = [("sweep", Annotated[Sweep, tyro.conf.arg(name="")], dataclasses.field(default=usual))]
    base = (old.experiment, old.execution) if old else None
    return cli.parse(argv, "python -m tune", describe, (), base, brief, lead)


def _placed(cfg: Experiment, folder: str = "") -> Experiment:
    """The same experiment, whose data do not depend on the working folder; ``folder`` is that of the relative paths."""
    from fedray.config import override
    from fedray.data import loading

    return override(cfg, {"data": loading.given_paths(cfg.data, folder)})


def _resumed(folder: str, argv: Sequence[str]) -> SweepRequest:
    """The sweep of a folder; a command line may change its trials at a time and where it is tracked.

    Raises FedRayError for a folder without a sweep, for other options, and where a password is missing.
    """
    from fedray.config import differences
    from fedray.config.decode import decode, record, refuse_damage
    from tune.sweep import check, identity, noted

    target = Path(os.path.abspath(folder))
    with refuse_damage(f"--resume {folder}: holds no sweep", "give the folder that `python -m tune` named"):
        stored = record(SweepNote, decode((target / NOTE).read_bytes()))
    old = _parsed(stored.argv)
    old = old._replace(experiment=_placed(old.experiment, stored.folder))
    given = _parsed(argv, old)
    given = given._replace(experiment=_placed(given.experiment))
    sweep, tracking = given.more.sweep, given.execution.tracking
    sweep = dataclasses.replace(sweep, space=sweep.space or old.more.sweep.space)
    begun = identity(old.experiment, old.execution, old.more.sweep)
    other = differences(begun, identity(given.experiment, given.execution, sweep))
    if other:
        other = ["algorithm"] if "algorithm" in other else other  # all of whose settings differ, too
        raise FedRayError(
            f"--resume {folder}: holds another sweep (it differs in {', '.join(other)}); leave these options out, or "
            "start a new sweep without --resume"
        )
    now = {word.partition("=")[0] for word in argv}
    last = noted(target)
    # A relative address holds in the folder where the sweep began; the note has the whole one.
    if last and tracking.uri != "none" and "--tracking.uri" not in now:
        experiment = tracking.experiment if "--tracking.experiment" in now else last.experiment
        tracking = dataclasses.replace(tracking, uri=last.uri, experiment=experiment)
    if "***" in tracking.uri:
        raise FedRayError(
            f"--resume {folder}: the password of its store was not kept; add --tracking.uri {tracking.uri} with the "
            "password"
        )
    execution = dataclasses.replace(given.execution, tracking=tracking)
    request = check(stored.name, target, given.experiment, execution, sweep)
    if request.examples != tuple(stored.examples):
        raise FedRayError(
            f"--resume {folder}: {request.base.data.name} holds other examples than when the sweep began, so its "
            "scores cannot be compared; bring the data of then back, or start a new sweep without --resume"
        )
    return request


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 1 no trial succeeded, 2 the request was at fault, 130 interrupted."""
    given = sys.argv[1:] if argv is None else argv
    return cli.run_command(lambda: _sweep(given))


def _play(request: SweepRequest, note: SweepNote | None, go_on: str) -> Report:
    """Play a sweep that a note begins, or what is left of one, and say how to go on where it is cut off.

    Raises FedRayError where another process plays it.
    """
    from fedray.running.files import write_json
    from fedray.running.folder import lock
    from tune import sweep

    with lock.locked(request.folder, "--output" if note else "--resume"):
        if note:
            write_json(request.folder / NOTE, note._asdict())
        terminal.say(f"if it is cut off: {sweep.command(request.folder)}")
        try:
            with terminal.bar("trial", request.trials, "starting the first trials") as move:
                return sweep.play(request, note is None, terminal.say, move)
        except KeyboardInterrupt:
            terminal.say(go_on)
            raise


def _sweep(argv: Sequence[str]) -> int:
    """Run the sweep of a command line and show what it found."""
    terminal.check_packages()
    request, resume = read(argv)
    from fedray.running.mlflow_store import shown
    from tune import results, sweep

    words = [shown(word) for word in argv]
    note = None if resume else SweepNote(request.name, words, os.getcwd(), request.examples)
    go_on = f"go on    {sweep.command(request.folder)}"
    found = (sweep.concluded(request) if resume else None) or _play(request, note, go_on)
    console = terminal.console()
    basis = results.basis(request.sweep.metric, request.base.data.validation)
    table = results.by_rank(found.table, request.sweep.mode)
    console.print(results.show(table, request.sweep.metric, found.best, basis, console.width))
    console.print(f"result   {request.folder / 'result'}\ntracked  {found.hint}", soft_wrap=True)
    console.print("         the [+] beside the sweep unfolds its trials", markup=False)
    if not found.best and (failed := results.failure(table)):
        console.print(f"failed   {failed}", soft_wrap=True, markup=False, highlight=False)
        console.print("         no configuration has a score; change --space, or the setting that the reason names")
    if found.best:
        told = results.repetition(found.best, request.base.rounds, request.sweep.scheduler)
        console.print(f"best     {found.command}\n         {told}", soft_wrap=True, markup=False)
    if found.tested:
        measures = {f"{kind}/{name}": value for kind, values in found.tested.items() for name, value in values.items()}
        told = (
            f"tested   {', '.join(terminal.headlines(measures, 2))} on test examples, which had no part in the choice"
        )
        console.print(told, soft_wrap=True, highlight=False)
        console.print(f"refit    {found.refit}", soft_wrap=True, markup=False)
        console.print("         trains it on the validation examples, too")
    if found.interrupted:
        console.print(go_on, soft_wrap=True, markup=False)
        return cli.INTERRUPTED
    return cli.DONE if found.best else cli.FAILED


if __name__ == "__main__":
    cli.leave(main)
