"""How every command ends: its exit code, and what signals and a reader that leaves do."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from fedray.terminal import INTERRUPTS, interruptible, say
from fedray.types import FedRayError, RunError, for_command_line

DONE, FAILED, REFUSED, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141  # exit codes of every command


def run_command(body: Callable[[], int], interrupted: str = "interrupted") -> int:
    """Run a command and return its exit code.

    The body returns DONE or FAILED. A FedRayError is printed: FAILED if a run had begun, else REFUSED. SIGINT,
    SIGTERM and the SIGHUP of a terminal that is closed stop the body with a KeyboardInterrupt: INTERRUPTED, after the
    given text.
    """
    try:
        with interruptible():
            _stand_somewhere()
            return body()
    except FedRayError as error:
        say(f"error: {for_command_line(error)}")
        return FAILED if isinstance(error, RunError) else REFUSED
    except KeyboardInterrupt:
        say(interrupted)
        return INTERRUPTED


def _stand_somewhere() -> None:
    """Raise FedRayError where the current folder has been removed: PyTorch would end the process with other words."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise FedRayError("the current folder has been removed; go to one that exists (cd)") from None


def leave(main: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its code; signals that arrive after its end do not change the code.

    Where the reader of stdout leaves before the end, as ``| head`` does, the command ends in silence: UNREAD. Where
    stdout cannot be written, as on a full disk, it says so: FAILED.
    """
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)  # what run_command restores; Python's own exit takes seconds
    _open_standard_streams()
    try:
        try:
            code = main()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _unread(sys.stdout.fileno()):
            code = UNREAD
        elif error.errno and error.filename is None and (refusal := _refusal()):  # it is of a stream: of stdout?
            code = FAILED
            say(f"error: stdout: cannot be written ({str(refusal.strerror).lower()}); send it elsewhere")
        else:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush at exit
    sys.exit(code)


def _open_standard_streams() -> None:
    """Let those that the caller has closed lead nowhere, before another file gets their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def _refusal() -> OSError | None:
    """Why stdout takes nothing, if it does: who failed to write has forgotten what it was."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError as error:
        return error
    return None


def _unread(pipe: int) -> bool:
    """Whether nobody reads a pipe any more."""
    poll = select.poll()
    poll.register(pipe, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
