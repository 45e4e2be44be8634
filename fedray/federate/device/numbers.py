"""The numbers of a device: which generator draws the normals, and how exactly a GPU multiplies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch

from fedray.config import override
from fedray.federate.plan import Plan


def on_device(plan: Plan, gpu: bool) -> Plan:
    """The plan with the generator that ``auto`` stands for, so that its result says which and a resumed run keeps it.

    SFC64 is fastest on a CPU. It cannot run on a GPU, where Philox draws for all clients of a stack in one launch.
    """
    if plan.cfg.noise_generator != "auto":
        return plan
    return plan._replace(cfg=override(plan.cfg, {"noise_generator": "philox" if gpu else "sfc64"}))


def set_precision(precision: Literal["float32", "tf32"]) -> None:
    """How GPUs multiply from here on: matrices, and the convolutions and LSTMs, whose default in PyTorch is TF32.

    Convolutions add in one order, or the same run would have other bits each time. PyTorch's newer switches, one for
    each kind of product, cannot be used: its compiler still asks for the older ones, and raises where they differ.
    """
    _set([precision == "tf32"] * len(_products()), ordered=True)


@contextlib.contextmanager
def multiplying(precision: Literal["float32", "tf32"]) -> Iterator[None]:
    """The same for a while; restores what the caller had."""
    before, ordered = [products.allow_tf32 for products in _products()], torch.backends.cudnn.deterministic
    set_precision(precision)
    try:
        yield
    finally:
        _set(before, ordered)


def _set(tf32: Sequence[bool], ordered: bool) -> None:
    for products, allowed in zip(_products(), tf32, strict=True):
        products.allow_tf32 = allowed
    torch.backends.cudnn.deterministic = ordered


def _products() -> tuple[Any, ...]:
    backends: Any = torch.backends
    return backends.cuda.matmul, backends.cudnn
