"""Selection by kernelized Stein discrepancy: clients whose tilted posterior the particles fit worst.

Yang, Liu and Kassab, "Client Selection for Federated Bayesian Learning", eq. 17 and Algorithm 1, with a share ε of
the uniform distribution (fedray.selection._draw).
"""

from __future__ import annotations

from torch import Tensor

from fedray.arrays.rng import Stream
from fedray.selection._draw import Drawn, draw, undrawn
from fedray.types import Selection


def select(state: Drawn, scores: Tensor | None, clients: int, m: int, rng: Stream) -> tuple[tuple[int, ...], Drawn]:
    """m clients, more likely the larger their score."""
    assert scores is not None  # this policy asks for them
    return draw(scores, m, rng)


SELECTION = Selection("in proportion to the discrepancy of their posterior (KSD)", "ksd", undrawn, select)
