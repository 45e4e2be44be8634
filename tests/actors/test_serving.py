"""A run behind Ray Serve, asked over HTTP as curl would."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import fedray
from fedray import launch
from fedray.running.served.answers import CLIENT
from fedray.serve import SHORTEST_TOKEN, TOKEN, main

ROOT = Path(__file__).parents[2]
SECRET = "a token of some length"
FAST = ["--runtime", "local", "--rounds", "1", "--local-steps", "2", "--model.hidden", "8", "--tracking.uri", "none"]
X = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)).tolist()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def request(port, path="/predict", body=None, client=None, token=SECRET, method="POST"):
    """Status, JSON or text, and headers of a reply."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    headers |= {} if client is None else {CLIENT: client}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        text = reply.read().decode()
        found = json.loads(text) if reply.headers["content-type"].startswith("application/json") else text
        return reply.status, found
    finally:
        connection.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    assert launch.main([*FAST, "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def served(run, tmp_path_factory):
    """The port of a server with room for three personal models, and what it said."""
    pytest.importorskip("ray.serve", reason="needs the extra `serve`", exc_type=ImportError)
    port = free_port()
    home = Path("/tmp") / f"serve-{os.getpid()}"  # a socket's path must be short
    home.mkdir()
    command = [sys.executable, "-m", "fedray.serve", str(run), "--port", str(port), "--loaded", "3"]
    environment = {**os.environ, TOKEN: SECRET, "RAY_TMPDIR": str(home), "PYTHONPATH": str(ROOT)}
    log = tmp_path_factory.mktemp("log") / "log"
    with log.open("w") as file:
        server = subprocess.Popen(command, stderr=file, stdout=file, env=environment, cwd=ROOT)
    try:
        deadline = time.monotonic() + 400
        while "Ctrl-C" not in log.read_text() and time.monotonic() < deadline:
            assert server.poll() is None, log.read_text()
            time.sleep(0.2)
        yield port, log.read_text()
        server.terminate()
        assert server.wait(120) == 0, log.read_text()
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
class TestServer:
    def test_each_client_gets_the_answer_of_its_own_model_whatever_is_loaded(self, served, run):
        port, _ = served
        own = fedray.load(run)

        def ask(client):
            return request(port, body=json.dumps({"x": X}), client=None if client is None else str(client))

        clients = [*range(10), None] * 3
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(ask, clients))
        for client, (status, found) in zip(clients, replies, strict=True):
            assert status == 200
            torch.testing.assert_close(torch.tensor(found["probabilities"]), own.predict(X, client).probs)

    def test_only_the_token_opens_it_and_health_needs_none(self, served):
        port, _ = served
        for token in (None, "", "wrong" * 5):
            for path, method in (("/", "GET"), ("/example", "GET"), ("/predict", "POST"), ("/else", "GET")):
                status, found = request(port, path, None, token=token, method=method)
                assert (status, "token" in found["error"]) == (401, True)
        assert request(port, "/health", token=None, method="GET") == (200, {"status": "ok"})

    def test_it_says_what_it_serves_and_its_example_is_answered(self, served):
        port, _ = served
        status, text = request(port, "/", method="GET")
        assert status == 200
        assert "pfedbayes, 10 clients" in text
        assert f"http://127.0.0.1:{port}/predict" in text
        example = json.dumps(request(port, "/example", method="GET")[1])
        assert request(port, body=example, client="0")[0] == 200

    @pytest.mark.parametrize(
        ("body", "client", "status", "reason"),
        [
            ('{"x": ' + json.dumps(X), None, 422, "not JSON"),
            (json.dumps({"x": X[0]}), None, 422, "list around it"),
            (json.dumps({"x": [[float("nan")] * 64]}), None, 422, "shape [1, 64]"),
            (json.dumps({"x": [[[[float("nan")] * 8] * 8]]}), "1", 422, "x[0] holds NaN"),
            (json.dumps({"x": X}), "10", 404, "clients 0 to 9"),
            (b" " * 2_000_000, "1", 413, "fewer inputs"),
            (iter([b" " * 100_000] * 20), "1", 413, "fewer inputs"),
        ],
    )
    def test_a_bad_request_gets_its_status_and_the_reason(self, served, body, client, status, reason):
        port, _ = served
        found = request(port, body=body, client=client)
        assert found[0] == status
        assert reason in found[1]["error"]

    def test_other_paths_and_methods_are_refused(self, served):
        port, _ = served
        assert request(port, "/else", method="GET")[0] == 404
        assert request(port, "/predict", method="GET")[0] == 405

    def test_the_commands_that_it_prints_work_and_listens_on_this_machine_only(self, served):
        import psutil

        port, said = served
        [pasted] = [line for line in said.splitlines() if "/example |" in line]
        found = subprocess.run(["bash", "-c", pasted], env={**os.environ, TOKEN: SECRET}, capture_output=True)
        assert len(json.loads(found.stdout)["probabilities"][0]) == 10
        assert SECRET not in said
        places = {c.laddr.ip for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port}
        assert places == {"127.0.0.1"}


@pytest.mark.slow
def test_a_port_that_is_taken_and_replicas_without_cpus_are_named(run):
    pytest.importorskip("ray.serve", reason="needs the extra `serve`", exc_type=ImportError)
    short = tempfile.TemporaryDirectory(prefix="busy-", dir="/tmp", ignore_cleanup_errors=True)  # for paths of sockets
    # As another server of a run listens: the kernel shares a port among all that ask for it.
    with short as home, socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        environment = {**os.environ, TOKEN: SECRET, "RAY_TMPDIR": home, "PYTHONPATH": str(ROOT)}
        port = str(taken.getsockname()[1])
        for words, reason in (
            (["--port", port], f"did not start on 127.0.0.1:{port} ([Errno 98] Address already in use)"),
            (["--replicas", "5000"], "--replicas 5000: each takes a CPU, and this machine has "),
        ):
            command = [sys.executable, "-m", "fedray.serve", str(run), "--address", "local", *words]
            ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=400)
            assert ended.returncode == 2
            assert reason in ended.stderr


def test_what_cannot_be_served_is_refused_before_ray_starts(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(TOKEN, "x" * (SHORTEST_TOKEN - 1))
    assert main([str(run)]) == 2
    assert "fewer than 16 characters" in capsys.readouterr().err
    monkeypatch.delenv(TOKEN)
    for words, reason in (
        ([str(tmp_path)], "config.json"),
        ([str(run), "--loaded", "0"], "--loaded 0"),
        ([str(run), "--abstain", "-1"], "--abstain -1"),
        ([str(run), "--port", "0"], "--port 0: it is not between 1 and 65535"),
        ([str(run), "--port", "65536"], "--port 65536"),
    ):
        assert main(words) == 2
        assert reason in capsys.readouterr().err
