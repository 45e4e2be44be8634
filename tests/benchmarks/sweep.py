"""What a sweep costs beside its trials: N trials one after another through Tune, over N plain launches.

    python -m tests.benchmarks.sweep [--trials 6] [--rounds 20]

Both play the same configurations, one at a time; figures are CPU seconds of every process that they started, Ray's own
included, sampled ten times a second.
"""  # fmt: skip

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time

import psutil


def cpu_seconds(command: list[str], folder: str) -> float:
    """CPU seconds of a command and everything below it, as far as a sampler sees it."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    me, seen = psutil.Process(process.pid), dict[tuple[int, float], float]()
    while process.poll() is None:
        try:
            family = [me, *me.children(recursive=True)]
        except psutil.Error:
            break
        for child in family:
            try:
                times = child.cpu_times()
                seen[child.pid, child.create_time()] = times.user + times.system
            except psutil.Error:
                continue
        time.sleep(0.1)
    if process.wait() != 0:
        raise SystemExit(f"failed: {' '.join(command)}")
    return sum(seen.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    rates = [0.0005 * (1 + i) for i in range(args.trials)]
    grid = f"lr_personal=grid({','.join(map(str, rates))})"
    options = ["--search", "grid", "--scheduler", "none", "--concurrency", "1", "--max-rounds", str(args.rounds)]
    python = [sys.executable, "-m"]
    with tempfile.TemporaryDirectory() as folder:
        plain = 0.0
        for rate in rates:
            one = ["fedray.launch", "pfedbayes", "--rounds", str(args.rounds), "--lr-personal", str(rate)]
            plain += cpu_seconds([*python, *one], folder)
        swept = cpu_seconds([*python, "tune", "pfedbayes", "--space", grid, *options], folder)
    print(f"{args.trials} x {args.rounds} rounds of pfedbayes on the digits, one trial at a time")
    print(f"plain launches {plain:8.1f} CPU s\nsweep          {swept:8.1f} CPU s\nratio          {swept / plain:8.2f}")


if __name__ == "__main__":
    main()
