"""Which client, which network and which options a run of the library takes, and which it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedray
from fedray.types import FedRayError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(300, 4)).astype(np.float32), RNG.integers(0, 3, 300)


def test_a_number_that_is_one_clients_name_and_anothers_place_is_refused() -> None:
    """Owners 1, 2 and 3 are clients 0, 1 and 2."""
    run = fedray.run("local", (X, Y, np.repeat([1, 2, 3], 100)), rounds=1)
    by_name = [run.predict(X, client=name).probs for name in ("1", "2", "3")]
    assert not by_name[0].equal(by_name[1])
    assert run.predict(X, client=0).probs.equal(by_name[0])  # nobody's name
    with pytest.raises(
        FedRayError, match="client=1: is the name of a client and the number of client '2'; give a name"
    ):
        run.predict(X, client=1)
    with pytest.raises(FedRayError, match="client=3: is the name of a client; give a name as text, '3'"):
        run.predict(X, client=3)


def test_owners_whose_numbers_are_their_places_may_be_given_either_way() -> None:
    run = fedray.run("local", (X, Y, np.repeat([0, 1, 2], 100)), rounds=1)
    assert run.predict(X, client=1).probs.equal(run.predict(X, client="1").probs)


@pytest.mark.parametrize(
    ("algorithm", "y", "reason"), [("fedavg", Y, "has no personal models"), ("pfedbayes", X[:, 0], "real numbers")]
)
def test_the_loss_deviation_of_what_has_none_is_refused_before_the_first_round(algorithm, y, reason) -> None:
    with pytest.raises(FedRayError, match=f"^loss_deviation: .*{reason}"):
        fedray.run(algorithm, (X, y), clients=3, rounds=1, loss_deviation=True, play=False)


def test_a_result_is_not_read_with_another_network_of_the_same_sizes(tmp_path: Path) -> None:
    def network(activation: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), activation, nn.Linear(8, 3))

    run = fedray.run("fedper", (X, Y), model=network(nn.ReLU()), clients=3, rounds=1, output=tmp_path / "run")
    again = fedray.load(tmp_path / "run", model=network(nn.ReLU()))
    assert again.predict(X, client=0).probs.equal(run.predict(X, client=0).probs)
    with pytest.raises(FedRayError, match="is of another network; give the network of this run"):
        fedray.load(tmp_path / "run", model=network(nn.Tanh()))


def test_masked_values_are_missing_ones() -> None:
    masked = np.ma.masked_array(X, mask=X > 2)
    with pytest.raises(FedRayError, match=f"x lacks {(X > 2).sum()} of its values"):
        fedray.run("fedavg", (masked, Y), clients=3, rounds=1, play=False)


@pytest.mark.parametrize("name", ["DataFrame", "Dataset"])
def test_a_class_of_another_library_is_none_of_those_known_by_its_name(name: str) -> None:
    with pytest.raises(FedRayError, match=f"^data={name}: .*give arrays"):
        fedray.run("fedavg", type(name, (), {"__repr__": lambda self: name})(), rounds=1, play=False)


def test_a_partition_that_deals_little_of_the_data_says_so() -> None:
    def remarks(*counts: int) -> str:
        y = np.repeat(np.arange(len(counts)), counts)
        x = RNG.normal(size=(len(y), 4))
        return " ".join(fedray.run("fedavg", (x, y), rounds=1, clients=10, play=False).plan.remarks)

    assert "only 60 of 2000 examples are dealt: a client has as many of each of its classes" in remarks(1500, 480, 20)
    assert "are dealt" not in remarks(600, 600, 600)


def test_a_run_whose_file_has_moved_is_asked_with_the_file_at_its_new_place(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=X, y=Y)
    run = fedray.run("fedavg", tmp_path / "mine.npz", ft=2, clients=3, rounds=1, output=tmp_path / "run")
    expected = run.predict(X[:2], client=1)
    (tmp_path / "mine.npz").rename(tmp_path / "moved.npz")
    with pytest.raises(FedRayError, match=r"mine\.npz: there is no such file.*argument `data` of fedray\.load"):
        fedray.load(tmp_path / "run").predict(X[:2], client=1)
    found = fedray.load(tmp_path / "run", data=tmp_path / "moved.npz")
    assert torch.equal(found.predict(X[:2], client=1).probs, expected.probs)
    np.savez(tmp_path / "moved.npz", x=X + 1, y=Y)
    with pytest.raises(FedRayError, match="data are not the examples of this run"):
        fedray.load(tmp_path / "run", data=tmp_path / "moved.npz")


def test_a_model_that_a_method_lacks_is_said_with_the_remedy(tmp_path: Path) -> None:
    owners = np.array(["ann", "bob", "cy"])[np.arange(len(Y)) % 3]
    run = fedray.run("fedavg", (X, Y, owners), rounds=1, output=tmp_path / "global")
    with pytest.raises(FedRayError, match="client='bob': fedavg has no personal models; leave `client` out"):
        run.predict(X[:2], client="bob")
    run = fedray.run("fedper", (X, Y, owners), rounds=1, output=tmp_path / "personal")
    with pytest.raises(FedRayError, match="client=None: fedper has no global model; give a client"):
        run.predict(X[:2])
