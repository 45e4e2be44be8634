"""Adam as a pure function over a tensor and its moments, in one pass over memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # Kingma and Ba 2015


class Moments(NamedTuple):
    """First and second moment of a gradient [P]."""

    m: Tensor
    v: Tensor


def zero_moments(like: Tensor) -> Moments:
    """The moments before the first step."""
    return Moments(torch.zeros_like(like), torch.zeros_like(like))


def adam(theta: Tensor, grad: Tensor, moments: Moments, t: Tensor, lr: float) -> tuple[Tensor, Moments]:
    """One Adam step θ ← θ - lr m̂/(√v̂ + ε) on theta [P]; ``t`` [] counts this step, from 1, as float32.

    An operator of its own because PyTorch's fused kernel reads and writes the moments once, where the formula in
    separate operations is the most expensive part of a pFedBayes step; the bias corrections are computed in float64.
    """
    theta, m, v = _adam(theta, grad, *moments, t, lr)
    return theta, Moments(m, v)


@torch.library.custom_op("fedray::adam", mutates_args=())
def _adam(theta: Tensor, grad: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: float) -> tuple[Tensor, Tensor, Tensor]:
    theta, m, v = theta.clone(), m.clone(), v.clone()
    _fused([theta], [grad], [m], [v], [t], lr)
    return theta, m, v


def _fused(
    thetas: list[Tensor], grads: list[Tensor], ms: list[Tensor], vs: list[Tensor], ts: list[Tensor], lr: float
) -> None:
    """In place, on lists of vectors."""
    torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
        thetas, grads, ms, vs, [], ts,
        lr=lr, beta1=BETA1, beta2=BETA2, weight_decay=0.0, eps=EPS, amsgrad=False, maximize=False,
    )  # fmt: skip


@_adam.register_fake
def _(theta: Tensor, grad: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: float) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(theta), torch.empty_like(m), torch.empty_like(v)


@_adam.register_vmap
def _(info, in_dims, theta, grad, m, v, t, lr):  # type: ignore[no-untyped-def]
    """K clients are K vectors of one fused call, so a client's result is the same alone and stacked."""

    def stacked(x: Tensor, dim: int | None, copy: bool) -> Tensor:
        x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        return x.clone(memory_format=torch.contiguous_format) if copy else x.contiguous()

    copies = [stacked(x, dim, True) for x, dim in zip((theta, m, v), (in_dims[0], *in_dims[2:4]), strict=True)]
    grad, t = stacked(grad, in_dims[1], False), stacked(t, in_dims[4], False)
    theta, m, v = copies
    _fused(list(theta), list(grad), list(m), list(v), list(t), lr)
    return (theta, m, v), (0, 0, 0)
