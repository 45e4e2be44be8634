"""What the machines of a run do is recorded beside its rounds, and neither costs it a bit nor an error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time

import pytest

from fedray import launch
from fedray.config import Execution, TrackingConfig
from fedray.federate.in_process import LocalFederation
from fedray.running import mlflow_store, tracking
from fedray.running.published import sampler, system_metrics
from fedray.running.tracking import MLflowTracker, NullTracker
from fedray.types import FedRayError
from tests.helpers import small_plan

pytestmark = pytest.mark.usefixtures("unpainted")
SECONDS = 120.0  # for anything that is waited for
FAST = ["pfedbayes", "--runtime", "local", "--clients", "3", "--rounds", "2", "--local-steps", "2"]
NAMES = {  # MLflow's own, without GPUs
    "cpu_utilization_percentage",
    "disk_available_megabytes",
    "disk_usage_megabytes",
    "disk_usage_percentage",
    "network_receive_megabytes",
    "network_transmit_megabytes",
    "system_memory_usage_megabytes",
    "system_memory_usage_percentage",
}


class Seen(NullTracker):
    """Keeps samples, and says when there are ``enough``."""

    def __init__(self, enough: int = 2):
        self.samples: list[dict[str, float]] = []
        self._enough = enough
        self.done = threading.Event()

    def sample(self, values):
        self.samples.append(dict(values))
        if len(self.samples) >= self._enough:
            self.done.set()


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Two samples are not ten seconds apart."""
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    monkeypatch.setattr(sampler, "FIRST_SECONDS", 0.05)


def test_a_machine_is_sampled_until_the_run_ends():
    seen, warned = Seen(), []
    with LocalFederation(small_plan()) as federation, system_metrics.sampled(federation, seen, warned.append):
        assert seen.done.wait(SECONDS)
    taken = len(seen.samples)
    time.sleep(0.3)
    assert len(seen.samples) == taken
    assert not warned
    for sample in seen.samples:
        assert {name for name in sample if not name.startswith("gpu_")} == NAMES
        assert 0 < sample["system_memory_usage_percentage"] < 100
        assert 0 <= sample["cpu_utilization_percentage"] <= 100


def test_a_sample_is_of_its_moment_and_not_a_mean_since_the_start(monkeypatch):
    shares = iter([50.0, 10.0, 30.0])  # the first is that of the look at the start
    monkeypatch.setattr("psutil.cpu_percent", lambda: next(shares))
    look = sampler.Sampler()
    assert [look()["cpu_utilization_percentage"] for _ in range(2)] == [10.0, 30.0]


def test_the_process_on_a_machine_does_not_load_pytorch():
    use = f"import sys, {sampler.__name__} as found; found.FIRST_SECONDS = 0; found.Sampler()"
    code = f"{use}; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_fails_is_said_once_and_tried_again(monkeypatch):
    tries, done, warned = [], threading.Event(), []

    class Broken(Seen):
        def sample(self, values):
            tries.append(values)
            if len(tries) == 3:
                done.set()
            raise ConnectionError("the store is away")

    with LocalFederation(small_plan()) as federation, system_metrics.sampled(federation, Broken(), warned.append):
        assert done.wait(SECONDS)
    assert warned == ["system metrics are missing (the store is away); the run goes on"]


def test_a_store_that_hangs_does_not_hold_the_run(monkeypatch):
    monkeypatch.setattr(system_metrics, "STOP_SECONDS", 0.1)
    asked, answer = threading.Event(), threading.Event()

    class Hanging(Seen):
        def sample(self, values):
            asked.set()
            answer.wait(SECONDS)

    with LocalFederation(small_plan()) as federation:
        with system_metrics.sampled(federation, Hanging(), pytest.fail):
            assert asked.wait(SECONDS)
        assert not answer.is_set()
    answer.set()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A place with the results of a run with system metrics and of the same without, and the store of the first."""
    place = tmp_path_factory.mktemp("pair")
    uri = f"sqlite:///{place}/mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MLflowTracker, "publish", lambda self, finished: True)  # which takes seconds
        for name, more in (("with", [uri, "--tracking.system-metrics"]), ("without", ["none"])):
            assert (
                launch.main([*FAST, "--figures", "none", "--output", str(place / name), "--tracking.uri", *more]) == 0
            )
    return place, mlflow_store.connect(uri)


def test_the_result_is_the_same_to_the_bit_and_the_samples_are_system_metrics(pair):
    place, client = pair
    for name in ("global.safetensors", "personal.safetensors", "clients.csv"):
        assert (place / "with" / name).read_bytes() == (place / "without" / name).read_bytes()
    run = client.get_run(json.loads((place / "with" / "summary.json").read_text())["run_id"])
    found = {name for name in run.data.metrics if name.startswith("system/") and "gpu_" not in name}
    assert found == {f"system/{name}" for name in NAMES}
    history = client.get_metric_history(run.info.run_id, "system/cpu_utilization_percentage")
    assert [m.step for m in history] == [(m.timestamp - run.info.start_time) // 1000 for m in history]  # in seconds


def test_samples_do_not_count_against_the_metrics_of_rounds(pair):
    uri, warned = pair[1].tracking_uri, []
    tracker = MLflowTracker(uri, "many", "run", {}, {}, warned.append)
    tracker.sample({f"node/{i}": float(i) for i in range(tracking.MAX_METRICS)})
    assert tracker.finish("KILLED")
    tracker = MLflowTracker(uri, "many", "run", {}, {}, warned.append, tracker.run_id)  # as after --resume
    tracker.log(1, {f"m{i:03}": 1.0 for i in range(tracking.MAX_METRICS)})
    assert tracker.finish("FINISHED")
    names = tracker._client.get_run(tracker.run_id).data.metrics
    assert len([name for name in names if re.fullmatch(r"m\d+", name)]) == tracking.MAX_METRICS
    assert len([name for name in names if name.startswith("system/node/")]) == tracking.MAX_METRICS
    assert not warned


def test_without_a_store_there_is_nothing_to_record_them_in():
    with pytest.raises(FedRayError, match="nothing is tracked"):
        Execution(tracking=TrackingConfig(uri="none", system_metrics=True))
