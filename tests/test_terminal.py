"""What is said: to the terminal, to a file, and to those who listen."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from fedray import terminal
from fedray.terminal import bar, heard, interruptible, record, say, stop_if_interrupted, uninterrupted, waiting


def test_who_listens_hears_what_is_said_and_recorded_and_the_terminal_only_what_is_said(capsys) -> None:
    lines: list[str] = []
    say("before")
    with heard(lines.append):
        say("said")
        record("recorded")
    record("after")
    assert lines == ["said", "recorded"]
    assert capsys.readouterr().err == "before\nsaid\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_that_gets_lost_is_found_after_the_round(number: int) -> None:
    class Collected:
        def __del__(self) -> None:  # Python drops what is raised here
            os.kill(os.getpid(), number)

    with interruptible():
        stop_if_interrupted()
        thing = Collected()
        del thing
        with pytest.raises(KeyboardInterrupt):
            stop_if_interrupted()
    stop_if_interrupted()  # whoever handled it is not interrupted again


def hung_up(program: str, before: signal.Handlers) -> subprocess.CompletedProcess[str]:
    """A program that hangs up on itself, whatever these tests do at a SIGHUP: they may run under nohup."""
    command = [sys.executable, "-c", program]
    handle = partial(signal.signal, signal.SIGHUP, before)
    return subprocess.run(command, preexec_fn=handle, capture_output=True, text=True)


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_command_that_is_to_outlive_its_terminal_is_not_interrupted_by_its_end(before: signal.Handlers) -> None:
    program = "import os\nfrom fedray import terminal\nwith terminal.interruptible():\n    os.kill(os.getpid(), 1)"
    ended = hung_up(program, before)
    assert ("KeyboardInterrupt" in ended.stderr) == (before == signal.SIG_DFL)


def test_processes_that_are_to_be_stopped_in_order_outlive_the_terminal_and_this_one_does_not() -> None:
    program = """
import os, subprocess, sys
from fedray.terminal import hangup_blocked, interruptible

hang_up = [sys.executable, "-c", "import os; os.kill(os.getpid(), 1)"]
try:
    with interruptible():
        with hangup_blocked():
            print(subprocess.run(hang_up).returncode)
        print(subprocess.run(hang_up).returncode)
        with hangup_blocked():
            os.kill(os.getpid(), 1)
            print("stopped in order")
        print("not reached")
except KeyboardInterrupt:
    print("interrupted")
"""
    ended = hung_up(program, signal.SIG_DFL)
    assert ended.stdout.split("\n") == ["0", "-1", "stopped in order", "interrupted", ""]


def test_an_interruption_waits_for_the_end_of_what_must_not_be_cut_in_two() -> None:
    done = []

    def exchange() -> None:
        with uninterrupted():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            done.append("all of it")

    with interruptible(), pytest.raises(KeyboardInterrupt):
        exchange()
    assert done == ["all of it"]
    with uninterrupted():
        done.append("again")
    stop_if_interrupted()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def play(clock: list[float], seconds: list[float], begun: int = 0) -> None:
    with bar("round", begun + len(seconds), "starting the clients") as move:
        move(begun, "")
        for done, each in enumerate(seconds, begun + 1):
            clock[0] += each
            move(done, f"note {done}")


def test_without_a_terminal_long_rounds_have_a_line_each_at_once(clock, capsys) -> None:
    play(clock, [30.0, 30.0, 30.0])
    assert capsys.readouterr().err.splitlines() == [
        "starting the clients",
        "round 1/3  note 1  0:01:00 left",
        "round 2/3  note 2  0:00:30 left",
        "round 3/3  note 3  0:00:00 left",
    ]


def test_without_a_terminal_short_rounds_have_a_line_every_ten_seconds_and_one_at_the_end(clock, capsys) -> None:
    play(clock, [1.0] * 25)
    shown = [line.split()[1] for line in capsys.readouterr().err.splitlines()[1:]]
    assert shown == ["1/25", "11/25", "21/25", "25/25"]


def test_a_resumed_run_counts_its_own_rounds_for_the_time_left(clock, capsys) -> None:
    play(clock, [20.0, 20.0], begun=8)
    assert capsys.readouterr().err.splitlines()[1] == "round 9/10  note 9  0:00:20 left"


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with bar("round", 2, "starting the clients") as move:
        move(1, "note")
    assert "\x1b[" in screen.getvalue()
    assert "round 1/2" not in screen.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_that_was_closed_or_a_full_disk_costs_words_and_no_run(terminal, monkeypatch) -> None:
    class Gone(io.StringIO):
        def isatty(self) -> bool:
            return terminal

        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setenv("TERM", "xterm")
    lines: list[str] = []
    with heard(lines.append), bar("round", 2, "starting the clients") as move:
        say("said")
        move(2, "note")
    with waiting() as tell:
        tell("machines", 1.0)
    assert lines == ["said"]


def test_what_is_said_without_stderr_is_not_on_stdout(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with bar("round", 1, "starting the clients") as move:
        say("said")
        move(1, "note")
    assert capsys.readouterr().out == ""
