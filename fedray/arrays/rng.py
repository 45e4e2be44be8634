"""Random streams keyed by (seed, purpose, client, round), so that placement and order cannot change a draw."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

LANES = 32  # pairs of normals that lie together


def box_muller(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Standard normals √(-2 log u) (cos a, sin a) from two uniform signed 32-bit numbers, given as floats [...].

    u = |first| / 2³¹ and a = π second / 2³¹ (Box and Muller, 1958). Floats are densest near 0, so the tail is exact to
    its end, at 6.66 standard deviations.
    """
    radius = (-2 * (first.abs() * 2.0**-31).clamp_min(2.0**-32).log()).sqrt()
    angle = (math.pi * 2.0**-31) * second
    return radius * angle.cos(), radius * angle.sin()


def normals(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """Standard normals of the given shape from :meth:`Stream.bits` of as many."""
    pairs = bits.float()
    drawn = torch.stack(box_muller(pairs[:, 0], pairs[:, 1]), 1)
    return drawn.flatten()[: math.prod(shape)].view(tuple(shape))


class Stream:
    """A sequence of random draws that depends on its key only.

    Streams with different keys are statistically independent (NumPy's SeedSequence). A stream is never shared between
    clients or rounds. Draws come from NumPy's generators, on the CPU; :mod:`fedray.arrays.philox` draws elsewhere.
    """

    def __init__(self, seed: int, purpose: str, client: int = 0, round_number: int = 0):
        self.numpy = np.random.default_rng([seed, zlib.crc32(purpose.encode()), client, round_number])
        self._bits: np.random.SFC64 | None = None

    def fill_normal(self, out: Tensor) -> None:
        """Overwrite a float32 tensor on the CPU with standard normals; one long tensor costs less than short ones.

        Whole blocks of 64 come out alike however many are asked for at a time.
        """
        out.copy_(normals(self.bits(out.numel()), out.shape))

    def bits(self, count: int) -> Tensor:
        """Uniform signed 32-bit numbers [⌈count/64⌉, 2, LANES] for ``count`` normals."""
        if self._bits is None:
            self._bits = np.random.SFC64(int(self.numpy.integers(2**63)))
        blocks = -(-count // (2 * LANES))
        return torch.from_numpy(self._bits.random_raw(blocks * LANES).view(np.int32)).view(blocks, 2, LANES)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normals of the given shape, float32, on the CPU."""
        out = torch.empty(tuple(shape))
        self.fill_normal(out)
        return out

    def key(self) -> np.ndarray:
        """Four words of 32 bits [4], int64: a key of :func:`fedray.arrays.philox.normals`, drawn from this stream."""
        return self.numpy.integers(2**32, size=4)

    def seed(self) -> Tensor:
        """A seed [] for streams that come later: a whole number below 2²⁴, which a state's float32 holds exactly."""
        return (2**24 * self.uniform([])).floor()

    def permutation(self, count: int) -> Tensor:
        """The numbers 0 to count - 1 in random order [count], int64."""
        return torch.from_numpy(self.numpy.permutation(count))

    def gumbel(self, count: int) -> Tensor:
        """Standard Gumbel draws [count], float64."""
        return torch.from_numpy(self.numpy.gumbel(size=count))

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform draws in [0, 1) of the given shape, float32."""
        return torch.from_numpy(self.numpy.random(tuple(shape), dtype=np.float32))


class Passes:
    """The minibatches of a client: endless passes over its shard, reshuffled each time.

    Every pass is a permutation keyed by its number and keeps its short last batch, so that any minibatch can be had
    without replaying those before it. Remembers the order of the last pass asked for.
    """

    def __init__(self, seed: int, client: int, examples: int, batch_size: int):
        self._key = (seed, client)
        self._examples = examples
        self._batch_size = batch_size
        self._per_pass = -(-examples // batch_size)
        self._pass = -1
        self._order = np.empty(0, np.int64)

    def __getitem__(self, position: int) -> np.ndarray:
        """Indices of the minibatch at a position, counted from the start of the run."""
        number, place = divmod(position, self._per_pass)
        if number != self._pass:
            seed, client = self._key
            self._pass = number
            self._order = Stream(seed, "batches", client, number).numpy.permutation(self._examples)
        return self._order[place * self._batch_size : (place + 1) * self._batch_size]
