"""FedRay's side of every case.

Variants: "in process", "in process, compiled", and "on Ray, 2 actors".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.bayesian.pfedbayes import PFedBayes
from fedray.arrays.rng import Passes
from fedray.config import Execution, Experiment, ModelConfig
from fedray.data.partition import Partition
from fedray.data.readers import Dataset
from fedray.data.scaling import within
from fedray.federate.in_process import LocalFederation
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from tests.benchmarks.noop import noop_plan
from tests.benchmarks.peers.sides.measured import Case, Meter, Result, play

PERSONAL_STEPS = {"fedavg": 1, "pfedbayes": 5}  # gradients of a minibatch


def plan_of(case: Case, rounds: int) -> Plan:
    """The case as FedRay plays it, on the very shards of the others."""
    if case.work == "no-op":
        return noop_plan(case.clients, rounds)
    given = np.load(case.shards)
    train, test = (tuple(given[f"{part}{i}"] for i in range(case.clients)) for part in ("train", "test"))
    convolutional = given["x"].shape[1:] == (3, 32, 32)
    cfg = Experiment(
        algorithm=FedAvg(lr=case.lr) if case.work == "fedavg" else PFedBayes(),
        model=ModelConfig(name="cnn" if convolutional else "mlp"),
        rounds=rounds,
        local_steps=case.steps,
        batch_size=case.batch,
        # BlazeFL's benchmark tests the global model after every round; the others test nothing.
        eval_every=1 if convolutional else 10**6,
    )
    return make_plan(cfg, Dataset(given["x"], given["y"], 10, within(255)), Partition(train, test))


def example_gradients(case: Case, plan: Plan) -> int:
    """Counted from the minibatches that the clients draw in the measured rounds."""
    if case.work == "no-op":
        return 0
    first = case.warmup * case.steps
    drawn = 0
    for i, shard in enumerate(plan.partition.train):
        passes = Passes(plan.cfg.seed, i, len(shard), case.batch)
        drawn += sum(len(passes[j]) for j in range(first, first + case.rounds * case.steps))
    return PERSONAL_STEPS[case.work] * drawn


@contextlib.contextmanager
def federation(plan: Plan, variant: str) -> Iterator[Any]:
    """The federation of a variant, which gives back what it took."""
    if variant.startswith("in process"):
        yield LocalFederation(plan, "compiled" if variant.endswith("compiled") else "auto")
        return
    from actors.federation import RayFederation

    with RayFederation(plan, Execution(clients_per_actor=-(-plan.clients // 2), address="local")) as on_ray:
        yield on_ray


def side(case: Case, meter: Meter) -> Result:
    # Two rounds more than are measured: a run's last one is evaluated, and Ray plays one ahead. The round ahead of the
    # warm-up is played before the meter starts, the one ahead of the last measured round before it stops.
    plan = plan_of(case, case.warmup + case.rounds + 2)
    with federation(plan, case.variant) as running:
        rounds = iter(running)
        settle = getattr(running, "client_pids", lambda: None)  # Ray plays the next round ahead: wait for it
        for _ in range(case.warmup):
            next(rounds)
        settle()
        meter.start()
        played = [next(rounds) for _ in range(case.rounds)]
        settle()
        assert [metrics.round for metrics in played] == list(range(case.warmup + 1, case.warmup + case.rounds + 1))
        clients = {client for metrics in played for client in metrics.participants}
        return meter.result(case, len(clients), plan.model.size, example_gradients(case, plan))


if __name__ == "__main__":
    play(side)
