"""What a round of 100 clients, 20 of them averaged, costs by method: in process and on Ray with 2 actors.

MNIST by pFedBreD's protocol: lognormal sizes, 784-100-10, 20 minibatches of 20 examples for each client. The floor is
that of the matrix products and normals of a round; BNFed's has the products of its server's matching besides, and
pFedGP's the Cholesky factors of its Gibbs sampler. FedAMP, pFedMe and pFedBreD train all clients, pooled the one place,
the others the 20 selected.

    python -m tests.benchmarks.many [--methods pfedme,mh] [--rounds 1] [--repeats 5] [--backend compiled]

It needs FEDRAY_DATA_ROOT. Long runs are compiled by ``auto``, which stacks the clients of runs as short as these.

The variants are measured in turn and figures are medians. CPU seconds and memory are those of this process in process,
and on Ray of every process that was started; memory is the largest that was seen, looking twice a second, with pages
that processes share counted once.
"""  # fmt: skip

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from fedray import registry
from fedray.algorithms.bayesian.pfedgp import levels
from fedray.config import DataConfig, Execution, Experiment, override
from fedray.federate.device.cpu import numerics
from fedray.federate.in_process import LocalFederation
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from tests.benchmarks.meter import Peak, floor_seconds, median_seconds
from tests.benchmarks.round import Cost, Variant


class Method(NamedTuple):
    """What is played, and what a step of it cannot do without."""

    algorithm: str
    gradients: int  # per step
    normals: int = 0  # per step, each as long as the parameter vector
    settings: Mapping[str, Any] = {}
    besides: Callable[[Plan], float] | None = None  # CPU seconds of what else a round cannot do without
    backend: Any = "compiled"  # by default


def matching(plan: Plan) -> float:
    """CPU seconds of the products of BNFed's gains: for each client and sweep, two of [H, V] and [V, L]."""
    inputs, hidden = plan.model.shapes[0]
    cfg = plan.cfg.algorithm
    a = torch.randn(hidden, inputs + 1 + plan.model.classes).double()
    b = torch.randn(cfg.max_width, a.shape[1]).double()
    return 2 * trained(plan) * (cfg.matching_sweeps + 1) * median_seconds(lambda: a @ b.T, 20)


def factors(plan: Plan) -> float:
    """CPU seconds of pFedGP's Cholesky factors: in each step, at each level of the tree, those of all chains for half
    of the minibatch, once per Gibbs step and once for the prediction of the other half."""
    cfg, n = plan.cfg.algorithm, plan.cfg.batch_size - plan.cfg.batch_size // 2
    b = torch.eye(n) + torch.ones(cfg.chains, n, n)
    each = levels(plan.model.classes) * (cfg.gibbs_steps + 1) * median_seconds(lambda: torch.linalg.cholesky_ex(b), 50)
    return trained(plan) * plan.cfg.local_steps * each


ALL = {"train_all": True}
GAUSSIAN = {"algorithm.posterior": "gaussian"}
METHODS = {
    "fedavg": Method("fedavg", 1),
    "per_fedavg": Method("per_fedavg", 2),
    "pfedme": Method("pfedme", 5, 0, ALL),
    "mfo": Method("pfedbred", 5, 0, ALL | {"algorithm.strategy": "mfo"}),
    "mh": Method("pfedbred", 7, 0, ALL | {"algorithm.strategy": "mh"}),
    "bpfed": Method("bpfed", 5, 5),
    "fedpop": Method("fedpop", 1),
    "bnfed": Method("bnfed", 1, besides=matching),
    "fedamp": Method("fedamp", 1, 0, ALL),
    "heurfedamp": Method("heurfedamp", 1, 0, ALL),
    "fedem": Method("fedem", 3),
    # Its step cannot be exported; the points are those of evaluations, which are not timed.
    "pfedgp": Method("pfedgp", 1, 0, {"algorithm.points": 20}, factors, "vmap"),
    "local": Method("local", 1),
    "local-q": Method("local", 1, 1, GAUSSIAN),
    "pooled": Method("pooled", 1),
    "pooled-q": Method("pooled", 1, 1, GAUSSIAN),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS), help="with commas between")
    parser.add_argument("--rounds", type=int, default=1, help="rounds per measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--backend", help="compiled (the default, where a step can be), auto, loop or vmap")
    args = parser.parse_args()
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    print(f"{'':<12}{'trained':>8}{'floor s':>9} |{'in process: CPU s':>18}{'x floor':>9}{'GB':>6}"
          f" |{'Ray: CPU s':>11}{'x floor':>9}{'wall s':>8}{'GB':>6}")  # fmt: skip
    for name in args.methods.split(","):
        measure(name, METHODS[name], args.rounds, args.repeats, args.backend or METHODS[name].backend)


def plan_of(method: Method, rounds: int) -> Plan:
    """100 clients of pFedBreD's protocol on MNIST, evaluated in the first round and after the last only."""
    base = Experiment(
        algorithm=registry.algorithms()[method.algorithm].config(),
        data=DataConfig(name="mnist", partition="lognormal"),
        rounds=rounds,
        batch_size=20,
        local_steps=20,
        eval_every=10**6,
    )
    return make_plan(override(base, method.settings))


def measure(name: str, method: Method, rounds: int, repeats: int, backend: Any) -> None:
    """Print the row of a method."""
    from actors.federation import RayFederation

    plan = plan_of(method, rounds * repeats + 3)  # Ray plays a round ahead, which is not to be the last
    here = Peak([os.getpid()])
    local = Variant(LocalFederation(plan, backend))
    with RayFederation(plan, Execution(clients_per_actor=-(-plan.clients // 2), backend=backend)) as federation:
        there = Peak()
        on_ray = Variant(federation)
        costs: list[tuple[Cost, Cost]] = []
        floors: list[float] = []
        for _ in range(repeats):
            floors.append(floor(plan, method))
            costs.append((local.play(rounds), on_ray.play(rounds)))
        peaks = here.stop(), there.stop()
    base = statistics.median(floors)
    (cpu, _), (ray_cpu, ray_wall) = (
        [statistics.median(column) for column in zip(*taken, strict=True)] for taken in zip(*costs, strict=True)
    )
    print(f"{name:<12}{trained(plan):>8}{base:>9.2f} |{cpu:>18.2f}{cpu / base:>9.1f}{peaks[0] / 1e9:>6.1f}"
          f" |{ray_cpu:>11.2f}{ray_cpu / base:>9.1f}{ray_wall:>8.2f}{peaks[1] / 1e9:>6.1f}", flush=True)  # fmt: skip


def trained(plan: Plan) -> int:
    """Clients that train in a round."""
    assert plan.cfg.clients_per_round is not None
    return plan.clients if plan.cfg.train_all else plan.cfg.clients_per_round


def floor(plan: Plan, method: Method) -> float:
    """CPU seconds of the products and normals of one round, as PyTorch does them on one thread."""
    with numerics():
        sizes = (*(shape[0] for shape in plan.model.shapes[::2]), plan.model.classes)
        products, normals = floor_seconds(plan.cfg.batch_size, sizes, plan.model.padded)
        besides = method.besides(plan) if method.besides else 0.0
    return besides + trained(plan) * plan.cfg.local_steps * (method.gradients * products + method.normals * normals)


if __name__ == "__main__":
    sys.exit(main())
