"""The likelihood and its gradients against autograd, with padding of both kinds."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from fedray.arrays.rng import Stream
from fedray.nets import likelihood
from fedray.nets.convolutional import convolutional
from fedray.nets.densities import CATEGORICAL
from tests.helpers import NETS, built, described


def batch(model, repeats=1):
    """Six examples, two of them padding, or a multiple of that."""
    stream, weight = Stream(0, "batch"), torch.tensor([0.5, 1, 0, 2, 1, 0] * repeats, dtype=torch.float64)
    y = (stream.uniform([len(weight)]) * model.classes).long()
    return stream.normal([len(weight), *model.input_shape]).double(), y, weight


def test_the_nll_is_the_weighted_cross_entropy():
    model = NETS["mclr"]
    _, y, weight = batch(model)
    logits = Stream(0, "logits").normal([6, 4]).double()
    expected = (weight * functional.cross_entropy(logits, y, reduction="none")).sum()
    assert_close(CATEGORICAL.nll(logits, logits[:0, 0], y, weight), expected)


# Chains that the differentiation by hand does not know.
OTHERS = {
    "lstm": built("lstm", (2, 3), 4, lstm_hidden=2),
    "linear": described((2, 3), 4, nn.Flatten(), nn.Linear(6, 5), nn.Linear(5, 4)),
    "tanh": described((2, 3), 4, nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)),
    "unequal windows": described(
        (1, 7, 8), 4, nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(8, 4)
    ),
    "same": described(
        (2, 4, 3),
        4,
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 2, 3, padding="same"),
        nn.Flatten(),
        nn.Linear(24, 4),
    ),
    "rows of pictures": described(
        (1, 4, 3),
        4,
        nn.Conv2d(1, 2, 3, padding=1),
        nn.ReLU(),
        nn.Linear(3, 5),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(40, 4),
    ),
    "normalized units": described((2, 3), 4, nn.Flatten(), nn.Linear(6, 6), nn.GroupNorm(2, 6), nn.Linear(6, 4)),
    "mirrored": described((2, 3), 4, nn.Flatten(), nn.Linear(6, 5), nn.LeakyReLU(-0.2), nn.Linear(5, 4)),
    "late": described((2, 3), 4, nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.LeakyReLU(0.2)),
}


# Chains of convolutions that are differentiated by hand, with a pooling of odd sizes and one before all parameters.
CONVOLUTIONAL = {
    "odd": described(
        (2, 8, 10), 4, nn.Conv2d(2, 3, 2, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, (2, 1), 2), nn.Flatten(),
        nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 4),
    ),
    "pooled inputs": described(
        (1, 9, 8), 4, nn.MaxPool2d(2), nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 4)
    ),
    "normalized": described(
        (2, 5, 4), 4, nn.GroupNorm(1, 2), nn.Conv2d(2, 6, 2), nn.GroupNorm(3, 6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(12, 4),
    ),
}  # fmt: skip
OTHERS |= CONVOLUTIONAL


@pytest.mark.parametrize("start", [1.0, 0.0])
@pytest.mark.parametrize("model", (NETS | OTHERS).values(), ids=NETS | OTHERS)
def test_value_and_gradient_are_autograds(model, start):
    """At zero weights every ReLU is at its kink, where its derivative is 0 by convention."""
    theta = (start * model.init(Stream(0, "server"))).double().requires_grad_()
    x, y, weight = batch(model)
    expected = (weight * functional.cross_entropy(model.apply(theta, x), y, reduction="none")).sum()
    value, grad = likelihood.nll_and_grad(model, theta.detach(), x, y, weight)
    assert_close(value, expected.detach())
    assert_close(grad, torch.autograd.grad(expected, theta)[0])
    assert grad[model.size :].count_nonzero() == 0
    assert grad.count_nonzero() > 0


def late_normalization():
    return nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)


def test_which_networks_are_differentiated_as_chains_of_convolutions():
    assert all(map(convolutional, CONVOLUTIONAL.values()))
    assert convolutional(built("cnn", (3, 32, 32), 10))
    assert convolutional(built("vgg", (3, 32, 32), 10))
    assert convolutional(built("vgg_gn", (3, 32, 32), 10))
    assert not any(convolutional(OTHERS[name]) for name in ("unequal windows", "same", "rows of pictures"))
    assert not convolutional(described((1, 4, 4), 3, *late_normalization()))
    assert not convolutional(NETS["mlp"])


def test_of_equal_maxima_one_alone_has_the_gradient():
    """A picture of one colour: every window of the pooling has four maxima."""
    model = described((1, 5, 5), 4, nn.Conv2d(1, 1, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 4))
    assert convolutional(model)
    theta, (_, y, weight) = model.init(Stream(0, "server")).double(), batch(model)
    x = torch.full((6, 1, 5, 5), 0.7).double()
    theta.requires_grad_()
    expected = (weight * functional.cross_entropy(model.apply(theta, x), y, reduction="none")).sum()
    value, grad = likelihood.nll_and_grad(model, theta.detach(), x, y, weight)
    assert_close(value, expected.detach())
    assert_close(grad, torch.autograd.grad(expected, theta)[0])


@pytest.mark.parametrize("model", (NETS | OTHERS).values(), ids=NETS | OTHERS)
def test_rows_of_parameters_may_have_weights_of_their_own(model):
    thetas = torch.stack([model.init(Stream(k, "server")) for k in range(3)]).double()
    x, y, _ = batch(model)
    weights = Stream(0, "weights").uniform([3, len(y)]).double()
    found = likelihood.nll_and_grad(model, thetas, x, y, weights)
    for k in range(3):
        assert_close(tuple(part[k] for part in found), likelihood.nll_and_grad(model, thetas[k], x, y, weights[k]))


@pytest.mark.parametrize("model", [net for net in NETS.values() if net.activations])
def test_gradients_under_local_reparameterization_are_autograds(model):
    mu = model.init(Stream(0, "server")).double().requires_grad_()
    sd = (Stream(0, "sd").uniform([model.padded]) + 0.1).double().requires_grad_()
    x, y, weight = batch(model)
    noise = Stream(0, "noise").normal([6, model.activations]).double()
    logits = model.forward_local(model.split(mu), model.split(sd), x, noise)
    expected = (weight * functional.cross_entropy(logits, y, reduction="none")).sum()
    value, *grads = likelihood.nll_and_grad_local(model, mu.detach(), sd.detach(), x, y, weight, noise)
    assert_close(value, expected.detach())
    assert_close(grads, list(torch.autograd.grad(expected, (mu, sd))))
    assert all(grad[model.size :].count_nonzero() == 0 for grad in grads)


@pytest.mark.parametrize("model", NETS.values(), ids=NETS)
def test_rows_of_weight_zero_do_not_matter(model):
    theta, (x, y, weight) = model.init(Stream(0, "server")).double(), batch(model)
    full = likelihood.nll_and_grad(model, theta, x, y, weight)
    kept = weight > 0
    assert_close(full, likelihood.nll_and_grad(model, theta, x[kept], y[kept], weight[kept]))
    x[~kept], y[~kept] = 1e3, 0
    assert_close(full, likelihood.nll_and_grad(model, theta, x, y, weight))


# A product with one column, first or last: alone it is a matrix times a vector, whose bits are others.
NARROW = {"one logit": built("blr", (7, 9), 2), "narrow": built("mlp", (7, 9), 4, hidden=(1,))}


@pytest.mark.parametrize("model", [*(NETS[name] for name in ("mclr", "mlp", "deep", "leaky")), *NARROW.values()])
def test_a_client_has_bitwise_the_same_gradient_alone_and_stacked(model):
    """In products of 400 multiplications and more: PyTorch's bmm has another kernel for smaller ones."""
    x, y, weight = batch(model, repeats=20)
    thetas, weight = Stream(0, "thetas").normal([5, model.padded]), weight.float()
    xs = x.float() + torch.arange(5.0).view(5, 1, 1, 1)

    def one(theta, x):
        return likelihood.nll_and_grad(model, theta, x, y, weight)

    stacked = torch.vmap(one)(thetas, xs)
    for k in range(5):
        assert all(map(torch.equal, one(thetas[k], xs[k]), (leaf[k] for leaf in stacked)))


@pytest.mark.parametrize("model", NETS.values(), ids=NETS)
def test_predictions_are_one_normalized_row_per_draw(model):
    thetas = Stream(0, "thetas").normal([3, model.padded]).double()
    x, _, _ = batch(model)
    log_p = likelihood.predictive(model, thetas, x)
    assert_close(torch.logsumexp(log_p, -1), torch.zeros(3, 6, dtype=torch.float64))
    for m in range(3):
        assert_close(log_p[m], torch.log_softmax(model.apply(thetas[m], x), -1))
