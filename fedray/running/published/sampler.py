"""MLflow's collectors of system metrics, in a module that imports little: every machine has a process for it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from fedray.running.mlflow_store import prepare

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
