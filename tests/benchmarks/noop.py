"""What the runtime itself costs: 100 clients that do nothing, packed on 2 actors, 80,000 floats down and up.

    python -m tests.benchmarks.noop [--clients 100] [--rounds 20]
"""  # fmt: skip

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.averaging import fedavg
from fedray.config import Execution, Experiment, ModelConfig
from fedray.data.readers import Dataset
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from fedray.types import Context
from tests.benchmarks.meter import cpu_seconds


class Info(NamedTuple):
    """Nothing to report."""

    zero: Tensor


def step(ctx: Context[Any], local: fedavg.Local, batch: Any, noise: Tensor) -> tuple[fedavg.Local, Info]:
    """No arithmetic at all."""
    return local, Info(torch.zeros(()))


def noop_plan(clients: int, rounds: int) -> Plan:
    """A federation whose clients upload what they received."""
    cfg = Experiment(
        algorithm=fedavg.FedAvg(), model=ModelConfig(name="mlp", hidden=(1067,)), clients=clients, rounds=rounds,
        local_steps=1, batch_size=1, eval_every=10**6,
    )  # fmt: skip
    nothing = Dataset(np.zeros((2 * clients, 64), np.float32), np.arange(2 * clients) % 10, 10, None)
    plan = make_plan(_iid(cfg), nothing)
    return plan._replace(algorithm=plan.algorithm._replace(step=step))


def _iid(cfg: Experiment) -> Experiment:
    from fedray.config import override

    return override(cfg, {"data.partition": "iid"})


def main() -> None:
    from actors.federation import RayFederation

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    plan = noop_plan(args.clients, args.rounds + 1)
    with RayFederation(
        plan, Execution(clients_per_actor=-(-args.clients // 2), backend="vmap", address="local")
    ) as federation:
        rounds = iter(federation)
        next(rounds)
        cpu, wall = cpu_seconds(), time.perf_counter()
        for _ in rounds:
            pass
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    per_round = cpu / args.rounds
    print(f"{args.clients} no-op clients of {plan.model.size:,} parameters on 2 actors, {args.rounds} rounds")
    print(f"CPU {1e3 * per_round / args.clients:.3f} ms per client-round ({1e3 * per_round:.1f} ms per round); "
          f"wall {1e3 * wall / args.rounds:.1f} ms per round")  # fmt: skip


if __name__ == "__main__":
    main()
