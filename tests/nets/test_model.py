"""Networks as functions of one vector agree with torch.nn, and local reparameterization with weight sampling."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedray.arrays.rng import Stream
from fedray.nets.network import given
from fedray.types import FedRayError
from tests.helpers import NETS, built, described


def reference(model, theta):
    """The same network as an nn.Sequential with its own weights."""
    layers, parts = [], iter(model.split(theta))
    for layer in model.layers:
        twin = copy.copy(layer)
        if isinstance(layer, nn.Linear | nn.Conv2d):
            twin._parameters = {}
            weight, bias = next(parts), next(parts)
            twin.weight = nn.Parameter(weight.t() if isinstance(layer, nn.Linear) else weight)
            twin.bias = nn.Parameter(bias)
        layers.append(twin)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("model", NETS.values(), ids=NETS)
def test_a_vector_and_its_layers_are_one(model):
    theta = model.pad(torch.randn(model.padded, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(model.join(model.split(theta)), theta)
    assert model.split(theta)[0].data_ptr() == theta.data_ptr()
    assert theta[model.size :].count_nonzero() == 0
    named = [part for name, part in model.slices.items() if name not in ("head", "body")]
    assert [part.start for part in named] + [model.size] == [0] + [part.stop for part in named]
    assert model.slices["body"] == slice(0, named[-1].start)
    assert model.slices["head"] == named[-1]


@pytest.mark.parametrize("model", NETS.values(), ids=NETS)
def test_tensors_have_the_names_of_their_layers(model):
    theta, parts = torch.arange(model.padded), model.split(torch.arange(model.padded))
    names = [f"layer{i // 2 + 1}.{('weight', 'bias')[i % 2]}" for i in range(len(parts))]
    for name, part in [*zip(names, parts, strict=True), ("head.weight", parts[-2]), ("head.bias", parts[-1])]:
        assert torch.equal(model.part((name,)), part.flatten())
    both = model.part(("head.bias", "head.weight"))
    assert torch.equal(both, theta[model.slices["head"]])
    assert torch.equal(model.rest(("head.bias",)), theta[: model.size - model.classes])


@pytest.mark.parametrize("model", NETS.values(), ids=NETS)
def test_logits_are_those_of_torch_nn(model):
    theta, x = model.init(Stream(0, "server")), Stream(0, "x").normal([6, *model.input_shape])
    assert_close(model.apply(theta, x), reference(model, theta)(x), rtol=1e-5, atol=1e-6)


def test_the_initial_weights_are_those_of_torch_nn():
    model = built("mlp", (1, 28, 28), 10, hidden=(100,))
    theta = model.init(Stream(0, "server"))
    for part, fan_in in zip(model.split(theta), (784, 784, 100, 100), strict=True):
        bound = 1 / math.sqrt(fan_in)
        assert part.abs().max() <= bound
        assert part.abs().max() > 0.7 * bound  # of ten biases, too
    assert_close(model.split(theta)[0].std(), torch.tensor(1 / math.sqrt(3 * 784)), rtol=0.01, atol=0)
    assert theta[model.size :].count_nonzero() == 0
    kernel = NETS["conv"].split(NETS["conv"].init(Stream(0, "server")))[0]
    assert 0.9 / math.sqrt(18) < kernel.abs().max() <= 1 / math.sqrt(18)


@pytest.mark.parametrize(
    "model",
    [built("mclr", (5,), 3), described((1, 3, 3), 8, nn.Conv2d(1, 8, 3), nn.Flatten())],
    ids=["linear", "conv"],
)
def test_one_layer_has_the_same_moments_by_local_reparameterization_and_by_weight_sampling(model):
    draws, x = 40_000, Stream(0, "x").normal([2, *model.input_shape])
    mu, sd = Stream(0, "mu").normal([model.padded]), Stream(0, "sd").uniform([model.padded]) + 0.1
    weights = mu + sd * Stream(0, "weights").normal([draws, model.padded])
    sampled = torch.vmap(lambda theta: model.apply(theta, x))(weights)
    noise = Stream(0, "local").normal([draws, 2, model.activations])
    parts = model.split(mu), model.split(sd)
    local = torch.vmap(lambda eps: model.forward_local(*parts, x, eps))(noise)
    variance = sampled.var(0)
    assert ((local.mean(0) - sampled.mean(0)).abs() < 4 * (2 * variance / draws).sqrt()).all()
    assert ((local.var(0) - variance).abs() < 4 * variance * 2 / draws**0.5).all()
    assert_close(sampled.mean(0), model.apply(mu, x), rtol=0, atol=0.1)


@pytest.mark.parametrize("model", [net for net in NETS.values() if net.activations])
def test_local_reparameterization_without_spread_is_the_network_at_the_mean(model):
    theta, x = model.init(Stream(0, "server")), Stream(0, "x").normal([6, *model.input_shape])
    still, noise = torch.zeros_like(theta), Stream(0, "noise").normal([6, model.activations])
    logits = model.forward_local(model.split(theta), model.split(still), x, noise)
    assert_close(logits, model.apply(theta, x), rtol=1e-5, atol=1e-6)


def test_every_pre_activation_has_noise_of_its_own():
    model = NETS["mlp"]
    theta, x = model.init(Stream(0, "server")), Stream(0, "x").normal([6, 2, 3])
    sd, noise = torch.full_like(theta, 0.3), Stream(0, "noise").normal([6, model.activations])
    (w1, b1, w2, b2), spread = model.split(theta), 0.3
    flat = x.flatten(1)
    hidden = (flat @ w1 + b1 + spread * (flat.square().sum(1, True) + 1).sqrt() * noise[:, :5]).relu()
    logits = hidden @ w2 + b2 + spread * (hidden.square().sum(1, True) + 1).sqrt() * noise[:, 5:]
    assert_close(model.forward_local((w1, b1, w2, b2), model.split(sd), x, noise), logits, rtol=1e-5, atol=1e-5)


class Residual(nn.Module):
    """A block whose weights no model knows."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 5)

    def forward(self, x):
        return x + self.inner(x)


class Doubled(nn.Linear):
    """A layer that computes something else than its parent."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (Residual(), r"layer 1 \(Residual\): holds inner.weight, inner.bias, which would stay out"),
        (nn.LayerNorm(5), r"layer 1 \(LayerNorm\): holds weight, bias"),
        (nn.BatchNorm1d(5, affine=False), r"layer 1 \(BatchNorm1d\): holds running_mean"),
        (Doubled(5, 5), r"layer 1 \(Doubled\): holds weight, bias"),
        (nn.Dropout(0.5), r"layer 1 \(Dropout\): draws random numbers"),
        (nn.Linear(5, 5, bias=False), r"needs a bias"),
        (nn.Linear(4, 5), r"layer 1 .*cannot take \[1, 5\]"),
    ],
)
def test_a_layer_that_would_be_lost_is_refused_by_name(layer, match):
    with pytest.raises(FedRayError, match=match):
        described((5,), 3, nn.Flatten(), layer, nn.Linear(5, 3))


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d])
def test_a_layer_that_mixes_the_examples_of_a_minibatch_is_refused(norm):
    """Statistics of a minibatch are those of its padding, too; those of a picture are its own."""
    layers = nn.Conv2d(1, 2, 3, padding=1), norm(2, affine=False, track_running_stats=False), nn.Flatten()
    if norm is nn.InstanceNorm2d:
        assert described((1, 4, 4), 3, *layers, nn.Linear(32, 3)).size == 20 + 99
    else:
        with pytest.raises(FedRayError, match=r"BatchNorm2d.*changes with the others of its minibatch.*GroupNorm"):
            described((1, 4, 4), 3, *layers, nn.Linear(32, 3))


def test_a_normalization_without_parameters_has_none_in_the_vector():
    model = described((4,), 3, nn.Linear(4, 6), nn.GroupNorm(2, 6, affine=False), nn.Linear(6, 3))
    assert model.shapes == ((4, 6), (6,), (6, 3), (3,))
    theta, x = model.init(Stream(0, "server")), Stream(0, "x").normal([5, 4])
    w1, b1, w2, b2 = model.split(theta)
    assert_close(model.apply(theta, x), torch.nn.functional.group_norm(x @ w1 + b1, 2) @ w2 + b2)


@pytest.mark.parametrize(
    "model",
    [
        described((4,), 3, nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)),
        described((1, 4, 4), 8, nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Flatten()),
        described((5, 4), 10, nn.Linear(4, 2), nn.Flatten()),
    ],
    ids=["normalization", "convolution", "linear, of a sequence"],
)
def test_weights_of_several_pre_activations_keep_the_local_reparameterization_away(model):
    """Drawn each by itself, pre-activations that share weights would be independent, and a logit's spread another."""
    parts = model.split(torch.zeros(model.padded))
    with pytest.raises(FedRayError, match="local reparameterization"):
        model.forward_local(parts, parts, torch.zeros(1, *model.input_shape), torch.zeros(1, 0))


class Within(nn.Module):
    """Of inputs from 0 to 1 alone: places in an embedding, and roots."""

    def __init__(self):
        super().__init__()
        self.places, self.out = nn.Embedding(17, 2), nn.Linear(15, 3)

    def forward(self, x):
        return self.out(torch.cat([self.places((x * 16).long()).flatten(1), x.sqrt()], 1))


class Mixing(nn.Module):
    """The same, with the mean of a minibatch."""

    def __init__(self):
        super().__init__()
        self.within = Within()

    def forward(self, x):
        return self.within(x) - x.sqrt().mean()


class Rooted(nn.Module):
    """NaN of what is below 0."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        return self.out(x.sqrt())


def test_a_module_whose_inputs_have_a_domain_is_tried_within_it():
    for module in (Within(), Rooted()):
        assert given(module, (5,), 3).size > 0
    with pytest.raises(FedRayError, match="changes with the others of its minibatch"):
        given(Mixing(), (5,), 3)


def test_a_layer_that_draws_in_training_alone_draws_nothing():
    model = described((5,), 3, nn.Flatten(), nn.Linear(5, 4), nn.RReLU(0.1, 0.9), nn.Linear(4, 3))
    theta, x = model.init(Stream(0, "server")), Stream(0, "x").normal([6, 5])
    assert torch.equal(model.apply(theta, x), model.apply(theta, x))


def test_a_chain_that_does_not_end_in_the_classes_is_refused():
    with pytest.raises(FedRayError, match=r"maps an input of shape \[5\] to \[4\], not to the 3 outputs"):
        described((5,), 3, nn.Flatten(), nn.Linear(5, 4))
    with pytest.raises(FedRayError, match="no parameters to learn"):
        described((3,), 3, nn.Flatten())
    with pytest.raises(FedRayError, match="padding with zeros"):
        described((1, 4, 4), 8, nn.Conv2d(1, 2, 3, stride=2, padding=1, padding_mode="reflect"), nn.Flatten())


def test_chains_in_the_chain_are_unpacked():
    plain = described((5,), 3, nn.Flatten(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    nested = described((5,), 3, nn.Flatten(), nn.Sequential(nn.Linear(5, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 3))))
    theta, x = plain.init(Stream(0, "server")), Stream(0, "x").normal([6, 5])
    assert (nested.size, nested.slices) == (plain.size, plain.slices)
    assert torch.equal(nested.apply(theta, x), plain.apply(theta, x))


def test_parameters_that_no_memory_holds_are_refused_before_it_is_asked_for():
    wide = nn.Linear(2**30, 2**20, device="meta")
    with pytest.raises(FedRayError, match=r"^network: its \d+ parameters take \d+ GiB"):
        described((2**30,), 2**20, wide)


def test_named_layers_and_the_others_make_up_the_vector():
    model = NETS["deep"]
    theta = model.init(Stream(0, "server"))
    for names in (("head",), ("layer1.bias", "layer3"), ()):
        own, others = theta[model.part(names)], theta[model.rest(names)]
        assert torch.equal(model.assemble(names, own, others), theta)
