"""The models of a result as files of named tensors, one per layer, that any reader of safetensors understands.

A state holds a vector theta [P] per posterior parameter. In a file ``mu`` becomes ``mu.layer1.weight`` [in, out],
``mu.layer1.bias`` [out], and so on; parameters that no layer reads are ``mu.prior`` and ``mu.noise``, and what fills
theta up to P is ``mu.padding``. ``fedray.arrays.tensor_files`` puts them together again, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from fedray.arrays.tensor_files import named, pieces
from fedray.nets.model import Model, own_module

KINDS = {2: ("weight", "bias"), 4: ("input.weight", "input.bias", "state.weight", "state.bias")}


class Slot(NamedTuple):
    """A tensor in a vector."""

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        """Where the next one begins."""
        return self.start + math.prod(self.shape)


def save(path: Path, tree: Any, model: Model, words: Mapping[str, str], stacked: bool = False) -> None:
    """Write a state, or those of all clients ``stacked``; ``words`` and the network go into the file's metadata."""
    arrays: dict[str, np.ndarray] = {}
    for name, array in named(tree).items():
        # A number per client is no vector, however many clients there are.
        lead, length = array.shape[:-1], array.shape[-1] if array.ndim > stacked else 0
        layout = _layout(model, length)
        arrays |= {} if layout else {name: array}
        for part in layout:
            arrays[f"{name}.{part.name}"] = array[..., part.start : part.stop].reshape(*lead, *part.shape)
    linear = "weights of linear layers are [in, out]: x @ weight + bias"
    if any(isinstance(layer, nn.GroupNorm) for layer in model.layers):
        linear += "; those of GroupNorms are their distance from 1: z * (1 + weight) + bias"
    own = own_module(model)
    weights = f"tensors are those of the module{f', {own.kept}' if own.kept else ''}" if own else linear
    about = {"network": str(model.layers), "convention": f"{weights}; leading axes count clients or particles", **words}
    with path.open("wb") as file:
        file.writelines(pieces(arrays, about))


def _layout(model: Model, length: int) -> list[Slot]:
    """The tensors in a vector of this length: of all parameters with their padding, of the head, or of the body.

    Empty for any other vector, and where the head is as long as the body.
    """
    parts = _parts(model)
    if length == model.padded:
        return parts
    spans = [span for name in ("head", "body") if (span := model.slices[name]).stop - span.start == length]
    if len(spans) != 1:
        return []
    own = [part for part in parts if spans[0].start <= part.start and part.stop <= spans[0].stop]
    whole = sum(part.stop - part.start for part in own) == length
    return [part._replace(start=part.start - spans[0].start) for part in own] if whole else []


def _parts(model: Model) -> list[Slot]:
    """The tensors in theta [P], in order."""
    found: list[Slot] = []
    start = 0
    for name, shape in zip(_names(model), model.shapes, strict=True):
        found.append(Slot(name, start, shape))
        start = found[-1].stop
    others = {"prior": model.extra, "noise": model.density.noise, "padding": model.padded - model.size}
    for name, length in others.items():
        if length:
            found.append(Slot(name, start, (length,)))
            start += length
    return found


def _names(model: Model) -> list[str]:
    """The names of the tensors of all layers, in order."""
    if own := own_module(model):
        return list(own.names)
    names: list[str] = []
    shapes = iter(model.shapes)
    for name, span in model.slices.items():
        if name.startswith("layer"):
            left, count = span.stop - span.start, 0
            while left > 0:
                left -= math.prod(next(shapes))
                count += 1
            names += [f"{name}.{kind}" for kind in KINDS[count]]
    return names
