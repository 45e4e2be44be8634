"""The VGG of pFedMe's public code, on which pFedBayes' experiments build: normalized convolutions, three linear layers.

The convolutions are those of the vgg. Behind each comes a GroupNorm with 16 channels per group (Wu and He 2018) where
the public code has batch normalization: its running statistics are no parameters, so they would be neither averaged
nor part of a posterior.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedray.nets.network import NetworkRecord
from fedray.nets.networks.vgg import WIDTHS, pixels

if TYPE_CHECKING:
    from fedray.config import ModelConfig

GROUP = 16  # channels that are normalized together
UNITS = 512  # of each of the two hidden linear layers


def layers(cfg: ModelConfig, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The layers; raises SettingError for images that five poolings would leave nothing of."""
    features = WIDTHS[-1] * pixels("vgg_gn", input_shape)
    chain: list[nn.Module] = []
    with torch.device("meta"):
        for before, after in itertools.pairwise([input_shape[0], *WIDTHS]):
            convolution = nn.Conv2d(before, after, 3, padding=1)
            chain += [convolution, nn.GroupNorm(after // GROUP, after), nn.ReLU(), nn.MaxPool2d(2)]
        chain += [nn.Flatten(), nn.Linear(features, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS), nn.ReLU()]
        head = nn.Linear(UNITS, classes)
    return nn.Sequential(*chain, head)


NETWORK = NetworkRecord(summary="the vgg with GroupNorm and three linear layers (pFedMe's public code)", layers=layers)
