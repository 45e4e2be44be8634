"""Temperature scaling: p_T(c) ∝ p̄(c)^(1/T), with the T of the least NLL on calibration examples.

T > 1 softens a model that is too sure, T < 1 sharpens one that is not sure enough; the predicted class stays. T is
looked for on a fixed grid, at which sums of many clients add: the minimum of one client's sums is its personal
temperature, that of everybody's the federated one. The NLL is convex in 1/T, so that a step of the grid, 9 %, is close
enough. Source: Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017).
"""

from __future__ import annotations

import torch
from torch import Tensor

TEMPERATURES = tuple(2 ** (step / 8) for step in range(-24, 25))  # 1/8 to 8
UNSCALED = TEMPERATURES.index(1.0)
_FROM_ONE = sorted(range(len(TEMPERATURES)), key=lambda place: abs(place - UNSCALED))


def scaled(log_probs: Tensor, temperature: float) -> Tensor:
    """log p_T [n, C] of log p̄ [n, C]."""
    return torch.log_softmax(log_probs / temperature, -1)


def losses(log_probs: Tensor, y: Tensor) -> Tensor:
    """Σ -log p_T(y) [T] over n examples of log p̄ [n, C] and labels [n], in nats, for every T of TEMPERATURES."""
    inverse = 1 / torch.tensor(TEMPERATURES, dtype=log_probs.dtype, device=log_probs.device)
    powers = inverse[:, None, None] * log_probs
    own = inverse[:, None] * log_probs.gather(-1, y[:, None]).squeeze(-1)
    return (torch.logsumexp(powers, -1) - own).sum(-1)


def best(losses: Tensor) -> Tensor:
    """The place in TEMPERATURES [...] of the least of the losses [..., T]; of equal ones that nearest to 1.

    Without calibration examples it is 1. A model without errors on them is sharpened, up to the end of the grid or to a
    loss of 0.
    """
    order = torch.tensor(_FROM_ONE, device=losses.device)
    return order[losses[..., order].argmin(-1)]
