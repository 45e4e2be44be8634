"""What a file in ``networks/`` defines, and the model that comes of it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import nn

from fedray.arrays.rng import Stream
from fedray.nets.densities import CATEGORICAL, GAUSSIAN, ONE_HOT, Density
from fedray.nets.model import Model, is_chain
from fedray.nets.own import OwnModule
from fedray.types import FedRayError, require

if TYPE_CHECKING:
    from fedray.config import ModelConfig


class NetworkRecord(NamedTuple):
    """A network.

    ``layers(cfg, input_shape, classes)`` returns the chain of layers from inputs [B, *input_shape] to logits
    [B, classes], or of real targets to one mean, with classes = 1; :class:`fedray.nets.model.Model` says which layers
    there may be. It raises FedRayError with the value, the reason and the remedy for inputs or classes that the network
    cannot take.
    """

    summary: str  # one line for --help
    layers: Callable[[ModelConfig, tuple[int, ...], int], nn.Sequential]
    extra: int = 0  # parameters that no layer reads, at the end of the vector: of the prior


def density(cfg: ModelConfig, real: bool) -> Density:
    """The density of real targets, or of labels, that the settings choose; raises FedRayError where it cannot be."""
    reason, remedy = "the targets are real numbers, not labels", "use gaussian, or leave it out"
    require(not (real and cfg.likelihood == "categorical"), "model.likelihood", cfg.likelihood, reason, remedy)
    if real:
        return GAUSSIAN
    return ONE_HOT if cfg.likelihood == "gaussian" else CATEGORICAL


def build(
    record: NetworkRecord,
    cfg: ModelConfig,
    input_shape: tuple[int, ...],
    classes: int,
    density: Density = CATEGORICAL,
) -> Model:
    """The model of a network for these inputs and targets; raises FedRayError where they do not suit it."""
    reason = "its logits are those of logistic regression"
    ok = record.extra == 0 or density is CATEGORICAL
    require(ok, "model.likelihood", "gaussian", reason, "use categorical, or another `model.name`")
    layers = record.layers(cfg, input_shape, classes)
    if not isinstance(cast("object", layers), nn.Sequential):
        raise FedRayError(f"`model.name` {cfg.name}: layers returns a {type(layers).__name__}; return an nn.Sequential")
    _check_logits(layers, f"`model.name` {cfg.name}")
    return Model(layers, input_shape, classes, record.extra, density)


def _check_logits(layers: nn.Module, who: str) -> None:
    """Raise FedRayError for a network whose outputs are probabilities."""
    last = layers
    while type(last) is nn.Sequential and len(last):
        last = last[-1]
    if isinstance(last, nn.Softmax | nn.LogSoftmax):
        raise FedRayError(f"{who}: the network ends in {type(last).__name__}, and its outputs are logits; leave it out")


def _check_outputs(model: Model, who: str) -> None:
    """Raise FedRayError where a module's own forward ends in a softmax, as its outputs tell."""
    if model.density is not CATEGORICAL or model.classes == 1:
        return
    found = model.apply(model.init(Stream(0, "network check")), torch.zeros(2, *model.input_shape))
    if bool((found >= 0).all()) and torch.allclose(found.sum(-1), torch.ones(2)):
        raise FedRayError(
            f"network: the outputs of {who} sum to 1, as after a softmax, and are taken for logits; leave the softmax "
            "out of its forward"
        )


def unread(record: NetworkRecord, cfg: ModelConfig, input_shape: tuple[int, ...], classes: int) -> list[str]:
    """The names of the widths that were changed from the usual ones and that change no layer of this network."""
    usual = type(cfg)()
    asked = repr(record.layers(cfg, input_shape, classes))

    def changes(name: str) -> bool:
        without = dataclasses.replace(cfg, **{name: getattr(usual, name)})
        try:
            return repr(record.layers(without, input_shape, classes)) != asked
        except Exception:  # an author's: it reads the usual width, which does not suit it
            return True

    return [
        name for name in ("hidden", "lstm_hidden") if getattr(cfg, name) != getattr(usual, name) and not changes(name)
    ]


def check_images(name: str, input_shape: tuple[int, ...], side: int) -> None:
    """Raise SettingError, naming the network, unless the inputs are images [channels, height, width] of that side."""
    reason = f"inputs of shape {input_shape} are too small, or have no channels"
    remedy = f"use images of at least {side} x {side}, grey ones as [N, 1, H, W], or `model.name=mlp`"
    require(len(input_shape) == 3 and min(input_shape[1:]) >= side, "model.name", name, reason, remedy)


def given(
    layers: nn.Module,
    input_shape: tuple[int, ...],
    classes: int,
    density: Density = CATEGORICAL,
    played: bool = False,
) -> Model:
    """The model of a caller's own network, which stays as it is; its weights are not used.

    One that a finished run has ``played`` is not tried again.

    A chain (nn.Sequential) of the layers that a model knows is differentiated by hand and stacked like the built-in
    networks. Any other module is one layer. Raises FedRayError for layers that a model cannot have, and for inputs or
    classes that they do not suit.
    """
    if not isinstance(layers, nn.Module):
        raise FedRayError(f"layers={type(layers).__name__}: is not a network; give a torch.nn.Module")
    _check_logits(layers, "layers")
    if not is_chain(layers):
        model = Model(nn.Sequential(OwnModule(layers, played)), input_shape, classes, density=density)
        if not played:
            _check_outputs(model, type(layers).__name__)
        return model
    assert isinstance(layers, nn.Sequential)
    return Model(copy.deepcopy(layers).to("meta"), input_shape, classes, density=density)
