"""Random streams keyed by (seed, purpose, client, round), so that placement and order cannot change a draw."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Stream:
    """A sequence of random draws that depends on its key only.

    Streams with different keys are statistically independent (NumPy's SeedSequence), the normals up to the 32 bits
    that PyTorch's CPU generator keeps of a seed. A stream is never shared between clients or rounds. Normals come from
    PyTorch's generator of the device that they are for, the rest from NumPy's.
    """

    def __init__(self, seed: int, purpose: str, client: int = 0, round: int = 0):
        self.numpy = np.random.default_rng([seed, zlib.crc32(purpose.encode()), client, round])
        self._normal: torch.Generator | None = None

    def fill_normal(self, out: Tensor) -> None:
        """Overwrite a float32 tensor with standard normals."""
        if self._normal is None:
            self._normal = torch.Generator(out.device).manual_seed(int(self.numpy.integers(2**63)))
        out.normal_(generator=self._normal)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normals of the given shape, float32, on the CPU."""
        out = torch.empty(tuple(shape))
        self.fill_normal(out)
        return out

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform draws in [0, 1) of the given shape, float32."""
        return torch.from_numpy(self.numpy.random(tuple(shape), dtype=np.float32))


class Passes:
    """The minibatches of a client: endless passes over its shard, reshuffled each time.

    Every pass is a permutation keyed by its number and keeps its short last batch, so that any minibatch can be had
    without replaying those before it. Remembers the order of the last pass asked for.
    """

    def __init__(self, seed: int, client: int, examples: int, batch_size: int):
        self._key, self._examples, self._batch_size = (seed, client), examples, batch_size
        self._per_pass = -(-examples // batch_size)
        self._pass, self._order = -1, np.empty(0, np.int64)

    def __getitem__(self, position: int) -> np.ndarray:
        """Indices of the minibatch at a position, counted from the start of the run."""
        number, place = divmod(position, self._per_pass)
        if number != self._pass:
            seed, client = self._key
            self._pass = number
            self._order = Stream(seed, "batches", client, number).numpy.permutation(self._examples)
        return self._order[place * self._batch_size : (place + 1) * self._batch_size]
