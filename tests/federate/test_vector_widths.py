"""Equal bits do not hang on the vectors of this machine's CPU: the last elements of a tensor are where they differ."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BITWISE = "tests/federate/storage/test_checkpoint.py::test_a_federation_goes_on_bitwise_from_a_checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["default", "avx2"])
def test_every_algorithm_is_the_same_in_a_loop_and_stacked_with_other_vectors(instructions):
    """PyTorch reads its choice of instructions once, hence a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", BITWISE]
    own = os.environ | {"ATEN_CPU_CAPABILITY": instructions}
    ran = subprocess.run(command, env=own, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout
