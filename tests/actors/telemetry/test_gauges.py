"""Metrics on the Prometheus endpoint of a real Ray node."""

from __future__ import annotations

import contextlib
import time
import urllib.request

import pytest

from actors.telemetry.gauges import Gauges
from fedray.federate.messages import RoundMetrics

ROUND = RoundMetrics(7, (0, 1), {}, None, None, {"train": 1.5, "round": 2.0}, 1000, 500)
EXPECTED = {
    'ray_fedray_round{run="probe"}': 7,
    'ray_fedray_phase_seconds{phase="train",run="probe"}': 1.5,
    'ray_fedray_phase_seconds{phase="round",run="probe"}': 2.0,
    'ray_fedray_bytes_total{run="probe",way="up"}': 2000,
    'ray_fedray_bytes_total{run="probe",way="down"}': 1000,
    'ray_fedray_failures_total{kind="actor",run="probe"}': 2,
    'ray_fedray_failures_total{kind="nan",run="probe"}': 1,
    'ray_fedray_lag_seconds{clients="0-4",run="probe"}': 0.25,
}
OWN_TAGS = ("run", "phase", "way", "kind", "clients")  # Ray adds the node, the session and more


def exported(port: int) -> dict[str, float]:
    """Our series on a node's endpoint, with our own tags in alphabetical order."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = [text for text in answer.read().decode().splitlines() if text.startswith("ray_fedray_")]
    found = {}
    for text in lines:
        series, _, value = text.rpartition(" ")
        name, _, tags = series.rstrip("}").partition("{")
        own = sorted(tag for tag in tags.split(",") if tag.partition("=")[0] in OWN_TAGS)
        found[f"{name}{{{','.join(own)}}}"] = float(value)
    return found


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_what_a_run_reports_appears_on_the_endpoint_of_its_node() -> None:
    import ray

    gauges = Gauges("probe")
    gauges.round(ROUND)
    gauges.round(ROUND)
    gauges.lag("0-4", 0.25)
    for kind in ("actor", "nan", "actor"):
        gauges.failure(kind)
    port, deadline, found = ray.nodes()[0]["MetricsExportPort"], time.time() + 60, {}
    while time.time() < deadline and not EXPECTED.items() <= found.items():
        time.sleep(0.5)
        with contextlib.suppress(OSError):  # it may be busy
            found = exported(port)
    assert EXPECTED.items() <= found.items(), found


def test_a_metric_that_ray_refuses_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import actors.telemetry.gauges

    quiet = ROUND._replace(bytes_up=0, bytes_down=0, seconds={"train": "soon"})  # type: ignore[dict-item]
    gauges = Gauges("probe")
    gauges.round(quiet)
    gauges.lag(None, "late")  # type: ignore[arg-type]
    gauges.failure(3)  # type: ignore[arg-type]

    def refuse(*_: object) -> None:
        raise RuntimeError("no metrics here")

    monkeypatch.setattr(actors.telemetry.gauges, "Gauge", refuse)
    monkeypatch.setattr(actors.telemetry.gauges, "Counter", refuse)
    without = Gauges("probe")
    without.round(ROUND)
    without.lag("0-4", 1.0)
    without.failure("actor")
