"""The VGG of pFedBayes: five 3x3 convolutions, each with ReLU and 2x2 pooling, and one linear layer.

There is no batch normalization: its running statistics would escape both the posterior and the aggregation.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedray.nets.network import NetworkRecord, check_images

if TYPE_CHECKING:
    from fedray.config import ModelConfig

WIDTHS = (16, 32, 64, 128, 128)  # pFedBayes: cfg [16, M, 32, M, 64, M, 128, M, 128, M]
SIDE = 32  # pixels that five poolings need


def layers(cfg: ModelConfig, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The layers; raises SettingError for images that five poolings would leave nothing of."""
    features = WIDTHS[-1] * pixels("vgg", input_shape)
    chain: list[nn.Module] = []
    with torch.device("meta"):
        for before, after in itertools.pairwise([input_shape[0], *WIDTHS]):
            chain += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        head = nn.Linear(features, classes)
    return nn.Sequential(*chain, nn.Flatten(), head)


def pixels(name: str, input_shape: tuple[int, ...]) -> int:
    """Of a channel after five poolings; raises SettingError, which names the network, where none would be left."""
    check_images(name, input_shape, SIDE)
    return (input_shape[1] // SIDE) * (input_shape[2] // SIDE)


NETWORK = NetworkRecord(summary="five convolutions and one linear layer (pFedBayes)", layers=layers)
