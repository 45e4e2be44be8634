"""Small models whose true parameters and true posterior are known: y = θ·[1, x], with noise of a known sd, or labels.

The parameters are θ = [bias, weights] ~ N(0, τ² I): one θ for all clients, or one of its own for each. The inputs are
fixed, so that simulating a problem again draws parameters and targets only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import nn

from fedray.data.partition import Partition
from fedray.data.readers import Dataset
from fedray.data.scaling import Scaling
from fedray.nets.densities import CATEGORICAL, Density, known_noise

AS_THEY_ARE = Scaling(np.array(0, np.float32), np.array(1, np.float32))


class Problem(NamedTuple):
    """A model, and the inputs of its clients."""

    summary: str
    x: np.ndarray  # [N, n, k] inputs of N clients, float32
    prior_sd: float  # τ
    noise_sd: float | None = None  # of real targets; None: labels, P(y = 1) = sigmoid(θ·[1, x])
    personal: bool = False  # whether every client has a θ of its own

    @property
    def design(self) -> np.ndarray:
        """[1, x] of every example [N, n, d], d = k + 1, float64."""
        return np.insert(self.x.astype(np.float64), 0, 1, axis=-1)

    @property
    def size(self) -> int:
        """d, the number of parameters."""
        return self.x.shape[-1] + 1

    @property
    def probes(self) -> np.ndarray:
        """Inputs at which the outputs of a model tell its parameters: 0 and the unit vectors [d, k], float32."""
        return np.eye(self.size, self.size - 1, k=-1, dtype=np.float32)

    @property
    def layers(self) -> nn.Sequential:
        """One linear layer: to the mean of a real target, or to the logit of label 1 where that of label 0 is 0."""
        linear = nn.Linear(self.size - 1, 1)
        return nn.Sequential(nn.Flatten(), linear, *([] if self.noise_sd else [nn.ConstantPad1d((1, 0), 0.0)]))

    @property
    def density(self) -> Density:
        """Of a target given the outputs."""
        return known_noise(self.noise_sd) if self.noise_sd else CATEGORICAL


class World(NamedTuple):
    """A problem whose parameters and targets are drawn."""

    problem: Problem
    theta: np.ndarray  # [N, d] true parameters of every client
    y: np.ndarray  # [N, n] targets, float64; or labels, int64

    @property
    def dataset(self) -> Dataset:
        """The examples of all clients, each once for training, and those of the first once more for testing."""
        x, real = self.problem.x, self.y.dtype.kind == "f"
        x, y = np.concatenate([x, x[:, :1]], 1), np.concatenate([self.y, self.y[:, :1]], 1)
        target = AS_THEY_ARE if real else None
        return Dataset(x.reshape(-1, x.shape[-1]), y.ravel(), 1 if real else 2, None, target=target)

    @property
    def partition(self) -> Partition:
        """Who holds which examples."""
        clients, n = self.y.shape
        rows = np.arange(clients * (n + 1)).reshape(clients, n + 1)
        return Partition(tuple(rows[:, :-1]), tuple(rows[:, -1:]))


def simulate(problem: Problem, seed: int) -> World:
    """Parameters θ ~ N(0, τ² I) and targets given them."""
    rng = np.random.default_rng([seed, 1])  # not the stream of the inputs, which θ must not depend on
    clients = len(problem.x)
    theta = problem.prior_sd * rng.normal(size=(clients if problem.personal else 1, problem.size))
    theta = np.broadcast_to(theta, (clients, problem.size))
    f = np.einsum("knd,kd->kn", problem.design, theta)
    if problem.noise_sd:
        return World(problem, theta, f + problem.noise_sd * rng.normal(size=f.shape))
    return World(problem, theta, (rng.uniform(size=f.shape) < 1 / (1 + np.exp(-f))).astype(np.int64))


def orthogonal(clients: int, n: int, k: int) -> np.ndarray:
    """Inputs [N, n, k] with columns orthogonal to each other and to 1 at every client; mean squares in [0.5, 2]."""
    rng = np.random.default_rng(0)
    columns = np.linalg.qr(np.insert(rng.normal(size=(clients, n, k)), 0, 1, axis=-1))[0][..., 1:]
    return (columns * np.sqrt(n * rng.uniform(0.5, 2, size=(clients, 1, k)))).astype(np.float32)


def correlated(clients: int, n: int, k: int, r: float) -> np.ndarray:
    """Normal inputs [N, n, k] of correlation r, around a mean of the client's own of sd 1/2."""
    rng = np.random.default_rng(0)
    factor = np.linalg.cholesky(r * np.ones((k, k)) + (1 - r) * np.eye(k))
    return (rng.normal(size=(clients, n, k)) @ factor.T + rng.normal(size=(clients, 1, k)) / 2).astype(np.float32)


CLIENTS, PRIOR_SD, NOISE_SD = 3, 1.0, 0.5
PROBLEMS: dict[str, Problem] = {
    "orthogonal": Problem(
        "linear regression, orthogonal inputs: the exact posterior has independent parameters",
        orthogonal(CLIENTS, 25, 1), PRIOR_SD, NOISE_SD,
    ),
    "correlated": Problem(
        "linear regression, correlated inputs",
        correlated(CLIENTS, 25, 2, 0.6), PRIOR_SD, NOISE_SD,
    ),
    "logistic": Problem("logistic regression", correlated(CLIENTS, 50, 2, 0.6), PRIOR_SD),
    "personal": Problem(
        "linear regression, every client with parameters of its own",
        correlated(40, 10, 2, 0.6), PRIOR_SD, NOISE_SD, personal=True,
    ),
    "personal-logistic": Problem(
        "logistic regression, every client with parameters of its own",
        correlated(40, 20, 2, 0.6), PRIOR_SD, personal=True,
    ),
}  # fmt: skip
