"""The networks of the papers: an experiment's setting -> a chain of layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import nn

from fedray.nets.bilstm import BiLSTM, Ends
from fedray.nets.model import Model
from fedray.types import FedRayError, require

VGG_WIDTHS = (16, 32, 64, 128, 128)  # pFedBayes: cfg [16, M, 32, M, 64, M, 128, M, 128, M]
CNN_SIDE = 16  # pixels that two 5x5 convolutions and two poolings need
LEAK = 0.1  # slope of the leaky ReLU for negative inputs, in pFedBreD


def mlp(input_shape: tuple[int, ...], hidden: Sequence[int], classes: int, leak: float = 0.0) -> Model:
    """Fully connected ReLU network, 784-100-10 in the papers; no hidden layer makes it logistic regression.

    ``leak`` is the slope for negative inputs; pFedBreD's networks have 0.1.
    """
    sizes = [math.prod(input_shape), *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    with torch.device("meta"):  # the modules describe shapes; they hold no memory
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            activation: list[nn.Module] = [nn.LeakyReLU(leak) if leak else nn.ReLU()] if i else []
            layers += [*activation, nn.Linear(a, b)]
    return Model(nn.Sequential(*layers), input_shape, classes)


def blr(input_shape: tuple[int, ...], classes: int) -> Model:
    """Bayesian logistic regression: one logit x·w + bias, that of the first class being 0, and log ξ as last parameter.

    No layer reads log ξ: it is the precision of the weights' gamma prior. Raises FedRayError unless there are two
    classes. Source: Liu and Wang, "Stein Variational Gradient Descent", whose code has a bias, too.
    """
    reason = f"it is for two classes, and the dataset has {classes}"
    require(classes == 2, "model.name", "blr", reason, "use --model.name mclr, or --data.name covertype")
    with torch.device("meta"):
        logit = nn.Linear(math.prod(input_shape), 1)
    return Model(nn.Sequential(nn.Flatten(), logit, nn.ConstantPad1d((1, 0), 0.0)), input_shape, classes, extra=1)


def vgg(input_shape: tuple[int, ...], classes: int) -> Model:
    """pFedBayes's VGG: five 3x3 convolutions, each with ReLU and 2x2 pooling, and one linear layer.

    No batch normalization: its running statistics would escape both the posterior and the aggregation.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 32:
        raise FedRayError(f"--model.name vgg: inputs of shape {input_shape} are too small; use images of at least "
                          "32 x 32, or --model.name mlp")  # fmt: skip
    widths, layers = [input_shape[0], *VGG_WIDTHS], []
    pixels = (input_shape[1] // 32) * (input_shape[2] // 32)
    with torch.device("meta"):
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        head = nn.Linear(widths[-1] * pixels, classes)
    return Model(nn.Sequential(*layers, nn.Flatten(), head), input_shape, classes)


def cnn(input_shape: tuple[int, ...], classes: int) -> Model:
    """Two 5x5 convolutions, each with ReLU and 2x2 pooling, and three linear layers; 62,006 parameters for CIFAR-10.

    Source: BPFed, and "CifarNet" of pFedBreD. BPFed's public code leaves the second pooling out of its Bayesian
    network only, which makes that 3.3 times as large as the others; here it is the same for every method.
    """
    reason = f"inputs of shape {input_shape} are too small for its convolutions"
    large = len(input_shape) == 3 and min(input_shape[1:]) >= CNN_SIDE
    require(large, "model.name", "cnn", reason, f"use images of at least {CNN_SIDE} x {CNN_SIDE}, or --model.name mlp")
    pixels = math.prod(((side - 4) // 2 - 4) // 2 for side in input_shape[1:])
    with torch.device("meta"):
        features = [nn.Conv2d(input_shape[0], 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
        features += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        top = [nn.Linear(16 * pixels, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)]
    return Model(nn.Sequential(*features, *top), input_shape, classes)


def lstm(input_shape: tuple[int, ...], hidden: int, classes: int) -> Model:
    """Two bidirectional LSTMs of H = ``hidden`` over word vectors [T, E]; their ends to 100·H leaky units to C classes.

    1,116,602 parameters for H = 50 and vectors of 50 numbers. Source: the public code of pFedBreD; the paper has 100
    units in the layer before the last.
    """
    reason = f"inputs of shape {input_shape} are no sequences of word vectors"
    require(len(input_shape) == 2, "model.name", "lstm", reason, "use --data.name sent140, or --model.name mlp")
    encoder = [BiLSTM(input_shape[1], hidden), BiLSTM(2 * hidden, hidden), Ends()]
    with torch.device("meta"):
        top = [nn.Linear(4 * hidden, 100 * hidden), nn.LeakyReLU(LEAK), nn.Linear(100 * hidden, classes)]
    return Model(nn.Sequential(*encoder, *top), input_shape, classes)


def build(name: str, hidden: Sequence[int], lstm_hidden: int, input_shape: tuple[int, ...], classes: int) -> Model:
    """The model of a configuration; raises FedRayError where the inputs do not suit it."""
    if name == "lstm":
        return lstm(input_shape, lstm_hidden, classes)
    if name in ("vgg", "cnn", "blr"):
        return {"vgg": vgg, "cnn": cnn, "blr": blr}[name](input_shape, classes)
    return mlp(input_shape, () if name == "mclr" else hidden, classes, LEAK if name == "dnn" else 0.0)
