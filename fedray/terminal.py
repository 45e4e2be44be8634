"""What every command says to the person at the terminal; stdout belongs to results."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from fedray.types import FedRayError

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 10_000  # columns
REPEAT_SECONDS = 60.0  # between two lines that say the same
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup wants the command to outlive its terminal
    INTERRUPTS = (*INTERRUPTS, signal.SIGHUP)
LINE_SECONDS = 10.0  # between two lines of progress where there is no terminal

_listeners: list[Callable[[str], object]] = []
_interrupted = False  # by a signal, since the innermost interruptible() began
_quiet = False


def say(text: str) -> None:
    """A line on stderr, for those who listen, too."""
    if not _quiet or text.startswith("warning"):
        _show(text)
    record(text)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Say nothing but warnings meanwhile: who calls from Python asks for what he wants to know."""
    global _quiet
    before, _quiet = _quiet, True
    try:
        yield
    finally:
        _quiet = before


def record(text: str) -> None:
    """A line for those who listen, and not for the terminal."""
    for listener in tuple(_listeners):
        listener(text)


@contextlib.contextmanager
def heard(listener: Callable[[str], object]) -> Iterator[None]:
    """Let somebody else have all that is said and recorded meanwhile, from any thread."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class _LossyStderr:
    """Stderr. Where it takes no more, like a terminal that was closed or a full disk, words are lost, and no run."""

    def __init__(self):
        self._stream = sys.stderr or io.StringIO()

    def write(self, text: str) -> int:
        """Write what can be written."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Have it shown, if that can be."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _show(text: str) -> None:
    print(text, file=_LossyStderr(), flush=True)


def _console() -> Console:
    """Where progress is shown."""
    from rich.console import Console

    return Console(file=cast("TextIO", _LossyStderr()))


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first of INTERRUPTS, and ignore later ones: nothing cuts the clean-up short.

    Python drops what is raised within a callback of the garbage collector, and other code may catch it; who works for
    long therefore also calls :func:`stop_if_interrupted` now and then. Outside of the main thread, where Python handles
    no signals, this does nothing.
    """
    global _interrupted
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _interrupted = False

    def interrupt(*_: object) -> None:
        global _interrupted
        if _interrupted:
            with contextlib.suppress(OSError):  # print() may be what was interrupted
                os.write(2, b"still stopping: this takes a few seconds\n")
            return
        _interrupted = True
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in INTERRUPTS}
    try:
        yield
    finally:
        _interrupted = False
        _restore(before)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let INTERRUPTS wait until the end of what must not be cut in two; outside of the main thread, nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in INTERRUPTS}
    try:
        yield
    finally:
        _restore(before)
        if came:
            signal.raise_signal(came[0])


def stop_if_interrupted() -> None:
    """Raise KeyboardInterrupt where the one of :func:`interruptible` got lost."""
    if _interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def same_handlers() -> Iterator[None]:
    """Undo what the code inside does to the handlers of INTERRUPTS: ``ray.init`` installs its own."""
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


@contextlib.contextmanager
def hangup_blocked() -> Iterator[None]:
    """Let processes that start meanwhile outlive the terminal, for this one has to stop them in order: they inherit
    that SIGHUP is blocked. This one gets it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def bar(unit: str, total: int, note: str) -> Iterator[Callable[[int, str], None]]:
    """A progress bar on stderr; yields a function of how many are done and a note, which stays where it is empty.

    Where stderr is not a terminal, a line is written instead after the first, every ten seconds, and after the last.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = _console()
    if not console.is_interactive:
        _show(note)
        yield _Lines(unit, total).move
        return
    columns = (TextColumn(unit), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as shown:
        task = shown.add_task("", total=total, note=note)

        def move(done: int, note: str) -> None:
            shown.update(task, completed=done)
            if note:
                shown.update(task, note=note)

        yield move


class _Lines:
    """Progress as lines of text."""

    def __init__(self, unit: str, total: int):
        self._unit, self._total, self._note = unit, total, ""
        self._begun, self._since = 0, time.monotonic()
        self._shown = (0, -LINE_SECONDS)  # how many were done when the last line was written

    def move(self, done: int, note: str) -> None:
        """So many are done; without a note, were done before."""
        now = time.monotonic()
        before, then = self._shown
        if not note and before == 0:
            self._begun, self._since = done, now
        self._note = note or self._note
        if done > max(before, self._begun) and (done >= self._total or now - then >= LINE_SECONDS):
            self._shown = done, now
            left = timedelta(seconds=round((now - self._since) / (done - self._begun) * (self._total - done)))
            _show(f"{self._unit} {done}/{self._total}  {self._note}  {left} left")


@contextlib.contextmanager
def waiting() -> Iterator[Callable[[str, float], None]]:
    """A line on stderr about what takes minutes; yields a function of what is waited for and the seconds so far.

    On a terminal the line is rewritten. Elsewhere there is a line for everything new, and one every minute.
    """
    from rich.markup import escape

    console = _console()
    rewrites = console.is_terminal and not console.is_dumb_terminal
    said, at = "", 0.0

    def tell(text: str, seconds: float) -> None:
        nonlocal said, at
        line = f"{text}; {span(seconds)} so far"
        if status is not None:
            status.update(escape(line))
        elif text != said or seconds - at >= REPEAT_SECONDS:
            say(line)
            said, at = text, seconds

    with console.status("") if rewrites else contextlib.nullcontext() as status:
        yield tell


def span(seconds: float) -> str:
    """A length of time as a person says it."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def console() -> Console:
    """Where results are printed; what is no terminal is as wide as a table needs, and cuts nothing off."""
    from rich.console import Console

    class Stdout(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to the command, which knows the exit code for a reader who is gone."""
            raise BrokenPipeError

    return Stdout(width=None if sys.stdout.isatty() else WIDE)


def parts(words: Sequence[int], numbers: Sequence[int], widths: Sequence[int], most: int) -> list[list[int]]:
    """The columns of each part of a table, none wider than ``most`` if there is room for one; each has the words."""
    found: list[list[int]] = [[*words]]
    for at in numbers:
        if len(found[-1]) > len(words) and sum(widths[k] for k in [*found[-1], at]) > most:
            found.append([*words])
        found[-1].append(at)
    return found


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
