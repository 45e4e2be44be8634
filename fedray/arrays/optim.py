"""Adam on vectors, in one pass over memory, and local descent by it or by plain SGD."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


class OptimizerState(NamedTuple):
    """What an optimizer remembers of its steps on one vector; of SGD, nothing."""

    moments: Moments  # [P], or [0] of SGD
    t: Tensor  # [] steps so far


def initial_state(optimizer: str, like: Tensor) -> OptimizerState:
    """The state of ``sgd`` or ``adam`` before the first step on a vector [P]."""
    return OptimizerState(zero_moments(like if optimizer == "adam" else like[:0]), torch.zeros_like(like.sum()))


def optimizer_step(
    optimizer: str, lr: float, theta: Tensor, grad: Tensor, state: OptimizerState
) -> tuple[Tensor, OptimizerState]:
    """One step of ``sgd``, θ - lr g, or of ``adam``, which overwrites theta [P] and its moments."""
    if optimizer == "sgd":
        return theta - lr * grad, state
    t = adam_([theta], [grad], [state.moments], state.t, lr)
    return theta, state._replace(t=t)


def adam_(
    thetas: Sequence[Tensor], grads: Sequence[Tensor], moments: Sequence[Moments], t: Tensor, lr: float
) -> Tensor:
    """One Adam step θ ← θ - lr m̂/(√v̂ + ε), in place on vectors [P] and their moments; ``t`` [] counts those before.

    Returns t + 1. In place, so only on tensors of one's own (``clone`` them first); together with PyTorch's fused
    kernel this is what keeps Adam from being the most expensive part of a pFedBayes step. It works under vmap, with
    the same bits.
    """
    if torch.compiler.is_compiling():
        return _plain(thetas, grads, moments, t, lr)
    return torch.ops.fedray.adam_(list(thetas), list(grads), [x.m for x in moments], [x.v for x in moments], t, lr)


def _plain(
    thetas: Sequence[Tensor], grads: Sequence[Tensor], moments: Sequence[Moments], t: Tensor, lr: float
) -> Tensor:
    """The same in plain operations, for a compiler to join with those before it."""
    t = t + 1
    # Through exp, so that the compiler computes these numbers once and not for every element.
    rate = (lr / (1 - torch.exp(t.double() * math.log(BETA1)))).float()
    root = (1 - torch.exp(t.double() * math.log(BETA2))).rsqrt().float()
    for theta, grad, (m, v) in zip(thetas, grads, moments, strict=True):
        m.add_((1 - BETA1) * (grad - m))
        v.mul_(BETA2).add_((1 - BETA2) * grad * grad)
        theta.sub_(rate * m / (v.sqrt() * root + EPS))
    return t


_library = torch.library.Library("fedray", "DEF")
_library.define(
    "adam_(Tensor(a!)[] thetas, Tensor[] grads, Tensor(b!)[] ms, Tensor(c!)[] vs, Tensor t, float lr) -> Tensor"
)


def _adam(
    thetas: Sequence[Tensor], grads: Sequence[Tensor], ms: Sequence[Tensor], vs: Sequence[Tensor], t: Tensor, lr: float
) -> Tensor:
    t = t + 1
    _fused(thetas, grads, ms, vs, [t] * len(thetas), lr)
    return t


def _fused(
    thetas: Sequence[Tensor],
    grads: Sequence[Tensor],
    ms: Sequence[Tensor],
    vs: Sequence[Tensor],
    steps: Sequence[Tensor],
    lr: float,
) -> None:
    grads = [grad.contiguous() for grad in grads]  # PyTorch's kernel reads memory as it lies, whatever the strides
    torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
        list(thetas), grads, list(ms), list(vs), [], list(steps),
        lr=lr, beta1=BETA1, beta2=BETA2, weight_decay=0.0, eps=EPS, amsgrad=False, maximize=False,
    )  # fmt: skip


_library.impl("adam_", _adam, "CompositeExplicitAutograd")


def _adam_stacked(info, in_dims, thetas, grads, ms, vs, t, lr):  # type: ignore[no-untyped-def]
    """K clients are K vectors of one fused call, so a client's result is the same alone and stacked."""
    t = torch.stack(_rows(t, in_dims[4], info.batch_size)) + 1
    thetas, grads, ms, vs = (
        [row for x, dim in zip(tensors, dims, strict=True) for row in _rows(x, dim, info.batch_size)]
        for tensors, dims in zip((thetas, grads, ms, vs), in_dims, strict=False)
    )
    _fused(thetas, grads, ms, vs, list(t) * (len(thetas) // len(t)), lr)
    return t, 0


def _rows(x: Tensor, dim: int | None, size: int) -> list[Tensor]:
    return [x] * size if dim is None else list(x.unbind(dim))


torch.library.register_vmap("fedray::adam_", _adam_stacked, lib=_library)
