"""The posterior of a method, read from what it predicts.

At the probes of a problem the outputs of a model tell its parameters, so that every method is read in the same way: by
its own public predictions, whatever it keeps in its states. Standard normals are an argument of a prediction. Given
the points ±√P e_p, whose mean is 0 and whose covariance is I, the draws of a Gaussian have its very moments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.federate import evaluation
from fedray.federate.device.cpu import numerics
from fedray.federate.in_process import LocalFederation
from fedray.truth.problem import Problem


class MeanAndCovariance(NamedTuple):
    """Mean and covariance of parameters θ."""

    mean: np.ndarray  # [..., d]
    cov: np.ndarray  # [..., d, d]

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation of every parameter [..., d]."""
        return np.sqrt(np.diagonal(self.cov, axis1=-2, axis2=-1))


def moments(draws: np.ndarray) -> MeanAndCovariance:
    """Of draws [M, d] of equal weight."""
    mean = draws.mean(0)
    away = draws - mean
    return MeanAndCovariance(mean, away.T @ away / len(draws))


class Reader(NamedTuple):
    """A federation that has been played, and the problem that it is about."""

    problem: Problem
    federation: LocalFederation

    def moments(self, client: int | None = None) -> MeanAndCovariance:
        """The moments of the global posterior, or of a client's."""
        padded = self.federation.plan.model.padded
        axes = padded**0.5 * torch.eye(padded)
        return moments(self._draws(client, 2 * padded, torch.cat([axes, -axes])))

    def draws(self, client: int | None, count: int) -> np.ndarray:
        """``count`` draws [M, d] of a Gaussian; of a method with particles, all of these."""
        return self._draws(client, count, None)

    def _draws(self, client: int | None, count: int, points: Tensor | None) -> np.ndarray:
        plan, block = self.federation.plan, self.federation.cohort.block
        ctx = block.context
        shape = plan.algorithm.predict_noise(ctx, count)
        noise = points if points is not None and points.shape == shape else None
        if noise is None:
            noise = plan.normals("truth", client or 0, 0, shape)
        number = self.federation.state.round
        view = plan.view(self.federation.state.server)
        predict: Any = plan.algorithm.predict_global
        if client is not None:
            view, predict = evaluation.personal_model(block, client, number, view), plan.algorithm.predict_personal
        with numerics(), torch.no_grad():
            found = predict(ctx, view, torch.from_numpy(self.problem.probes), noise).double().numpy()
        outputs = found[..., 0] if plan.target is not None else found[..., 1] - found[..., 0]  # [M, d]
        bias = outputs[:, :1]
        return np.concatenate([bias, outputs[:, 1:] - bias], 1)
