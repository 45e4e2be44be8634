"""The features of a network and their gradient, by hand and by automatic differentiation."""

import math

import pytest
import torch
from torch.testing import assert_close

from fedray.arrays.rng import Stream
from fedray.nets.fully_connected import features_and_pullback, leaks_of
from tests.helpers import NETS


@pytest.mark.parametrize("name", ["mlp", "deep", "leaky", "conv"])
def test_the_pullback_is_the_gradient_of_the_features(name):
    model = NETS[name]
    stream = Stream(0, "features")
    theta = model.pad(stream.normal([sum(map(math.prod, model.shapes))])).double()
    x = stream.normal([6, *model.input_shape]).double()
    h, pullback = features_and_pullback(model, theta, x)
    assert_close(h, model.features(model.split(theta), x).flatten(1))
    along = stream.normal([*h.shape]).double()
    exact = torch.func.grad(lambda theta: (model.features(model.split(theta), x).flatten(1) * along).sum())(theta)
    assert_close(pullback(along), exact)


def test_convolutions_are_left_to_automatic_differentiation():
    assert leaks_of(NETS["conv"]) is None
    assert leaks_of(NETS["leaky"]) == [None, 0.1, 0.1]
