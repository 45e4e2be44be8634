"""A cluster of several nodes on this machine, and the faults that can be injected into a run on it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import psutil
from ray.cluster_utils import Cluster

from tests.chaos.faults import issue

QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 2000,
         "health_check_failure_threshold": 4}  # fmt: skip
HANG_SECONDS = 300.0
ARGV = [
    "pfedbayes", "--data.partition", "dirichlet", "--clients", "6", "--clients-per-round", "4", "--model.hidden", "8",
    "--local-steps", "4", "--batch-size", "32", "--predict-samples", "1", "--backend", "loop",
    "--clients-per-actor", "3", "--round-timeout", "10",
]  # fmt: skip


class Arena:
    """Raylets that start as children of this process, and one run on them at a time."""

    def __init__(self, folder: Path, nodes: int, pace: float):
        self.folder, self.pace = folder, pace
        # Unnoted: a run that another test starts would join it unasked, and die when it ends.
        with patch("ray._private.utils.write_ray_address"):
            # The head has room for the server and all clients: it is never taken.
            self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "_system_config": QUICK})
        self.workers = [self.cluster.add_node(num_cpus=2) for _ in range(nodes - 1)]
        self.process: subprocess.Popen[bytes] | None = None
        self.run, self.issued = folder, 0

    def close(self) -> None:
        """Stop the run and the cluster."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        self.cluster.shutdown()

    def start(self, name: str, rounds: int, resume: bool = False) -> None:
        """Start a run, or go on with it."""
        self.run = self.folder / "runs" / name
        argv = ["--resume", str(self.run)] if resume else [*ARGV, "--rounds", str(rounds), "--name", name]
        argv += ["--address", self.cluster.address]
        command = [sys.executable, "-m", "tests.chaos.driver", str(self.run) + "-tickets", str(self.pace), *argv]
        log = (self.folder / f"{name}.log").open("ab")
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=environment)

    def reached(self) -> int:
        """The last round of which a checkpoint is complete."""
        found = [path.parent.name[6:] for path in self.run.glob("checkpoints/round-*/manifest.json")]
        return max(map(int, found), default=0)

    def ended(self) -> bool:
        """Whether the driver's process is gone."""
        return self.process is None or self.process.poll() is not None

    def wait(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition or the end of the run; False for a hang."""
        deadline = time.monotonic() + HANG_SECONDS
        while not (condition() or self.ended()):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def actors(self, name: str) -> list[psutil.Process]:
        """Processes of an actor class on this cluster."""
        found = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if f"ray::{name}" in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def inject(self, kind: str, rng: random.Random) -> bool:
        """One fault; False where there was nothing to hit."""
        if kind in ("client", "server"):
            found = self.actors("ClientActor" if kind == "client" else "ServerActor")
            with contextlib.suppress(psutil.Error):
                return bool(found) and (rng.choice(found).kill() or True)
            return False
        if kind == "node":
            node = self.workers.pop(rng.randrange(len(self.workers)))
            self.cluster.remove_node(node, allow_graceful=False)
            self.workers.append(self.cluster.add_node(num_cpus=2))
            return True
        if kind in ("driver", "torn"):
            return self._kill_driver(kind == "torn", rng)
        self.issued += 1
        issue(Path(str(self.run) + "-tickets"), kind, self.issued)
        return True

    def taken(self) -> Counter[str]:
        """The tickets of this run that a client found."""
        return Counter(path.name.split(".")[1] for path in Path(str(self.run) + "-tickets").glob("*.taken"))

    def _kill_driver(self, tear: bool, rng: random.Random) -> bool:
        """SIGKILL; with ``tear`` a file of the newest checkpoint is damaged too, as a machine's fall could."""
        assert self.process is not None
        if self.ended():
            return False
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.wait_for_silence()
        newest = max(self.run.glob("checkpoints/round-*"), default=None)
        if tear and newest is not None and len(list(self.run.glob("checkpoints/round-*/manifest.json"))) > 1:
            path = rng.choice(sorted(newest.iterdir()))
            path.write_bytes(path.read_bytes()[: rng.randrange(max(1, path.stat().st_size))])
        return True

    def wait_for_silence(self) -> int:
        """Wait until no actor is left of a driver that is gone; how many still are."""
        deadline = time.monotonic() + 60
        left = ["any"]
        while left and time.monotonic() < deadline:
            left = self.actors("ClientActor") + self.actors("ServerActor")
            time.sleep(0.1)
        return len(left)
