"""The fully connected network of pFedBreD, whose ReLUs leak."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from fedray.nets.network import NetworkRecord
from fedray.nets.networks.mlp import fully_connected

if TYPE_CHECKING:
    from fedray.config import ModelConfig

LEAK = 0.1  # slope of the leaky ReLU for negative inputs


def layers(cfg: ModelConfig, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Hidden layers of the widths --model.hidden, each followed by a leaky ReLU."""
    return fully_connected([math.prod(input_shape), *cfg.hidden, classes], partial(nn.LeakyReLU, LEAK))


NETWORK = NetworkRecord(summary="the mlp with leaky ReLUs (pFedBreD)", layers=layers)
