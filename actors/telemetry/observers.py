"""One tiny actor on every machine that a federation uses: asked now and then, it looks at its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedray.types import first_line

T = TypeVar("T")
SECONDS = 2.0  # that a look waits for answers; those that come later are taken by the next look


class Observer:
    """Looks at the machine on which it runs."""

    def __init__(self, begin: Callable[[], Callable[[], Any]]):
        self._look = begin()

    def look(self) -> Any:
        """What there is to see now."""
        return self._look()


class Posted(NamedTuple):
    """An observer on a machine, and what it has been asked and not yet answered."""

    machine: str  # by name
    actor: Any
    answer: Any = None


class Observers(Generic[T]):
    """Observers that follow a federation over machines that come and go. They take no CPU from its reservation.

    On a machine that nobody else uses they would keep an autoscaler from stopping it, so they leave with the clients.
    Use it from one thread at a time.
    """

    def __init__(
        self,
        hosts: Callable[[], Mapping[str, str]],
        begin: Callable[[], Callable[[], T]],
        warn: Callable[[str], object],
    ):
        """``hosts`` gives the machines in use, id to name; ``begin`` prepares a look, on the machine itself.

        ``warn`` gets a line where an observer fails. Its machine is then left alone.
        """
        self._hosts, self._begin, self._warn = hosts, begin, warn
        self._posted: dict[str, Posted] = {}  # by Ray's id of the machine
        self._failed: set[str] = set()

    def look(self) -> dict[str, T]:
        """What was seen since the last look, by name of the machine; at first maybe nothing, for actors must start."""
        hosts = self._hosts()
        for machine in self._posted.keys() - hosts.keys():
            self._dismiss(machine)
        for machine in hosts.keys() - self._posted.keys() - self._failed:
            self._post(machine, hosts[machine])
        for machine, posted in self._posted.items():
            self._posted[machine] = posted._replace(answer=posted.answer or posted.actor.look.remote())
        answers = {posted.answer: machine for machine, posted in self._posted.items()}
        ready, _ = ray.wait([*answers], num_returns=len(answers), timeout=SECONDS) if answers else ([], [])
        found: dict[str, T] = {}
        for answer in ready:
            machine = answers[answer]
            posted = self._posted[machine]
            try:
                found[posted.machine] = ray.get(answer)
                self._posted[machine] = posted._replace(answer=None)
            except RayError as error:
                self._failed.add(machine)
                self._dismiss(machine)
                self._warn(f"{posted.machine}: {first_line(error)}")
        return found

    def close(self) -> None:
        """Stop all observers."""
        for machine in [*self._posted]:
            self._dismiss(machine)

    def _post(self, machine: str, name: str) -> None:
        here = NodeAffinitySchedulingStrategy(machine, soft=False)
        actor = ray.remote(Observer).options(num_cpus=0, scheduling_strategy=here).remote(self._begin)
        self._posted[machine] = Posted(name, actor)

    def _dismiss(self, machine: str) -> None:
        ray.kill(self._posted.pop(machine).actor)
