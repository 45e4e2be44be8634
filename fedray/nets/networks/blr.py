"""Bayesian logistic regression: one logit x·w + bias, that of the first class being 0, and log ξ as last parameter.

No layer reads log ξ: it is the log-precision of the weights' gamma prior (--prior gamma). Source: Liu and Wang, "Stein
Variational Gradient Descent", whose code has a bias, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedray.nets.network import NetworkRecord
from fedray.types import require

if TYPE_CHECKING:
    from fedray.config import ModelConfig


def layers(cfg: ModelConfig, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One linear layer to one logit, and a logit of 0 before it; raises FedRayError unless there are two classes."""
    reason = f"it is for two classes, and the dataset has {classes}"
    require(classes == 2, "model.name", "blr", reason, "use `model.name=mclr`, or `data.name=covertype`")
    with torch.device("meta"):
        logit = nn.Linear(math.prod(input_shape), 1)
    return nn.Sequential(nn.Flatten(), logit, nn.ConstantPad1d((1, 0), 0.0))


NETWORK = NetworkRecord(
    summary="Bayesian logistic regression of two classes (see --prior gamma)", layers=layers, extra=1
)
