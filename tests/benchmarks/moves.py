"""What it costs a federation to leave a machine and to spread to one that joins.

    python -m tests.benchmarks.moves [--repeats 3] [--data mnist] [--clients 10]

Three raylets with one CPU each on this machine. One of the two without the driver announces its end, goes, and another
one joins, again and again. Seconds are what the next round had to wait; actors start beside the rounds.
"""  # fmt: skip

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator

from actors.federation import RayFederation
from fedray.algorithms.bayesian.pfedbayes import PFedBayes
from fedray.config import DataConfig, Execution, Experiment
from fedray.federate.messages import RoundMetrics
from fedray.federate.planning import make_plan
from tests.actors.test_elastic import Machines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", default="mnist", help="mnist (needs FEDRAY_DATA_ROOT) or digits")
    parser.add_argument("--clients", type=int, default=10)
    args = parser.parse_args()
    experiment = Experiment(
        algorithm=PFedBayes(), data=DataConfig(name=args.data), clients=args.clients, rounds=100_000, eval_every=100_000
    )
    taken: dict[str, list[float]] = {"leave a machine": [], "spread to a machine": [], "an undisturbed round": []}
    cluster = Machines(1, 2)
    try:
        with RayFederation(make_plan(experiment), Execution(address=cluster.address)) as federation:
            rounds = iter(federation)
            next(rounds)
            for _ in range(args.repeats):
                taken["an undisturbed round"].append(next(rounds).seconds["round"])
                going = cluster.workers.pop(0)
                cluster.announce(going)
                taken["leave a machine"].append(waited(rounds, 2))
                cluster.remove(going)
                cluster.workers.append(cluster.add())
                taken["spread to a machine"].append(waited(rounds, 3))
    finally:
        cluster.close()
    for name, seconds in taken.items():
        print(f"{name:22} {statistics.median(seconds):6.2f} s   ({', '.join(f'{s:.2f}' for s in seconds)})")


def waited(rounds: Iterator[RoundMetrics], machines: int) -> float:
    """Seconds that rounds waited until the clients were on so many machines."""
    seconds = 0.0
    for metrics in rounds:
        seconds += sum(move.seconds for move in metrics.moves)
        if len(metrics.machines) == machines:
            return seconds
    raise AssertionError("the rounds ended")


if __name__ == "__main__":
    sys.exit(main())
