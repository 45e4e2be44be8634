"""What the machines of a run do (CPU, memory, disk, network, GPUs), sampled by MLflow's collectors beside the rounds.

The driver alone writes to the store, for other machines may not reach it. On Ray a small actor on every machine that
hosts clients takes the samples; in one process a thread does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from fedray.federate.federation import Federation
from fedray.federate.in_process import LocalFederation
from fedray.running.mlflow_store import reason
from fedray.running.published.sampler import Sampler

if TYPE_CHECKING:
    from fedray.running.tracking import Tracker

SECONDS = 10.0  # between two samples, unless MLflow's own variable says otherwise
STOP_SECONDS = 5.0  # that a sample under way may take at the end of a run


class SampleSource(Protocol):
    """Where samples come from."""

    def look(self) -> Mapping[str, Mapping[str, float]]:
        """New samples, by name of the machine; the name is empty where there is only this one."""
        ...

    def close(self) -> None:
        """Stop what was started for it."""


class Here:
    """Samples of this machine."""

    def __init__(self) -> None:
        self._sampler: Sampler | None = None

    def look(self) -> dict[str, dict[str, float]]:
        """One sample."""
        self._sampler = self._sampler or Sampler()
        return {"": self._sampler()}

    def close(self) -> None:
        """Nothing was started."""


@contextlib.contextmanager
def sampled(federation: Federation, tracker: Tracker, warn: Callable[[str], object]) -> Iterator[None]:
    """Sample the federation's machines meanwhile; whatever fails is said once, and the run does not notice."""
    once = _once(warn)
    source = _source(federation, once)
    stop = threading.Event()
    thread = threading.Thread(target=_watch, args=(source, tracker, stop, once), name="system metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(STOP_SECONDS)
        with contextlib.suppress(Exception):
            source.close()


def _source(federation: Federation, warn: Callable[[str], object]) -> SampleSource:
    if isinstance(federation, LocalFederation):
        return Here()
    from actors.federation import RayFederation
    from actors.telemetry.observers import Observers

    assert isinstance(federation, RayFederation)
    return Observers(federation.hosts, Sampler, warn)


def _watch(source: SampleSource, tracker: Tracker, stop: threading.Event, warn: Callable[[str], object]) -> None:
    from mlflow.environment_variables import MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL

    pause = float(MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL.get() or SECONDS)
    while not stop.is_set():
        try:
            for machine, values in source.look().items():
                prefix = f"{machine}/" if machine else ""
                tracker.sample({f"{prefix}{name}": value for name, value in values.items()})
        except Exception as error:
            if not stop.is_set():  # else it is the end of what it looks at
                warn(reason(error))
        stop.wait(pause)


def _once(warn: Callable[[str], object]) -> Callable[[str], None]:
    """Say the first of the reasons why samples are missing."""
    said: list[str] = []

    def say(why: str) -> None:
        if not said:
            warn(f"system metrics are missing ({why}); the run goes on")
        said.append(why)

    return say
