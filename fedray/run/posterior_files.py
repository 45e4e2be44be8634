"""The models of a result as files of named tensors, one per layer, that any reader of safetensors understands.

A state holds a vector theta [P] per posterior parameter. In a file ``mu`` becomes ``mu.layer1.weight`` [in, out],
``mu.layer1.bias`` [out], and so on; parameters that no layer reads are ``mu.prior`` and ``mu.noise``, and what fills
theta up to P is ``mu.padding``. Files of older versions hold ``mu`` itself, and are read as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedray.arrays.tensor_files import load_tree, named, pieces
from fedray.nets.model import Model

KINDS = {2: ("weight", "bias"), 4: ("input.weight", "input.bias", "state.weight", "state.bias")}


class Part(NamedTuple):
    """A tensor in a vector."""

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        """Where the next one begins."""
        return self.start + math.prod(self.shape)


def save(path: Path, tree: Any, model: Model, words: Mapping[str, str]) -> None:
    """Write a state; ``words`` and the network go into the file's metadata."""
    arrays: dict[str, np.ndarray] = {}
    for name, leaf in named(tree).items():
        array = np.asarray(leaf)
        layout = _layout(model, array.shape[-1] if array.ndim else 0)
        lead = array.shape[:-1]
        arrays |= {f"{name}.{part.name}": _cut(array, part).reshape(*lead, *part.shape) for part in layout}
        arrays |= {} if layout else {name: array}
    convention = "weights of linear layers are [in, out]: x @ weight + bias"
    about = {"network": str(model.layers), "convention": convention, **words}
    with path.open("wb") as file:
        for piece in pieces(arrays, about):
            file.write(piece)


def load(path: Path, template: Any, model: Model) -> Any:
    """A state with the structure of ``template`` from a file of :func:`save`, the same to the bit.

    Raises FedRayError for a file that is missing, damaged or of another run.
    """
    expected = named(template)

    def joined(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        whole = {name: array for name, array in stored.items() if name in expected}
        for name, leaf in expected.items():
            layout = _layout(model, leaf.shape[-1] if leaf.ndim else 0)
            parts = [stored.get(f"{name}.{part.name}") for part in layout]
            lead = leaf.shape[:-1]
            if (
                name not in whole
                and layout
                and all(
                    found is not None and found.shape == (*lead, *part.shape)
                    for found, part in zip(parts, layout, strict=True)
                )
            ):
                whole[name] = np.concatenate([part.reshape(*lead, -1) for part in parts if part is not None], -1)
        return whole

    return load_tree(path, template, joined)


def _cut(array: np.ndarray, part: Part) -> np.ndarray:
    return array[..., part.start : part.stop]


def _layout(model: Model, length: int) -> list[Part]:
    """The tensors in a vector of this length: of all parameters with their padding, of the head, or of the body."""
    parts = _parts(model)
    if length == model.padded:
        return parts
    for name in ("head", "body"):
        span = model.slices[name]
        if length == span.stop - span.start:
            own = [part for part in parts if span.start <= part.start and part.stop <= span.stop]
            if sum(part.stop - part.start for part in own) == length:
                return [part._replace(start=part.start - span.start) for part in own]
    return []


def _parts(model: Model) -> list[Part]:
    """The tensors in theta [P], in order."""
    found: list[Part] = []
    shapes = iter(model.shapes)
    for name, span in model.slices.items():
        own: list[tuple[int, ...]] = []
        while name.startswith("layer") and sum(map(math.prod, own)) < span.stop - span.start:
            own.append(next(shapes))
        for kind, shape in zip(KINDS.get(len(own), ()), own, strict=True):
            found.append(Part(f"{name}.{kind}", found[-1].stop if found else 0, shape))
    for name, length in (
        ("prior", model.extra),
        ("noise", model.density.noise),
        ("padding", model.padded - model.size),
    ):
        if length:
            found.append(Part(name, found[-1].stop, (length,)))
    return found
