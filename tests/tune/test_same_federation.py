"""A trial plays the federation that its launch command plays, though it gets the examples from the sweep."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from actors.machines.placement import Layout
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import DataConfig, Execution, Experiment, TrackingConfig
from fedray.data import loading
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from fedray.running import session, stages
from fedray.running.folder import checkpoint_place, notes
from fedray.running.log import Log
from fedray.running.writer import Writer
from fedray.types import FedRayError
from tests.helpers import small_plan
from tune import runs
from tune import trial as trial_module
from tune.__main__ import read
from tune.planner import Planner
from tune.run_trial import Relay
from tune.trial import CommonToTrials, Trial

WRITERS = 210  # more than the paper's 198 clients
INSIDE = Layout((tuple(range(198)),), 0.1, 0.0, inside=True)


@pytest.fixture
def femnist(tmp_path: Path) -> Experiment:
    """An experiment on a small FEMNIST, with all that its paper's protocol fills in left open."""
    images = np.eye(2, 784).tolist()
    users = {f"f{i}": {"x": images, "y": [i % 62, 3]} for i in range(WRITERS)}
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist/all.json").write_text(json.dumps({"users": list(users), "user_data": users}))
    return Experiment(algorithm=FedAvg(), data=DataConfig(name="femnist", root=tmp_path))


def of_a_trial(cfg: Experiment, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan of a trial of a sweep; its clients do not start."""
    hosts = SimpleNamespace(serve=lambda hosted: None)
    monkeypatch.setattr(trial_module, "Processes", lambda: hosts)
    monkeypatch.setattr(trial_module.ray, "get", lambda reference: reference)
    trial = object.__new__(Trial)
    trial._trial_info = None
    trial.setup({"seed": 0}, CommonToTrials(cfg, INSIDE, "loop", "test/global/accuracy", (), loading.load(cfg.data)))
    return trial._plan


def side_by_side(cfg: Experiment, folder: Path) -> Plan:
    """The plan of a run beside others."""
    execution = Execution(name="run", output=folder / "run", tracking=TrackingConfig(uri="none"))
    with contextlib.ExitStack() as locks:
        return runs._enter(stages.Request(cfg, execution), Planner(), locks).plan


def test_a_smaller_federation_than_the_largest_takes_its_first_processes() -> None:
    options = [
        "fedavg",
        "--data.partition",
        "iid",
        "--space",
        "clients=grid(2,5,3)",
        "--space",
        "data.name=choice(digits)",
    ]
    assert read(options)[0].preview.clients == 5
    largest = Layout(((0, 1), (2, 3), (4,)), 0.5, 0.25)
    assert largest.first(5) == largest
    assert largest.first(3) == Layout(((0, 1), (2,)), 0.5, 0.25)
    assert largest.first(2) == Layout(((0, 1),), 0.5, 0.25)


@pytest.mark.parametrize("kind", ["trial", "side by side"])
def test_the_papers_protocol_holds_where_the_examples_are_given(
    kind: str, femnist: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = of_a_trial(femnist, monkeypatch) if kind == "trial" else side_by_side(femnist, tmp_path)
    alone = make_plan(femnist)
    assert (alone.clients, alone.cfg.clients_per_round) == (198, 20)
    for name in ("clients", "clients_per_round", "data", "model"):
        assert getattr(plan.cfg, name) == getattr(alone.cfg, name)
    assert plan.names == alone.names
    assert all(map(np.array_equal, plan.partition.train, alone.partition.train))


def test_a_run_beside_others_that_begins_may_compile_its_step_as_a_launch_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``choose`` is told of a package, or of none, where a run goes on, and of nothing where it begins."""
    told: list[str | None] = []
    monkeypatch.setattr(stages, "choose", lambda plan, backend, known, tell: told.append(known))
    execution = Execution(name="run", output=tmp_path / "run", tracking=TrackingConfig(uri="none"))
    with contextlib.ExitStack() as locks:
        entered = runs._enter(stages.Request(small_plan().cfg, execution), Planner(), locks)
        runs._TrackedRun(entered, {}, None, None)  # type: ignore[arg-type]

        def ready() -> stages.ActiveRun:
            """The run as a trial gets it, the first time and after the loss of its process."""
            note = notes.read(str(entered.folder))
            request = stages.Request(entered.plan.cfg, entered.execution, resume=str(entered.folder))
            store = checkpoint_place.store(entered.folder, entered.execution)
            writer, relay = Writer(entered.folder, True), Relay(None, "none")
            run = stages.ActiveRun(entered.plan, request, note.name, writer, relay, store, Log(), note)
            return stages.ready(run, on_gpus=False)[0]

        stages.begin(ready(), None)
        ready()
    assert told == [None, ""]


def test_a_run_whose_store_is_lost_as_it_begins_is_played_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def lost(*_: object) -> None:
        raise FedRayError("--tracking.uri http://me:***@store: does not answer")

    monkeypatch.setattr(session, "open_tracker", lost)
    execution = Execution(name="run", output=tmp_path / "run", tracking=TrackingConfig(uri="http://me:secret@store"))
    with contextlib.ExitStack() as locks:
        entered = runs._enter(stages.Request(small_plan().cfg, execution), Planner(), locks)
        runs._TrackedRun(entered, {}, None, None)  # type: ignore[arg-type]
    said = capfd.readouterr().err
    assert (
        "warning: run is not in the tracking store until this command is run again: --tracking.uri http://me:***"
        in said
    )
    note = notes.read(str(tmp_path / "run"))
    assert (note.run_id, note.execution.tracking.uri) == (None, "http://me:***@store")
    runs._TrackedRun(entered._replace(note=note._replace(run_id="its own")), {}, None, None)  # type: ignore[arg-type]
    assert notes.read(str(tmp_path / "run")).run_id == "its own"  # which goes on when the store is back
