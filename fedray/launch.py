"""python -m fedray.launch [ALGORITHM] [options]: run one federation, track it, and keep its result."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

import fedray
from fedray import cli, terminal
from fedray.terminal import say

if TYPE_CHECKING:
    from rich.table import Table

    from fedray.running.stages import Request, RunResult
    from fedray.types import Algorithm


class Command(NamedTuple):
    """What the command line asks for."""

    request: Request
    json: bool = False  # print one JSON object and nothing else


def parse(argv: Sequence[str]) -> Command:
    """What a command line asks for; tyro prints help and mistakes and leaves with its own exit code (0, 2)."""
    from fedray.running.folder import notes
    from fedray.running.resumed import asked
    from fedray.running.stages import Request

    as_json = Annotated[bool, tyro.conf.arg(help="Print one JSON object on stdout and nothing else.")]
    text = "Go on with the interrupted run of this folder, or of the checkpoints at this URL; options of the execution "
    text += "may differ and --rounds may grow (of a finished run, too), others not."
    resume = Annotated[str, tyro.conf.arg(help=text, metavar="DIR")]
    place = cli.early(argv, "--resume")
    note = notes.read(place) if place else None
    base = (note.experiment, note.execution) if note else None
    options = [("json", as_json, False), ("resume", resume, "")]
    parsed = cli.parse(argv, "python -m fedray.launch", _description, options, base, _brief)
    if note:
        asked.check_same(place, note, parsed.experiment, parsed.execution)
    return Command(Request(parsed.experiment, parsed.execution, parsed.preset, place), parsed.more.json)


def _description(names: Mapping[str, Algorithm], chosen: str) -> str:
    return (
        "Run one federation: every client a Ray actor, the result under runs/, the numbers in MLflow.\n\n"
        f"ALGORITHM, the first argument, is one of\n{cli.listed(names)}\n\n"
        "  python -m fedray.launch                                   10 clients on the digits of scikit-learn\n"
        "  python -m fedray.launch fedavg --lr 0.1 --rounds 30\n"
        "  python -m fedray.launch pfedbayes --data.name mnist --data.root DIR --zeta 5 --rounds 100\n"
        "  python -m fedray.launch --resume runs/NAME                go on with a run that was interrupted\n\n"
        f"{cli.listed_plug_ins()}\n\n"
        f"Options below are those of {chosen}; `python -m fedray.launch ALGORITHM --help` shows another's."
    )


def _brief(names: Mapping[str, Algorithm], chosen: str) -> str:
    """What --help begins with."""
    first, *_ = _description(names, chosen).partition("ALGORITHM, ")
    return (
        f"{first}"
        "  python -m fedray.launch                                   10 clients on the digits of scikit-learn\n"
        "  python -m fedray.launch fedavg --lr 0.1 --rounds 30\n"
        "  python -m fedray.launch --data.name mine.npz              data of your own\n"
        "  python -m fedray.launch --resume runs/NAME                go on with a run that was interrupted\n\n"
        f"ALGORITHM is one of\n{cli.wrapped(names)}\n\n"
        f"{cli.named_plug_ins()}\n\n"
        "  python -m fedray.launch ALGORITHM --help                  the same for another algorithm\n"
        "  python -m fedray.launch ALGORITHM --help-all              all options, what they mean, and all of the names"
    )


def show(outcome: RunResult) -> None:
    """Print what a run found, what went wrong, and what to type next."""
    from fedray.federate import report

    console = terminal.console()
    folder = outcome.folder
    if outcome.failures:
        console.print(_failures(outcome))
    console.print(report.table(outcome.plan, outcome.summary))
    figures = folder / "figures"
    drawn = f"figures  {figures}\n" if figures.exists() else ""
    console.print(f"result   {folder}\n{drawn}tracked  {outcome.tracked}", soft_wrap=True)
    console.print(f"use it   {cli.load_command(folder)}", soft_wrap=True, markup=False)


def _failures(outcome: RunResult) -> Table:
    """The table of what went wrong, and what was done about it."""
    from rich.table import Table

    shown = Table(title=f"{len(outcome.failures)} failures", title_justify="left")
    for column in ("round", "who", "stage", "what", "reason", "then"):
        shown.add_column(column, overflow="fold")
    for failure in outcome.failures:
        reason = failure.reason[:160]
        shown.add_row(str(failure.round), failure.who, failure.stage, failure.kind, reason, failure.action)
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 1 training failed, 2 the request was at fault, 130 interrupted."""

    def body() -> int:
        words = sys.argv[1:] if argv is None else argv
        if not {"-h", "--help"} & set(words):
            say(f"FedRay {fedray.__version__} is starting: reading the request, loading PyTorch")
        from fedray.running import session

        command = parse(words)
        outcome = session.run(command.request)
        if command.json:
            print(json.dumps(outcome.summary))
        else:
            show(outcome)
        return cli.DONE

    return cli.run_command(body, "interrupted: the actors are stopped")


if __name__ == "__main__":
    cli.leave(main)
