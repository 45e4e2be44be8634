"""Random streams keyed by (seed, purpose, client, round), so that placement and order cannot change a draw.

Noise is Box-Muller on SFC64 uniforms: PyTorch's ``normal_`` costs two to three times as much on CPU, and it would be
the most expensive operation of a pFedBayes step (tests/benchmarks/round.py measures both).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Stream:
    """A sequence of random draws that depends on its key only.

    Two streams with different keys are statistically independent (NumPy's SeedSequence); a stream is never shared
    between clients or rounds.
    """

    def __init__(self, seed: int, purpose: str, client: int = 0, round: int = 0):
        key = [seed, zlib.crc32(purpose.encode()), client, round]
        self.numpy = np.random.Generator(np.random.SFC64(np.random.SeedSequence(key)))

    def fill_normal(self, out: Tensor) -> None:
        """Overwrite a contiguous float32 tensor with standard normals (u in (0, 1] has 24 bits: |z| <= 5.8)."""
        half = (out.numel() + 1) // 2
        uniform = torch.from_numpy(self.numpy.random(2 * half, dtype=np.float32))
        radius = uniform[:half].neg_().add_(1).log_().mul_(-2).sqrt_()
        angle = uniform[half:].mul_(2 * math.pi)
        flat = out.view(-1)
        if out.numel() == 2 * half:
            torch.cos(angle, out=flat[:half]).mul_(radius)
            torch.sin(angle, out=flat[half:]).mul_(radius)
        else:
            flat.copy_(torch.cat([angle.cos() * radius, angle.sin() * radius])[: out.numel()])

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normals of the given shape, float32."""
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
