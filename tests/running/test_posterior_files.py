"""Result files hold a tensor per layer, which any reader of safetensors understands, and load to the last bit."""

import dataclasses
import zlib
from typing import NamedTuple

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import safe_open
from torch import nn

import fedray
from fedray import launch
from fedray.arrays import trees
from fedray.arrays.tensor_files import load_rows, load_tree, save_tree
from fedray.federate.messages import File, Saved
from fedray.federate.storage.states import OnDisk
from fedray.nets.model import Model
from fedray.nets.own import OwnModule
from fedray.running import posterior_files
from fedray.types import FedRayError
from tests.helpers import described, differing, small_plan
from tests.running.resumed.test_resume import FAST, same_result


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
    assert differing(load_tree(path, state(model, 1)), state(model)) == []


def test_a_file_of_an_older_version_loads_to_the_same_bits(model, tmp_path):
    save_tree(tmp_path / "old.safetensors", state(model))
    assert differing(load_tree(tmp_path / "old.safetensors", state(model, 1)), state(model)) == []


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
        load_tree(path, state(model))


def test_another_reader_can_rebuild_a_normalization(tmp_path):
    model = described((4,), 6, nn.Flatten(), nn.Linear(4, 6), nn.GroupNorm(2, 6, eps=0), nn.Linear(6, 6))
    path = tmp_path / "global.safetensors"
    rng = torch.Generator().manual_seed(0)
    given, x = (
        State(*(torch.randn(model.padded, generator=rng) for _ in State._fields)),
        torch.randn(3, 4, generator=rng),
    )
    posterior_files.save(path, given, model, {})
    found = {name.removeprefix("mu."): array for name, array in safetensors.numpy.load_file(path).items()}
    groups = (x.numpy() @ found["layer1.weight"] + found["layer1.bias"]).reshape(3, 2, 3)
    z = ((groups - groups.mean(-1, keepdims=True)) / groups.std(-1, keepdims=True)).reshape(3, 6)
    outputs = (z * (1 + found["layer2.weight"]) + found["layer2.bias"]) @ found["layer3.weight"] + found["layer3.bias"]
    assert np.allclose(outputs, model.apply(given.mu, x).numpy(), atol=1e-4)
    with safe_open(path, "np") as file:
        assert "z * (1 + weight) + bias" in file.metadata()["convention"]


def test_every_parameter_of_other_networks_has_a_name(tmp_path):
    for settings in ({"model.name": "mclr"}, {"model.likelihood": "gaussian"}):
        plan = small_plan("dsvgd", settings)
        server = plan.initial_server()
        path = tmp_path / "global.safetensors"
        posterior_files.save(path, server, plan.model, {})
        assert differing(load_tree(path, server), server) == []
    assert any(name.endswith(".noise") for name in safetensors.numpy.load_file(path))


@pytest.mark.parametrize("length", ["", "head", "body", "padded"])
def test_the_row_of_a_client_is_read_from_named_tensors_and_from_whole_vectors(model, tmp_path, length):
    """Of three clients, and of as many as a vector of the network is long: a number of each is no such vector."""
    lengths = {name: part.stop - part.start for name, part in model.slices.items()} | {"padded": model.padded, "": 3}
    clients = [state(model, seed) for seed in range(lengths[length])]
    posterior_files.save(tmp_path / "new.safetensors", trees.stack(clients), model, {}, stacked=True)
    save_tree(tmp_path / "old.safetensors", trees.stack(clients))
    for name in ("new", "old"):
        found = load_rows(tmp_path / f"{name}.safetensors", state(model, 9), len(clients))
        assert all(differing(found.row(k), clients[k]) == [] for k in range(3))
        with pytest.raises(FedRayError, match="expected: body, count, head, mu, other, stacked"):
            load_rows(tmp_path / f"{name}.safetensors", state(model, 9), len(clients) + 1)


def test_the_rows_of_a_file_are_not_read_before_they_are_asked_for(model, tmp_path):
    path = tmp_path / "personal.safetensors"
    posterior_files.save(path, trees.stack([state(model, seed) for seed in range(3)]), model, {}, stacked=True)
    found = load_rows(path, state(model, 9), 3)
    content = bytearray(path.read_bytes())
    content[8 + int.from_bytes(content[:8], "little") :] = bytes(
        len(content) - 8 - int.from_bytes(content[:8], "little")
    )
    with path.open("r+b") as file:
        file.write(content)
    assert not any(leaf.any() for leaf in trees.leaves(found.row(1)))


def whole_vectors(folder):
    """Put the models of a result into the files that older versions wrote."""
    run = fedray.load(folder)
    save_tree(folder / "global.safetensors", run.snapshot.server)
    rows = [run.snapshot.clients.row(k) for k in range(run.plan.clients)]
    save_tree(folder / "personal.safetensors", trees.stack(rows))


@pytest.mark.usefixtures("unpainted")
def test_a_result_of_an_older_version_predicts_the_same_and_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("new", "old"):
        assert launch.main([*FAST, "--tracking.uri", "none", "--rounds", "2", "--name", name]) == 0
    whole_vectors(tmp_path / "runs/old")
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(*(fedray.load(f"runs/{name}").predict(x, client=4).draws for name in ("new", "old")))
    for name in ("new", "old"):
        assert launch.main(["--resume", f"runs/{name}", "--rounds", "3"]) == 0
    same_result("runs/new", "runs/old")


def test_a_state_on_disk_may_have_come_from_a_result(model, tmp_path):
    """Of a run with one client the file of all clients is that of one: it is linked, not read."""
    path = tmp_path / "personal.safetensors"
    posterior_files.save(path, trees.stack([state(model)]), model, {}, stacked=True)
    content = path.read_bytes()
    (tmp_path / "kept").mkdir()
    states = OnDisk(state(model, 1), [0], torch.device("cpu"), str(tmp_path / "kept"))
    states.load(Saved(str(tmp_path), 2, (File(path.name, len(content), zlib.crc32(content), (0,)),)))
    assert differing(states.row(0), state(model)) == []


class Whole(NamedTuple):
    theta: torch.Tensor


def named_places(model, path, length):
    """Where each tensor in the file of a vector begins in it, by name: its entries are their own places."""
    posterior_files.save(path, Whole(torch.arange(float(length))), model, {})
    return {name: int(array.flat[0]) for name, array in safetensors.numpy.load_file(path).items()}


def test_what_follows_the_layers_has_its_own_name(tmp_path):
    model = dataclasses.replace(small_plan("dsvgd", {"model.likelihood": "gaussian"}).model, extra=3)
    found = named_places(model, tmp_path / "file", model.padded)
    assert found["theta.noise"] == model.slices["noise"].start == found["theta.prior"] + 3
    assert found["theta.padding"] == model.size


def test_tensors_of_a_module_keep_its_names(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(5, 3), nn.Linear(3, 4)

        def forward(self, x):
            return self.head(self.first(x).relu())

    model = Model(nn.Sequential(OwnModule(Net())), (5,), 4)
    found = named_places(model, tmp_path / "file", model.padded)
    assert found["theta.first.weight"] == 0
    assert found["theta.first.bias"] == 15
    assert found["theta.head.weight"] == model.slices["head"].start


def test_a_vector_that_may_be_head_or_body_keeps_its_own_name(tmp_path):
    model = described((5,), 4, nn.Linear(5, 2), nn.ReLU(), nn.Linear(2, 4))  # 12 parameters each
    assert named_places(model, tmp_path / "file", 12) == {"theta": 0}
