"""Clients and classes that the data name: in tables, in figures, and as arguments of the predictor."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import fedray
from fedray.algorithms.averaging.fedper import FedPer
from fedray.types import FedRayError

OWNERS = ("ann", "bob", "cem")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, 120)
    x = rng.standard_normal((120, 4)) + 3 * np.eye(3, 4)[kinds]
    names = np.array(OWNERS)[np.arange(120) % 3]
    np.savez(folder / "mine.npz", x=x, y=np.array(["cat", "dog", "emu"])[kinds], client=names)
    experiment = fedray.Experiment(
        algorithm=FedPer(), rounds=1, local_steps=1, data=fedray.DataConfig(name=str(folder / "mine.npz"))
    )
    execution = fedray.Execution(
        runtime="local", tracking=fedray.TrackingConfig(uri="none"), output=folder / "result", backend="loop"
    )
    return fedray.run_experiment(experiment, execution).folder, x


def test_the_table_of_clients_has_their_names(result):
    folder, _ = result
    with (folder / "clients.csv").open() as file:
        assert [(row["client"], row["name"]) for row in csv.DictReader(file)] == list(zip("012", OWNERS, strict=True))


def test_a_client_is_asked_by_its_name(result):
    folder, x = result
    model = fedray.load(folder)
    assert model.plan.names == (("cat", "dog", "emu"), OWNERS)
    assert "client='ann'" in repr(model)
    by_name, by_number = model.predict(x, client="bob"), model.predict(x, client=1)
    assert np.array_equal(by_name.probs, by_number.probs)
    assert not np.array_equal(by_name.probs, model.predict(x, client="cem").probs)
    with pytest.raises(FedRayError, match="client='bop': no client has this name; did you mean bob"):
        model.predict(x, client="bop")
