"""Functions of tensors that the compiled backend turns into few passes over memory.

On a CPU a step of a small network is bound by memory, not arithmetic: every operation on the parameter vector reads
and writes it whole. Mark what is as large as possible and called often: a call of a compiled function costs 0.1 ms.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fedray.types import require

_active = False


def fusable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function of tensors and of unchanging settings; compiled inside :func:`fusing`, plain elsewhere."""

    @functools.cache  # at the first use, since asking for the compiler imports it: ten seconds of every process
    def compiled() -> Callable[..., Any]:
        # A process may play many experiments, whose settings are constants of the compiled code; the default is 8.
        torch._dynamo.config.recompile_limit = 64
        # Module-level functions and constants do not change: checking them at every call costs 25 µs.
        options: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_guard_on_globals_unsafe}
        return torch.compile(function, dynamic=False, options=options)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return compiled()(*args) if _active else function(*args)

    return call


@contextlib.contextmanager
def fusing() -> Iterator[None]:
    """Compile marked functions from here on."""
    global _active
    _active = True
    try:
        yield
    finally:
        _active = False


def check_compiler() -> None:
    """Raise FedRayError where PyTorch could not compile for the CPU."""
    found = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
    require(found, "backend", "compiled", "no C++ compiler was found", "install g++, or use `backend=loop`")
