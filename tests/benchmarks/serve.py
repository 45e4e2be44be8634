"""What serving costs: requests per second and latencies of Ray Serve, and of one process without it.

A run of 1,000 clients, of whom a replica keeps 16: four in five requests ask for one of 16 clients, the others for any.
Each request holds one input. Both servers answer by the same code over HTTP, in processes of their own, and each is
asked by as many connections at a time.

    python -m tests.benchmarks.serve [--clients 1000] [--loaded 16] [--seconds 10] [--connections 8] [--replicas 1]

It needs the extra `serve`.
"""

from __future__ import annotations

import argparse
import functools
import http.client
import json
import multiprocessing
import os
import random
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fedray import launch
from fedray.federate.device.cpu import fix_numerics
from fedray.running.served import answers, web
from fedray.running.served.answers import CLIENT, Limits, digest_of

TOKEN = "a token of some length"
SHARD = 8  # examples of a client: what the models are good for does not matter here
SHARE = 0.8  # of the requests, to clients that are mostly loaded


def alone(folder: Path, loaded: int, port: int) -> None:
    """One process that answers by itself, with the models last asked for in a cache."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Route

    fix_numerics()
    service = answers.opened(folder, Limits(), digest_of(TOKEN))
    kept = functools.lru_cache(loaded)(service.model)

    async def personal(client: str) -> object:
        return kept(int(client))

    methods = ["GET", "POST"]
    app = Starlette(routes=[Route("/{path:path}", functools.partial(web.respond, service, personal), methods=methods)])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


def behind_serve(folder: Path, loaded: int, replicas: int, port: int) -> None:
    """The server of the command."""
    from actors import serving

    opened = functools.partial(answers.opened, folder, Limits(), digest_of(TOKEN))
    app = serving.application(opened, web.respond, loaded, replicas)
    with serving.running(app, replicas, "local", "127.0.0.1", port):
        threading.Event().wait()


def ask(port: int, clients: int, loaded: int, until: float, seed: int) -> list[float]:
    """Seconds of each request of one connection."""
    draw = random.Random(seed)
    body = json.dumps({"x": np.random.default_rng(seed).random((1, 1, 8, 8)).tolist()})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    taken = []
    while time.perf_counter() < until:
        client = draw.randrange(loaded if draw.random() < SHARE else clients)
        headers = {"authorization": f"Bearer {TOKEN}", CLIENT: str(client)}
        began = time.perf_counter()
        connection.request("POST", "/predict", body, headers)
        reply = connection.getresponse()
        content = reply.read()
        taken.append(time.perf_counter() - began)
        assert reply.status == 200, content
    return taken


def measured(port: int, options: argparse.Namespace, connections: int) -> str:
    """Requests per second and latencies of so many connections at a time."""
    until = time.perf_counter() + options.seconds
    with ThreadPoolExecutor(connections) as pool:
        parts = pool.map(lambda seed: ask(port, options.clients, options.loaded, until, seed), range(connections))
        taken = np.concatenate([*parts])
    p50, p99 = 1e3 * np.quantile(taken, [0.5, 0.99])
    return f"{len(taken) / options.seconds:8.0f} requests/s   p50 {p50:7.2f} ms   p99 {p99:7.2f} ms"


def wait(port: int, process: multiprocessing.Process) -> None:
    """Return once the server answers."""
    while True:
        assert process.is_alive(), "the server died"
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.5)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def main() -> None:
    """Print one line per server and number of connections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("clients", 1000), ("loaded", 16), ("seconds", 10), ("connections", 8), ("replicas", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="serve") as folder:
        os.environ["RAY_TMPDIR"] = folder
        run = Path(folder, "run")
        inputs = np.random.default_rng(0).random((SHARD * options.clients, 1, 8, 8))
        np.savez(f"{run}.npz", x=inputs, y=np.arange(len(inputs)) % 10)
        words = f"--runtime local --clients {options.clients} --clients-per-round {min(20, options.clients)} --rounds 2"
        words += f" --tracking.uri none --json --data.name {run}.npz --data.partition iid --output {run}"
        assert launch.main(["pfedbayes", *words.split()]) == 0
        context = multiprocessing.get_context("spawn")
        servers = {
            "one process": (alone, (run, options.loaded)),
            "Ray Serve": (behind_serve, (run, options.loaded, options.replicas)),
        }
        for name, (target, args) in servers.items():
            port = free_port()
            process = context.Process(target=target, args=(*args, port))
            process.start()
            try:
                wait(port, process)
                measured(port, argparse.Namespace(**{**vars(options), "seconds": 2}), options.connections)  # warm
                for connections in (1, options.connections):
                    print(f"{name:12} {connections:3} connections {measured(port, options, connections)}", flush=True)
            finally:
                process.terminate()
                process.join(60)


if __name__ == "__main__":
    main()
