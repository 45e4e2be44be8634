"""Two 5x5 convolutions, each with ReLU and 2x2 pooling, and three linear layers; 62,006 parameters for CIFAR-10.

Source: BPFed, and "CifarNet" of pFedBreD. BPFed's public code leaves the second pooling out of its Bayesian network
only, which makes that 3.3 times as large as the others; here it is the same for every method.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedray.nets.network import NetworkRecord, check_images

if TYPE_CHECKING:
    from fedray.config import ModelConfig

SIDE = 16  # pixels that two 5x5 convolutions and two poolings need


def layers(cfg: ModelConfig, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The layers; raises FedRayError for images that the poolings would leave nothing of."""
    check_images("cnn", input_shape, SIDE)
    pixels = math.prod(((side - 4) // 2 - 4) // 2 for side in input_shape[1:])
    with torch.device("meta"):
        features = [nn.Conv2d(input_shape[0], 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
        features += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        top = [nn.Linear(16 * pixels, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)]
    return nn.Sequential(*features, *top)


NETWORK = NetworkRecord(summary="two convolutions and three linear layers (BPFed; pFedBreD's CifarNet)", layers=layers)
