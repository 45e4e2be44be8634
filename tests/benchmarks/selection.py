"""What choosing clients costs a round at scale, beside the clients' passes over their data: KSD and three forms of HIP.

    python -m tests.benchmarks.selection [--clients 120] [--particles 20] [--size 79409] [--dtype float32]

Scores are normal, from a fixed seed, with a part that all clients share. CPU seconds are those of the stages that a
round runs. Only the direct form of HIP, which pairs each client's scores with their mean by the double sum of
Theorem 1, is not in use: it is measured on a few clients, in matrices and, as the sum is written, pair by pair.
Memory is what the server held at its peak above what it held before.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.algorithms.particles.dsvgd import DSVGD
from fedray.arrays.averages import total
from fedray.arrays.rng import Stream
from fedray.bayes.importance import stages
from fedray.bayes.stein import Kernel, pairing, rbf, stein_matrix, v_statistic
from fedray.federate.device.cpu import numerics
from fedray.federate.uploads import payload_bytes

FEW = 3  # clients on which the direct forms are measured
CFG = DSVGD()


class Row(NamedTuple):
    """What one way to choose costs a round."""

    name: str
    client: float  # CPU seconds of one client, without its gradients
    server: float  # CPU seconds
    up: int  # bytes of all clients
    down: int  # to all clients, without the particles, which all ways send
    held: float | None  # MB at the server's peak


class World(NamedTuple):
    """Clients without data: their scores come from a seed."""

    clients: int
    size: int
    server: Any
    dtype: torch.dtype

    @property
    def plan(self) -> Any:
        """As much of a plan as the stages and the count of bytes look at."""
        model = SimpleNamespace(size=self.size, padded=self.server.x.shape[-1])
        return SimpleNamespace(model=model, context=SimpleNamespace(cfg=CFG, model=model))

    def score(self, k: int) -> Tensor:
        """s_k [M, P], zero in the padding."""
        shape, padded = self.server.x.shape, self.server.x.shape[-1]
        shared, own = (Stream(0, name, n).normal(shape) for name, n in (("shared", 0), ("own", k)))
        return ((torch.arange(padded) < self.size) * (shared + own)).to(self.dtype)

    def staged(self, name: str) -> Any:
        """The stages of a score of clients that know theirs."""
        return stages(lambda ctx, client, down, data: (data, data))[name]


def world(clients: int, particles: int, size: int, dtype: torch.dtype) -> World:
    """So many clients and particles of so many parameters, padded as a network's are."""
    padded = -(-size // 64) * 64
    mask = torch.arange(padded) < size
    x = (0.05 * mask * Stream(0, "particles").normal([particles, padded])).to(dtype)
    return World(clients, size, SimpleNamespace(x=x), dtype)


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of a call, and what it returned."""
    start = time.process_time()
    found = run()
    return time.process_time() - start, found


class Server:
    """A stage's combine on replies that arrive: their making is neither its time nor its memory."""

    def __init__(self, world: World):
        self._world, self.cpu, self.held, self.up = world, 0.0, 0.0, 0

    def combine(self, stage: Any, replies: Iterator[Tensor]) -> Any:
        made = 0.0
        before, self.up = _peak(), 0

        def arriving() -> Iterator[Tensor]:
            nonlocal made
            while True:
                start = time.process_time()
                reply = next(replies, None)
                made += time.process_time() - start
                if reply is None:
                    return
                self.up += payload_bytes(reply, self._world.plan)
                yield reply

        cpu, message = seconds(lambda: stage.combine(self._world.plan.context, self._world.server, arriving()))
        self.cpu, self.held = cpu - made, _peak() - before
        return message


def _peak() -> float:
    """MB, of this process since it began: what is measured later must need more to be seen."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def row(world: World, score: str, name: str) -> tuple[Row, Tensor]:
    """A score of the algorithms, stage by stage, and the scores."""
    ctx, down, message, client, server, up, sent, held = world.plan.context, world.server, None, 0.0, 0.0, 0, 0, 0.0
    parts = world.staged(score)
    for number, stage in enumerate(parts):
        told, spent = message, []

        def replies(stage: Any = stage, told: Any = told, spent: list[float] = spent) -> Iterator[Tensor]:
            for k in range(world.clients):
                s = world.score(k)
                cpu, reply = seconds(lambda s=s: stage.probe(ctx, None, down, told, s))
                spent.append(cpu)
                yield reply

        at_server = Server(world)
        message = at_server.combine(stage, replies())
        client, server, up = client + sum(spent) / len(spent), server + at_server.cpu, up + at_server.up
        held = max(held, at_server.held)
        sent += world.clients * payload_bytes(message, world.plan) if number + 1 < len(parts) else 0
    return Row(name, client, server, up, sent, held), message


def by_pairs(x: Tensor, s: Tensor, target: Tensor, kernel: Kernel, d: int) -> Tensor:
    """(1/M²) Σ_ij h(θ_i, θ_j), one pair after the other, as Theorem 1 has it."""
    found, gain = torch.zeros((), dtype=torch.float64), 2 / kernel.h
    x, s, target = x.double(), s.double(), target.double()
    for i in range(len(x)):
        for j in range(len(x)):
            apart = x[i] - x[j]
            products = torch.stack((s[i] @ target[j], s[i] @ apart, apart @ target[j]))
            trace = gain * d - gain.square() * kernel.distance[i, j]
            found += kernel.k[i, j] * (products[0] + gain * (products[1] - products[2]) + trace)
    return found / len(x) ** 2


def direct(world: World) -> tuple[list[Row], dict[str, Tensor]]:
    """HIP of the first clients by the double sum, in matrices and pair by pair; time for all clients."""
    x, d = world.server.x.double(), world.size
    mean = total(world.score(k) for k in range(world.clients))[0] / world.clients
    kernel, sent = rbf(x), world.clients * payload_bytes(world.score(0), world.plan)
    forms = {
        "HIP direct, matrices": lambda s: v_statistic(stein_matrix(x, s, mean, kernel, d)),
        "HIP direct, pair by pair": lambda s: by_pairs(x, s, mean, kernel, d),
    }
    rows, found = [], {}
    for name, form in forms.items():
        measured = [seconds(lambda k=k, form=form: form(world.score(k).double())) for k in range(FEW)]
        made = sum(seconds(lambda k=k: world.score(k).double())[0] for k in range(FEW))
        cpu = (sum(one for one, _ in measured) - made) * world.clients / FEW
        rows.append(Row(name, 0.0, cpu, sent, 0, None))
        found[name] = torch.stack([value for _, value in measured])
    return rows, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=120)
    parser.add_argument("--particles", type=int, default=20)
    parser.add_argument("--size", type=int, default=79409, help="parameters; by default of 784-100-9")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="of particles and scores")
    args = parser.parse_args()
    with numerics():
        measure(world(args.clients, args.particles, args.size, getattr(torch, args.dtype)))


def measure(here: World) -> None:
    """Print the table; the ways that hold more come later, as only the highest peak so far can be seen."""
    pairing(here.server.x, here.server.x)  # the first products load libraries
    ksd, _ = row(here, "ksd", "KSD")
    phases, found = row(here, "hip_two_phase", "HIP two-phase")
    cheap, scores = row(here, "hip", "HIP")
    written, expected = direct(here)
    print(f"{here.clients} clients, {len(here.server.x)} particles of {here.size:,} parameters, {here.dtype}\n")
    print(f"{'':<26}{'CPU s/client':>14}{'CPU s, server':>15}{'MB up':>9}{'MB down':>9}{'MB held':>9}")
    for each in (ksd, *written, cheap, phases):
        held = "–" if each.held is None else f"{each.held:.0f}"
        moved = f"{each.up / 1e6:>9.1f}{each.down / 1e6:>9.1f}"
        print(f"{each.name:<26}{each.client:>14.4f}{each.server:>15.3f}{moved}{held:>9}")
    print()
    for each, values in zip(written, expected.values(), strict=True):
        apart = ((scores[:FEW] - values) / values).abs().max()
        print(f"{each.name} / HIP: {each.server / cheap.server:.1f} x the server's CPU; HIPs within {apart:.1e}")
    print(f"HIP two-phase / HIP: HIPs within {((found - scores) / scores).abs().max():.1e}")


if __name__ == "__main__":
    sys.exit(main())
