"""How far a run is: a small file that its driver leaves in its folder after every round.

Reading it disturbs nobody, and needs neither Ray nor PyTorch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

from fedray.config.decode import decode, record, refuse_damage
from fedray.running.files import write_whole
from fedray.terminal import headlines, span
from fedray.types import FedRayError

FILE = "status.json"
RUNS = Path("runs")
RESUME = " --resume "  # and the folder: the end of a command


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
    machines: dict[str, int] | None = None  # clients on each, by its name; none without Ray
    moves: tuple[str, ...] = ()  # of clients between machines, each in a line
    unit: str = "round"  # of which there are that many: trial of a sweep, run of a study


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
    try:
        write_whole(folder / FILE, json.dumps(status._asdict()) + "\n")
        return True
    except OSError:  # a full disk must not cost the run
        return False


def end(folder: Path, state: str, to: Path | None = None) -> None:
    """Say that a run ended, and how, in its folder or in another one; nothing where it had not begun."""
    with contextlib.suppress(FedRayError):
        write(to or folder, read(folder)._replace(state=state, updated=0.0))


def read(folder: Path) -> Status:
    """The status of a run; its state is 'stopped' where it was running and its process on this machine is gone.

    Raises FedRayError for a folder without one.
    """
    with refuse_damage(f"{folder}: holds no status of a run", "give a folder below runs/ that fedray.launch made"):
        status = record(Status, decode((folder / FILE).read_bytes()))
        status = _here(folder, status)
        _ = line(status)  # no number in it is infinite
        gone = status.state == "running" and status.host == socket.gethostname() and not _alive(status)
        return status._replace(state="stopped") if gone else status


def _here(folder: Path, status: Status) -> Status:
    """Of a run's folder that has been moved or copied: under its name now, with the command that goes on with it."""
    command, option, began = status.command.rpartition(RESUME)
    here = os.path.abspath(folder)
    if not option or [os.path.abspath(path) for path in shlex.split(began)] == [here]:
        return status
    return status._replace(name=folder.name, command=f"{command}{option}{shlex.quote(here)}")


def _alive(status: Status) -> bool:
    """Whether the process that wrote a status on this machine still runs: not dead, not another of the same number."""
    import psutil

    try:
        process = psutil.Process(status.pid)
        dead = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return not dead and process.create_time() <= status.updated + 1  # a clock may be set a little
    except psutil.AccessDenied:  # it is somebody else's
        return True
    except psutil.NoSuchProcess:
        return False


def line(status: Status) -> str:
    """One line for the terminal: the name, how far, how good, how long, and what to type where it is not running."""
    words = [status.name, f"{status.unit} {status.round}/{status.rounds}"]
    words += headlines(status.measures)
    if status.seconds > 0:
        words.append(f"{status.seconds:{'.2g' if status.seconds < 10 else '.0f'}} s/{status.unit}")
    if status.state == "running":
        words.append(f"{span(_left(status))} left")
    words.append(f"{status.failures} failure{'' if status.failures == 1 else 's'}")
    words += _machines(status)
    if status.unit == "round":  # the parts of the others have checkpoints
        words.append("no checkpoint" if status.checkpoint is None else f"checkpoint {status.checkpoint}")
    words.append(f"{span(max(0.0, time.time() - status.updated))} ago")
    if status.state != "running":
        resume = f"resume with {status.command}" if status.command else "it cannot be resumed, start it again"
        words.append(status.state if status.state == "finished" else f"{status.state}: {resume}")
    return "  ".join(words)


def _machines(status: Status) -> list[str]:
    """Where the clients are, if on several machines, and how often they moved."""
    machines = status.machines or {}
    count, moves = len(machines), len(status.moves)
    on = ", ".join(f"{name} {clients}" for name, clients in machines.items())
    where = [f"{count} machine{'' if count == 1 else 's'} ({on})"] if count > 1 or moves else []
    return where + ([f"{moves} move{'' if moves == 1 else 's'}, the last {status.moves[-1]}"] if moves else [])


def _left(status: Status) -> float:
    """Seconds that the rounds to come will take."""
    return status.seconds * (status.rounds - status.round)


def unfinished() -> list[Path]:
    """The folders below RUNS of runs and of studies that are not finished; what cannot be read is passed over."""
    found = []
    # No deeper: copies of results lie below runs/artifacts.
    for path in sorted([*RUNS.glob(f"*/{FILE}"), *RUNS.glob(f"*/*/{FILE}")]):
        with contextlib.suppress(FedRayError):
            found += [path.parent] if read(path.parent).state != "finished" else []
    return found


def entry(folder: Path, status: Status) -> dict[str, Any]:
    """A status as plain values for JSON."""
    left = _left(status) if status.state == "running" else None
    return {"folder": str(folder)} | status._asdict() | {"seconds_left": left}
