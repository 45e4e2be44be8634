"""Result files hold a tensor per layer, which any reader of safetensors understands, and load to the last bit."""

from typing import NamedTuple

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import safe_open

from fedray.arrays.tensor_files import save_tree
from fedray.run import posterior_files
from fedray.types import FedRayError
from tests.helpers import differing, small_plan


class State(NamedTuple):
    mu: torch.Tensor
    stacked: torch.Tensor
    head: torch.Tensor
    body: torch.Tensor
    other: torch.Tensor
    count: torch.Tensor


@pytest.fixture(scope="module")
def model():
    return small_plan("fedavg", {"model.hidden": (5,)}).model


def state(model, seed=0):
    rng = torch.Generator().manual_seed(seed)
    head, body = (model.slices[name].stop - model.slices[name].start for name in ("head", "body"))

    def normal(*shape):
        return torch.randn(*shape, generator=rng)

    return State(
        normal(model.padded), normal(3, model.padded), normal(3, head), normal(body), normal(7), torch.tensor(4)
    )


def test_a_state_loads_as_it_was_saved_padding_included(model, tmp_path):
    path = tmp_path / "global.safetensors"
    posterior_files.save(path, state(model), model, {"algorithm": "mine"})
    assert differing(posterior_files.load(path, state(model, 1), model), state(model)) == []


def test_a_file_of_an_older_version_loads_to_the_same_bits(model, tmp_path):
    save_tree(tmp_path / "old.safetensors", state(model))
    assert differing(posterior_files.load(tmp_path / "old.safetensors", state(model, 1), model), state(model)) == []


def test_another_reader_can_rebuild_the_network(model, tmp_path):
    path = tmp_path / "global.safetensors"
    given = state(model)
    posterior_files.save(path, given, model, {"algorithm": "mine"})
    found = safetensors.numpy.load_file(path)
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    hidden = np.maximum(x @ found["mu.layer1.weight"] + found["mu.layer1.bias"], 0)
    logits = hidden @ found["mu.layer2.weight"] + found["mu.layer2.bias"]
    expected = model.apply(given.mu, torch.from_numpy(x).reshape(4, *model.input_shape))
    assert np.allclose(logits, expected.numpy(), atol=1e-5)
    assert found["stacked.layer1.weight"].shape == (3, 64, 5)
    assert found["head.layer2.bias"].shape == (3, 10)
    assert found["body.layer1.bias"].shape == (5,)
    assert {"other", "count"} <= set(found)
    with safe_open(path, "np") as file:
        about = file.metadata()
    assert about["algorithm"] == "mine"
    assert "Linear(in_features=64, out_features=5" in about["network"]
    assert "x @ weight + bias" in about["convention"]


@pytest.mark.parametrize("change", [{"mu.layer1.bias": None}, {"mu.layer1.bias": np.zeros(4, np.float32)}])
def test_a_file_that_lacks_a_tensor_or_has_another_shape_is_refused(model, tmp_path, change):
    path = tmp_path / "global.safetensors"
    posterior_files.save(path, state(model), model, {})
    stored = safetensors.numpy.load_file(path) | change
    safetensors.numpy.save_file({name: array for name, array in stored.items() if array is not None}, path)
    with pytest.raises(FedRayError, match="expected: mu"):
        posterior_files.load(path, state(model), model)


def test_every_parameter_of_other_networks_has_a_name(tmp_path):
    for settings in ({"model.name": "mclr"}, {"model.likelihood": "gaussian"}):
        plan = small_plan("dsvgd", settings)
        server = plan.initial_server()
        path = tmp_path / "global.safetensors"
        posterior_files.save(path, server, plan.model, {})
        assert differing(posterior_files.load(path, server, plan.model), server) == []
    assert any(name.endswith(".noise") for name in safetensors.numpy.load_file(path))
