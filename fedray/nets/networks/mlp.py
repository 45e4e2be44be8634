"""Fully connected ReLU network, 784-100-10 in the papers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedray.nets.network import NetworkRecord

if TYPE_CHECKING:
    from fedray.config import ModelConfig


def fully_connected(sizes: Sequence[int], activation: Callable[[], nn.Module]) -> nn.Sequential:
    """Linear layers between layers of these sizes, with an activation between each two of them."""
    chain: list[nn.Module] = [nn.Flatten()]
    with torch.device("meta"):  # the modules describe shapes; they hold no memory
        for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            if i > 0:
                chain.append(activation())
            chain.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*chain)


def layers(cfg: ModelConfig, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Hidden layers of the widths --model.hidden, each followed by a ReLU."""
    return fully_connected([math.prod(input_shape), *cfg.hidden, classes], nn.ReLU)


NETWORK = NetworkRecord(summary="fully connected ReLU network", layers=layers)
