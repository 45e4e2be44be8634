"""CPU seconds of this process and everything it started, and the floor of a machine."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable

import psutil
import torch


def cpu_seconds(processes: Iterable[int] | None = None) -> float:
    """User and system CPU seconds so far of the given processes, or of this one and all below it."""
    if processes is None:
        me = psutil.Process()
        family = [me, *me.children(recursive=True)]
    else:
        family = [psutil.Process(pid) for pid in processes]
    total = 0.0
    for process in family:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    """Median CPU seconds of this process for a call, after one that is not counted."""
    run()
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def floor_seconds(batch: int, sizes: tuple[int, ...], padded: int) -> tuple[float, float]:
    """CPU seconds of the matrix products, and of P normals by PyTorch, that one personal step cannot do without."""
    xs = [torch.randn(batch, n) for n in sizes]
    ws = [torch.randn(a, b) for a, b in itertools.pairwise(sizes)]
    noise = torch.empty(padded)

    def products() -> None:
        for i, w in enumerate(ws):
            xs[i] @ w
            xs[i].t() @ xs[i + 1]
            if i:
                xs[i + 1] @ w.t()

    return median_seconds(products, 50), median_seconds(lambda: noise.normal_(), 50)
