"""The densities of targets: against PyTorch's distributions, autograd, and the Fisher information by its definition."""

import pickle

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.testing import assert_close

from fedray import registry
from fedray.arrays.rng import Stream
from fedray.bayes.particles import ggn_diagonal
from fedray.config import ModelConfig
from fedray.nets import likelihood, network
from fedray.nets.densities import CATEGORICAL, GAUSSIAN, ONE_HOT
from fedray.nets.model import Model
from fedray.types import FedRayError
from tests.helpers import built

CLASSES = {CATEGORICAL: 4, GAUSSIAN: 1, ONE_HOT: 4}
every_density = pytest.mark.parametrize("density", CLASSES, ids=["categorical", "gaussian", "one-hot"])
LAYERS = {
    "linear": lambda classes: [nn.Linear(6, classes)],
    "deep": lambda classes: [nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, classes)],
    "tanh": lambda classes: [nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, classes)],  # differentiated automatically
}


def model(density, layers="deep", extra=0):
    classes = CLASSES[density]
    chain = nn.Sequential(nn.Flatten(), *LAYERS[layers](classes)).to("meta")
    return Model(chain, (2, 3), classes, extra, density)


def batch(density, n=6):
    stream = Stream(0, "batch")
    y = stream.normal([n]).double() if density is GAUSSIAN else (4 * stream.uniform([n])).long()
    return stream.normal([n, 2, 3]).double(), y, torch.linspace(0, 2, n).double()


def log_density(density, f, g, y):
    """log p(y | f, g) [B], by PyTorch's distributions."""
    if density is CATEGORICAL:
        return Categorical(logits=f).log_prob(y)
    target = y[:, None] if density is GAUSSIAN else nn.functional.one_hot(y, 4)
    return Normal(f, (-g / 2).exp()).log_prob(target).sum(-1)


@every_density
@pytest.mark.parametrize("layers", LAYERS)
def test_value_and_gradient_are_those_of_the_density(density, layers):
    net, (x, y, weight) = model(density, layers), batch(density)
    theta = Stream(0, "theta").normal([net.padded]).double().requires_grad_()
    expected = -(weight * log_density(density, net.apply(theta, x), net.noise(theta), y)).sum()
    value, grad = likelihood.nll_and_grad(net, theta.detach(), x, y, weight)
    assert_close(value, expected.detach())
    assert_close(grad, torch.autograd.grad(expected, theta)[0])
    assert_close(net.density.nll(net.apply(theta, x), net.noise(theta), y, weight), expected)


@every_density
def test_a_stack_of_particles_computes_what_each_does(density):
    net, (x, y, weight) = model(density), batch(density)
    thetas = Stream(0, "thetas").normal([3, net.padded]).double()
    values, grads = likelihood.nll_and_grad(net, thetas, x, y, weight)
    for m, theta in enumerate(thetas):
        value, grad = likelihood.nll_and_grad(net, theta, x, y, weight)
        assert_close(values[m], value)
        assert_close(grads[m], grad)


@every_density
def test_particles_may_weigh_the_examples_each_in_its_own_way(density):
    net, (_, y, _) = model(density), batch(density)
    f, g = Stream(0, "f").normal([3, 6, CLASSES[density]]).double(), Stream(0, "g").normal([3, density.noise]).double()
    weights = Stream(0, "weights").uniform([3, 6]).double()
    slopes, fisher = net.density.slopes(f, g, y, weights), net.density.fisher(f, g, weights)
    for m in range(3):
        assert_close(tuple(part[m] for part in slopes), net.density.slopes(f[m], g[m], y, weights[m]))
        assert_close(tuple(part[m] for part in fisher), net.density.fisher(f[m], g[m], weights[m]))


@every_density
@pytest.mark.parametrize("layers", ["linear", "deep"])
def test_the_curvature_is_the_expected_square_of_the_score(density, layers):
    """Fisher information: Σ_b weight_b E[(∂ log p(y | x_b, θ)/∂θ)²], the expectation over y under the model."""
    net, (x, _, weight) = model(density, layers), batch(density)
    theta = Stream(0, "theta").normal([net.padded]).double()
    f, g = net.apply(theta, x), net.noise(theta)
    jacobian = torch.func.jacrev(lambda t: net.apply(t, x))(theta)  # [B, C, P]
    if density is CATEGORICAL:
        p = torch.softmax(f, -1)
        middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    else:  # of N(f, I/γ): γ I; and of log γ, half of each output
        middle = g.exp() * torch.eye(f.shape[-1], dtype=f.dtype).expand(len(f), -1, -1)
    expected = torch.einsum("b,bcp,bce,bep->p", weight, jacobian, middle, jacobian)
    if net.density.noise:
        y = f + (-g / 2).exp() * Stream(0, "y").normal([200_000, *f.shape]).double()
        slope = (1 - g.exp() * (y - f).square()).sum(-1) / 2  # of log p in log γ, of every draw
        expected[net.slices["noise"]] = (weight * slope.square().mean(0)).sum()
    assert_close(ggn_diagonal(net, theta, x, weight), expected, rtol=0.02, atol=1e-9)
    assert_close(ggn_diagonal(net, torch.stack([theta, theta]), x, weight)[1], ggn_diagonal(net, theta, x, weight))


def test_a_real_target_is_predicted_by_mean_and_log_variance():
    net, (x, y, _) = model(GAUSSIAN), batch(GAUSSIAN)
    thetas = Stream(0, "thetas").normal([3, net.padded]).double()
    mean, log_variance = likelihood.predictive(net, thetas, x).unbind(-1)
    assert mean.shape == log_variance.shape == (3, 6)
    for m, theta in enumerate(thetas):
        expected = log_density(GAUSSIAN, net.apply(theta, x), net.noise(theta), y)
        assert_close(Normal(mean[m], (log_variance[m] / 2).exp()).log_prob(y), expected)


def test_noisy_one_hot_vectors_predict_by_their_shares_of_the_density():
    net, (x, _, _) = model(ONE_HOT), batch(ONE_HOT)
    theta = Stream(0, "theta").normal([net.padded]).double()
    (log_p,) = likelihood.predictive(net, theta[None], x)
    labels = torch.arange(4)
    f, g = net.apply(theta, x), net.noise(theta)
    each = torch.stack([log_density(ONE_HOT, f, g, label.expand(6)) for label in labels], -1)
    assert_close(log_p, torch.log_softmax(each, -1))


@every_density
def test_a_model_travels_to_other_processes(density):
    net = model(density)
    copy = pickle.loads(pickle.dumps(net))
    assert copy.density == net.density
    assert (copy.size, copy.slices) == (net.size, net.slices)


@pytest.mark.parametrize("extra", [0, 1])
def test_the_noise_comes_last_and_belongs_to_the_head(extra):
    net, plain = model(GAUSSIAN, extra=extra), model(GAUSSIAN, extra=extra).layers
    assert len(plain) == 6
    assert net.slices["noise"] == slice(net.size - 1, net.size)
    assert set(net.part(["noise"]).tolist()) == {net.size - 1}
    assert net.size - 1 in net.part(["head"]).tolist()
    assert net.size - 1 not in net.rest(["noise"]).tolist()
    assert net.size == sum(part.numel() for part in net.split(torch.zeros(net.padded))) + extra + 1


def test_a_likelihood_that_does_not_suit_the_targets_is_refused():
    assert network.density(ModelConfig(), real=True) is GAUSSIAN
    assert network.density(ModelConfig(), real=False) is CATEGORICAL
    assert network.density(ModelConfig(likelihood="gaussian"), real=False) is ONE_HOT
    with pytest.raises(
        FedRayError, match=r"model.likelihood categorical: the targets are real numbers.*; use gaussian"
    ):
        network.density(ModelConfig(likelihood="categorical"), real=True)
    with pytest.raises(FedRayError, match=r"model.likelihood gaussian: its logits .* or another `model.name`"):
        network.build(registry.networks()["blr"], ModelConfig(name="blr"), (3,), 2, ONE_HOT)
    assert built("mlp", (3,), 2).density is CATEGORICAL
    net = model(GAUSSIAN)
    assert net.activations == 0
    with pytest.raises(FedRayError, match="local reparameterization"):
        net.forward_local((), (), torch.zeros(1, 2, 3), torch.zeros(1, 0))
