"""What is asked of every network in the registry."""

import pytest
import torch

from fedray import registry
from fedray.arrays.rng import Stream
from fedray.nets import likelihood
from tests.helpers import built

INPUTS = {"lstm": (3, 4), "vgg": (1, 32, 32), "vgg_gn": (1, 32, 32), "cnn": (1, 16, 16)}  # others take any


def network(name):
    return built(name, INPUTS.get(name, (2, 3)), 2, hidden=(5,), lstm_hidden=2)


@pytest.mark.parametrize("name", registry.networks())
def test_a_stack_of_clients_computes_what_each_does(name):
    model = network(name)
    thetas = torch.stack([model.init(Stream(0, "server", k)) for k in range(3)])
    x, y = Stream(0, "x").normal([4, *model.input_shape]), torch.tensor([0, 1, 1, 0])
    values, grads = likelihood.nll_and_grad(model, thetas, x, y, torch.ones(4))
    for k, theta in enumerate(thetas):
        value, grad = likelihood.nll_and_grad(model, theta, x, y, torch.ones(4))
        torch.testing.assert_close(values[k], value)
        torch.testing.assert_close(grads[k], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", registry.networks())
def test_padding_has_no_say_and_no_gradient(name):
    model = network(name)
    theta, x = model.init(Stream(0, "server")), Stream(0, "x").normal([4, *model.input_shape])
    read = sum(part.numel() for part in model.split(theta))
    changed = theta.clone()
    changed[read:] = 7.0
    assert torch.equal(model.apply(theta, x), model.apply(changed, x))
    _, grad = likelihood.nll_and_grad(model, theta, x, torch.tensor([0, 1, 1, 0]), torch.ones(4))
    assert grad[read:].count_nonzero() == 0


@pytest.mark.parametrize("name", registry.networks())
def test_the_layers_have_names_and_cover_the_vector(name):
    model = network(name)
    assert registry.networks()[name].summary
    assert {"head", "body"} <= set(model.slices)
    layers = [part for key, part in model.slices.items() if key.startswith("layer")]
    assert [part.start for part in layers] == [0, *(part.stop for part in layers[:-1])]
    assert layers[-1].stop + registry.networks()[name].extra == model.size
