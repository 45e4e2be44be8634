"""Two bidirectional LSTMs of H units over word vectors [T, E]; their ends go to 100·H leaky units and C classes.

1,116,602 parameters for H = 50 and vectors of 50 numbers. Source: the public code of pFedBreD; the paper has 100 units
in the layer before the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fedray.nets.bilstm import BiLSTM, Ends
from fedray.nets.network import NetworkRecord
from fedray.nets.networks.dnn import LEAK
from fedray.types import require

if TYPE_CHECKING:
    from fedray.config import ModelConfig


def layers(cfg: ModelConfig, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The layers for H = --model.lstm-hidden; raises FedRayError for inputs that are no sequences of vectors."""
    reason = f"inputs of shape {input_shape} are no sequences of word vectors"
    require(len(input_shape) == 2, "model.name", "lstm", reason, "use `data.name=sent140`, or `model.name=mlp`")
    hidden = cfg.lstm_hidden
    encoder = [BiLSTM(input_shape[1], hidden), BiLSTM(2 * hidden, hidden), Ends()]
    with torch.device("meta"):
        top = [nn.Linear(4 * hidden, 100 * hidden), nn.LeakyReLU(LEAK), nn.Linear(100 * hidden, classes)]
    return nn.Sequential(*encoder, *top)


NETWORK = NetworkRecord(summary="two bidirectional LSTMs and two linear layers, for texts (pFedBreD)", layers=layers)
