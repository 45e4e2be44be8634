"""Uniform selection without replacement."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fedray.arrays.rng import Stream
from fedray.types import Selection


class Memoryless(NamedTuple):
    """This policy remembers nothing."""


def init(clients: int) -> Memoryless:
    return Memoryless()


def select(
    state: Memoryless, scores: Tensor | None, clients: int, m: int, rng: Stream
) -> tuple[tuple[int, ...], Memoryless]:
    """m of the clients, each subset equally likely, in ascending order."""
    if m == clients:
        return tuple(range(clients)), state
    return tuple(sorted(rng.numpy.choice(clients, size=m, replace=False).tolist())), state


SELECTION = Selection(summary="uniformly at random, without replacement", score=None, init=init, select=select)
