"""How a process computes on a CPU: one thread, no denormal numbers, memory that is kept."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def fix_numerics() -> None:
    """Use one thread and flush denormals to zero for the rest of the process's life, as every actor does.

    Second moments that underflow would slow Adam's square root down thirtyfold.
    """
    _keep_freed_memory()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


@contextlib.contextmanager
def numerics() -> Iterator[None]:
    """The numerics of an actor within a process that has other work; restores the caller's thread count."""
    threads = torch.get_num_threads()
    fix_numerics()
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


@functools.cache
def _keep_freed_memory() -> None:
    """Have glibc reuse the memory of freed tensors instead of returning it to the system.

    Every temporary of 128 KB or more would otherwise be mapped, zeroed page by page and unmapped again, which costs
    as much as the arithmetic on it. Elsewhere than on glibc nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest that glibc takes
        mallopt(M_TRIM_THRESHOLD, 1 << 30)
