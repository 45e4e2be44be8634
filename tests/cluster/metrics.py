"""cluster/grafana.json against a Prometheus that scrapes a run, as Ray provisions it.

    python -m tests.cluster.metrics [--rounds 400] [--keep]

Needs Debian's package prometheus. Ray and Prometheus are this command's own, in a folder of their own, and end with it.
One client actor is killed in mid-run, for there to be a failure to show.
"""  # fmt: skip

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedray.types import FedRayError
from tests.cluster.end_to_end import ROOT, say, until

DASHBOARD = ROOT / "cluster" / "grafana.json"
NAME = "watched"
OPTIONS = "pfedbayes --clients 4 --clients-per-actor 2 --local-steps 20 --backend loop --tracking.uri none"
SECONDS = 240.0  # for Ray to export, Prometheus to scrape twice, and a rate to have two samples


def targets(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """(title, query) of every query of every panel."""
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]


def concrete(query: str, run: str) -> str:
    """A query of a panel as Grafana sends it, with this run chosen."""
    return query.replace("$run", run).replace("$__rate_interval", "1m")


class Prometheus:
    """A server with Ray's own configuration; it ends with the context."""

    def __init__(self, configuration: Path, folder: Path):
        with socket.socket() as door:
            door.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{door.getsockname()[1]}"
        self._folder = folder
        self._command = [
            "prometheus", f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.address}",
        ]  # fmt: skip

    def __enter__(self) -> Prometheus:
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        self._process.wait()

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that a query finds now; none while the server starts."""
        url = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise FedRayError(f"{query}: {error.read().decode()[:500]}") from None
        except OSError:
            return []


@contextlib.contextmanager
def cluster(folder: Path, cpus: int, dashboard: bool = False) -> Iterator[tuple[str, Path]]:
    """(address, session folder) of a Ray of its own."""
    import ray
    from ray._private import worker

    ray.init("local", num_cpus=cpus, include_dashboard=dashboard, log_to_driver=False, _temp_dir=str(folder))
    try:
        node = worker.global_worker.node
        yield node.gcs_address, Path(node.get_session_dir_path())
    finally:
        ray.shutdown()


def actors(address: str) -> dict[str, int]:
    """The processes of the actors that are alive, by the names that Ray's dashboard shows."""
    from ray.util.state import list_actors

    found = list_actors(address=address, detail=True, filters=[("state", "=", "ALIVE")], timeout=60)
    return {actor.repr_name: actor.pid for actor in found}


def watch(prometheus: Prometheus, job: subprocess.Popen[bytes]) -> dict[str, int]:
    """How many series each query of the dashboard finds; raises FedRayError for one that finds none."""
    wanted = targets(json.loads(DASHBOARD.read_text()))
    found: dict[str, int] = {}

    def all_answered() -> bool:
        found.update({title: len(prometheus.ask(concrete(query, NAME))) for title, query in wanted})
        return all(found.values()) or job.poll() is not None

    try:
        took = until("data in every panel", SECONDS, all_answered)
    except FedRayError as error:
        raise FedRayError(f"{error}: {found}") from None
    if not all(found.values()):
        raise FedRayError(f"the run ended first, with {found}; give more --rounds")
    say(f"every query of every panel has data after {took:.0f} s: {found}")
    return found


def walk(work: Path, rounds: int) -> None:
    """A run that is scraped, with everything around it."""
    short = work / "r"  # the paths of Ray's sockets are limited
    with cluster(short, 3, dashboard=True) as (address, session):
        configuration = session / "metrics" / "prometheus" / "prometheus.yml"
        until("Ray's files for Prometheus and Grafana", 120, configuration.exists)
        provisioned = session / "metrics" / "grafana" / "dashboards"
        until("Ray's folder of dashboards", 60, provisioned.is_dir)
        shutil.copy(DASHBOARD, provisioned)
        say(f"Ray's Grafana reads {sorted(path.name for path in provisioned.iterdir())}")
        command = [sys.executable, "-m", "fedray.launch", *OPTIONS.split(), "--name", NAME, "--rounds", str(rounds)]
        with (work / "launch.log").open("wb") as log, Prometheus(configuration, work) as prometheus:
            job = subprocess.Popen(
                [*command, "--address", address], cwd=work, stdout=log, stderr=log,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            try:
                wanted = {f"{NAME} server", f"{NAME} clients 0-1", f"{NAME} clients 2-3"}
                until("the actors by name", 180, lambda: actors(address).keys() >= wanted or job.poll() is not None)
                found = actors(address)
                say(f"Ray's dashboard shows {sorted(found)}")
                os.kill(found[f"{NAME} clients 0-1"], signal.SIGKILL)
                say("killed an actor")
                watch(prometheus, job)
            finally:
                if job.poll() is None:
                    job.terminate()
                job.wait()
                print("\n".join((work / "runs" / NAME / "log.txt").read_text().splitlines()[:12]))


def why_not() -> str:
    """Why this cannot be tried here; empty if it can."""
    return "" if shutil.which("prometheus") else "prometheus missing: apt-get install -y prometheus"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400, help="enough for the run to last a minute or two")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    args = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}", file=sys.stderr)
        return 2
    work = Path(tempfile.mkdtemp(prefix="fedray-metrics-"))
    try:
        walk(work, args.rounds)
    except FedRayError as error:
        say(f"FAILED: {error}")
        return 1
    finally:
        if args.keep:
            say(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    say("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
