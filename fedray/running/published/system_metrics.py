"""What the machines of a run do (CPU, memory, disk, network, GPUs), sampled by MLflow's collectors beside the rounds.

The driver alone writes to the store, for other machines may not reach it. On Ray a small actor on every machine that
hosts clients takes the samples; in one process a thread does.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from fedray.federate.federation import Federation
from fedray.federate.in_process import LocalFederation
from fedray.running.mlflow_store import prepare, reason

if TYPE_CHECKING:
    from fedray.running.tracking import Tracker

SECONDS = 10.0  # between two samples, unless MLflow's own variable says otherwise
STOP_SECONDS = 5.0  # that a sample under way may take at the end of a run
FIRST_SECONDS = 1.0  # CPU use is that since the last look, and the first sample must have one before it


class Sampler:
    """MLflow's collectors on the machine where it is made. Those of GPUs need a GPU and nvidia-ml-py (or pyrsmi)."""

    def __init__(self) -> None:
        prepare()
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor
        from mlflow.system_metrics.metrics.rocm_monitor import ROCMMonitor

        self._collectors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        for kind in (GPUMonitor, ROCMMonitor):
            with contextlib.suppress(Exception):  # whichever the library of the other maker raises
                self._collectors.append(kind())
        self()
        time.sleep(FIRST_SECONDS)

    def __call__(self) -> dict[str, float]:
        """One sample, by MLflow's names, such as ``cpu_utilization_percentage``."""
        found: dict[str, float] = {}
        for collector in self._collectors:
            collector.collect_metrics()
            found |= collector.aggregate_metrics()
            collector.clear_metrics()
        return found


class Source(Protocol):
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


def _source(federation: Federation, warn: Callable[[str], object]) -> Source:
    if isinstance(federation, LocalFederation):
        return Here()
    from actors.federation import RayFederation
    from actors.telemetry.observers import Observers

    assert isinstance(federation, RayFederation)
    return Observers(federation.hosts, Sampler, warn)


def _watch(source: Source, tracker: Tracker, stop: threading.Event, warn: Callable[[str], object]) -> None:
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
