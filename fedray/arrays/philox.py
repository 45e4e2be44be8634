"""Philox4x32-10: random numbers as a function of a key and a position, in integer tensor operations.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The integers are the same on
every device, for one client or a stack of them; normals agree up to the rounding of logarithm, sine and cosine.
"""

from __future__ import annotations

import functools
import math
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedray.arrays.rng import LANES, Stream, box_muller

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85  # golden ratio, √3 - 1
ROUNDS = 10
WORD = 0xFFFFFFFF  # 32 bits; words are kept in int64, which every device has and whose products wrap
SIGN = 0x80000000

Words = tuple[Tensor, Tensor, Tensor, Tensor]  # int64 in [0, 2³²), of shapes that broadcast


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Four random words of 32 bits for each counter of four words, under a key of two."""
    a, b, c, d = counter
    first, second = key
    for _ in range(ROUNDS):
        p, q = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, b, c, d = (q >> 32 & WORD) ^ b ^ first, q & WORD, (p >> 32 & WORD) ^ d ^ second, p & WORD
        first, second = first + WEYL[0] & WORD, second + WEYL[1] & WORD
    return a, b, c, d


def normals(keys: Tensor, step: Tensor, count: int) -> Tensor:
    """The ``count`` standard normals [K, count] of a step [1] for K streams, float32.

    keys [K, 4] int64 are those of :meth:`~fedray.arrays.rng.Stream.key`: two words are Philox's key, two are the upper
    half of its counter. The lower half counts blocks of four words, of which Box and Muller make four normals.
    """
    groups = -(-count // (4 * LANES))
    at = step * (groups * LANES) + torch.arange(groups * LANES, device=keys.device).view(groups, LANES)
    words = keys.view(-1, 4, 1, 1)
    a, b, c, d = philox((at & WORD, at >> 32, words[:, 2], words[:, 3]), (words[:, 0], words[:, 1]))
    pairs = (*box_muller(_signed(a), _signed(b)), *box_muller(_signed(c), _signed(d)))
    return torch.stack(pairs, -2).flatten(1)[:, :count]


def keys(streams: Sequence[Stream], device: torch.device | str) -> Tensor:
    """The keys [K, 4] of some streams, on a device."""
    return torch.from_numpy(np.stack([stream.key() for stream in streams])).to(device)


def steps(
    streams: Sequence[Stream], count: int, shape: tuple[int, ...], device: torch.device | str
) -> Iterator[Tensor]:
    """The standard normals [K, *shape] of ``count`` steps, one row for each stream."""
    own = keys(streams, device)
    number = torch.zeros(1, dtype=torch.int64, device=device)
    for _ in range(count):
        yield draw(own, number, math.prod(shape)).view(-1, *shape)
        number += 1


def _signed(word: Tensor) -> Tensor:
    """A word read as a signed number of 32 bits, as a float."""
    return ((word ^ SIGN) - SIGN).float()


def draw(keys: Tensor, step: Tensor, count: int) -> Tensor:
    """:func:`normals`, on a GPU in one launch if there is a compiler; in plain operations it takes 150."""
    fused = keys.device.type == "cuda" and not torch.compiler.is_compiling() and _can_compile()
    return (_compiled() if fused else normals)(keys, step, count)


@functools.cache
def _can_compile() -> bool:
    """Whether Triton can build a kernel here: a C compiler compiles its launcher, which includes Python.h."""
    header = Path(sysconfig.get_path("include", scheme="posix_prefix"), "Python.h")  # some systems ship it apart
    compiler = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
    return torch.cuda.is_available() and compiler and header.exists()


@functools.cache
def _compiled() -> Callable[[Tensor, Tensor, int], Tensor]:
    return torch.compile(normals, dynamic=True)
