"""What MLflow has of a finished run: one model for all clients, linked numbers, datasets with digests, a page."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedray
from fedray import launch
from fedray.algorithms.bayesian.pfedbayes import PFedBayes
from fedray.arrays import trees
from fedray.federate import report
from fedray.federate.planning import make_plan
from fedray.running import mlflow_store, tracking
from fedray.running.finished import load
from fedray.running.published import page
from fedray.running.published.model import STATES, ServedModels
from fedray.running.published.publish import Finished, publish, registration
from fedray.types import FedRayError

FAST = ["--runtime", "local", "--rounds", "11", "--local-steps", "2", "--uncertainty", "--clients", "4"]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """(MLflow's client, the run, the result's folder) of a run that was registered."""
    place = tmp_path_factory.mktemp("tracked")
    uri, folder = f"sqlite:///{place}/mlflow.db", place / "run"
    words = ["pfedbayes", *FAST, "--tracking.uri", uri, "--output", str(folder), "--register", "digits@best"]
    assert launch.main(words) == 0
    client = mlflow_store.connect(uri)
    run_id = json.loads((folder / "summary.json").read_text())["run_id"]
    return client, client.get_run(run_id), folder


def served(tracked):
    import mlflow.pyfunc

    client, run, _ = tracked
    return mlflow.pyfunc.load_model(artifacts_of(client, run))


def model_of(client, run):
    (model,) = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
    return model


def artifacts_of(client, run):
    return model_of(client, run).artifact_location


def inputs(count):
    return np.random.default_rng(0).uniform(0, 16, (count, 1, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("client", [None, "2"])
def test_the_model_answers_as_the_loaded_run_does(tracked, client):
    x = inputs(5)
    found = served(tracked).predict(x, params={"client": client, "draws": 3, "seed": 7})
    expected = load(tracked[2]).predict(x, None if client is None else int(client), 3, 7)
    torch.testing.assert_close(torch.tensor([row["probabilities"] for row in found]), expected.probs)
    torch.testing.assert_close(torch.tensor([row["entropy"] for row in found]), expected.entropy)
    torch.testing.assert_close(torch.tensor([row["mutual_information"] for row in found]), expected.mutual_information)
    assert [row["label"] for row in found] == expected.probs.argmax(-1).tolist()
    assert expected.set is None  # which was calibrated with other draws than three
    assert [row["set"] for row in found] == [None] * 5
    found = served(tracked).predict(x, params={"client": client, "seed": 7})
    expected = load(tracked[2]).predict(x, None if client is None else int(client), seed=7)
    assert [row["set"] for row in found] == [row.nonzero().flatten().tolist() for row in expected.set]


@pytest.mark.parametrize(
    ("x", "params", "said"),
    [
        (inputs(1), {"client": "9"}, "client='9': the clients of this run have numbers only, 0 to 3"),
        (inputs(1), {"client": "bob"}, "the clients of this run have numbers only"),
        (inputs(1), {"draws": -1}, "draws=-1: is negative"),
        (np.ones((2, 3), np.float32), {}, r"does not match expected shape \(-1, 1, 8, 8\)"),
        (np.full((1, 1, 8, 8), np.nan, np.float32), {}, "x holds NaN"),
    ],
)
def test_what_cannot_be_answered_is_named(tracked, x, params, said):
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException, match=said) as error:
        served(tracked).predict(x, params=params)
    assert error.value.error_code == "INVALID_PARAMETER_VALUE"


def test_a_table_may_have_its_columns_in_any_order(tmp_path):
    """MLflow passes a DataFrame on without the names of its columns where the signature is that of a tensor."""
    import mlflow.pyfunc
    from mlflow.exceptions import MlflowException

    table = pd.DataFrame(np.random.default_rng(0).normal(30, 9, (60, 2)), columns=["dose", "weight"])
    table["age"], table["label"] = range(60), [0, 1] * 30
    table.to_csv(tmp_path / "patients.csv", index=False)
    uri, folder = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "run"
    data = ["--data.name", str(tmp_path / "patients.csv"), "--data.partition", "iid", "--clients", "2"]
    words = [*data, "--runtime", "local", "--rounds", "1", "--tracking.uri", uri, "--output", str(folder)]
    assert launch.main(["pfedbayes", *words]) == 0
    client = mlflow_store.connect(uri)
    run = client.get_run(json.loads((folder / "summary.json").read_text())["run_id"])
    served, x = mlflow.pyfunc.load_model(artifacts_of(client, run)), table[["dose", "weight", "age"]]
    expected = load(folder).predict(x, 1).probs.tolist()
    for asked in (
        x,
        x[["age", "weight", "dose"]],
        table,
        x.astype(np.float32)[["weight", "age", "dose"]],
        x.to_numpy(),
    ):
        assert [row["probabilities"] for row in served.predict(asked, params={"client": "1"})] == expected
    rows = [{name: np.array(value) for name, value in row.items()} for row in x.to_dict("records")]
    for asked in (x.to_dict("list"), rows):  # as MLflow reads JSON
        assert [row["probabilities"] for row in ServedModels(load(folder)).predict(asked, {"client": "1"})] == expected
    for asked, said in (
        (x[["dose", "weight"]], "it has no column age; the model's features are dose, weight, age"),
        ({"dose": [1, 2], "weight": [3], "age": [4]}, "x: its columns are not lists of one length"),
        ({"dose": 1, "weight": 3, "age": 4}, "x: its columns are not lists of one length"),
        ([{"dose": 1, "weight": 3, "age": 4}, 5], "x holds object values"),
    ):
        with pytest.raises(MlflowException, match=said):
            served.predict(asked)
    assert served.input_example.columns.tolist() == ["dose", "weight", "age"]


@pytest.mark.parametrize("y", [np.arange(60) % 2, np.linspace(0.0, 1.0, 60)], ids=["labels", "numbers"])
def test_a_diverged_model_is_said_not_sent(tmp_path, y):
    from mlflow.exceptions import MlflowException

    x = np.random.default_rng(0).random((60, 4), np.float32)
    fedray.run("fedavg", (x, y), clients=2, rounds=1, output=tmp_path / "run", figures="none")
    run = load(tmp_path / "run")
    server = trees.tree_map(lambda leaf: torch.full_like(leaf, float("nan")), run.snapshot.server)
    run.snapshot = run.snapshot._replace(server=server)
    with pytest.raises(MlflowException, match="it has diverged"):
        ServedModels(run).predict(x[:2])


def test_the_signature_says_what_a_record_has(tracked):
    """Of a run without --uncertainty there are no sets."""
    outputs = served(tracked).metadata.signature.outputs
    assert outputs.input_names() == [*served(tracked).predict(inputs(1))[0]]
    assert [column.name for column in outputs.inputs if not column.required] == ["set"]


def test_nothing_of_the_model_is_a_pickle_and_nothing_is_missing(tracked):
    client, run, folder = tracked
    place = Path(artifacts_of(client, run).removeprefix("file://"))
    files = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert not [name for name in files if re.search(r"\.(pkl|pickle|pt|pth|joblib|bin)$", name)]
    for name in ("global.safetensors", "personal.safetensors", "partition.npz"):
        assert (place / "data" / "run" / name).read_bytes() == (folder / name).read_bytes()
    assert "MLmodel" in files
    assert {"input_example.json", "serving_input_example.json"} <= files


def test_states_are_stored_once(tracked):
    """They may be gigabytes: the folder of the result, the model and the run had a copy each."""
    client, run, folder = tracked
    place = Path(artifacts_of(client, run).removeprefix("file://")) / "data" / "run"
    for name in ("global.safetensors", "personal.safetensors"):
        assert (place / name).samefile(folder / name)
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert names == {path.name for path in folder.iterdir()} - {*STATES} | {page.PREVIEWS, page.TABLE}


def test_a_run_whose_model_nobody_could_load_keeps_its_states_as_files(tmp_path):
    """Its network exists in the program alone."""
    x = np.random.default_rng(0).random((60, 4), np.float32)
    tracking = fedray.TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db")
    network, place = torch.nn.Sequential(torch.nn.Linear(4, 2)), tmp_path / "run"
    settings = {"clients": 2, "rounds": 1, "figures": "none", "tracking": tracking, "output": place}
    result = fedray.run("pfedbayes", (x, np.arange(60) % 2), model=network, **settings)
    client = mlflow_store.connect(tracking.uri)
    run = client.get_run(result.summary["run_id"])
    assert not client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
    for name in ("global.safetensors", "personal.safetensors"):
        kept = Path(client.download_artifacts(run.info.run_id, name))
        assert kept.read_bytes() == (place / name).read_bytes()


def test_the_numbers_of_the_summary_are_linked_to_the_model_and_the_test_examples(tracked):
    client, run, folder = tracked
    summary = json.loads((folder / "summary.json").read_text())
    digests = {
        each.tags[0].value: each.dataset.digest for each in client.get_run(run.info.run_id).inputs.dataset_inputs
    }
    assert set(digests) == {"training", "evaluation"}
    linked = {metric.key: metric for metric in model_of(client, run).metrics}
    kind = next(kind for kind in ("personal", "global") if summary[kind])
    for name in ("accuracy", "nll", "ece"):
        metric = linked[f"averaged/{kind}_{name}"]
        assert metric.value == summary[kind][name]
        assert metric.dataset_digest == digests["evaluation"]
        history = client.get_metric_history(run.info.run_id, metric.key)
        assert {entry.value for entry in history if entry.step == 11} == {summary[kind][name]}  # the curve ends there


def test_the_charts_begin_with_the_result_and_are_few(tracked):
    names = sorted(tracked[1].data.metrics)
    assert names[0].startswith("averaged/")
    assert names[0].endswith("accuracy")
    assert len(names) <= tracking.MAX_METRICS


def test_a_run_has_at_most_sixty_metrics_and_says_so_once(tracked):
    warned: list[str] = []
    tracker = tracking.MLflowTracker(tracked[0].tracking_uri, "many", "run", {}, {}, warned.append)
    for step in range(2):
        tracker.log(step, {f"m{i:03}": 1.0 for i in range(70)})
    assert tracker.finish("FINISHED")
    assert sorted(tracker._client.get_run(tracker.run_id).data.metrics) == [f"m{i:03}" for i in range(60)]
    tracker.log(1, {"averaged/global_accuracy": 0.5, "personal/adaptive_ece": 0.1})  # the result has its own places
    assert tracker.finish("FINISHED")
    held = tracker._client.get_run(tracker.run_id).data.metrics
    assert (held["averaged/global_accuracy"], held["personal/adaptive_ece"], len(held)) == (0.5, 0.1, 62)
    assert len(warned) == 1
    assert "m060" in warned[0]
    assert "metrics.csv" in warned[0]


def test_a_command_is_broken_between_its_words():
    command = shlex.join(["python", "-m", "fedray.launch", "--data.name", f"/data/{'of last year/' * 9}x.npz"])
    shown = page.block("Again", command).split("```")[1].replace(" \\\n", " ")
    assert shlex.split(shown) == shlex.split(command)


def test_the_page_says_what_was_run_and_belongs_to_model_training(tracked):
    client, run, folder = tracked
    note = run.data.tags["mlflow.note.content"]
    assert note.startswith("**pfedbayes** (personal Gaussian posteriors with the global one as prior) on **digits**: ")
    assert "python -m fedray.launch pfedbayes" in note
    assert run.data.tags["mlflow.source.name"].startswith("python -m fedray.launch pfedbayes")
    summary = json.loads((folder / "summary.json").read_text())
    rows = [(label, *cells) for label, cells in report.table_rows(load(folder).plan, summary, ["personal", "global"])]
    assert {row[0] for row in rows} > {"accuracy (%)", "adaptive ECE (%)"}
    assert all(f"|{'|'.join(row)}|" in note for row in rows)
    assert len(note) <= page.MAX_NOTE
    shown = re.findall(r"get-artifact\?path=page%2F(\w+\.png)", note)
    assert shown[0] == "accuracy.png"
    assert {file.path for file in client.list_artifacts(run.info.run_id, page.PREVIEWS)} == {
        f"page/{name}" for name in shown
    }
    experiment = client.get_experiment(run.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    table = json.loads(Path(client.download_artifacts(run.info.run_id, page.TABLE)).read_text())
    with (folder / "clients.csv").open(newline="") as file:
        assert len(table["data"]) == len(list(csv.DictReader(file))) == 4
    assert "clients.json" in run.data.tags["mlflow.loggedArtifacts"]


def test_the_registered_version_is_this_model_and_has_the_alias(tracked):
    client, run, _ = tracked
    version = client.get_model_version_by_alias("digits", "best")
    assert version.run_id == run.info.run_id
    assert version.source == artifacts_of(client, run)


def test_publishing_again_adds_nothing(tracked):
    client, run, folder = tracked
    publish(client, run.info.experiment_id, run.info.run_id, Finished(load(folder).plan, folder, "digits@best"))
    model_of(client, run)  # one
    assert len(client.search_model_versions("name = 'digits'")) == 1
    table = json.loads(Path(client.download_artifacts(run.info.run_id, page.TABLE)).read_text())
    assert len(table["data"]) == 4


def test_an_upload_that_failed_is_made_up_for_and_registered(tmp_path):
    uri, folder = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "run"
    assert launch.main(["pfedbayes", *FAST, "--tracking.uri", uri, "--output", str(folder), "--figures", "none"]) == 0
    client = mlflow_store.connect(uri)
    run = client.get_run(json.loads((folder / "summary.json").read_text())["run_id"])
    client.finalize_logged_model(model_of(client, run).model_id, "FAILED")
    for _ in range(2):
        publish(client, run.info.experiment_id, run.info.run_id, Finished(load(folder).plan, folder, "digits"))
    logged = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
    assert sorted(str(model.status) for model in logged) == ["FAILED", "READY"]
    (version,) = client.search_model_versions("name = 'digits'")
    assert version.run_id == run.info.run_id


def test_the_digest_tells_examples_and_partitions_apart():
    def digest(**settings):
        plan = make_plan(fedray.Experiment(algorithm=PFedBayes(), clients=4, **settings))
        return page.datasets(plan)[0].dataset.digest

    assert digest() == digest(rounds=3)
    assert digest() != digest(seed=1)  # another partition of the same examples
    assert len(digest()) == page.DIGEST_DIGITS


@pytest.mark.parametrize("asked", ["a/b", "a:b", "@best", "digits@latest", "digits@v3", "digits@two words", "a@b@c"])
def test_names_that_mlflow_would_refuse_are_refused_at_once(asked):
    with pytest.raises(FedRayError, match="register"):
        registration(asked, "fedavg")


def test_the_alias_is_that_of_the_algorithm():
    assert registration("digits", "fedavg+ft") == ("digits", "fedavg-ft")


def test_without_a_store_nothing_can_be_registered():
    with pytest.raises(FedRayError, match="nothing is tracked"):
        fedray.Execution(register="digits", tracking=fedray.TrackingConfig(uri="none"))


@pytest.mark.slow
def test_mlflow_models_serve_answers(tracked):
    client, _, folder = tracked
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["models", "serve", "-m", "models:/digits@best", "--env-manager", "local", "--port", str(port)]
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": client.tracking_uri,
        "PYTHONPATH": str(Path(__file__).parents[3]),
        # MLflow calls uvicorn by its name, as in an environment that is active.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "mlflow", *words, "--host", "127.0.0.1"]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        x = inputs(2)
        body = {"inputs": x.tolist(), "params": {"client": "1"}}
        found = json.loads(answered(process, f"http://127.0.0.1:{port}/invocations", body))["predictions"]
        expected = load(folder).predict(x, 1).probs
        torch.testing.assert_close(torch.tensor([row["probabilities"] for row in found]), expected)
        with pytest.raises(urllib.error.HTTPError) as error:
            answered(process, f"http://127.0.0.1:{port}/invocations", body | {"params": {"client": "9"}})
        assert error.value.code == 400
        assert "numbers only, 0 to 3" in error.value.read().decode()
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def answered(process: subprocess.Popen, url: str, body: dict) -> str:
    """The reply of a server that may still be starting."""
    question = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    for _ in range(600):
        try:
            with urllib.request.urlopen(question, timeout=60) as reply:
                return reply.read().decode()
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert process.poll() is None, "the server ended"
            time.sleep(0.5)
    raise AssertionError(f"{url} never answered")
