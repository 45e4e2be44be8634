"""What every command says to the person at the terminal; stdout belongs to results."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.types import FedRayError

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
WIDE = 10_000  # columns


def say(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGINT or SIGTERM, and ignore later ones: nothing cuts the clean-up short.

    Outside of the main thread, where Python handles no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stopping = False

    def interrupt(*_: object) -> None:
        nonlocal stopping
        if stopping:
            os.write(2, b"still stopping: this takes a few seconds\n")  # print() may be what was interrupted
            return
        stopping = True
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in INTERRUPTS}
    try:
        yield
    finally:
        _restore(before)


@contextlib.contextmanager
def same_handlers() -> Iterator[None]:
    """Undo what the code inside does to the handlers of SIGINT and SIGTERM: ``ray.init`` installs its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in INTERRUPTS}
    try:
        yield
    except SystemExit as leaving:  # raised by Ray's handler
        raise (KeyboardInterrupt if leaving.code == signal.SIGTERM else leaving) from None
    finally:
        _restore(before)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


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


def console() -> Console:
    """Where results are printed; what is no terminal is as wide as a table needs, and cuts nothing off."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE)


def check_packages() -> None:
    """Refuse to start where another package of the name ``actors`` or ``tune`` shadows ours."""
    home = Path(__file__).resolve().parent.parent
    for name in ("actors", "tune"):
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve().parent.parent if spec and spec.origin else None
        if found != home:
            raise FedRayError(
                f"the package {name!r} was found in {found}, not beside fedray in {home}; run from {home}, or remove "
                "the other one from the Python path"
            )


def headlines(values: Mapping[str, float], digits: int = 1) -> list[str]:
    """The accuracies among the measures of a round, each in a few words; of real targets the RMSEs."""
    words = {"personal": "personal", "global": "global", "novel": "newcomers"}
    words |= {f"validation/{kind}": f"validation, {word}" for kind, word in words.items()}
    found = [
        f"{word} {values[name]:.{digits}%}" for kind, word in words.items() if (name := f"{kind}/accuracy") in values
    ]
    return found or [
        f"{word} RMSE {values[name]:.4g}" for kind, word in words.items() if (name := f"{kind}/rmse") in values
    ]
