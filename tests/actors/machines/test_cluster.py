"""Starting and joining a cluster: patience with a slow machine, and errors that name the reason."""

from __future__ import annotations

import errno
import os
import socket
import time

import pytest
import ray
from ray.exceptions import RpcError

from actors.machines import cluster
from fedray.types import FedRayError


class SlowRay:
    """Stands for Ray on a machine under load: fails some times, then starts after a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception, failures: float = 0, seconds: float = 0.0):
        self.attempts, self._error, self._failures, self._seconds = 0, error, failures, seconds
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setattr(ray, "shutdown", lambda: None)
        monkeypatch.setattr(ray, "init", self.init)
        self.now = 0.0
        monkeypatch.setattr(cluster.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(cluster.time, "sleep", self.pass_time)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def init(self, **_: object) -> None:
        self.attempts += 1
        if self.attempts <= self._failures:
            self.pass_time(30)
            raise self._error
        _sleep(self._seconds)


_sleep = time.sleep
TIMED_OUT = RuntimeError("The current node timed out during startup.\nMore of it.")


def test_a_machine_under_load_is_given_time_and_every_failed_attempt_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = SlowRay(monkeypatch, TIMED_OUT, failures=4)
    assert cluster.connect("local")
    assert slow.attempts == 5
    said = capsys.readouterr().err
    assert said.count("Ray did not start (The current node timed out during startup.); trying again") == 4


def test_a_start_that_takes_long_says_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "SILENT_SECONDS", 0.05)
    SlowRay(monkeypatch, TIMED_OUT, seconds=0.5)
    assert cluster.connect("local")
    assert "waiting for Ray's processes to start" in capsys.readouterr().err
    monkeypatch.setattr(cluster, "SILENT_SECONDS", 10.0)
    assert cluster.connect("local")
    assert capsys.readouterr().err == "starting Ray on this machine\n"


@pytest.mark.parametrize("error", [TIMED_OUT, TimeoutError()])
def test_patience_ends_with_the_reason_even_of_an_error_without_a_message(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    SlowRay(monkeypatch, error, failures=1000)
    reason = "The current node timed out during startup." if error is TIMED_OUT else "TimeoutError"
    with pytest.raises(FedRayError, match=rf"^Ray did not start within 300 s, last because: {reason}; free"):
        cluster.connect("local")


@pytest.mark.parametrize(
    "error",
    [
        OSError("AF_UNIX path length cannot exceed 107 bytes: /x"),
        PermissionError(errno.EACCES, "Permission denied", "/x/ray"),
        OSError(errno.EROFS, "Read-only file system", "/x/ray"),
        NotADirectoryError(errno.ENOTDIR, "Not a directory", "/x/ray"),
    ],
)
def test_where_ray_cannot_keep_its_files_nobody_waits(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    ray_of = SlowRay(monkeypatch, error, failures=1000)
    with pytest.raises(FedRayError, match=r"^Ray did not start: .*/x.*; set HOME and RAY_TMPDIR to "):
        cluster.connect("local")
    assert ray_of.attempts == 1


def test_a_cluster_that_refuses_without_a_word_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    SlowRay(monkeypatch, ConnectionError(), failures=1000)
    monkeypatch.setattr(cluster, "_knock", lambda address: None)
    with pytest.raises(FedRayError, match=r"--address host:1: no Ray cluster answers there \(ConnectionError\); start"):
        cluster.connect("host:1")


def test_an_address_of_the_environment_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has not typed an address cannot leave it out."""
    SlowRay(monkeypatch, ConnectionError(), failures=1000)
    monkeypatch.setattr(cluster, "_knock", lambda address: None)
    monkeypatch.setenv("RAY_ADDRESS", "host:1")
    with pytest.raises(FedRayError, match=r"^RAY_ADDRESS=host:1: no Ray cluster answers there .* unset RAY_ADDRESS"):
        cluster.connect(None)
    with pytest.raises(FedRayError, match=r"^--address host:1: no Ray cluster answers there .* leave the address out"):
        cluster.connect("host:1")


@pytest.mark.parametrize("given", [True, False])
def test_a_port_of_another_server_is_asked_once(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray asks it as often as it asks its own head, which may be slow: for an hour and a half."""
    ray_of = SlowRay(monkeypatch, TIMED_OUT)
    asked: list[str] = []

    def refuse(address: str) -> None:
        asked.append(address)
        raise RpcError("Timed out while waiting for GCS to become available.")

    monkeypatch.setattr(cluster, "GcsClient", refuse, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(cluster, "_running", lambda: address)
        if given:
            with pytest.raises(FedRayError, match=rf"--address {address}: no Ray cluster answers there \(Timed out"):
                cluster.connect(address)
        else:
            assert cluster.connect(None)
    assert asked == [address]
    assert ray_of.attempts == (0 if given else 1)  # of a cluster of its own


@pytest.mark.parametrize(
    "name", ["RAY_raylet_start_wait_time_s", "RAY_gcs_server_port_wait_time_s", "RAY_worker_register_timeout_seconds"]
)
def test_rays_own_limits_are_raised_where_the_user_has_not_set_them(name: str) -> None:
    assert int(os.environ[name]) >= 120
