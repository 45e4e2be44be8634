"""What a GPU is worth, by one command that prints Markdown for docs/performance.md; at most eight minutes.

    python -m tests.benchmarks.gpu [--minutes 8]
    python -m tests.benchmarks.gpu --device cpu --quick        a rehearsal where there is no GPU

MNIST where FEDRAY_DATA_ROOT is set, else random examples of its shape; a network of 79,510 parameters, minibatches of
20, 20 steps. Every part has its share of the time. A part that fails, or takes longer, is printed as such and the next
one begins.
"""  # fmt: skip

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fedray import registry
from fedray.arrays import philox, trees
from fedray.config import DataConfig, Execution, Experiment, ModelConfig, override
from fedray.data import loading
from fedray.data.loading import Dataset
from fedray.data.shards import Shards
from fedray.federate.block import Block
from fedray.federate.device.cpu import numerics
from fedray.federate.device.host import moved
from fedray.federate.device.numbers import multiplying
from fedray.federate.in_process import LocalFederation
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from fedray.types import first_line

TOLERANCE = 1e-3  # relative, in norm: Adam makes whole steps of the signs of gradients that are almost zero
SECONDS = 5.0  # of rounds that are timed for one figure


class Size(NamedTuple):
    """How large everything is."""

    clients: tuple[int, ...]
    methods: tuple[str, ...]
    hidden: int
    steps: int
    examples: int  # of all clients
    copied: int  # floats of the copy that shows the bandwidth
    actors: tuple[int, ...]  # that share a GPU
    compiled: bool


FULL = Size((10, 100, 1000), ("fedavg", "pfedme", "pfedbayes"), 100, 20, 60_000, 2**28, (2, 8), True)
QUICK = Size((3, 6), ("fedavg", "pfedbayes"), 8, 2, 600, 2**20, (2,), False)


class Cost(NamedTuple):
    """Of one round of training, and of its memory."""

    seconds: float
    per_client: int  # bytes at the peak; 0 where nobody counts them
    least: int  # bytes that a step of one client must at least read and write


class Bench:
    """What all parts share: the device, the sizes, the data and the time that is left."""

    def __init__(self, device: str, size: Size, seconds: float):
        self.device, self.size = device, size
        self.dataset = examples(size)
        self.bandwidth = float("nan")  # bytes per second of a copy
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left."""
        return self._end - time.monotonic()

    def part(self, title: str, share: float, play: Callable[[], None]) -> bool:
        """Play a part within a share of the time that is left, whatever becomes of it; whether it came to its end."""
        print(f"\n### {title}\n", flush=True)
        try:
            with limited(share * self.left()):
                play()
            return True
        except Exception as error:
            print(f"\n**failed**: {type(error).__name__}: {first_line(error)}", flush=True)
            traceback.print_exc(limit=-4)
            return False

    def plan(self, method: str, clients: int, rounds: int = 1000, **settings: Any) -> Plan:
        """A federation of a method on this data, dealt evenly."""
        cfg = Experiment(
            algorithm=registry.algorithms()[method].config(),
            data=DataConfig(partition="iid"),
            model=ModelConfig(name="mlp", hidden=(self.size.hidden,)),
            clients=clients,
            clients_per_round=clients,
            rounds=rounds,
            batch_size=20,
            local_steps=self.size.steps,
            eval_every=10**6,
        )
        return make_plan(override(cfg, settings), self.dataset)

    def block(self, plan: Plan, backend: str, ids: Sequence[int] | None = None, device: str | None = None) -> Block:
        """The clients of a plan, all or some, on the device."""
        ids = range(plan.clients) if ids is None else ids
        return Block(plan, ids, Shards(self.dataset, plan.partition, ids), backend, device or self.device)

    def wait(self) -> None:
        """Wait until the device has done what it was told."""
        if self.device == "cuda":
            torch.cuda.synchronize()


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"{seconds:.0f} s were not enough")

    if seconds <= 1:
        raise TimeoutError("no time is left")
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def examples(size: Size) -> Dataset:
    """MNIST if it can be read, else random examples of its shape."""
    if os.environ.get("FEDRAY_DATA_ROOT") and size is FULL:
        try:
            return loading.load(DataConfig(name="mnist"))
        except Exception as error:
            print(f"MNIST cannot be read ({first_line(error)}); random examples of its shape instead")
    rng = np.random.default_rng(0)
    x = rng.random((size.examples, 1, 28, 28), np.float32)
    return Dataset(x, rng.integers(0, 10, size.examples), 10, None)


def table(*columns: str) -> None:
    """The head of a Markdown table; the first column is text."""
    row(*columns)
    row("---", *["---:"] * (len(columns) - 1))


def row(*cells: Any) -> None:
    """A row of it."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def machine(bench: Bench) -> None:
    """What this is measured on, and the bandwidth of a copy."""
    if bench.device == "cuda":
        found = torch.cuda.get_device_properties(0)
        print(f"{found.name}, {found.total_memory / 2**30:.0f} GiB, {found.multi_processor_count} multiprocessors; "
              f"CUDA {torch.version.cuda}; ", end="")  # fmt: skip
    print(f"PyTorch {torch.__version__}, {os.cpu_count()} CPUs, float32 without TF32")
    a = torch.ones(bench.size.copied, device=bench.device)
    b = torch.empty_like(a)
    seconds = timed(bench, lambda: b.copy_(a), 10)
    bench.bandwidth = 2 * a.nbytes / seconds
    print(f"\nA copy of {a.nbytes / 1e9:.2f} GB moves {bench.bandwidth / 1e9:.0f} GB/s, reads and writes together.")


def timed(bench: Bench, run: Callable[[], object], repeats: int) -> float:
    """Median wall seconds of a call, after one that is not counted."""
    run()
    taken = []
    for _ in range(repeats):
        bench.wait()
        start = time.perf_counter()
        run()
        bench.wait()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def generator(bench: Bench) -> None:
    """Philox against PyTorch's generator, and the same integers as on the CPU."""
    count = bench.plan("fedavg", bench.size.clients[0]).model.padded
    table("normals, ms", *(f"{clients} clients" for clients in bench.size.clients))
    keys = {n: torch.randint(2**32, (n, 4)).to(bench.device) for n in bench.size.clients}
    number = torch.zeros(1, dtype=torch.int64, device=bench.device)
    kinds: dict[str, Callable[[int], object]] = {
        "Philox, compiled": lambda n: philox.draw(keys[n], number, count),
        "Philox, plain operations": lambda n: philox.normals(keys[n], number, count),
        "PyTorch's, all in one": lambda n: torch.randn(n, count, device=bench.device),
    }
    for name, draw in kinds.items():
        row(name, *(f"{1e3 * timed(bench, lambda n=n, d=draw: d(n), 5):.3f}" for n in keys))
    one = keys[bench.size.clients[0]]
    there = philox.philox((number, number, one[:, 2], one[:, 3]), (one[:, 0], one[:, 1]))[0]
    same, zero = one.cpu(), number.cpu()
    here = philox.philox((zero, zero, same[:, 2], same[:, 3]), (same[:, 0], same[:, 1]))[0]
    gap = (philox.draw(one, number, count).cpu() - philox.normals(same, zero, count)).abs().max()
    print(f"\nIntegers equal to the CPU's: {torch.equal(there.cpu(), here)}; normals differ by at most {gap:.1e}.")


def trained(bench: Bench, plan: Plan, backend: str, ids: Sequence[int] | None = None) -> Cost:
    """The cost of a round of training: the first two, which choose, compile and record kernels, do not count."""
    ids = range(plan.clients) if ids is None else ids
    with multiplying(plan.cfg.precision):
        host = bench.block(plan, backend, ids)
        ctx = plan.context
        down = moved(plan.algorithm.broadcast(ctx, plan.initial_server(), ids), bench.device)

        def play(number: int) -> None:
            for failure in host.train(number, ids, down).failures:
                print(f"({failure.kind}: {failure.reason}; {failure.action or 'left out'})", flush=True)

        play(1)
        play(2)
        play(3)
        taken: list[float] = []
        while not taken or (len(taken) < 5 and sum(taken) < SECONDS):
            bench.wait()
            start = time.perf_counter()
            play(4 + len(taken))
            bench.wait()
            taken.append(time.perf_counter() - start)
        local = plan.algorithm.begin(
            ctx,
            trees.row(host.states, 0),
            one_down(plan, down),
            trees.row(host.shards.padded([0], host.context.facts.shard), 0),
        )
        least = 2 * sum(leaf.nbytes for leaf in trees.leaves(local))
        return Cost(statistics.median(taken), host.rounds.stack.per_client, least)


def one_down(plan: Plan, down: Any) -> Any:
    """What the first client is sent."""
    return trees.row(down, 0) if plan.algorithm.down_per_client else down


def rounds(bench: Bench, method: str) -> None:
    """A method's rounds by clients and backend, over one client alone, kernel by kernel."""
    steps = bench.size.steps
    alone = trained(bench, bench.plan(method, bench.size.clients[0]), "loop", [0]).seconds / steps
    print(f"One client alone, kernel by kernel: {1e3 * alone:.3f} ms per step.\n")
    table("clients, backend", "ms per round", "ms per client-step", "times as fast as alone",
          "% of a copy's bandwidth", "MB per client")  # fmt: skip
    for clients in bench.size.clients:
        plan = bench.plan(method, clients)
        for backend in ("loop", "vmap", "graph"):
            if backend == "loop" and clients > 10:
                continue  # as many times the first row
            tell(bench, f"{clients}, {backend}", plan, backend, alone)


def tell(bench: Bench, name: str, plan: Plan, backend: str, alone: float) -> None:
    """One row of the rounds; a backend that fails is named in it."""
    try:
        cost = trained(bench, plan, backend)
    except TimeoutError:
        raise
    except Exception as error:
        row(name, f"failed: {type(error).__name__}: {first_line(error)}", "", "", "", "")
        return
    done = plan.clients * bench.size.steps
    moved_bytes = cost.least * done / cost.seconds
    memory = f"{cost.per_client / 1e6:.1f}" if cost.per_client else ""
    row(name, f"{1e3 * cost.seconds:.1f}", f"{1e3 * cost.seconds / done:.4f}", f"{alone * done / cost.seconds:.1f}",
        f"{100 * moved_bytes / bench.bandwidth:.1f}", memory)  # fmt: skip


def compiled(bench: Bench) -> None:
    """The same with steps that Inductor fused before they were recorded."""
    method = bench.size.methods[-1]
    alone = trained(bench, bench.plan(method, bench.size.clients[0]), "loop", [0]).seconds / bench.size.steps
    table(f"{method}: clients, backend", "ms per round", "ms per client-step", "times as fast as alone",
          "% of a copy's bandwidth", "MB per client")  # fmt: skip
    for clients in bench.size.clients[1:]:
        tell(bench, f"{clients}, compiled", bench.plan(method, clients), "compiled", alone)


def agreement(bench: Bench) -> None:
    """Two rounds on the device against the same two on a CPU, with the same draws."""
    print(f"‖device - CPU‖ / ‖CPU‖ of the server's state after two rounds; at most {TOLERANCE:g} is agreement.\n")
    table("method, backend", "difference", "agrees")
    for method in bench.size.methods:
        plan = bench.plan(method, bench.size.clients[0], 2, noise_generator="philox")
        here = final(plan, "vmap", "cpu")
        for backend in ("loop", "vmap", "graph"):
            gap = float((final(plan, backend, bench.device) - here).norm() / here.norm())
            row(f"{method}, {backend}", f"{gap:.1e}", "yes" if gap <= TOLERANCE else "**no**")


def final(plan: Plan, backend: str, device: str) -> torch.Tensor:
    """All numbers of the server after the plan's rounds."""
    federation = LocalFederation(plan, backend, device)
    for _ in federation:
        pass
    return torch.cat([leaf.double().flatten() for leaf in trees.leaves(federation.snapshot().server)])


def whole(bench: Bench) -> None:
    """A round as a user gets it: training, sums, and an evaluation of every client."""
    method, clients = bench.size.methods[-1], bench.size.clients[min(1, len(bench.size.clients) - 1)]
    table(f"{method}, {clients} clients", "train, s", "aggregate, s", "evaluate, s")
    federation = LocalFederation(bench.plan(method, clients, 4, eval_every=1), "auto", bench.device)
    *_, last = federation
    row("auto", *(f"{last.seconds[phase]:.3f}" for phase in ("train", "aggregate", "evaluate")))


def actors(bench: Bench) -> None:
    """Actors of real Ray that share a GPU; a round's seconds of training, aggregation included."""
    import ray

    from actors.federation import RayFederation

    gpus = 1 if bench.device == "cuda" else 0
    ray.init("local", num_cpus=16, num_gpus=gpus, include_dashboard=False, log_to_driver=False)
    try:
        table("actors", "share of a GPU", "s per round")
        for count in bench.size.actors:
            plan = bench.plan(bench.size.methods[-1], 8 if bench.size is FULL else 2, 4)
            per_actor = plan.clients // count
            with RayFederation(plan, Execution(clients_per_actor=per_actor)) as federation:
                seconds = [played.seconds["train"] + played.seconds["aggregate"] for played in federation]
                row(count, f"{federation.layout.gpus:g}", f"{statistics.median(seconds[2:]):.3f}")
    finally:
        ray.shutdown()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether everything runs")
    parser.add_argument("--minutes", type=float, default=7.5, help="for all parts together")
    args = parser.parse_args(arguments)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no GPU is visible to PyTorch; --device cpu --quick rehearses")
        return 2
    bench = Bench(args.device, QUICK if args.quick else FULL, 60 * args.minutes)
    began = time.monotonic()
    parts: list[tuple[str, float, Callable[[], None]]] = [
        ("Machine", 0.2, lambda: machine(bench)),
        ("Agreement with the CPU", 0.2, lambda: agreement(bench)),
        ("Random normals", 0.2, lambda: generator(bench)),
        *((f"Rounds of {name}", 0.3, lambda name=name: rounds(bench, name)) for name in bench.size.methods[::-1]),
        ("A whole round", 0.3, lambda: whole(bench)),
        ("Actors that share a GPU", 0.6, lambda: actors(bench)),
    ]
    if bench.size.compiled:
        parts.append(("Compiled steps in a graph", 0.95, lambda: compiled(bench)))
    with numerics():  # as every actor has them
        failed = [title for title, share, play in parts if not bench.part(title, share, play)]
    print(f"\n{time.monotonic() - began:.0f} s; failed: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
