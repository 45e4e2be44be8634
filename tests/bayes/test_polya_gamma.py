"""Binary Gaussian processes by Pólya-Gamma augmentation: the draws, both conditionals, predictions and gradients."""

import math

import pytest
import torch
from scipy.integrate import quad
from torch.testing import assert_close

from fedray.arrays.rng import Stream
from fedray.bayes import polya_gamma as pg

N = 6


def kernel(n=N, scale=3.0):
    x = Stream(1, "inputs").normal([n, 2]).double()
    return scale * torch.exp(-torch.cdist(x, x).square() / 2) + 1e-3 * torch.eye(n)


KAPPA = torch.tensor([0.5, -0.5, 0.5, 0.5, -0.5, 0.0], dtype=torch.float64)
OMEGA = (0.05 + Stream(1, "omega").uniform([3, N]).double()) * (KAPPA != 0)  # of three chains


def mean(c):
    """E[PG(1, c)]."""
    return math.tanh(c / 2) / (2 * c) if c else 0.25


def variance(c):
    """Var[PG(1, c)]."""
    return (math.sinh(c) - c) / (4 * c**3 * math.cosh(c / 2) ** 2) if c else 1 / 24


@pytest.mark.parametrize("c", [0.0, 0.5, -2.0, 5.0, 20.0])
def test_draws_have_the_mean_and_variance_of_polya_gamma(c):
    draws = 400_000
    found = pg.polya_gamma(torch.full([draws], c), Stream(0, "pg").normal([5, draws]))
    assert (found > 0).all()
    assert float(found.mean()) == pytest.approx(mean(abs(c)), abs=4 * math.sqrt(variance(abs(c)) / draws))
    assert float(found.var()) == pytest.approx(variance(abs(c)), rel=0.02)


@pytest.mark.parametrize("c", [0.0, 1.0, 4.0])
def test_draws_have_the_distribution_of_the_whole_sum(c):
    draws, terms = 50_000, 200
    found = pg.polya_gamma(torch.full([draws], c), Stream(0, "pg").normal([5, draws])).sort().values
    k = torch.arange(1, terms + 1)
    e = -torch.log1p(-Stream(1, "exponential").uniform([draws, terms]))
    exact = (e / ((k - 0.5) ** 2 + c**2 / (4 * math.pi**2))).sum(1) / (2 * math.pi**2)
    below = torch.searchsorted(found, exact.sort().values) / draws
    distance = (below - (torch.arange(draws) + 1) / draws).abs().max()
    assert distance < 0.004 + 1.6 * math.sqrt(2 / draws)  # that of the sums, and twice the noise of a sample


def test_the_covariance_given_omega_has_two_equal_forms():
    k = kernel()
    for omega in OMEGA:
        sigma = k - k @ pg.precision(k, omega[None])[0] @ k
        assert_close(sigma, torch.linalg.inv(torch.linalg.inv(k) + omega.diag()))


def test_the_precision_is_that_of_the_pseudo_observations_alone():
    k, there = kernel(), KAPPA != 0
    a = pg.precision(k, OMEGA)
    assert_close(a[:, there][..., there], torch.linalg.inv(k[there][:, there] + torch.diag_embed(1 / OMEGA[:, there])))
    assert (a[:, ~there] == 0).all()
    assert (a[..., ~there] == 0).all()


def test_a_draw_has_the_conditional_mean_and_covariance():
    """A draw is affine in its normals: the image of 0 is the mean, those of the unit vectors make the covariance."""
    k, omega = kernel(), OMEGA[:1]
    root = torch.linalg.cholesky(k)
    normals = torch.cat([torch.zeros(1, 2 * N), torch.eye(2 * N)]).double()
    f = pg.draw(k, omega.expand(2 * N + 1, N), KAPPA, normals[:, :N] @ root.mT, normals[:, N:])
    sigma = torch.linalg.inv(torch.linalg.inv(k) + omega[0].diag())
    assert_close(f[0], sigma @ KAPPA)
    images = f[1:] - f[0]
    assert_close(images.mT @ images, sigma)


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_the_sampler_finds_the_posterior(scale):
    """One example of the first class: p(f | y = 1) is N(0, scale) times a sigmoid."""
    chains, steps = 20_000, 12
    k, kappa = torch.tensor([[scale]]), torch.tensor([0.5])
    omega = pg.gibbs(k, kappa, Stream(0, "gibbs").normal([steps + 1, pg.NORMALS, chains, 1]))
    a = pg.precision(k, omega)
    found = float((pg.weights(a, kappa, omega) @ k).mean())

    def density(f):
        return math.exp(-f * f / (2 * scale)) / (1 + math.exp(-f))

    exact = quad(lambda f: f * density(f), -20, 20)[0] / quad(density, -20, 20)[0]
    assert found == pytest.approx(exact, abs=0.02 * math.sqrt(scale))


def test_examples_of_other_processes_never_matter():
    """The last example is no member: whatever its kernel, nothing that the others do changes by a bit."""
    noise = Stream(0, "gibbs").normal([4, pg.NORMALS, 3, N])
    other = kernel().clone()
    other[-1, :-1] = other[:-1, -1] = 0.1
    found = [pg.gibbs(k.float(), KAPPA.float(), noise) for k in (kernel(), other)]
    assert torch.equal(*found)
    assert (found[0][:, -1] == 0).all()
    assert (found[0][:, :-1] > 0).all()


@pytest.mark.parametrize("v", [0.0, 0.5, 3.0, 8.0])
@pytest.mark.parametrize("m", [-4.0, 0.0, 0.7, 3.0])
def test_probabilities_are_the_expected_sigmoid(m, v):
    found = float(pg.probability(torch.tensor(m).double(), torch.tensor(v).double()))
    exact = quad(lambda z: math.exp(-z * z / 2) / (1 + math.exp(-m - math.sqrt(v) * z)), -9, 9)[0]
    assert found == pytest.approx(exact / math.sqrt(2 * math.pi), abs=0.003)
    other = float(pg.probability(torch.tensor(-m).double(), torch.tensor(v).double()))
    assert found + other == pytest.approx(1)


def test_a_kernel_of_zero_gives_one_half():
    k, cross, labels = torch.zeros(N, N).double(), torch.zeros(4, N).double(), torch.tensor([0.5, -0.5, 0.0, 0.5])
    weight = torch.tensor([1, 2, 0, 0.5]).double()
    value, _, _ = pg.held_out(k, cross, 0.0, KAPPA, labels.double(), weight, OMEGA)
    assert float(value) == pytest.approx(3.5 * math.log(2))


def held_out(k, cross, labels, weight):
    """The same number by the definitions, for automatic differentiation."""
    member = KAPPA != 0
    probabilities = []
    for omega in OMEGA[:, member]:
        a = torch.linalg.inv(k[member][:, member] + (1 / omega).diag())
        near = cross[:, member]
        f = near @ a @ (KAPPA[member] / omega)
        v = 3.0 - (near @ a @ near.mT).diagonal()
        p = pg.probability(f, v)
        probabilities.append(torch.where(labels > 0, p, 1 - p))
    return -(torch.stack(probabilities).mean(0).log() * weight).sum()


def test_the_held_out_loss_and_its_gradients_are_those_of_the_definitions():
    whole = kernel(N + 4)
    k, cross = whole[:N, :N], whole[N:, :N]
    labels = torch.tensor([0.5, -0.5, 0.0, -0.5]).double()
    weight = torch.tensor([1, 0.3, 0, 2]).double()
    value, by_kernel, by_cross = pg.held_out(k, cross, 3.0, KAPPA, labels, weight, OMEGA)
    grads, exact = torch.func.grad_and_value(held_out, argnums=(0, 1))(k, cross, labels, weight)
    assert_close(value, exact)
    assert_close(by_kernel, grads[0])
    assert_close(by_cross, grads[1])
