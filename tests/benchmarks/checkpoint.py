"""What keeping a checkpoint of every round costs, and what writing a thousand packed clients does.

    python -m tests.benchmarks.checkpoint [--rounds 2] [--repeats 3] [--data mnist] [--clients 1000]

With and without checkpoints are measured in turn, in one run; figures are medians.
"""  # fmt: skip

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedray.algorithms.bayesian.pfedbayes import PFedBayes
from fedray.config import DataConfig, Execution, Experiment, ModelConfig
from fedray.federate.in_process import LocalCohort, LocalFederation
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from fedray.federate.rounds import start
from fedray.federate.storage import checkpoint
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.federate.storage.states import rows
from tests.benchmarks.meter import cpu_seconds
from tests.benchmarks.round import Cost, Variant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="rounds per measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", default="mnist", help="mnist (needs FEDRAY_DATA_ROOT) or digits")
    parser.add_argument("--clients", type=int, default=1000, help="clients of the large checkpoint; 0 leaves it out")
    args = parser.parse_args()
    total = args.rounds * args.repeats + 3
    plan = make_plan(Experiment(algorithm=PFedBayes(), data=DataConfig(name=args.data), rounds=total))
    with tempfile.TemporaryDirectory() as folder:
        every_round(plan, Path(folder), args.rounds, args.repeats)
        if args.clients:
            large(args.clients, f"{folder}/large", args.repeats)
            large(args.clients, f"{folder}/linked", args.repeats, on_disk=True)


def every_round(plan: Plan, folder: Path, rounds: int, repeats: int) -> None:
    """Print CPU and wall seconds of a round with and without a checkpoint, in this process and on Ray."""
    import ray

    from actors.federation import RayFederation

    ray.init("local", num_cpus=6, include_dashboard=False, log_to_driver=False)  # room for both, which play in turn
    two = Execution(clients_per_actor=-(-plan.clients // 2))
    with (
        RayFederation(plan, two) as bare,
        RayFederation(plan, two, CheckpointStore(str(folder / "ray"))) as kept,
    ):
        variants = {
            "in-process": Variant(LocalFederation(plan)),
            "in-process, every round kept": Variant(
                LocalFederation(plan, store=CheckpointStore(str(folder / "local")))
            ),
            "Ray, 2 actors": Variant(bare),
            "Ray, 2 actors, every round kept": Variant(kept),
        }
        costs: dict[str, list[Cost]] = {name: [] for name in variants}
        for _ in range(repeats):
            for name, variant in variants.items():
                costs[name].append(variant.play(rounds))
    print(
        f"\n{plan.clients} clients of {plan.model.size:,} parameters\n{'':<36}{'CPU s/round':>12}{'wall s/round':>14}"
    )
    medians = {n: [statistics.median(column) for column in zip(*taken, strict=True)] for n, taken in costs.items()}
    for name, (cpu, wall) in medians.items():
        print(f"{name:<36}{cpu:>12.3f}{wall:>14.3f}")
    for name in ("in-process", "Ray, 2 actors"):
        cpu, wall = (b / a - 1 for a, b in zip(medians[name], medians[f"{name}, every round kept"], strict=True))
        print(f"{name}: checkpoints add {cpu:+.1%} CPU, {wall:+.1%} wall")


def large(clients: int, url: str, repeats: int, on_disk: bool = False) -> None:
    """Print what one checkpoint of many packed clients takes, all of which have trained."""
    Path(url).mkdir()
    name, rng = f"{url}/data.npz", np.random.default_rng(0)
    np.savez(name, x=rng.random((4 * clients, 64), np.float32), y=rng.integers(0, 10, 4 * clients))
    cfg = Experiment(
        algorithm=PFedBayes(),
        data=DataConfig(name=name, partition="iid"),
        model=ModelConfig(name="mlp", hidden=(1060,)),
        clients=clients,
        rounds=10,
    )
    plan = make_plan(cfg)
    state, store = start(plan), CheckpointStore(url, states=f"{url}/states" if on_disk else "")
    cohort = LocalCohort(plan, folder=store.states)
    for i in range(clients):
        cohort.block.private.replace(0, [i], rows(cohort.block.private, [i]))
    here, taken = [os.getpid()], []  # processes of the Ray before may end meanwhile, and their seconds with them
    for round in range(1, repeats + 1):
        cpu, wall = cpu_seconds(here), time.perf_counter()
        assert checkpoint.keep(store, plan, state._replace(round=round), cohort) == ()
        taken.append(Cost(cpu_seconds(here) - cpu, time.perf_counter() - wall))
    cpu, wall = (statistics.median(column) for column in zip(*taken, strict=True))
    size = sum(path.stat().st_size for path in Path(url, f"round-{repeats:06d}").iterdir())
    where = ", states on disk" if on_disk else ""
    what = f"{clients} packed clients of {plan.model.size:,} parameters{where}"
    print(f"\n{what}: {size / 1e9:.2f} GB in {cpu:.2f} CPU s, {wall:.2f} s wall")


if __name__ == "__main__":
    sys.exit(main())
