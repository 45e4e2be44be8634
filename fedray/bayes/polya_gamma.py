"""A Gaussian process that classifies in two, by Pólya-Gamma augmentation: a Gibbs sampler, and what it predicts.

f ~ N(0, K) and p(y = 1 | f) = σ(f) = 1/(1 + e^-f); κ = y - ½ is ±½, or 0 of an example that does not belong to the
process. With one ω per example the posterior of f is Gaussian (Polson, Scott and Windle, "Bayesian inference for
logistic models using Pólya-Gamma latent variables", JASA 2013, Theorem 1):

    ω_j | f ~ PG(1, f_j)
    f | ω ~ N(Σ κ, Σ)       Σ = (K⁻¹ + Ω)⁻¹ = K - K A K,    A = (K + Ω⁻¹)⁻¹ = Ω^½ B⁻¹ Ω^½,    B = I + Ω^½ K Ω^½
    f_* | ω ~ N(k_*ᵀ α, k_** - k_*ᵀ A k_*)    α = A Ω⁻¹ κ

B is all that is factorized. No eigenvalue of it is below 1, so float32 needs no jitter, and an example with ω = 0 drops
out exactly. n examples; S chains, which are sampled side by side.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

NORMALS = 7  # standard normals of an example in a step of a chain: the prior draw of f, its noise, and five for ω
QUADRATURE = 10  # nodes of Gauss and Hermite
NODES, SHARES = np.polynomial.hermite_e.hermegauss(QUADRATURE)
TINY = 1e-6  # below it a variance or a probability is rounding


def polya_gamma(c: Tensor, noise: Tensor) -> Tensor:
    """Draws of PG(1, c) [...] for c [...] from standard normals [5, ...].

    PG(1, c) = (1/2π²) Σ_k e_k / ((k - ½)² + c²/4π²) with e_k ~ Exp(1). Two terms of the sum are drawn as they are. The
    rest is a gamma variable of the right mean and variance, by Wilson and Hilferty's cube of a normal (PNAS 1931).
    """
    c = c.double().abs().clamp_min(0.01)  # the moments below are 0/0 at 0
    a = (c / (2 * math.pi)).square()
    first, second = 1 / (2 * math.pi**2 * (0.25 + a)), 1 / (2 * math.pi**2 * (2.25 + a))
    t = torch.tanh(c / 2)
    mean = t / (2 * c) - first - second
    variance = (2 * t - c * (1 - t * t)) / (4 * c**3) - first**2 - second**2
    shape = mean.square() / variance
    rest = mean * (1 - 1 / (9 * shape) + noise[4] / (3 * shape.sqrt())) ** 3
    e = (noise[0:4:2].square() + noise[1:4:2].square()) / 2
    return (first * e[0] + second * e[1] + rest).to(noise.dtype)


def precision(kernel: Tensor, omega: Tensor) -> Tensor:
    """A = (K + Ω⁻¹)⁻¹ [S, n, n] for K [n, n] and ω [S, n]; rows and columns of ω = 0 are 0."""
    root = omega.sqrt()
    return root[..., None] * torch.cholesky_inverse(_factor(kernel, root)) * root[..., None, :]


def _factor(kernel: Tensor, root: Tensor) -> Tensor:
    """The Cholesky factor of B = I + Ω^½ K Ω^½ [S, n, n]."""
    identity = torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
    return torch.linalg.cholesky_ex(identity + root[..., None] * kernel * root[..., None, :])[0]


def draw(kernel: Tensor, omega: Tensor, kappa: Tensor, prior: Tensor, noise: Tensor) -> Tensor:
    """f | ω ~ N(Σ κ, Σ) [S, n], by Matheron's rule from draws ``prior`` ~ N(0, K) and standard normals [S, n].

    f = f₀ + K A (Ω⁻¹ κ - f₀ - Ω^-½ ε).
    """
    root = omega.sqrt()
    surprise = kappa * _inverse(root) - root * prior - noise * (root > 0)
    return prior + (root * torch.cholesky_solve(surprise[..., None], _factor(kernel, root))[..., 0]) @ kernel


def _inverse(x: Tensor) -> Tensor:
    """1/x, and 0 where x is 0."""
    return torch.where(x > 0, 1 / x.clamp_min(1e-20), 0)


def gibbs(kernel: Tensor, kappa: Tensor, noise: Tensor) -> Tensor:
    """ω [S, n] after some Gibbs steps from a prior draw of f.

    kernel [n, n] is positive definite in float64, kappa [n]; noise [steps + 1, NORMALS, S, n] is standard normal.
    """
    prior = noise[:, 0] @ torch.linalg.cholesky_ex(kernel.double())[0].to(kernel.dtype).mT
    member = kappa != 0
    omega = member * polya_gamma(prior[0], noise[0, 2:])
    for f0, eps in zip(prior[1:], noise[1:], strict=True):
        f = draw(kernel, omega, kappa, f0, eps[1])
        omega = member * polya_gamma(f, eps[2:])
    return omega


def weights(a: Tensor, kappa: Tensor, omega: Tensor) -> Tensor:
    """α = A Ω⁻¹ κ [S, n]: the mean of f at a new example is k_*ᵀ α."""
    return (a * (kappa * _inverse(omega))[..., None, :]).sum(-1)


def probability(mean: Tensor, variance: Tensor) -> Tensor:
    """E[σ(f)] [...] under f ~ N(mean, variance), by Gauss-Hermite quadrature.

    σ(f) = ½ + ½ tanh(f/2): PyTorch's sigmoid, unlike its tanh, treats the last elements of a vector differently, and a
    client alone would differ from its row of a stack.
    """
    sd = variance.clamp_min(TINY).sqrt()
    total = torch.zeros_like(mean)
    for node, share in zip(NODES.tolist(), (SHARES / SHARES.sum()).tolist(), strict=True):
        total = total + share * torch.tanh((mean + node * sd) / 2)
    return (1 + total) / 2


def held_out(
    kernel: Tensor, cross: Tensor, scale: float, kappa: Tensor, labels: Tensor, weight: Tensor, omega: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted NLL [] in nats of held-out examples, and its gradients in K [n, n] and in K_* [m, n]; ω stays fixed.

    -Σ_i c_i log (1/S) Σ_s E[σ(2 κ_i f_i) | ω_s]: kappa [n] of the examples that are fitted; labels κ_i and weight c_i
    [m] of those held out, whose prior variance is ``scale``; omega [S, n]. With V = K_* A and the derivatives μ̄ and v̄
    [S, m] by mean and variance: dα = -A dK α and dA = -A dK A give Σ_s μ̄ αᵀ - 2 v̄∘V in K_*, and
    Σ_s Vᵀ (v̄∘V) - (Vᵀ μ̄) αᵀ in K.
    """
    a = precision(kernel, omega)
    alpha = weights(a, kappa, omega)
    v = cross @ a
    mean, variance = alpha @ cross.mT, scale - (v * cross).sum(-1)

    def nll(mean: Tensor, variance: Tensor) -> Tensor:
        right = probability(2 * labels * mean, variance).mean(0)
        return -(right.clamp_min(TINY).log() * weight).sum()

    (by_mean, by_variance), value = torch.func.grad_and_value(nll, argnums=(0, 1))(mean, variance)
    weighted = by_variance[..., None] * v
    by_cross = by_mean.mT @ alpha - 2 * weighted.sum(0)
    back = (by_mean[..., None] * v).sum(-2)
    by_kernel = v.flatten(0, 1).mT @ weighted.flatten(0, 1) - back.mT @ alpha
    return value, by_kernel, by_cross
