"""What a federation does, as metrics on the Prometheus endpoint of its Ray node.

    ray_fedray_round{run}                    the last round that ended
    ray_fedray_phase_seconds{run, phase}     of that round: train, aggregate, evaluate, round, cpu; start, checkpoint
    ray_fedray_bytes_total{run, way}         of parameters, up and down, since the run began
    ray_fedray_failures_total{run, kind}     since the run began
    ray_fedray_lag_seconds{run, clients}     between the first reply of a round and this actor's

Ray shows a value some ten seconds after it was set.
"""  # fmt: skip

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ray.util.metrics import Counter, Gauge

from fedray.federate.messages import RoundMetrics


class Gauges:
    """The metrics of one run; lives where its rounds are played. No method raises: a gauge must not stop a run."""

    def __init__(self, run: str):
        self._run = run
        self._metrics: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            self._metrics = {
                "round": Gauge("fedray_round", "The last round that ended.", ("run",)),
                "phase": Gauge("fedray_phase_seconds", "Seconds of the last round by phase.", ("run", "phase")),
                "bytes": Counter("fedray_bytes", "Bytes of parameters that were sent.", ("run", "way")),
                "failures": Counter("fedray_failures", "Failures by kind.", ("run", "kind")),
                "lag": Gauge("fedray_lag_seconds", "Seconds after the first reply of the round.", ("run", "clients")),
            }

    def round(self, metrics: RoundMetrics) -> None:
        """Report a round that ended: its number, the seconds of its phases, and its bytes."""
        self._do("round", lambda gauge: gauge.set(metrics.round, self._tags()))
        for phase, seconds in metrics.seconds.items():
            self._do("phase", lambda gauge, s=seconds, p=phase: gauge.set(s, self._tags(phase=p)))
        for way, count in (("up", metrics.bytes_up), ("down", metrics.bytes_down)):
            if count:  # Ray refuses to count nothing
                self._do("bytes", lambda counter, n=count, w=way: counter.inc(n, self._tags(way=w)))

    def lag(self, clients: str, seconds: float) -> None:
        """Report how long after the first reply of a round the actor of ``clients``, e.g. 'clients 0-4', replied."""
        self._do("lag", lambda gauge: gauge.set(seconds, self._tags(clients=clients)))

    def failure(self, kind: str) -> None:
        """Count a failure of a kind, e.g. 'lost'."""
        self._do("failures", lambda counter: counter.inc(1, self._tags(kind=kind)))

    def _tags(self, **more: str) -> dict[str, str]:
        return {"run": self._run} | more

    def _do(self, name: str, record: Callable[[Any], None]) -> None:
        with contextlib.suppress(Exception):
            record(self._metrics[name])
