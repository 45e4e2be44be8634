"""The networks of the papers: their sizes, their layers, and what they refuse."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from fedray.arrays.rng import Stream
from fedray.nets.model import Model
from fedray.types import FedRayError
from tests.helpers import built


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters", "activations"),
    [
        ("mlp", (1, 28, 28), 10, 79_510, 110),
        ("mclr", (1, 28, 28), 10, 7_850, 10),
        ("mclr", (1, 28, 28), 62, 48_670, 62),
        ("dnn", (1, 28, 28), 10, 79_510, 110),
        ("dnn", (1, 28, 28), 62, 84_762, 162),
        ("cnn", (3, 32, 32), 10, 62_006, 0),
        ("lstm", (25, 50), 2, 1_116_602, 0),
        ("vgg", (3, 32, 32), 10, 246_314, 0),
        ("vgg_gn", (3, 32, 32), 10, 246_314 - 1_290 + 2 * 368 + 129 * 512 + 513 * 512 + 5_130, 0),
    ],
)
def test_the_papers_networks_have_the_papers_size(name, shape, classes, parameters, activations):
    model = built(name, shape, classes)
    assert (model.size, model.activations) == (parameters, activations)
    assert model.padded % 64 == 0
    assert 0 <= model.padded - model.size < 64


def test_the_dnn_leaks_a_tenth_of_what_is_negative():
    model = built("dnn", (2, 3), 4, hidden=(7,))
    theta, x = model.init(Stream(0, "server")), Stream(0, "x").normal([6, 2, 3])
    w1, b1, w2, b2 = model.split(theta)
    a = x.flatten(1) @ w1 + b1
    assert (a < 0).any()
    assert (a > 0).any()
    assert_close(model.apply(theta, x), torch.where(a > 0, a, 0.1 * a) @ w2 + b2)


def test_features_are_what_the_layer_below_the_head_gives_before_its_activation():
    model = built("dnn", (2, 3), 4, hidden=(5, 7))
    theta, x = model.init(Stream(0, "server")), Stream(0, "x").normal([6, 2, 3])
    parts = model.split(theta)
    w1, b1, w2, b2, *_ = parts
    first = functional.leaky_relu(x.flatten(1) @ w1 + b1, 0.1)
    assert_close(model.features(parts, x), first @ w2 + b2)


def test_features_of_convolutions_are_pooled():
    model = built("vgg", (3, 32, 32), 10)
    parts = model.split(model.init(Stream(0, "server")))
    z = model.features(parts, Stream(0, "x").normal([2, 3, 32, 32]))
    assert z.shape == (2, 128)
    assert (z < 0).any()
    assert_close(
        model.apply(model.init(Stream(0, "server")), Stream(0, "x").normal([2, 3, 32, 32])),
        z.relu() @ parts[-2] + parts[-1],
    )


def test_the_normalized_vgg_is_what_modules_of_pytorch_compute():
    """A stored scale is the distance from 1."""
    model = built("vgg_gn", (3, 32, 32), 10)
    theta, x = Stream(0, "theta").normal([model.padded]) / 10, Stream(0, "x").normal([2, 3, 32, 32])
    parts, channels = iter(model.split(theta)), 3
    logits: list[nn.Module] = []
    for layer in model.layers:
        weight, bias = (next(parts), next(parts)) if any(True for _ in layer.parameters()) else (None, None)
        if isinstance(layer, nn.Conv2d):
            logits += [nn.Conv2d(channels, channels := layer.out_channels, 3, padding=1)]
        elif isinstance(layer, nn.GroupNorm):
            assert channels // layer.num_groups == 16
            logits += [nn.GroupNorm(channels // 16, channels)]
            weight = 1 + weight
        elif isinstance(layer, nn.Linear):
            logits += [nn.Linear(layer.in_features, layer.out_features)]
            weight = weight.mT
        else:
            logits += [layer]
        if weight is not None:
            logits[-1].load_state_dict({"weight": weight, "bias": bias})
    assert_close(model.apply(theta, x), nn.Sequential(*logits)(x).detach(), rtol=1e-4, atol=1e-4)


def test_a_normalization_starts_with_scale_one_and_shift_zero():
    model = built("vgg_gn", (3, 32, 32), 10)
    theta = model.init(Stream(0, "server"))
    norm = theta[model.part(["layer2"])]
    assert norm.shape == (32,)
    assert norm.count_nonzero() == 0
    assert theta[model.part(["layer1"])].count_nonzero() == model.slices["layer1"].stop
    maps = functional.conv2d(Stream(0, "x").normal([2, 3, 32, 32]), *model.split(theta)[:2], padding=1)
    expected = nn.GroupNorm(1, 16)(maps).detach()
    own = Model(model.layers[:2].append(nn.Flatten()), (3, 32, 32), 16 * 1024)
    assert_close(own.apply(theta, Stream(0, "x").normal([2, 3, 32, 32])), expected.flatten(1), rtol=1e-4, atol=1e-4)


def test_the_cnn_pools_after_each_convolution():
    """The public Bayesian twin of BPFed lacks the second pooling."""
    model = built("cnn", (3, 32, 32), 10)
    theta, x = model.init(Stream(0, "server")), Stream(0, "x").normal([2, 3, 32, 32])
    parts = iter(model.split(theta))
    for _ in range(2):
        x = functional.max_pool2d(functional.conv2d(x, next(parts), next(parts)).relu(), 2)
    assert x.shape == (2, 16, 5, 5)
    x = x.flatten(1)
    for _ in range(2):
        x = (x @ next(parts) + next(parts)).relu()
    assert_close(
        model.apply(theta, Stream(0, "x").normal([2, 3, 32, 32])),
        x @ next(parts) + next(parts),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("name", "smallest", "parameters"),
    [
        ("vgg", (3, 32, 32), None),
        ("vgg_gn", (3, 32, 32), None),
        ("cnn", (1, 16, 16), 6 * 26 + 16 * 151 + 17 * 120 + 121 * 84 + 85 * 10),
    ],
)
def test_convolutions_refuse_images_that_their_pooling_would_eat(name, smallest, parameters):
    channels, height, width = smallest
    for shape in ((channels, height - 1, width), (channels, height, width - 1), (height, width), (784,)):
        with pytest.raises(FedRayError, match=rf"{name}.*too small.*{height} x {width}.*mlp"):
            built(name, shape, 10)
    model = built(name, smallest, 10)
    assert parameters in (None, model.size)
    assert model.apply(model.init(Stream(0, "server")), torch.zeros(2, *smallest)).shape == (2, 10)
