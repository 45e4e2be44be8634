"""A study on a cluster: whole federations as trials, each with a folder and a run of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedray.config import override
from fedray.running import progress
from fedray.studies import agenda
from fedray.studies.__main__ import main
from fedray.studies.cell import Cell
from fedray.studies.named.quick import quick

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster", "unpainted")]
SMALL = {"model.hidden": (8,), "local_steps": 2, "data.partition": "dirichlet", "predict_samples": 1}


def mixed() -> list[Cell]:
    """Three federations of two sizes, one of which diverges."""
    fedavg, pfedbayes = (cell._replace(experiment=override(cell.experiment, SMALL)) for cell in quick())
    four = fedavg._replace(name="four", experiment=override(fedavg.experiment, {"clients": 4}))
    wild = fedavg._replace(name="wild", experiment=override(fedavg.experiment, {"algorithm.lr": 1e30}))
    return [four, wild, pfedbayes]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agenda, "STUDIES", {"quick": mixed})
    return tmp_path


def results(folder: Path) -> dict[str, tuple[dict, bytes, bytes]]:
    """Of every run: its summary without what differs by nature, and the states of server and clients."""
    found = {}
    for path in folder.glob("*-s0-*"):
        if (path / "summary.json").exists():
            summary = json.loads((path / "summary.json").read_text())
            kept = {name: value for name, value in summary.items() if name not in ("run_id", "seconds")}
            states = [(path / f"{name}.safetensors").read_bytes() for name in ("global", "personal")]
            found[path.name] = (kept, *states)
    return found


def test_runs_of_several_sizes_side_by_side_are_those_of_one_process(
    study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One fails, and costs the others nothing; repeated, the command plays no finished run again."""
    from mlflow.tracking import MlflowClient

    command = ["quick", "--seeds", "1", "--rounds", "2", "--clients-per-actor", "10"]
    assert main(command) == 1
    err = capfd.readouterr().err
    assert "3 runs, 2 at a time" in err
    assert "failed   wild-s0: client" in err
    assert "again    python -m fedray.studies quick --seeds 1 --rounds 2 --clients-per-actor 10" in err
    assert main([*command, "--output", "alone", "--tracking.uri", "sqlite:///alone.db", "--runtime", "local",
                 "--concurrency", "1"]) == 1  # fmt: skip
    assert results(study / "runs/quick") == results(study / "alone")
    assert len(results(study / "alone")) == 2
    client = MlflowClient(f"sqlite:///{Path.cwd()}/runs/mlflow.db")  # stores are cached by address
    runs = {run.info.run_name: run for run in client.search_runs(["1"])}
    assert {name: run.info.status for name, run in runs.items()} == {
        "quick": "FAILED", "four-s0": "FINISHED", "wild-s0": "FAILED", "pfedbayes-s0": "FINISHED",
    }  # fmt: skip
    parents = {run.data.tags.get("mlflow.parentRunId") for name, run in runs.items() if name != "quick"}
    assert parents == {runs["quick"].info.run_id}
    logged = client.get_metric_history(runs["four-s0"].info.run_id, "global/accuracy")
    assert [entry.step for entry in logged] == [1, 2]
    assert "summary.json" in {file.path for file in client.list_artifacts(runs["four-s0"].info.run_id)}
    (four,) = study.glob("runs/quick/four-s0-*")
    assert (progress.read(four).state, (four / "checkpoints").exists()) == ("finished", False)
    capfd.readouterr()
    assert main(command) == 1
    err = capfd.readouterr().err
    assert "3 in all, 2 finished before, 1 to run now" in err
    assert len(client.search_runs(["1"])) == 4  # the failed run and the study's own are continued


def ended(folder: Path) -> dict[str, float]:
    """When every finished run of a study wrote its result; one that is half-written lies in a hidden folder."""
    return {path.parent.name: path.stat().st_mtime for path in folder.glob("runs/quick/[!.]*/config.json")}


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """A study whose driver was killed in the middle, on a cluster of its own, and its command."""
    # So many rounds that the later runs take longer than a busy machine may take to notice the end of the first.
    options = ["--rounds", "40", "--clients-per-actor", "10", "--address", "local"]
    command = [sys.executable, "-m", "fedray.studies", "quick", *options]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 400
    while not ended(tmp_path):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    yield tmp_path, command
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_killed_in_the_middle_and_repeated_it_plays_no_finished_run_twice(killed: tuple[Path, list[str]]) -> None:
    folder, command = killed
    before = ended(folder)
    assert 1 <= len(before) < 4
    again = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)
    assert again.returncode == 0, again.stderr
    after = ended(folder)
    assert len(after) == 4
    assert {name: after[name] for name in before} == before
    assert "fedavg" in again.stdout
