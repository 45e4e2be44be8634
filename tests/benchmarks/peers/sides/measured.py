"""What every side shares: the case that it is given, the meter of its part, and the one line that it prints.

The scripts run in the peers' environments, so this file needs no more than psutil.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import psutil


class Case(NamedTuple):
    """What a side is to play."""

    work: str  # no-op, fedavg or pfedbayes
    variant: str  # how this side is to play it, in its own words
    clients: int
    rounds: int  # that are measured
    warmup: int  # rounds before them
    steps: int = 0  # minibatches of a client and round
    batch: int = 0
    lr: float = 0.0
    epochs: int = 1  # passes over a shard that the steps are
    shards: str = ""  # .npz with x uint8 [N, ...], y [N], and positions train0, test0, train1, ...
    reference: str = ""  # a checkout, for the side that needs one


class Result(NamedTuple):
    """What the measured rounds were and have cost."""

    rounds: int
    clients: int  # that took part in each of them
    parameters: int
    gradients: int  # of examples, in all
    cpu: float  # seconds of all processes of this side
    wall: float
    start_cpu: float  # seconds before the measured rounds: start-up and warm-up
    start_wall: float


def family_cpu() -> float:
    """User and system seconds so far of this process and all below it, those that have ended included."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Meter:
    """Takes the time of a part of this process's life."""

    def __init__(self) -> None:
        self._began = psutil.Process().create_time()

    def start(self) -> None:
        """The measured rounds begin."""
        self._start_wall = time.time() - self._began
        self._start_cpu = family_cpu()
        self._clock = time.perf_counter()

    def result(self, case: Case, clients: int, parameters: int, gradients: int) -> Result:
        """The measured rounds have ended."""
        wall, cpu = time.perf_counter() - self._clock, family_cpu() - self._start_cpu
        return Result(case.rounds, clients, parameters, gradients, cpu, wall, self._start_cpu, self._start_wall)


def play(side: Callable[[Case, Meter], Result]) -> None:
    """Play the case in the command line, and print the result as the last line."""
    result = side(Case(**json.loads(sys.argv[1])), Meter())
    print("\n" + json.dumps(result._asdict()), flush=True)
