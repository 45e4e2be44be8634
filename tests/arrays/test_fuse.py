"""The compiled backend: the same training to rounding, and a clear word where it cannot work."""

from __future__ import annotations

import pytest
import torch

from fedray.arrays import fuse, trees
from fedray.types import FedRayError
from tests.helpers import small_plan


@pytest.mark.parametrize("kl", ["qw", "wq"])
def test_compiled_equals_loop_to_rounding(kl: str) -> None:
    from fedray.federate.in_process import LocalFederation

    plan = small_plan("pfedbayes", {"rounds": 1, "local_steps": 2, "algorithm.kl": kl})
    results = []
    for backend in ("loop", "compiled"):
        federation = LocalFederation(plan, backend)
        list(federation)
        results.append(federation.snapshot())
    for (name, plain), (_, compiled) in zip(*map(trees.named_leaves, results), strict=True):
        # Adam turns the rounding of a vanishing gradient into a step of its own, so single entries may differ by lr.
        assert (plain - compiled).norm() <= 1e-3 * plain.norm(), name


def test_marked_functions_are_plain_outside() -> None:
    calls = []

    @fuse.fusable
    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(torch.compiler.is_compiling())
        return 2 * x

    assert double(torch.ones(2)).tolist() == [2, 2]
    assert calls == [False]


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FedRayError, match=r"backend compiled.*g\+\+.*`backend=loop`"):
        fuse.check_compiler()
