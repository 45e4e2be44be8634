"""How many clients are computed at a time: on a CPU as many as pay, on a GPU as many as its memory holds."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Protocol

import torch

FIRST = 8  # clients of the first stack on a GPU, whose peak tells what one takes
CONTEXT = 0.93  # of a share: the rest is for what CUDA keeps for each process, which no allocator counts
ROOM = 0.9  # of the memory that is left: the rest is fragmented, or belongs to libraries


class Memory(Protocol):
    """The memory of a device."""

    def watch(self) -> int:
        """Begin to look for a new peak; bytes in use now."""
        ...

    def peak(self) -> int:
        """The most bytes in use since."""
        ...

    def total(self) -> int:
        """Bytes that this process may use."""
        ...

    def free(self) -> None:
        """Give back what is not in use."""
        ...


class GpuMemory:
    """The memory of the current GPU, or this process's share of it, as PyTorch's allocator counts it."""

    def watch(self) -> int:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated()

    def total(self) -> int:
        whole = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        return int(whole * torch.cuda.get_per_process_memory_fraction())

    def free(self) -> None:
        torch.cuda.empty_cache()


class Stack:
    """How many clients are stacked at a time; with a ``memory``, as many as it is seen to hold."""

    def __init__(self, most: int, memory: Memory | None = None):
        self._memory = memory
        self._most = most
        self._measured = 0  # clients of the largest stack that was watched
        self.per_client = 0  # bytes at the peak of that stack
        self.size = most if memory is None else min(most, FIRST)

    @contextlib.contextmanager
    def watched(self, clients: int) -> Iterator[None]:
        """Watch a stack of so many clients, if it is the largest so far, and tell by its peak how many fit.

        A size that was found to fit does not shrink by it: by then buffers of that size are in use.
        """
        if self._memory is None or clients <= self._measured:
            yield
            return
        before = self._memory.watch()
        yield
        taken = self._memory.peak() - before
        self.per_client = -(-taken // clients)
        room = ROOM * (self._memory.total() - before)
        fitting = max(1, min(self._most, int(room // max(self.per_client, 1))))
        self.size = max(self.size, fitting) if self._measured else fitting
        self._measured = clients

    def halve(self, clients: int) -> int:
        """At most half of a stack that did not fit from now on; how many."""
        self._most = self.size = max(1, clients // 2)
        gc.collect()  # what the failed stack held may hang on its exception
        if self._memory is not None:
            self._memory.free()
        return self.size


def gpu_memory(device: torch.device) -> Memory | None:
    """The memory to watch; None on a CPU, and where a GPU is only pretended."""
    return GpuMemory() if device.type == "cuda" and torch.cuda.is_available() else None


def limit_to(share: float) -> None:
    """Keep this process to its share of its GPU, so that it runs out of its own memory and not of its neighbours'."""
    if torch.cuda.is_available() and 0 < share < 1:
        torch.cuda.set_per_process_memory_fraction(CONTEXT * share)
