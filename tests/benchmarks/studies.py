"""What a study takes side by side, over its runs one after the other, on a cluster that is running already.

    python -m tests.benchmarks.studies [--study quick] [--cpus 2] [--repeats 1]

Both play the same runs and end in the same table; in turn, every run is a launch of its own in one process. Figures are
seconds, and CPU seconds of all processes, those of the cluster included, sampled ten times a second.
"""  # fmt: skip

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple
from unittest.mock import patch

import psutil


class Cost(NamedTuple):
    """What a command took."""

    wall: float  # seconds
    cpu: float  # CPU seconds


def measured(command: list[str], folder: str) -> Cost:
    """The cost of a command, and of everything that this process has started, meanwhile."""
    me = psutil.Process()
    before = _seconds(me)
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen = dict(before)
    while process.poll() is None:
        seen |= _seconds(me)
        time.sleep(0.1)
    wall = time.perf_counter() - began
    out, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"failed: {' '.join(command)}\n{out}")
    return Cost(wall, sum(seen.values()) - sum(before.values()))


def _seconds(me: psutil.Process) -> dict[tuple[int, float], float]:
    """CPU seconds so far of every process below this one."""
    found = {}
    for child in me.children(recursive=True):
        try:
            times = child.cpu_times()
            found[child.pid, child.create_time()] = times.user + times.system
        except psutil.Error:
            continue
    return found


def play_in_turn(study: str, address: str) -> None:
    """The runs of a study by one launch after the other, then its table."""
    from fedray.config import Execution
    from fedray.running import session
    from fedray.studies import study as studies
    from fedray.studies.agenda import Options, plan_runs

    options = Options(execution=Execution(address=address))
    for planned in plan_runs(study, options).runs:
        session.run(studies.request(study, planned, options), {"study": study})
    studies._compare(study, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="quick")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--in-turn", metavar="ADDRESS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_turn:
        play_in_turn(args.study, args.in_turn)
        return
    from ray.cluster_utils import Cluster

    costs: dict[str, list[Cost]] = {"in turn": [], "side by side": []}
    for _ in range(args.repeats):
        for way, found in costs.items():
            with patch("ray._private.utils.write_ray_address"):  # nobody joins it unasked
                cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": args.cpus})
            own = ["tests.benchmarks.studies", "--study", args.study, "--in-turn", cluster.address]
            command = own if way == "in turn" else ["fedray.studies", args.study, "--address", cluster.address]
            with tempfile.TemporaryDirectory() as folder:
                found.append(measured([sys.executable, "-m", *command], folder))
            cluster.shutdown()
    medians = {way: Cost(*map(statistics.median, zip(*found, strict=True))) for way, found in costs.items()}
    print(f"study {args.study} on a running cluster of {args.cpus} CPUs, median of {args.repeats}")
    for way, (wall, cpu) in medians.items():
        print(f"{way:<12} {wall:8.1f} s  {cpu:8.1f} CPU s")
    turn, side = medians.values()
    print(f"{'ratio':<12} {side.wall / turn.wall:8.2f}    {side.cpu / turn.cpu:8.2f}")


if __name__ == "__main__":
    main()
