"""python -m fedray.status [RUN_FOLDER ...]: how far the federations are, asked from another terminal.

The driver leaves a small file in its run's folder after every round; reading it disturbs nobody and needs no Ray.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from fedray.terminal import accuracies, say

FILE = "status.json"
RUNS = Path("runs")
REFRESH_SECONDS = 2.0


class Status(NamedTuple):
    """What a driver says of its run."""

    name: str
    state: str  # running | finished | failed | interrupted; a reader may find it stopped
    round: int  # the last that ended
    rounds: int
    measures: dict[str, float]  # the last evaluation, e.g. personal/accuracy in [0, 1]
    seconds: float  # per round, mean of the recent ones
    failures: int
    checkpoint: int | None  # the last round that was saved
    command: str  # that goes on with the run; empty where nothing can
    pid: int = 0  # 0: the writing process
    host: str = ""
    updated: float = 0.0  # Unix time in seconds


def write(folder: Path, status: Status) -> bool:
    """Leave a status in a run's folder, whole or not at all; False, never an exception, where the disk refuses.

    ``pid``, ``host`` and ``updated`` are filled in where they were left out.
    """
    status = status._replace(
        pid=status.pid or os.getpid(),
        host=status.host or socket.gethostname(),
        updated=status.updated or time.time(),
        measures={name: value for name, value in status.measures.items() if math.isfinite(value)},  # JSON has no NaN
    )
    part = folder / f".{FILE}.{os.getpid()}.part"
    try:
        part.write_text(json.dumps(status._asdict()) + "\n", encoding="utf-8")
        os.replace(part, folder / FILE)
        return True
    except OSError:  # a full disk must not cost the run
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        return False


def end(folder: Path, state: str) -> None:
    """Say that a run ended, and how; nothing where it had not begun."""
    with contextlib.suppress(ValueError):
        write(folder, read(folder)._replace(state=state, updated=0.0))


def read(folder: Path) -> Status:
    """The status of a run; its state is 'stopped' where it was running and its process on this machine is gone.

    Raises ValueError for a folder without one. Not FedRayError, whose import would cost a second for PyTorch.
    """
    try:
        status = Status(**json.loads((folder / FILE).read_text(encoding="utf-8")))
        _ = line(status)  # values of another type are found here, not while they are shown
    except (OSError, ValueError, TypeError, AttributeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"{folder}: holds no status of a run ({why}); give a folder below runs/ that fedray.launch made"
        ) from None
    gone = status.state == "running" and status.host == socket.gethostname() and not _alive(status)
    return status._replace(state="stopped") if gone else status


def _alive(status: Status) -> bool:
    """Whether the process that wrote a status on this machine still runs: not dead, not another of the same number."""
    try:
        fields = Path(f"/proc/{status.pid}/stat").read_text().rpartition(")")[2].split()
        up = float(Path("/proc/uptime").read_text().split()[0])
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists() and _answers(status.pid)
    started = time.time() - up + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return fields[0] not in "ZX" and started <= status.updated + 1  # a clock may be set a little


def _answers(pid: int) -> bool:
    """Whether a process exists, on systems without /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's
        pass
    return True


def line(status: Status) -> str:
    """One line for the terminal: the name, how far, how good, how long, and what to type where it is not running."""
    words = [status.name, f"round {status.round}/{status.rounds}"]
    words += accuracies(status.measures)
    if status.seconds > 0:
        words.append(f"{status.seconds:.2g} s/round" if status.seconds < 10 else f"{status.seconds:.0f} s/round")
    if status.state == "running":
        words.append(f"{_span(_left(status))} left")
    words.append(f"{status.failures} failure{'' if status.failures == 1 else 's'}")
    words.append("no checkpoint" if status.checkpoint is None else f"checkpoint {status.checkpoint}")
    words.append(f"{_span(max(0.0, time.time() - status.updated))} ago")
    if status.state != "running":
        resume = f"resume with {status.command}" if status.command else "it cannot be resumed, start it again"
        words.append(status.state if status.state == "finished" else f"{status.state}: {resume}")
    return "  ".join(words)


def _left(status: Status) -> float:
    """Seconds that the rounds to come will take."""
    return status.seconds * (status.rounds - status.round)


def _span(seconds: float) -> str:
    """A length of time as a person says it."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def unfinished(root: Path = RUNS) -> list[Path]:
    """The folders of runs that are not finished, of single runs and of studies; what cannot be read is passed over."""
    found = []
    # No deeper: copies of results lie below runs/artifacts.
    for path in sorted([*root.glob(f"*/{FILE}"), *root.glob(f"*/*/{FILE}")]):
        with contextlib.suppress(ValueError):
            found += [path.parent] if read(path.parent).state != "finished" else []
    return found


@dataclass(frozen=True, kw_only=True)
class Options:
    """Whose status, and how it is shown."""

    folders: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs; by default every run below runs/ that is not finished."""
    json: bool = False
    """Print a JSON list of the statuses on stdout, with 'folder' and 'seconds_left'."""
    watch: bool = False
    """Show it again every two seconds until no run is running."""


def entry(folder: Path, status: Status) -> dict[str, Any]:
    """A status as plain values for JSON."""
    left = _left(status) if status.state == "running" else None
    return {"folder": str(folder)} | status._asdict() | {"seconds_left": left}


def show(options: Options) -> None:
    """Print the statuses once; raises ValueError for a folder without one."""
    folders = options.folders or unfinished()
    found = {folder: read(folder) for folder in folders}
    if options.json:
        print(json.dumps([entry(*item) for item in found.items()], indent=2))
        return
    for status in found.values():
        print(line(status))
    if not found:
        say(f"no unfinished run below {RUNS}/; give the folder of a finished one, or start one: "
            "python -m fedray.launch")  # fmt: skip


def watch(options: Options) -> None:
    """Show the statuses until no run is running; those that end meanwhile stay."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    folders: dict[Path, None] = {}
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            folders |= dict.fromkeys(options.folders or unfinished())
            found = [read(folder) for folder in folders]
            live.update(Text("\n".join(map(line, found)), overflow="fold"), refresh=True)
            if not any(status.state == "running" for status in found):
                return
            time.sleep(REFRESH_SECONDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 2 the request was at fault, 130 interrupted."""
    options = tyro.cli(
        Options,
        prog="python -m fedray.status",
        description="One line per federation: round, accuracies, seconds per round, time left, failures, last "
        "checkpoint, and when its driver last wrote. It reads files only and disturbs no run.\n\n"
        "  python -m fedray.status                  every run below runs/ that is not finished\n"
        "  python -m fedray.status runs/NAME        one run, finished or not\n"
        "  python -m fedray.status --watch          again every two seconds",
        args=list(sys.argv[1:] if argv is None else argv),
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff),
    )
    try:
        if options.watch and options.json:
            raise ValueError("--watch --json: a list that grows is not JSON; choose one of them")
        (watch if options.watch else show)(options)
    except ValueError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
