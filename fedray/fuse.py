"""Chains of elementwise operations that the compiled backend turns into one pass over memory.

On a CPU a step of a small network is bound by memory, not arithmetic: every operation on the parameter vector reads
and writes it whole. Marked functions are compiled one by one, which takes seconds where a whole step takes a minute.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fedray.types import FedRayError

_active = False


def fusable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a pure elementwise function; it is compiled when called inside :func:`fusing`, and plain elsewhere."""

    @functools.cache  # at the first use, since asking for the compiler imports it: ten seconds of every process
    def compiled() -> Callable[..., Any]:
        return torch.compile(function, dynamic=False)

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
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise FedRayError("--backend compiled: no C++ compiler was found; install g++, or use --backend loop")
