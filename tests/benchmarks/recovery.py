"""What the death of a client actor costs a round, beside an actor's start-up and its share of a round.

    python -m tests.benchmarks.recovery [--repeats 5] [--data mnist]

All in one run: undisturbed rounds, start-ups of an actor on the busy cluster, and rounds in which one of two actors
is killed at a random moment. The promise is cost <= start-up + share.
"""  # fmt: skip

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator

import ray

from actors.client import ClientActor
from actors.federation import RayFederation
from fedray.algorithms.bayesian.pfedbayes import PFedBayes
from fedray.config import DataConfig, Execution, Experiment
from fedray.federate.messages import RoundMetrics
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan

CALM = 3  # undisturbed rounds before every fault; the one after a fault is not counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", default="mnist", help="mnist (needs FEDRAY_DATA_ROOT) or digits")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and victims")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    total = 2 + args.repeats * (CALM + 6)
    plan = make_plan(Experiment(algorithm=PFedBayes(), data=DataConfig(name=args.data), rounds=total, eval_every=total))
    calm, starts, costs = list[float](), list[float](), list[float]()
    ray.init("local", include_dashboard=False, log_to_driver=False)
    with RayFederation(plan, Execution(clients_per_actor=-(-plan.clients // 2))) as federation:
        rounds = iter(federation)
        next(rounds)
        for repeat in range(args.repeats):
            calm += [next(rounds).seconds["round"] for _ in range(CALM)]
            starts.append(start_up(plan, federation))
            seconds = disturbed(federation, rounds, rng, statistics.median(calm))
            costs.append(seconds - statistics.median(calm))
            print(f"{repeat + 1}: start-up {starts[-1]:.2f} s, recovery {costs[-1]:.2f} s")
            next(rounds)
    share, start, cost = (statistics.median(taken) for taken in (calm, starts, costs))
    print(f"\n{plan.clients} clients on 2 actors, {args.repeats} actors killed in mid-round; medians, wall")
    print(f"start-up of an actor        {start:6.2f} s")
    print(f"its share of a round        {share:6.2f} s   (both actors train at the same time: a whole round)")
    print(f"recovery from its death     {cost:6.2f} s   {cost / (start + share):.2f} x the two together")


def start_up(plan: Plan, federation: RayFederation) -> float:
    """Seconds until one more actor with half of the clients has answered, while the federation is at rest."""
    federation.client_pids()
    began = time.perf_counter()
    remote = ray.remote(num_cpus=0, max_restarts=0)(ClientActor)
    actor = remote.remote(plan, federation.layout.blocks[0], "auto", None, None)
    ray.get(actor.pid.remote())
    seconds = time.perf_counter() - began
    ray.kill(actor)
    return seconds


def disturbed(federation: RayFederation, rounds: Iterator[RoundMetrics], rng: random.Random, usual: float) -> float:
    """Seconds of a round in which an actor is killed."""
    victim = rng.choice(federation.client_pids())
    timer = threading.Timer(rng.uniform(0, usual), os.kill, (victim, signal.SIGKILL))
    timer.start()
    while True:
        metrics = next(rounds)
        if metrics.failures:
            return metrics.seconds["round"]


if __name__ == "__main__":
    sys.exit(main())
