"""A caller's module is a function of one vector: the same outputs and gradients as PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedray.arrays.rng import Stream
from fedray.nets.likelihood import nll_and_grad
from fedray.nets.model import Model
from fedray.nets.network import given
from fedray.nets.own import OwnModule
from fedray.types import FedRayError


class Net(nn.Module):
    """A skip connection, a norm, a tied layer and a scalar: nothing of a chain."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5, bias=False))
        self.norm = nn.LayerNorm(5)
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.out = nn.Linear(5, 4)

    def forward(self, x):
        x = self.body(x.flatten(1))
        return self.out(self.norm(x) * self.scale + self.body[0](x.new_ones(len(x), 6)))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def model(net):
    return given(net, (2, 3), 4)


def vector(net, model):
    """As the network keeps them: scales of normalization layers are their distance from 1."""
    values = [p.detach() - 1 if name.endswith("norm.weight") else p.detach() for name, p in net.named_parameters()]
    return model.join([value.reshape(shape) for value, shape in zip(values, model.shapes, strict=True)])


X, Y = torch.linspace(-1, 1, 5 * 6).reshape(5, 2, 3), torch.tensor([0, 1, 2, 3, 0])


def test_outputs_and_gradient_are_those_of_the_module(net, model):
    theta = vector(net, model)
    assert torch.allclose(model.apply(theta, X), net(X), rtol=1e-6)
    value, grad = nll_and_grad(model, theta, X, Y, torch.full((5,), 0.2))
    loss = nn.functional.cross_entropy(net(X), Y)
    own = torch.autograd.grad(loss, list(net.parameters()))
    assert value == pytest.approx(float(loss.detach()), rel=1e-5)
    assert torch.allclose(grad[: model.size], torch.cat([g.flatten() for g in own]), atol=1e-6)
    assert (grad[model.size :] == 0).all()


def test_a_stack_is_every_vector_by_itself(net, model):
    thetas = torch.stack([vector(net, model), 2 * vector(net, model)])
    values, grads = nll_and_grad(model, thetas, X, Y, torch.ones(5))
    for k, theta in enumerate(thetas):
        value, grad = nll_and_grad(model, theta, X, Y, torch.ones(5))
        assert torch.allclose(values[k], value, rtol=1e-5)
        assert torch.allclose(grads[k], grad, rtol=1e-4, atol=1e-5)


def test_parts_have_the_names_of_the_module(net, model):
    theta = vector(net, model)
    for name in ("body.0.weight", "out.bias", "norm.bias", "scale"):
        assert torch.equal(theta[model.part([name])], net.get_parameter(name).detach().flatten())
    assert torch.equal(model.part(["head"]), model.part(["out"]))
    assert torch.equal(model.part(["head.bias"]), model.part(["out.bias"]))
    assert torch.equal(model.rest(["head"]), torch.arange(model.size - 24))


def test_new_weights_follow_the_stream_and_leave_the_module_and_pytorch_alone(net, model):
    before, state = vector(net, model), torch.random.get_rng_state()
    first, again, other = (model.init(Stream(seed, "server")) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(vector(net, model), before)
    assert torch.equal(first[model.part(["norm.weight"])], torch.zeros(5))  # LayerNorm begins with ones
    assert first[model.part(["scale"])] == 3.0  # nobody says how else it begins
    bound = 1 / 6**0.5  # PyTorch's own for 6 inputs
    drawn = first[model.part(["body.0.weight"])]
    assert bound / 2 < drawn.abs().max() <= bound


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.RMSNorm(6)], ids=str)
def test_a_vector_of_zeros_normalizes_and_a_posterior_around_them_does_not_hide_what_it_normalizes(norm):
    """Methods draw means of 0.1 and priors around 0: as the scale itself these would turn activations off."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm
            self.out = nn.Linear(6, 4)

        def forward(self, x):
            return self.out(self.norm(x.flatten(1)))

    model = given(Normed(), (2, 3), 4)
    theta = torch.zeros(model.padded)
    theta[model.part(["out.weight"])] = torch.eye(6)[:4].flatten()
    assert torch.allclose(model.apply(theta, X), norm(X.flatten(1)).detach()[:, :4], atol=1e-6)


class Branches(nn.Linear):
    def forward(self, x):
        y = super().forward(x.flatten(1))
        return y if y.sum() > 0 else 2 * y


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)), x


class Draws(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)) * torch.rand(4)


class BranchesOnInputs(nn.Linear):
    def forward(self, x):
        y = super().forward(x.flatten(1))
        return y if x.sum() > 0 else -y


class Mixes(nn.Linear):
    def forward(self, x):
        y = super().forward(x.flatten(1))
        return y - y.mean(0)


class Headed(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.tail = nn.Linear(4, 4)

    def forward(self, x):
        return self.tail(self.head(x.flatten(1)))


class Sure(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)).softmax(-1)


def frozen():
    net = Net()
    net.norm.requires_grad_(False)
    return net


class Kept(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)).softmax(-1).log()


class Rates(nn.Linear):
    def forward(self, x):
        return super().forward(torch.relu_(x).flatten(1)).sigmoid()


@pytest.mark.parametrize("kind", [Kept, Rates])
def test_outputs_that_are_no_probabilities_and_inputs_that_are_written_to_are_taken(kind):
    assert given(kind(6, 4), (2, 3), 4).size == 28


@pytest.mark.parametrize("kind", [Sure, BranchesOnInputs])
def test_a_module_that_a_run_has_played_is_not_tried_again(kind):
    """Results of before these were refused can be loaded."""
    with pytest.raises(FedRayError):
        given(kind(6, 4), (2, 3), 4)
    assert given(kind(6, 4), (2, 3), 4, played=True).size == 28


REFUSED = {
    "buffers": (nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.BatchNorm1d(4)), "buffers.*running_mean"),
    "frozen": (frozen(), "norm.weight is frozen"),
    "double": (Net().double(), "is torch.float64"),
    "empty": (nn.Identity(), "no parameters to learn"),
    "dropout": (nn.Sequential(nn.Flatten(), nn.LayerNorm(6), nn.Dropout(), nn.Linear(6, 4)), "Dropout"),
    "softmax": (nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Softmax(-1)), "ends in Softmax.*are logits"),
    "softmax inside": (Sure(6, 4), "outputs of Sure sum to 1, as after a softmax"),
    "branches": (Branches(6, 4), "cannot be stacked"),
    "branches on inputs": (BranchesOnInputs(6, 4), "cannot be stacked"),
    "draws": (Draws(6, 4), "cannot be stacked"),
    "mixes": (Mixes(6, 4), "Mixes: the output for one example changes with the others"),
    "head": (Headed(), "head is not the last part"),
    "outputs": (nn.Sequential(nn.Flatten(), nn.LayerNorm(6), nn.Linear(6, 3)), "not to the 4 outputs"),
    "lazy": (nn.Sequential(nn.Flatten(), nn.LayerNorm(6), nn.LazyLinear(4)), "weight has no shape yet"),
    "pair": (Pair(6, 4), "returns tuple, not a tensor"),
}


def test_a_parameter_with_two_names_in_one_module_is_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 6))
            self.v = self.w

        def forward(self, x):
            return x.flatten(1) @ self.w.T @ self.v @ self.v.T

    model, x = given(Tied(), (2, 3), 4), torch.randn(5, 2, 3)
    theta = torch.randn(model.padded)
    assert model.size == 24
    torch.testing.assert_close(model.apply(2 * theta, x), 8 * model.apply(theta, x))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_head_whose_weight_is_made_of_other_parameters_has_no_name_for_it():
    head = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))
    model = given(nn.Sequential(nn.Flatten(), nn.LayerNorm(6), head), (2, 3), 4)
    assert "head.weight" not in model.tensors
    assert model.apply(torch.randn(model.padded), torch.randn(5, 2, 3)).shape == (5, 4)


@pytest.mark.parametrize(("module", "message"), REFUSED.values(), ids=REFUSED)
def test_a_module_that_is_no_such_function_is_refused(module, message):
    with pytest.raises(FedRayError, match=message):
        given(module, (2, 3), 4)


@pytest.mark.parametrize("whole", [True, False])
def test_layers_of_a_chain_may_share_their_parameters(whole):
    torch.manual_seed(0)
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight, second.bias = first.weight, first.bias
    chain = nn.Sequential(nn.Flatten(), first, nn.ReLU(), first if whole else second, nn.ReLU(), nn.Linear(6, 4))
    model = given(chain, (2, 3), 4)
    theta = vector(chain, model)
    assert model.size == 6 * 6 + 6 + 6 * 4 + 4
    assert torch.allclose(model.apply(theta, X), chain(X), rtol=1e-6)
    _, grad = nll_and_grad(model, theta, X, Y, torch.full((5,), 0.2))
    own = torch.autograd.grad(nn.functional.cross_entropy(chain(X), Y), list(chain.parameters()))
    assert torch.allclose(grad[: model.size], torch.cat([g.flatten() for g in own]), atol=1e-6)
    with pytest.raises(FedRayError, match="two of its layers share parameters"):
        Model(chain, (2, 3), 4)


def test_a_chain_of_known_layers_stays_a_chain():
    chain = nn.Sequential(nn.Flatten(), nn.Linear(6, 4))
    assert not any(isinstance(layer, OwnModule) for layer in given(chain, (2, 3), 4).layers)
    assert given(nn.Sequential(nn.Flatten(), nn.Linear(6, 4, bias=False)), (2, 3), 4).size == 24
    with pytest.raises(FedRayError, match="needs a bias"):
        Model(nn.Sequential(nn.Flatten(), nn.Linear(6, 4, bias=False)), (2, 3), 4)


def test_features_of_a_module_are_not_known(net, model):
    with pytest.raises(FedRayError, match="does not say what its head is given"):
        model.features(model.split(vector(net, model)), X)
