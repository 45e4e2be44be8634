"""What every command says to the person at the terminal; stdout belongs to results."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path


def say(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def bar(unit: str, total: int, note: str) -> Iterator[Callable[[int, str], None]]:
    """A progress bar on stderr; yields a function of how many are done and a note, which stays where it is empty."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(unit), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True)) as shown:
        task = shown.add_task("", total=total, note=note)

        def move(done: int, note: str) -> None:
            shown.update(task, completed=done)
            if note:
                shown.update(task, note=note)

        yield move


def check_packages() -> None:
    """Refuse to start where another package of the name ``actors`` or ``tune`` shadows ours."""
    from fedray.types import FedRayError  # here, because it imports torch

    home = Path(__file__).resolve().parent.parent
    for name in ("actors", "tune"):
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve().parent.parent if spec and spec.origin else None
        if found != home:
            raise FedRayError(
                f"the package {name!r} was found in {found}, not beside fedray in {home}; run from {home}, or remove "
                "the other one from the Python path"
            )


def accuracies(values: Mapping[str, float]) -> list[str]:
    """The accuracies among the measures of a round, each in two words."""
    words = {"personal": "personal", "global": "global", "novel": "newcomers"}
    return [f"{word} {values[name]:.1%}" for kind, word in words.items() if (name := f"{kind}/accuracy") in values]
