"""The posterior that the methods approximate: in closed form, or by a long run of NUTS."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from fedray.truth.posterior import MeanAndCovariance, moments
from fedray.truth.problem import Problem, World
from fedray.types import FedRayError

WARMUP, DRAWS, CHAINS = 500, 2000, 4
LARGEST_RHAT = 1.02


class Evidence(NamedTuple):
    """The examples that some posteriors are conditioned on, each on its own."""

    design: np.ndarray  # [K, n, d]
    y: np.ndarray  # [K, n]


def pooled(world: World) -> Evidence:
    """The examples of all clients together: K = 1."""
    design = world.problem.design
    return Evidence(design.reshape(1, -1, design.shape[-1]), world.y.reshape(1, -1))


def of_clients(world: World) -> Evidence:
    """The examples of every client alone: K = N."""
    return Evidence(world.problem.design, world.y)


def check(problem: Problem) -> None:
    """Raises FedRayError where NUTS is needed and blackjax is missing."""
    if problem.noise_sd is None and find_spec("blackjax") is None:
        raise FedRayError(
            f"{problem.summary}: its reference is sampled by blackjax, which is not installed; run `uv sync --group "
            "truth`, or choose `--problems orthogonal correlated personal`"
        )


def posteriors(problem: Problem, data: Evidence, prior: MeanAndCovariance | None = None) -> list[MeanAndCovariance]:
    """The exact posteriors of K data sets, under the problem's prior or one of independent parameters."""
    prior = prior or MeanAndCovariance(np.zeros(problem.size), problem.prior_sd**2 * np.eye(problem.size))
    if problem.noise_sd is not None:
        return [conjugate(x, y, problem.noise_sd, prior) for x, y in zip(*data, strict=True)]
    return [moments(draws.reshape(-1, problem.size)) for draws in nuts(data, prior)]


def conjugate(x: np.ndarray, y: np.ndarray, noise_sd: float, prior: MeanAndCovariance) -> MeanAndCovariance:
    """Λ = Λ_0 + XᵀX/s², μ = Λ⁻¹ (Λ_0 μ_0 + Xᵀy/s²) for inputs X [n, d], targets y [n] and a prior N(μ_0, Λ_0⁻¹)."""
    before = np.linalg.inv(prior.cov)
    cov = np.linalg.inv(before + x.T @ x / noise_sd**2)
    return MeanAndCovariance(cov @ (before @ prior.mean + x.T @ y / noise_sd**2), cov)


def independent(p: MeanAndCovariance) -> MeanAndCovariance:
    """The Gaussian with independent parameters that is nearest to a Gaussian p in KL(q‖p): its precision is p's
    diagonal. Bishop, "Pattern Recognition and Machine Learning", section 10.1.2."""
    return MeanAndCovariance(p.mean, np.diag(1 / np.diagonal(np.linalg.inv(p.cov))))


def nuts(data: Evidence, prior: MeanAndCovariance) -> np.ndarray:
    """Draws [K, chains, draws, d] of the posteriors of logistic regression, log p(D|θ) = Σ_n y_n f_n - log(1 + e^f_n).

    Raises FedRayError where the chains have not mixed: R-hat above 1.02.
    """
    import blackjax  # pyright: ignore[reportMissingImports]
    import jax  # pyright: ignore[reportMissingImports]

    jax.config.update("jax_enable_x64", True)
    sd = prior.sd

    def sample(key: Any, x: Any, y: Any) -> Any:
        def log_density(theta: Any) -> Any:
            f = x @ theta
            away = (theta - prior.mean) / sd
            return (y * f - jax.nn.softplus(f)).sum() - (away * away).sum() / 2

        def move(state: Any, key: Any) -> Any:
            state, _ = kernel.step(key, state)
            return state, state.position

        first, second, third = jax.random.split(key, 3)
        start = prior.mean + sd * jax.random.normal(first, sd.shape)
        warm_up = blackjax.window_adaptation(blackjax.nuts, log_density)
        (state, parameters), _ = warm_up.run(second, start, num_steps=WARMUP)
        kernel = blackjax.nuts(log_density, **parameters)
        return jax.lax.scan(move, state, jax.random.split(third, DRAWS))[1]

    keys = jax.random.split(jax.random.key(0), (len(data.y), CHAINS))
    chains = jax.vmap(jax.vmap(sample, (0, None, None)))
    draws = np.asarray(jax.jit(chains)(keys, data.design, data.y.astype(float)))
    for each in draws:
        worst = float(np.max(blackjax.diagnostics.potential_scale_reduction(each, chain_axis=0, sample_axis=1)))
        if not worst < LARGEST_RHAT:
            raise FedRayError(f"NUTS: its chains have not mixed (R-hat {worst:.3f}); raise its number of draws")
    return draws
