"""Multinomial logistic regression: one linear layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import nn

from fedray.nets.network import NetworkRecord
from fedray.nets.networks.mlp import fully_connected

if TYPE_CHECKING:
    from fedray.config import ModelConfig


def layers(cfg: ModelConfig, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One linear layer."""
    return fully_connected([math.prod(input_shape), classes], nn.ReLU)


NETWORK = NetworkRecord(summary="multinomial logistic regression", layers=layers)
