"""What a file in ``networks/`` defines, and the model that comes of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from fedray.nets.model import Model
from fedray.types import FedRayError

if TYPE_CHECKING:
    from fedray.config import ModelConfig


class NetworkRecord(NamedTuple):
    """A network.

    ``layers(cfg, input_shape, classes)`` returns the chain of layers from inputs [B, *input_shape] to logits
    [B, classes]; :class:`fedray.nets.model.Model` says which layers there may be. It raises FedRayError with the value,
    the reason and the remedy for inputs or classes that the network cannot take.
    """

    summary: str  # one line for --help
    layers: Callable[[ModelConfig, tuple[int, ...], int], nn.Sequential]
    extra: int = 0  # parameters that no layer reads, at the end of the vector: of the prior


def build(record: NetworkRecord, cfg: ModelConfig, input_shape: tuple[int, ...], classes: int) -> Model:
    """The model of a network for these inputs and classes; raises FedRayError where they do not suit it."""
    return Model(record.layers(cfg, input_shape, classes), input_shape, classes, record.extra)


def given(layers: nn.Sequential, input_shape: tuple[int, ...], classes: int) -> Model:
    """The model of a caller's own chain of layers, which stays as it is; its weights are not used.

    Raises FedRayError for layers that a model cannot have, and for inputs or classes that they do not suit.
    """
    if not isinstance(layers, nn.Sequential):
        raise FedRayError(f"layers={type(layers).__name__}: is not a chain of layers; give a torch.nn.Sequential")
    return Model(copy.deepcopy(layers).to("meta"), input_shape, classes)
