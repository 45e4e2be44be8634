"""What more clients cost: pFedBayes with 79,510 parameters and 7 MNIST images per client, states on disk, two actors.

    python -m tests.benchmarks.scale [--clients 10 100 1000 10000] [--chosen 100] [--rounds 4] [--memory]

Needs FEDRAY_DATA_ROOT with MNIST. Every number of clients is a run of its own, from the plan to the figures, in a
process of its own. In a round as many clients train as are chosen (or all), as many are evaluated, and a checkpoint is
kept. Memory is the largest sum, over all processes, of proportional set sizes. The last lines are straight lines
through the points.
"""  # fmt: skip

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedray.algorithms.bayesian.pfedbayes import PFedBayes
from fedray.config import CheckpointConfig, DataConfig, Execution, Experiment, ModelConfig, TrackingConfig
from fedray.data import loading
from fedray.running import session
from fedray.running.stages import Request
from tests.benchmarks.meter import Peak, cpu_seconds

EXAMPLES = 7  # of each client
COLUMNS = ("plan", "start", "first", "round", "cpu", "checkpoint", "end", "memory", "sent", "kept")
FITTED = ("plan", "start", "checkpoint", "end", "memory")


class Watched:
    """A federation that notes when it was ready, and what its rounds took."""

    def __init__(self, federation: Any, notes: dict[str, Any]):
        self._federation = federation
        self._notes = notes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._federation, name)

    def __enter__(self) -> Watched:
        self._federation.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._federation.__exit__(*exc)

    def __iter__(self) -> Iterator[Any]:
        rounds = iter(self._federation)
        while True:
            cpu, wall = cpu_seconds(), time.perf_counter()
            metrics = next(rounds, None)
            if metrics is None:
                return
            self._notes["rounds"].append((time.perf_counter() - wall, cpu_seconds() - cpu, dict(metrics.seconds)))
            self._notes["sent"] = metrics.bytes_up + metrics.bytes_down
            self._notes["last"] = time.perf_counter()
            yield metrics


def one(clients: int, chosen: int, rounds: int, folder: Path, memory: bool) -> dict[str, float]:
    """Play a whole run, and what it took: seconds, bytes."""
    mnist = loading.load(DataConfig(name="mnist"))
    order = np.random.default_rng(0).permutation(len(mnist.y))[: EXAMPLES * clients]
    np.savez(folder / "images.npz", x=mnist.x[order], y=mnist.y[order])
    experiment = Experiment(
        algorithm=PFedBayes(),
        data=DataConfig(name=str(folder / "images.npz"), partition="iid"),
        model=ModelConfig(name="mlp", hidden=(100,)),
        clients=clients,
        clients_per_round=min(chosen, clients),
        eval_clients=min(chosen, clients),
        rounds=rounds,
    )
    execution = Execution(
        address="local",
        clients_per_actor=-(-clients // 2),
        client_states="memory" if memory else "disk",
        output=folder / "run",
        checkpoint=CheckpointConfig(every=1),
        tracking=TrackingConfig(uri="none"),
    )
    notes: dict[str, Any] = {"rounds": []}
    honest = session.open_federation

    def watched(*args: Any) -> Any:
        notes["planned"] = time.perf_counter()
        federation: Any = honest(*args)
        federation.client_pids()  # all of them are up
        notes["ready"] = time.perf_counter()
        return Watched(federation, notes)

    session.open_federation = watched  # type: ignore[assignment]
    began = time.perf_counter()
    session.run(Request(experiment, execution))
    ended = time.perf_counter()
    first, *rest = notes["rounds"]
    kept = [seconds["checkpoint"] for *_, seconds in notes["rounds"] if "checkpoint" in seconds]
    held = folder / "run" / "personal"
    return {
        "plan": notes["planned"] - began,
        "start": notes["ready"] - notes["planned"],
        "first": first[0],
        "round": statistics.median(wall for wall, *_ in rest),
        "cpu": statistics.median(cpu for _, cpu, _ in rest),
        "checkpoint": max(kept),
        "end": ended - notes["last"],
        "sent": notes["sent"] / 1e6,
        "kept": sum(path.stat().st_size for path in held.glob("*")) / 1e9 if held.exists() else 0.0,
    }


def measured(clients: int, args: argparse.Namespace) -> dict[str, float]:
    """What a run took in a process of its own, with the largest memory of all its processes in GB."""
    with tempfile.TemporaryDirectory() as folder:
        peak = Peak()
        command = [sys.executable, "-m", "tests.benchmarks.scale", "--one", folder, "--clients", str(clients)]
        command += ["--rounds", str(args.rounds), "--chosen", str(args.chosen), *(["--memory"] if args.memory else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
        memory = peak.stop()
        if done.returncode:
            raise SystemExit(done.stdout)
        return json.loads(done.stdout.splitlines()[-1]) | {"memory": memory / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--chosen", type=int, default=100, help="clients that train in a round, and are evaluated")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--memory", action="store_true", help="states in memory instead of on disk")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the process of a single run, and its folder
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.clients[0], args.chosen, args.rounds, Path(args.one), args.memory)))
        return
    print(
        "seconds: plan, start of the actors, first round, median of the others (wall, CPU), longest checkpoint,\n"
        "end (models, tables, figures); GB of memory; MB sent per round; GB of clients' states in the result\n"
    )
    print(f"{'clients':>8}" + "".join(f"{name:>11}" for name in COLUMNS), flush=True)
    found = {}
    for clients in args.clients:
        found[clients] = measured(clients, args)
        print(f"{clients:>8}" + "".join(f"{found[clients][name]:>11.2f}" for name in COLUMNS), flush=True)
    if len(found) > 2:
        print()
    for name in FITTED if len(found) > 2 else ():
        slope, base = np.polyfit(list(found), [taken[name] for taken in found.values()], 1)
        print(f"{name} = {base:.2f} + {1e3 * slope:.3f} per 1,000 clients")


if __name__ == "__main__":
    main()
