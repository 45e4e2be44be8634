"""What a 10-client round costs: in-process loop, stacked, compiled, and on Ray as a user gets it, over the floor.

Two processes that train half of the clients each, and do nothing else, show what two at a time cost this machine
without Ray: cores share caches and memory.

    python -m tests.benchmarks.round [--rounds 5] [--repeats 3] [--data mnist]

The step is compiled first, unless the cache has it. What a package in the cache adds to the start of a run is measured
in fresh processes.

All variants are measured in turn, A B C A B C, in one run; figures are medians, those of ratios of the ratios of each
turn. CPU seconds are those of this process
in process, and on Ray of every process that was started, Ray's own included (which are not idle while others are
measured); the floor is the matrix products and normals of the round, measured in between.
"""  # fmt: skip

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from fedray.algorithms.bayesian.pfedbayes import PFedBayes
from fedray.config import DataConfig, Execution, Experiment
from fedray.data import loading
from fedray.data.shards import Shards
from fedray.federate.block import Block
from fedray.federate.compiled.choice import choose
from fedray.federate.compiled.package import load, obtain, obtain_unit
from fedray.federate.compiled.unit import unit
from fedray.federate.device.cpu import numerics
from fedray.federate.in_process import LocalFederation
from fedray.federate.messages import RoundMetrics
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from fedray.federate.rounds import SPOTLIGHT_ROUNDS
from tests.benchmarks.meter import cpu_seconds, floor_seconds

LOCAL = ("loop", "vmap", "compiled")
WARMUP = max(SPOTLIGHT_ROUNDS)  # these rounds draw figures
PAIR, ON_RAY = "2 processes that only train, compiled", "Ray, 2 actors, auto, with MLflow"


class Cost(NamedTuple):
    """Per round."""

    cpu: float
    wall: float


class Variant:
    """A running federation that plays a few rounds at a time."""

    def __init__(self, federation: Any, log: Any = None, warmup: int = 1):
        self._rounds: Iterator[RoundMetrics] = iter(federation)
        self._log = log
        self._settle = getattr(federation, "client_pids", lambda: None)
        self._processes = [os.getpid()] if isinstance(federation, LocalFederation) else None
        for _ in range(warmup):  # start-up, first compilation and round-1 figures are not a round's cost
            next(self._rounds)
        self._settle()

    def play(self, rounds: int) -> Cost:
        from fedray.federate.report import measures

        cpu, wall = cpu_seconds(self._processes), time.perf_counter()
        for _ in range(rounds):
            metrics = next(self._rounds)
            if self._log is not None:
                self._log(metrics.round, measures(metrics))
        self._settle()  # Ray plays the next round ahead: wait for it, so that none is counted twice or never
        return Cost((cpu_seconds(self._processes) - cpu) / rounds, (time.perf_counter() - wall) / rounds)


def train_only(orders: Any, plan: Plan, ids: Sequence[int], backend: str) -> None:
    """Train clients for as many rounds as asked, until asked for none; the life of a process."""
    with numerics():
        block = Block(plan, ids, Shards(loading.load(plan.cfg.data), plan.partition, ids), backend)
        down = plan.algorithm.broadcast(plan.context, plan.initial_server(), ids)
        round = 0
        while rounds := orders.recv():
            for _ in range(rounds):
                round += 1
                block.train(round, ids, down)
            orders.send(round)


class Pair:
    """Two processes at a time, without server, Ray or tracking."""

    def __init__(self, plan: Plan, backend: str):
        context, half = multiprocessing.get_context("spawn"), plan.clients // 2
        self._ends, self._processes = [], []
        for ids in (range(half), range(half, plan.clients)):
            end, other = context.Pipe()
            process = context.Process(target=train_only, args=(other, plan, tuple(ids), backend), daemon=True)
            process.start()
            self._ends.append(end)
            self._processes.append(process)
        self.play(1)

    def play(self, rounds: int) -> Cost:
        pids = [process.pid for process in self._processes if process.pid]
        cpu, wall = cpu_seconds(pids), time.perf_counter()
        for end in self._ends:
            end.send(rounds)
        for end in self._ends:
            end.recv()
        return Cost((cpu_seconds(pids) - cpu) / rounds, (time.perf_counter() - wall) / rounds)

    def close(self) -> None:
        for end in self._ends:
            end.send(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds per measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", default="mnist", help="mnist (needs FEDRAY_DATA_ROOT) or digits")
    args = parser.parse_args()
    total = args.rounds * args.repeats + WARMUP + 2
    # Evaluated once, at the end: the paper's protocol evaluates, but the goals are stated for training.
    plan = make_plan(Experiment(algorithm=PFedBayes(), data=DataConfig(name=args.data), rounds=total, eval_every=10**6))
    obtain_unit(unit(plan), print)
    with tempfile.TemporaryDirectory() as folder:
        measure(plan, args.rounds, args.repeats, folder)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.repeats, context, max_tasks_per_child=1) as pool:
        costs = [pool.submit(start, plan).result() for _ in range(args.repeats)]
    cpu, wall = (statistics.median(column) for column in zip(*costs, strict=True))
    print(f"start of a run with its package in the cache, over one without: {cpu:.2f} CPU s, {wall:.2f} s")


def start(plan: Plan) -> Cost:
    """What it takes a fresh process to find a package and to load it."""
    cpu, wall = time.process_time(), time.perf_counter()
    assert load(obtain(plan), plan) is not None
    return Cost(time.process_time() - cpu, time.perf_counter() - wall)


def measure(plan: Plan, rounds: int, repeats: int, folder: str) -> None:
    """Print the table."""
    from actors.federation import RayFederation
    from fedray.running.tracking import MLflowTracker

    tracker = MLflowTracker(f"sqlite:///{Path(folder)}/mlflow.db", "benchmark", "round", {}, {})
    variants: dict[str, Variant | Pair] = {
        f"in-process {name}": Variant(LocalFederation(plan, name), None, WARMUP) for name in LOCAL
    }
    variants[PAIR] = pair = Pair(plan, LOCAL[-1])
    package = choose(plan, "auto", None, print)
    with RayFederation(plan, Execution(address="local"), package=package) as federation:
        variants[ON_RAY] = Variant(federation, tracker.log, WARMUP)
        costs: dict[str, list[Cost]] = {name: [] for name in variants}
        floors: list[float] = []
        for _ in range(repeats):
            for name, variant in variants.items():
                floors.append(floor(plan))
                costs[name].append(variant.play(rounds))
        base = statistics.median(floors)
        best = min(
            (costs[f"in-process {name}"] for name in LOCAL), key=lambda taken: statistics.median(c.cpu for c in taken)
        )
        print(
            f"\n{plan.clients} clients, {plan.model.size:,} parameters, {plan.cfg.local_steps} x 5 personal steps each"
        )
        print(f"floor (matrix products + normals, PyTorch): {base:.2f} CPU s, {min(floors):.2f}-{max(floors):.2f}\n")
        print(f"{'':<40}{'CPU s/round':>12}{'x floor':>9}{'x best local':>14}{'wall s/round':>14}")
        for name, taken in costs.items():
            cpu, wall = (statistics.median(column) for column in zip(*taken, strict=True))
            print(f"{name:<40}{cpu:>12.2f}{cpu / base:>9.2f}{ratio(taken, best):>14.2f}{wall:>14.2f}")
        print(f"\nRay, aggregation and MLflow over the best in process: {ratio(costs[ON_RAY], best) - 1:+.1%} CPU")
        print(f"... over two processes that only train: {ratio(costs[ON_RAY], costs[PAIR]) - 1:+.1%} CPU")
    pair.close()
    tracker.finish("FINISHED")


def ratio(taken: list[Cost], base: list[Cost]) -> float:
    """The median of the CPU ratios of measurements that follow one another: a machine's speed changes in minutes."""
    return statistics.median(one.cpu / other.cpu for one, other in zip(taken, base, strict=True))


def floor(plan: Plan) -> float:
    """CPU seconds of the products and normals of one round, as PyTorch does them on one thread."""
    with numerics():
        sizes = (*(shape[0] for shape in plan.model.shapes[::2]), plan.model.classes)
        products, normals = floor_seconds(plan.cfg.batch_size, sizes, plan.model.padded)
    return plan.clients * plan.cfg.local_steps * 5 * (products + normals)


if __name__ == "__main__":
    sys.exit(main())
