"""Round robin: clients take turns in the order of their numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedray.arrays.rng import Stream
from fedray.types import Selection


class Turn(NamedTuple):
    """Whose turn it is."""

    next: Tensor  # [] int64


def init(clients: int) -> Turn:
    return Turn(torch.tensor(0))


def select(state: Turn, scores: Tensor | None, clients: int, m: int, rng: Stream) -> tuple[tuple[int, ...], Turn]:
    """The next m clients, in ascending order."""
    start = int(state.next)
    ids = sorted((start + j) % clients for j in range(m))
    return tuple(ids), Turn(torch.tensor((start + m) % clients))


SELECTION = Selection(summary="in turn", score=None, init=init, select=select)
