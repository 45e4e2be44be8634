"""From a bare head to machines with GPUs and back, by `fedray.launch` alone; and what happens where none can be had.

    python -m tests.cluster.autoscaled [CASE ...] [--keep]

Ray's own autoscaler starts the machines: raylets on this machine, with GPUs that do not exist.
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
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from fedray.running import progress
from fedray.types import FedRayError
from tests.cluster.end_to_end import ROOT, compare, in_a_folder, say, until
from tests.cluster.hosts import run
from tests.cluster.provider import ALIKE, HEAD, RAY, switch_off

# Philox, because `auto` stands for it on machines with GPUs only.
OPTIONS = "pfedbayes --rounds 3 --seed 3 --local-steps 5 --noise-generator philox --backend vmap --tracking.uri none"
MOST = 4  # machines
LONG_ROUNDS = 100
# A selection policy that takes its time as long as a file is there: so machines come and go within a run's rounds.
BRAKED = """
import time
from pathlib import Path
from fedray.selection import uniform

def select(*args):
    if Path({brake!r}).exists():
        time.sleep(4)
    return uniform.select(*args)

SELECTION = uniform.SELECTION._replace(select=select, summary="uniform, with a brake")
"""
IDLE_SECONDS = 12
START_SECONDS, RUN_SECONDS = 240, 400  # on a machine under load
TYPES = {
    "single": {"resources": {"CPU": 2, "GPU": 1}, "max_workers": 2, "node_config": {"seconds": 3}},
    "fourfold": {"resources": {"CPU": 4, "GPU": 4}, "max_workers": 1, "node_config": {"seconds": 3}},
}  # by default: two types with GPUs, and no machine of either
# Fields that every file has, for clusters whose machines are reached by ssh.
COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
BY_SSH = {f"{when}_commands": [] for when in COMMANDS} | {"auth": {}, "file_mounts": {}, "cluster_synced_files": []}


class Cloud:
    """A head with two CPUs, its autoscaler, and the machines that this starts; all of them end with the context."""

    def __init__(self, work: Path, types: Mapping[str, Any] = TYPES):
        self.work, self.file, self.machines = work, work / "cluster.yaml", work / "machines"
        self.machines.mkdir()
        self.folder = Path(tempfile.mkdtemp(prefix="fr-", dir="/tmp"))  # Ray's sockets bear no long names
        with socket.socket() as door, socket.socket() as client:
            door.bind(("127.0.0.1", 0))
            client.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{door.getsockname()[1]}"
            self._client = client.getsockname()[1]
        # Nobody else's run finds this cluster, and no other is found from here.
        ours = {"RAY_TMPDIR": str(self.folder), "PYTHONPATH": str(ROOT), "FEDRAY_CACHE": str(work / "cache")}
        # Without a token, because this process asks the head without being a driver.
        ours |= {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "TERM": "dumb", "RAY_AUTH_MODE": "disabled"}
        ours |= {"RAY_enable_autoscaler_v2": "1"}  # as `ray up` sets it
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | ours
        self.offers(types)
        self._head: subprocess.Popen[bytes] | None = None
        self._jobs: list[subprocess.Popen[bytes]] = []

    def offers(self, types: Mapping[str, Any]) -> None:
        """From now on the cloud has these types of machines."""
        head = {"resources": {"CPU": 2}, "max_workers": 0, "node_config": {}}
        provider = {"type": "external", "module": "tests.cluster.provider.Raylets", "disable_node_updaters": True}
        config = BY_SSH | {
            "cluster_name": "test",
            "provider": provider | {"folder": str(self.machines), "address": self.address},
            "available_node_types": {HEAD: head} | {kind: {"min_workers": 0} | each for kind, each in types.items()},
            "head_node_type": HEAD,
            "max_workers": MOST,
            "idle_timeout_minutes": IDLE_SECONDS / 60,
        }
        part = self.file.with_suffix(".part")
        part.write_text(yaml.safe_dump(config))
        part.replace(self.file)  # the autoscaler may be reading it

    def __enter__(self) -> Cloud:
        port = self.address.split(":")[1]
        command = [RAY, "start", "--head", "--block", f"--port={port}", "--num-cpus=2",
                   "--num-gpus=0", f"--ray-client-server-port={self._client}", "--include-dashboard=false",
                   f"--autoscaling-config={self.file}", *ALIKE]  # fmt: skip
        with (self.work / "head.log").open("wb") as log:
            self._head = subprocess.Popen(
                command, cwd=self.work, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=self.env | {"RAY_CLOUD_INSTANCE_ID": HEAD, "RAY_NODE_TYPE_NAME": HEAD},
            )  # fmt: skip
        try:
            until("the head and its autoscaler", START_SECONDS, lambda: HEAD in self.running(), 1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for job in self._jobs:
            job.kill()
            job.wait()
        for name in self.names():
            with contextlib.suppress(OSError, ValueError):
                switch_off(json.loads((self.machines / name).read_text())["pid"])
        if self._head is not None:
            switch_off(self._head.pid)
            self._head.wait()
        for log in self.folder.glob("ray/session_2*/logs/monitor.*"):
            shutil.copy(log, self.work)
        shutil.rmtree(self.folder, ignore_errors=True)

    def clear(self) -> None:
        """Nothing runs and no machine is left, as before the first case, whatever became of the last one."""
        for job in self._jobs:
            job.kill()
            job.wait()
        for name in self.names():
            self.end(name)
        until("a bare head", START_SECONDS, lambda: self.running() == [HEAD], 0.5)
        self.offers(TYPES)

    def names(self) -> list[str]:
        """The machines that have been started and not ended."""
        return [path.name for path in self.machines.iterdir() if path.suffix != ".log"]

    def end(self, name: str) -> None:
        """A machine loses its power."""
        with contextlib.suppress(FileNotFoundError):
            pid = json.loads((self.machines / name).read_text())["pid"]
            (self.machines / name).unlink()
            switch_off(pid)

    def announce_end(self, name: str) -> None:
        """What the provider of a spot machine says before it takes the machine away."""
        from ray import _raylet
        from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION

        status = self.status()
        (node,) = (n.node_id for n in [*status.active_nodes, *status.idle_nodes] if n.instance_id == name)
        client, deadline = _raylet.GcsClient(address=self.address), int(1000 * (time.time() + RUN_SECONDS))
        accepted, reason = client.drain_node(node, DRAIN_NODE_REASON_PREEMPTION, "spot", deadline)
        if not accepted:
            raise FedRayError(f"{name} cannot be drained: {reason}")

    def status(self) -> Any:
        """What the autoscaler says."""
        from ray.autoscaler.v2.sdk import get_cluster_status

        return get_cluster_status(self.address)

    def running(self) -> list[str]:
        """The types of the machines that are in the cluster."""
        with contextlib.suppress(Exception):  # it is not up yet
            status = self.status()
            return [node.ray_node_type_name for node in [*status.active_nodes, *status.idle_nodes]]
        return []

    def asked_for(self) -> int:
        """How many reservations wait for room."""
        return len(self.status().resource_demands.placement_group_demand)

    def launch(self, log: Path, *options: str, module: str = "fedray.launch") -> subprocess.Popen[bytes]:
        """The user's second command, on the head; it ends with the context at the latest."""
        command = [sys.executable, "-m", module, *OPTIONS.split(), *options]
        with log.open("wb") as out:
            job = subprocess.Popen(
                command, cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        self._jobs.append(job)
        return job

    def actors(self, kind: str = "ClientActor") -> dict[str, int]:
        """How many client actors each machine hosts; what they ask of a machine includes a share of its GPUs."""
        found = {}
        for name in self.names():
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                machine = psutil.Process(json.loads((self.machines / name).read_text())["pid"])
                found[name] = sum(f"ray::{kind}" in " ".join(each.cmdline()) for each in machine.children(True))
        return {name: count for name, count in found.items() if count}


def ended(job: subprocess.Popen[bytes], log: Path, code: int) -> str:
    """What a command said; FedRayError where it did not end as it should."""
    until("the end of the command", RUN_SECONDS, lambda: job.poll() is not None, 0.5)
    said = log.read_text(errors="replace")
    if job.returncode != code:
        raise FedRayError(f"exit status {job.returncode}, not {code}: {said[-3000:]}")
    return said


def refused(said: str, *words: str) -> str:
    """The one error among what a command said, which must contain these words."""
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    if len(errors) != 1 or not all(word in errors[0] for word in words) or "Traceback" in said:
        raise FedRayError(f"not one error with {words}: {said[-3000:]}")
    return errors[0]


def up_and_down(cloud: Cloud) -> None:
    """Machines come for a run, its clients use their GPUs, and the machines go when they are idle."""
    log, result = cloud.work / "up.log", cloud.work / "up"
    job = cloud.launch(log, "--output", str(result))
    actors: dict[str, int] = {}

    def seen() -> bool:
        actors.update(cloud.actors())
        return job.poll() is not None or bool(actors)

    until("clients on machines", START_SECONDS, seen, 0.2)
    said = ended(job, log, 0)
    waiting = [line for line in said.splitlines() if line.startswith("asked for")]
    if not any("asked for 2 x single" in line and "starting: " in line for line in waiting):
        raise FedRayError(f"no line named the machines: {said[-3000:]}")
    say(f"it said: {waiting[-1]}")
    say(f"client actors on the machines that came: {actors}")
    if not any("GPU per actor" in line and "0 GPU" not in line for line in said.splitlines()) or not actors:
        raise FedRayError(f"no client had a GPU: {said[-3000:]}")
    if b'"single"' not in (cloud.work / "cache" / "machines").read_bytes():
        raise FedRayError("nobody remembers how long the machines took")
    took = until("idle machines end", START_SECONDS, lambda: not cloud.names(), 1)
    say(f"{took:.0f} s after the run the machines are gone; the same run in one process for comparison")
    local = ["-m", "fedray.launch", *OPTIONS.split(), "--runtime", "local", "--output", str(cloud.work / "local")]
    run(sys.executable, *local, cwd=ROOT)
    compare(cloud.work / "local", result)


def grown_and_shrunk(cloud: Cloud) -> None:
    """A run spreads from one machine over three, and leaves one that announces its end; its bits stay the same."""
    single = TYPES["single"] | {"max_workers": 1}
    cloud.offers({"single": single})
    log, result = cloud.work / "grown.log", cloud.work / "grown"
    brake = cloud.work / "brake"
    brake.touch()
    (cloud.work / "braked.py").write_text(BRAKED.format(brake=str(brake)))
    longer = ["--rounds", str(LONG_ROUNDS), "--eval-every", str(LONG_ROUNDS // 4), "--checkpoint.every", "50"]
    longer += ["--plugin", "braked", "--selection", "braked"]
    job = cloud.launch(log, *longer, "--output", str(result))

    def on(number: int, without: str = "") -> Callable[[], bool]:
        def there() -> bool:
            if job.poll() is not None:
                raise FedRayError(f"it ended before: {log.read_text(errors='replace')[-3000:]}")
            actors = cloud.actors()
            return len(actors) == number and without not in actors

        return there

    until("clients on one machine", START_SECONDS, on(1), 0.2)
    cloud.offers({"single": single | {"min_workers": 3, "max_workers": 3}})  # as `ray up` with a larger file
    until("clients on three machines", START_SECONDS, on(3), 0.2)
    say(f"client actors by machine: {cloud.actors()}")
    going = min(cloud.actors().keys() - cloud.actors("ServerActor").keys())  # from which clients can move
    cloud.offers({"single": single | {"max_workers": 3}})  # a successor comes only if it is asked for
    cloud.announce_end(going)
    until("clients on two machines", START_SECONDS, on(2, going), 0.2)
    brake.unlink()
    cloud.end(going)
    cloud.offers(TYPES)
    said = ended(job, log, 0)
    moves = progress.read(result).moves
    if not (any("spread to" in move for move in moves) and any("announced the end" in move for move in moves)):
        raise FedRayError(f"the status does not tell its moves, {moves}: {said[-3000:]}")
    for move in moves:
        say(f"moved: {move}")
    local = ["-m", "fedray.launch", *OPTIONS.split(), *longer, "--runtime", "local"]
    local += ["--output", str(cloud.work / "grown-local")]
    run(sys.executable, *local, cwd=cloud.work, env=cloud.env)
    compare(cloud.work / "grown-local", result)


def interrupted(cloud: Cloud) -> None:
    """Ctrl-C while machines start withdraws the demand."""
    cloud.offers({"single": TYPES["single"] | {"node_config": {"never": True}}})
    log = cloud.work / "interrupted.log"
    job = cloud.launch(log, "--output", str(cloud.work / "interrupted"))
    until("the demand", START_SECONDS, lambda: job.poll() is not None or cloud.asked_for() == 1, 0.2)
    until("a line", START_SECONDS, lambda: job.poll() is not None or "asked for" in log.read_text(), 0.2)
    job.send_signal(signal.SIGINT)
    said = ended(job, log, 130)
    until("no demand", 30, lambda: cloud.asked_for() == 0, 0.2)
    say(f"interrupted: {said.splitlines()[-1]}")
    for name in cloud.names():
        cloud.end(name)


def too_few(cloud: Cloud) -> None:
    """What the types of machines do not allow is refused before anything is asked for."""
    cloud.offers(TYPES)
    log = cloud.work / "few.log"
    began = time.monotonic()
    say(refused(ended(cloud.launch(log, "--gpus", "9"), log, 2), "--gpus 9", "max_workers", "single"))
    say(f"refused after {time.monotonic() - began:.0f} s")
    if cloud.names() or cloud.asked_for():
        raise FedRayError("something was asked for")


def never(cloud: Cloud) -> None:
    """A machine that does not come is given up in time, and nothing more is asked for."""
    cloud.offers({"single": TYPES["single"] | {"node_config": {"never": True}}})
    log = cloud.work / "never.log"
    said = ended(cloud.launch(log, "--gpus", "1", "--start-timeout", "10s"), log, 2)
    say(refused(said, "within 10 s", "1 x single", "--start-timeout"))
    until("no demand", 30, lambda: cloud.asked_for() == 0, 0.2)
    for name in cloud.names():
        cloud.end(name)


def no_quota(cloud: Cloud) -> None:
    """What the provider refuses ends the wait long before its time."""
    quota = "VcpuLimitExceeded: you have requested more vCPU capacity than your limit of 0"
    cloud.offers({"dear": {"resources": {"CPU": 2, "GPU": 1}, "max_workers": 2, "node_config": {"refused": quota}}})
    log = cloud.work / "quota.log"
    say(refused(ended(cloud.launch(log), log, 2), quota, "dear"))
    until("no demand", 30, lambda: cloud.asked_for() == 0, 0.2)


def sweep(cloud: Cloud) -> None:
    """A sweep brings its machines up in the same way."""
    cloud.offers(TYPES)
    log = cloud.work / "sweep.log"
    options = ["--max-rounds", "1", "--samples", "2", "--space", "zeta=uniform(1,5)", "--concurrency", "2"]
    said = ended(cloud.launch(log, *options, "--output", str(cloud.work / "sweep"), module="tune"), log, 0)
    if "asked for 1 x single" not in said:
        raise FedRayError(f"no line named the machines: {said[-3000:]}")
    say("a sweep of 2 trials came to its end on machines that it had asked for")


CASES = (up_and_down, grown_and_shrunk, interrupted, too_few, never, no_quota, sweep)


def walk(work: Path, cases: Sequence[Callable[[Cloud], None]] = CASES) -> None:
    """The cases, one after the other, on one head."""
    with Cloud(work) as cloud:
        say(f"a bare head at {cloud.address}; the cloud has {', '.join(TYPES)}")
        for case in cases:
            say(f"{case.__name__}: {case.__doc__}")
            cloud.clear()
            case(cloud)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.__name__ for case in CASES]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"only these of {', '.join(names)}")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    args = parser.parse_args()
    if unknown := set(args.cases) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    chosen = [case for case in CASES if not args.cases or case.__name__ in args.cases]
    return in_a_folder(partial(walk, cases=chosen), args.keep)


if __name__ == "__main__":
    sys.exit(main())
