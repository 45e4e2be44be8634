"""CPU seconds and memory of this process and everything it started, and the floor of a machine."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
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


class Peak:
    """The largest memory in bytes of the given processes, or of all below this one, seen until it is stopped."""

    def __init__(self, processes: Iterable[int] | None = None):
        self._processes, self._bytes, self._over = processes, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self._bytes = max(self._bytes, self._now())

    def _now(self) -> int:
        """Proportional set sizes: of a page that n processes share each counts an n-th."""
        family = psutil.Process().children(recursive=True)
        family = family if self._processes is None else [psutil.Process(pid) for pid in self._processes]
        total = 0
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += process.memory_full_info().pss
        return total

    def stop(self) -> int:
        """Stop looking; the largest."""
        self._over.set()
        self._thread.join()
        return self._bytes


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
