"""Copies between a GPU and the host: of what is sent, committed or kept, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedray.arrays import trees


def moved(tree: Any, device: torch.device | str) -> Any:
    """The same tree with its tensors on a device; what is there already is not copied."""
    return trees.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)


def leaving(tree: Any) -> Callable[[], Any]:
    """Begin to copy a tree to the host; the function that is returned waits for it and gives NumPy arrays.

    From a GPU the copies go to page-locked memory, beside what the GPU does next.
    """
    if not any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in trees.leaves(tree)):
        return lambda: trees.to_numpy(tree)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        copies = trees.tree_map(lambda leaf: _begun(leaf, stream), tree)
    arrived = stream.record_event()

    def wait() -> Any:
        arrived.synchronize()
        return trees.to_numpy(copies)

    return wait


def _begun(leaf: Any, stream: torch.cuda.Stream) -> Any:
    """A copy under way; what holds the original's memory keeps it until the stream has read it."""
    if not isinstance(leaf, Tensor) or not leaf.is_cuda:
        return leaf
    leaf.record_stream(stream)
    return torch.empty(leaf.shape, dtype=leaf.dtype, pin_memory=True).copy_(leaf, non_blocking=True)
