"""Several runs at a time in processes of this machine, without Ray: each has one thread."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

from fedray.federate.device.cpu import fix_numerics
from fedray.running import session
from fedray.running.stages import Request
from fedray.terminal import interruptible, say
from fedray.types import FedRayError

STOP_SECONDS = 60.0  # that a run may take to leave a checkpoint and its status when it is interrupted


class Ended(NamedTuple):
    """How a run ended."""

    name: str
    summary: Mapping[str, Any] | None  # None: it failed
    failure: str = ""  # why


class Listener(Protocol):
    """Whoever wants to know how the runs get on."""

    def reached(self, name: str, round_number: int) -> None:
        """A run has ended a round."""

    def ended(self, ended: Ended) -> None:
        """A run has ended, well or not."""


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def play(requests: Sequence[Request], tags: Mapping[str, str], at_once: int | None, listen: Listener) -> None:
    """Play requests, each with a name and an output of its own; ``tags`` are added to their tracked runs.

    ``at_once`` is how many runs are played at a time, by default as many as there are cores. Results do not depend on
    it: one at a time is played in this process. Every run that ends is told to the listener, whatever comes of it.
    """
    workers = min(at_once or cores(), len(requests))
    if workers > 1:
        say(f"{len(requests)} runs, {workers} at a time")
        _in_processes(requests, tags, workers, listen)
        return
    for request in requests:
        name = str(request.execution.name)
        listen.ended(attempt(request, tags, lambda round_number, name=name: listen.reached(name, round_number)))


def attempt(request: Request, tags: Mapping[str, str], tell: Callable[[int], object]) -> Ended:
    """Play a run in this process: one bad run must not cost a whole night."""
    name = str(request.execution.name)
    try:
        return Ended(name, session.run(request, tags, tell).summary)
    except FedRayError as error:
        return Ended(name, None, str(error))
    except Exception as error:
        say(traceback.format_exc())
        return Ended(name, None, str(error) or type(error).__name__)


class _Worker(NamedTuple):
    process: BaseProcess
    pipe: Connection  # requests go out; numbers of rounds, and how a run ended, come in
    name: str  # of the run that it plays


def _in_processes(requests: Sequence[Request], tags: Mapping[str, str], workers: int, listen: Listener) -> None:
    waiting = deque(requests)
    working: dict[Connection, _Worker] = {}
    try:
        while waiting or working:
            while waiting and len(working) < workers:
                worker = _started(waiting.popleft(), tags)
                working[worker.pipe] = worker
            for pipe in connection.wait(list(working)):
                worker = working.pop(pipe)  # type: ignore[arg-type]
                try:
                    heard = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    reason = f"its process was lost (exit code {worker.process.exitcode})"
                    listen.ended(Ended(worker.name, None, reason))
                    continue
                if isinstance(heard, int):
                    listen.reached(worker.name, heard)
                    working[worker.pipe] = worker
                    continue
                listen.ended(heard)
                if waiting:
                    working[worker.pipe] = _asked(worker, waiting.popleft())
                else:
                    worker.pipe.close()
                    worker.process.join()
    finally:
        for worker in working.values():
            worker.process.terminate()
        for worker in working.values():
            worker.process.join(STOP_SECONDS)
            worker.process.kill()


def _started(request: Request, tags: Mapping[str, str]) -> _Worker:
    context = multiprocessing.get_context("spawn")  # a fork would inherit threads and Ray's connections
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, dict(tags)), daemon=True)
    process.start()
    theirs.close()
    return _asked(_Worker(process, ours, ""), request)


def _asked(worker: _Worker, request: Request) -> _Worker:
    with contextlib.suppress(OSError):  # it died: the pipe's other end tells
        worker.pipe.send(request)
    return worker._replace(name=str(request.execution.name))


def _work(pipe: Connection, tags: Mapping[str, str]) -> None:
    """Play what comes through the pipe, until nothing more can come."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _leave_to_parent()
    fix_numerics()
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            request = pipe.recv()
            with interruptible():
                _leave_to_parent()
                pipe.send(attempt(request, tags, pipe.send))


def _leave_to_parent() -> None:
    """Ctrl-C and the end of a terminal reach all processes: the first one tells the others."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _end_with_parent() -> None:
    """Stop the run, as an interruption does, where the first process is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
