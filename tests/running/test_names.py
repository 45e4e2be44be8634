"""Clients and classes that the data name: in tables, in figures, and as arguments of the predictor."""

from __future__ import annotations

import asyncio
import csv
import json

import numpy as np
import pytest
from starlette.requests import Request

import fedray
from fedray.algorithms.averaging.fedper import FedPer
from fedray.running.served import answers, web
from fedray.types import FedRayError

OWNERS = ("ann", "bob", "cem")
KINDS = ("cat", "dog", "emu")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, 120)
    x = rng.standard_normal((120, 4)) + 3 * np.eye(3, 4)[kinds]
    names = np.array(OWNERS)[np.arange(120) % 3]
    np.savez(folder / "mine.npz", x=x, y=np.array(KINDS)[kinds], client=names)
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
    assert model.plan.names[:2] == (KINDS, OWNERS)
    assert "client='ann'" in repr(model)
    by_name, by_number = model.predict(x, client="bob"), model.predict(x, client=1)
    assert np.array_equal(by_name.probs, by_number.probs)
    assert not np.array_equal(by_name.probs, model.predict(x, client="cem").probs)
    with pytest.raises(FedRayError, match="client='bop': no client has this name; did you mean bob"):
        model.predict(x, client="bop")


def test_a_served_client_is_named_in_the_header_and_classes_in_the_reply(result, monkeypatch):
    folder, x = result
    served = answers.opened(folder, answers.Limits(), answers.digest_of("token"))
    own = fedray.load(folder)
    body = json.dumps({"x": x[:3].tolist()}).encode()

    def ask(header):
        asked: list[str] = []

        async def personal(client):
            asked.append(client)
            return served.model(served.client(client))

        async def receive():
            return {"type": "http.request", "body": body}

        headers = [(b"authorization", b"Bearer token"), (answers.CLIENT.encode(), header.encode())]
        scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "headers": headers}
        response = asyncio.run(web.respond(served, personal, Request(scope, receive)))
        return response.status_code, json.loads(response.body), asked

    status, found, asked = ask("bob")
    assert (status, found["client"], asked) == (200, 1, ["bob"])  # Serve looks for a replica by this very text
    assert found["probabilities"] == own.predict(x[:3], "bob").probs.tolist()
    assert found["name"] == [KINDS[label] for label in found["label"]]
    assert ask("1")[1]["probabilities"] == found["probabilities"]
    status, found, _ = ask("bop")
    assert (status, found["error"]) == (
        404,
        "client 'bop': this run has clients 0 to 2 and their names; name one of them",
    )
    monkeypatch.setattr(served.run, "plan", own.plan._replace(names=own.plan.names._replace(users=("ann", "王", "0"))))
    assert ask("王")[1]["client"] == 1
    assert ask("0")[1]["client"] == 2  # a name comes before a number
