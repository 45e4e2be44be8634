"""A shift of the inputs: corruptions of increasing severity, a small set of our own.

Severity 0 is the input as it is. Every kind has the severities 1 to 5:

    noise      + a σ z, z standard normal, σ the standard deviation of the inputs; a = 0.25, 0.5, 0.75, 1, 1.5
    blur       a Gaussian of standard deviation b · height; b = 0.02, 0.04, 0.06, 0.09, 0.12 (0.6 to 3.4 of 28 pixels)
    rotation   by 15, 30, 45, 60, 75 degrees about the centre; what comes in from outside repeats the border

Images have all kinds, vectors of features only noise, texts none. This is not one of the published sets of corrupted
images, and its numbers do not compare with theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor


class Corruption(NamedTuple):
    """A kind of corruption at one severity."""

    kind: str
    severity: int
    apply: Callable[[Tensor, Tensor], Tensor]  # inputs x [n, ...], standard normals [n, ...] -> inputs [n, ...]


def corruptions(shape: tuple[int, ...]) -> Iterator[Corruption]:
    """All corruptions of inputs of a shape; none where it is not known how to corrupt them."""
    kinds = {1: ("noise",), 3: tuple(KINDS)}.get(len(shape), ())
    if kinds:
        yield Corruption("none", 0, lambda x, z: x)
    for kind in kinds:
        corrupt, amounts = KINDS[kind]
        for severity, amount in enumerate(amounts, 1):
            yield Corruption(kind, severity, partial(corrupt, amount))


def noise(amount: float, x: Tensor, z: Tensor) -> Tensor:
    """Inputs x with normals z [n, ...] of ``amount`` times their standard deviation added."""
    sd = x.std() if x.numel() > 1 else 0.0  # of a single number there is none
    return x + amount * sd * z


def blur(width: float, x: Tensor, z: Tensor) -> Tensor:
    """Images x [n, channels, h, w] averaged by a Gaussian whose standard deviation is ``width`` times their height.

    Weights are normalised within the image, so that a constant image stays as it is.
    """
    down, across = (_averages(size, width * x.shape[-2], x) for size in x.shape[-2:])
    return down @ x @ across.T


def _averages(size: int, sd: float, like: Tensor) -> Tensor:
    """The matrix [size, size] whose rows average a line around each of its pixels."""
    place = torch.arange(size, device=like.device, dtype=like.dtype)
    weight = (-((place[:, None] - place) / sd).square() / 2).exp()
    return weight / weight.sum(-1, keepdim=True)


def rotation(degrees: float, x: Tensor, z: Tensor) -> Tensor:
    """Images x [n, channels, h, w], turned about their centre and interpolated bilinearly."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    ratio = x.shape[-2] / x.shape[-1]  # the coordinates of both axes run from -1 to 1
    turn = x.new_tensor([[cos, -sin * ratio, 0], [sin / ratio, cos, 0]]).expand(len(x), 2, 3)
    grid = torch.nn.functional.affine_grid(turn, list(x.shape), align_corners=False)
    return torch.nn.functional.grid_sample(x, grid, padding_mode="border", align_corners=False)


KINDS: dict[str, tuple[Callable[[float, Tensor, Tensor], Tensor], tuple[float, ...]]] = {
    "noise": (noise, (0.25, 0.5, 0.75, 1.0, 1.5)),
    "blur": (blur, (0.02, 0.04, 0.06, 0.09, 0.12)),
    "rotation": (rotation, (15.0, 30.0, 45.0, 60.0, 75.0)),
}
