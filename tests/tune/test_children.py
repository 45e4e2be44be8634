"""The MLflow run of a trial has the settings that the trial plays, and says of what data."""

import sqlite3
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import DataConfig, Experiment
from fedray.running.mlflow_store import connect
from fedray.running.tracking import MLflowTracker
from tests.helpers import small_plan
from tune.children import ParentRun, child_run
from tune.options import Sweep
from tune.planner import Planner


@pytest.fixture
def params(tmp_path):
    """What the store has of a trial on a file of three owners."""

    def params(name, x, clients=None):
        np.savez(tmp_path / "mine.npz", x=x, y=np.arange(60) % 3, client=np.arange(60) // 20)
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        parent = MLflowTracker(uri, "fedray", name, {}, {"fedray.kind": "sweep"})
        base = Experiment(algorithm=FedAvg(), data=DataConfig(name=str(tmp_path / "mine.npz")))
        trial = SimpleNamespace(
            trial_id="t0", config={"algorithm.lr": 0.3, "clients": clients}, status="TERMINATED", last_result={}
        )
        kept = ParentRun(uri, "fedray", parent.run_id, name, "fedavg")
        child_run(kept, base, Sweep(mode="max"), Planner(), trial).close()
        client = connect(uri)
        query = f"tags.`mlflow.parentRunId` = '{parent.run_id}'"
        (run,) = client.search_runs([client.get_experiment_by_name("fedray").experiment_id], query)
        return run.data.params

    return params


def test_a_trial_is_noted_as_a_launch_of_it_would_be(params):
    x = np.random.default_rng(0).random((60, 4))
    found = params("first", x)
    settings = ("algorithm.lr", "clients", "clients_per_round", "model.name", "data.partition")
    assert [found[name] for name in settings] == ["0.3", "3", "3", "mlp", "natural"]
    assert found["data.examples"] == params("again", x)["data.examples"] != params("other", x + 1)["data.examples"]


def test_a_trial_that_cannot_be_planned_is_noted_all_the_same(params):
    """It fails by itself, and the sweep goes on."""
    found = params("first", np.ones((60, 4)), clients=50)
    assert (found["clients"], found["algorithm.lr"]) == ("50", "0.3")
    assert "data.examples" not in found


def test_a_trial_whose_store_is_lost_as_it_starts_is_played_all_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    """What it raised would end the whole sweep; the address in it has a password."""
    parent = ParentRun("http://me:secret@127.0.0.1:9", "fedray", "0" * 32, "sweep", "fedavg")
    trial: Any = SimpleNamespace(trial_id="t1", config={}, last_result={}, status="RUNNING")
    child = child_run(parent, small_plan().cfg, Sweep(), Planner(), trial)
    said = capfd.readouterr().err
    assert "warning: trial t1 is not in the tracking store: " in said
    assert "secret" not in said
    child.add({"round": 1, "personal/accuracy": 0.5})
    child.close()


@pytest.mark.filterwarnings("error::UserWarning")  # it has a line of source code below it
def test_a_store_that_is_lost_while_trials_play_is_told_of_in_a_line_with_the_trial(tmp_path, capfd) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    parent = MLflowTracker(uri, "fedray", "sweep", {}, {})
    trial: Any = SimpleNamespace(trial_id="t1", config={}, last_result={}, status="RUNNING")
    kept = ParentRun(uri, "fedray", parent.run_id, "sweep", "fedavg")
    child = child_run(kept, small_plan().cfg, Sweep(mode="max"), Planner(), trial)
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        store.execute("drop table metrics")
    child.add({"round": 1, "validation/personal/accuracy": 0.5})
    child.close()
    parent.log(0, {"best": 0.5})
    told = capfd.readouterr().err.splitlines()
    assert [line.partition(" failed (")[0] for line in told if " failed (" in line] == [
        f"warning: trial t1: MLflow at {uri}",
        f"warning: MLflow at {uri}",
    ]
