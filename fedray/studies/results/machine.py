"""What of a machine the last bits of a result depend on."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import torch

# Instruction sets for which PyTorch's libraries have code of their own, with sums in another order.
SETS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
CPUINFO = Path("/proc/cpuinfo")
CPU = "cpu"  # as a result names the device
GPU = "; on "


def kind(device: str = CPU) -> str:
    """The processor's maker and instruction sets, PyTorch, NumPy and the GPU: runs of one kind agree to the bit."""
    facts: dict[str, str] = {}
    if CPUINFO.exists():
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
        facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    flags = facts.get("flags", "").split()
    processor = [
        platform.machine(),
        facts.get("vendor_id", platform.system()),
        *(name for name in SETS if name in flags),
    ]
    used = torch.backends.cpu.get_cpu_capability()
    gpu = "" if device == CPU else f"{GPU}{device}"
    return f"{' '.join(processor)}; {used}; torch {torch.__version__}; numpy {np.__version__}{gpu}"


def has_gpu(described: str) -> bool:
    """Whether a run of such a kind of machine was computed on a GPU."""
    return GPU in described
