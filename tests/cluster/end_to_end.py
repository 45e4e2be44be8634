"""From nothing to a finished run and back on machines of its own, one of which is cut off in mid-run.

    python -m tests.cluster.end_to_end [--hosts 3] [--rounds 25] [--no-cut] [--keep]

The machines are namespaces of this one, so it needs root, openssh-server, rsync and iproute2. They run
cluster/onprem.yaml with the addresses, user and key replaced, and this environment instead of an installed one.
"""  # fmt: skip

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from fedray.types import FedRayError
from tests.cluster.hosts import Network, run, why_not

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = f"ln -sfn {sys.prefix} ~/fedray-env"
OPTIONS = "pfedbayes --rounds {rounds} --seed 3 --local-steps 40"
LAUNCH = "cd fedray && TERM=dumb python -m fedray.launch {options} --name e2e --tracking.uri http://127.0.0.1:5000"
NODES = "import ray; ray.init(logging_level=40); print('alive:', sum(node['Alive'] for node in ray.nodes()))"
STRANGER = 'RAY_AUTH_MODE=disabled timeout 60 python -c \'import ray; ray.init("auto"); print("let in")\' 2>&1 || true'
UP_SECONDS, RUN_SECONDS, DOWN_SECONDS = 180, 900, 150
TAIL = 20  # lines of the run's output that are shown


def cluster_file(network: Network, target: Path, setup: list[str] | None = None) -> dict[str, Any]:
    """cluster/onprem.yaml for these machines; setup replaces the commands that install packages."""
    config = yaml.safe_load((ROOT / "cluster" / "onprem.yaml").read_text())
    head, *workers = [host.address for host in network.hosts]
    config["provider"] |= {"head_ip": head, "worker_ips": workers}
    config["cluster_name"] = network.bridge
    config["auth"] = {"ssh_user": "root", "ssh_private_key": str(network.key)}
    if setup is not None:
        config["setup_commands"] = [line for line in config["setup_commands"] if "uv " not in line] + setup
    target.write_text(yaml.safe_dump(config, width=1000))
    return config


class Launcher:
    """The user's own computer: an empty home, the checkout, and Ray's command line."""

    def __init__(self, work: Path):
        self.home, self.file = work / "launcher", work / "onprem.yaml"
        self.home.mkdir()
        (work / "ray").mkdir()
        path = f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"
        changed = {"HOME": str(self.home), "PATH": path, "RAY_AUTH_MODE": "token"}
        changed |= {"RAY_TMPDIR": str(work / "ray"), "TMPDIR": str(work / "ray")}  # nothing of it stays in /tmp
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | changed

    def ray(self, *command: str) -> str:
        """The output of a `ray` command run at the top of the checkout."""
        return run("ray", *command, cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL)

    def exec(self, command: str) -> str:
        """The output of a command on the head."""
        return self.ray("exec", str(self.file), command)

    def start(self, command: str, log: Path) -> subprocess.Popen[bytes]:
        """A command on the head that goes on while we do something else."""
        with log.open("wb") as out:
            line = ["ray", "exec", str(self.file), command]
            return subprocess.Popen(
                line, cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def until(what: str, seconds: float, done: Callable[[], bool], pause: float = 2.0) -> float:
    """Wait until something is so, and say how long it took."""
    start = time.monotonic()
    while not done():
        if time.monotonic() - start > seconds:
            raise FedRayError(f"{what}: not within {seconds:g} s")
        time.sleep(pause)
    return time.monotonic() - start


def processes(network: Network, word: str) -> dict[str, int]:
    """How many processes of each machine have a word in their command line."""
    found = {}
    for host in network.hosts:
        lines = host.inside("ps", "-eo", "args").splitlines()
        found[host.name] = sum(word in line for line in lines)
    return found


def rounds_so_far(network: Network) -> int:
    """The last round that the head's MLflow knows."""
    store = network.hosts[0].home / "mlflow" / "mlflow.db"
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:
        return connection.execute("select coalesce(max(step), 0) from metrics").fetchone()[0]


def check_doors(launcher: Launcher, network: Network) -> None:
    """Who has no token stays outside; dashboard and MLflow are not on the network."""
    answer = launcher.exec(STRANGER)
    if "let in" in answer.splitlines():
        raise FedRayError("a driver without the token was let in")
    listening = network.hosts[0].inside("ss", "-Hltn")
    doors = [line.split()[3] for line in listening.splitlines() if line.split()[3].endswith((":8265", ":5000"))]
    if sorted(doors) != ["127.0.0.1:5000", "127.0.0.1:8265"]:
        raise FedRayError(f"dashboard and MLflow listen on {doors}")
    say(f"without the token: refused; {' and '.join(sorted(doors))} answer on the head only")


def play(launcher: Launcher, network: Network, work: Path, rounds: int, cut: bool) -> None:
    """The run over all machines, the last of which is cut off in the middle."""
    log = work / "launch.log"
    command = LAUNCH.format(options=OPTIONS.format(rounds=rounds))
    say(f"on the head: {command}")
    job = launcher.start(command, log)
    try:
        until("round 2", 180, lambda: job.poll() is not None or rounds_so_far(network) >= 2, 0.5)
        actors = processes(network, "ray::ClientActor")
        say(f"round {rounds_so_far(network)} of {rounds}; client actors per machine: {actors}")
        if cut and job.poll() is None:
            # Not the server's machine, if another one has clients: where the server goes is not ours to say.
            servers = processes(network, "ray::ServerActor")
            victim = max(network.hosts[1:], key=lambda host: (not servers[host.name], actors[host.name] > 0))
            victim.cut()
            say(f"cut off {victim.name} in round {rounds_so_far(network)}; the server is on {servers}")
        took = until("the end of the run", RUN_SECONDS, lambda: job.poll() is not None)
        print("\n".join(log.read_text(errors="replace").splitlines()[-TAIL:]))
        if job.returncode:
            raise FedRayError(f"the run ended with status {job.returncode}")
        say(f"the run ended {took:.0f} s later")
    finally:
        if job.poll() is None:
            job.terminate()
            job.wait()


def compare(here: Path, there: Path) -> None:
    """Both results agree in every bit of every posterior and in every figure."""
    for name in ("global.safetensors", "personal.safetensors"):
        ours, theirs = load_file(here / name), load_file(there / name)
        same = ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
        if not same:
            raise FedRayError(f"{name} differs from that of the undisturbed run in one process")
    ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (here, there))
    for model in ("personal", "global"):
        if ours[model] != theirs[model]:
            raise FedRayError(f"{model} figures differ: {theirs[model]}, undisturbed {ours[model]}")
    accuracy = {model: ours[model]["accuracy"] for model in ("personal", "global")}
    say(f"posteriors equal in every bit, figures equal; accuracy {accuracy}")


def walk(work: Path, hosts: int, rounds: int, cut: bool) -> None:
    """Everything, from making the machines to `ray down`."""
    with Network(work) as network:
        for name in ["head", *[f"worker{i}" for i in range(1, hosts)]]:
            network.add(name)
        say(f"machines: {', '.join(f'{host.name} {host.address}' for host in network.hosts)}")
        launcher = Launcher(work)
        cluster_file(network, launcher.file, [ENVIRONMENT])
        launcher.ray("get-auth-token", "--generate")
        say("ray up")
        start = time.monotonic()
        launcher.ray("up", "-y", str(launcher.file))
        say(f"the head is up after {time.monotonic() - start:.0f} s")
        took = until(
            f"{hosts} machines", UP_SECONDS, lambda: f"alive: {hosts}" in launcher.exec(f'python -c "{NODES}"')
        )
        say(f"all {hosts} machines are in the cluster, {took:.0f} s later")
        check_doors(launcher, network)
        play(launcher, network, work, rounds, cut)
        launcher.ray("rsync-down", str(launcher.file), "~/fedray/runs/e2e/", str(work / "fetched"))
        say("ray rsync-down: result fetched; the same run in one process for comparison")
        local = ["-m", "fedray.launch", *OPTIONS.format(rounds=rounds).split(), "--runtime", "local"]
        run(sys.executable, *local, "--output", str(work / "local"), "--tracking.uri", "none", cwd=ROOT)
        compare(work / "local", work / "fetched")
        for host in network.hosts:
            host.plug()  # that `ray down` is heard by all
        launcher.ray("down", "-y", str(launcher.file))
        took = until("no raylet left", DOWN_SECONDS, lambda: not any(processes(network, "raylet/raylet").values()))
        say(f"ray down; no machine has a raylet {took:.0f} s later")


def in_a_folder(walk: Callable[[Path], None], keep: bool) -> int:
    """The exit status of a walk, whose machines live in a folder that is removed afterwards unless it is to be kept."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes everything down on the way
    # Not below /tmp/ray, which every machine covers with its own.
    work = Path(tempfile.mkdtemp(prefix="fedray-machines-", dir="/var/tmp"))
    try:
        walk(work)
    except FedRayError as error:
        say(f"FAILED: {error}")
        return 1
    finally:
        if keep:
            say(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    say("passed")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=3, help="machines, the head among them")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--no-cut", action="store_true", help="leave all machines connected")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all homes and logs")
    args = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}", file=sys.stderr)
        return 2
    return in_a_folder(lambda work: walk(work, args.hosts, args.rounds, not args.no_cut), args.keep)


if __name__ == "__main__":
    sys.exit(main())
