"""The numbers of a device: which generator draws the normals, and how exactly a GPU multiplies."""

from __future__ import annotations

from typing import Literal

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
    """How GPUs multiply matrices from here on, convolutions and LSTMs included, for which PyTorch's default is TF32."""
    kind = "ieee" if precision == "float32" else "tf32"
    torch.backends.cuda.matmul.fp32_precision = kind
    torch.backends.cudnn.conv.fp32_precision = kind  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn.fp32_precision = kind  # type: ignore[attr-defined]
