"""--resume: a run goes on where it was cut off, and its result and its record in MLflow do not show it."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedray
from fedray import launch
from fedray.config import Execution
from fedray.federate import local_rounds
from fedray.federate.compiled import choice
from fedray.federate.compiled.package import Package
from fedray.federate.compiled.unit import unit
from fedray.federate.messages import Failure
from fedray.federate.storage import checkpoint
from fedray.running import failure_list, progress
from fedray.running.folder import lock, notes
from fedray.running.resumed import start
from fedray.types import FedRayError
from tests.helpers import eager, small_plan

pytestmark = pytest.mark.usefixtures("unpainted")
FAST = ["pfedbayes", "--runtime", "local", "--rounds", "6", "--local-steps", "2", "--model.hidden", "8", "--seed", "3"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(folder: str) -> list[dict[str, str]]:
    """metrics.csv without times."""
    found = csv.DictReader((Path(folder) / "metrics.csv").open())
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in found]


def same_result(a: str, b: str) -> None:
    assert rows(a) == rows(b)
    parts = sorted(str(path.relative_to(a)) for path in Path(a).glob("personal/*"))
    whole = () if parts else ("personal.safetensors",)
    for name in ("global.safetensors", *whole, *parts, "clients.csv", "calibration.csv", "config.json"):
        assert (Path(a) / name).read_bytes() == (Path(b) / name).read_bytes(), name
    assert sorted(p.name for p in Path(a).iterdir()) == sorted(p.name for p in Path(b).iterdir())


def history(name: str, metric: str = "personal/accuracy") -> tuple[str, list[int]]:
    """Status of a run and the steps that the store holds."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{Path.cwd()}/runs/mlflow.db")  # stores are cached by address
    experiment = client.get_experiment_by_name("fedray")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'")
    return run.info.status, [m.step for m in client.get_metric_history(run.info.run_id, metric)]


def test_an_interrupted_run_goes_on(cut: Callable[..., int], capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.main([*FAST, "--name", "whole"]) == 0
    assert cut([*FAST, "--name", "cut"], 4) == 130
    folder = str(Path("runs/cut").absolute())
    assert f"python -m fedray.launch --resume {folder}" in capfd.readouterr().err
    assert history("cut") == ("KILLED", [1, 2, 3, 4])
    with pytest.raises(FedRayError, match="finished run"):
        fedray.load("runs/cut")
    # Another way to execute it changes nothing.
    assert launch.main(["--resume", "runs/cut", "--backend", "loop"]) == 0
    same_result("runs/whole", "runs/cut")
    assert history("cut") == ("FINISHED", [1, 2, 3, 4, 5, 6])
    assert not list(Path("runs/cut").glob("checkpoints*"))
    seconds = [float(row["time/round_seconds"]) for row in table("runs/cut/metrics.csv")]
    assert json.loads(Path("runs/cut/summary.json").read_text())["seconds"] == pytest.approx(sum(seconds))  # of both
    assert launch.main(["--resume", "runs/cut"]) == 0
    assert "is finished" in capfd.readouterr().err
    assert history("cut") == ("FINISHED", [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("worth", [0, 10**9])
def test_a_resumed_run_keeps_its_compiled_step_or_goes_on_without_one(
    worth: int, cut: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ``auto`` would decide for a new run by then."""
    monkeypatch.setattr(choice, "obtain_unit", lambda work, tell: Package(work.key, b""))
    monkeypatch.setattr(local_rounds, "load", lambda package, plan: eager(unit(plan)))
    monkeypatch.setattr(choice, "WORTH", worth)
    assert cut([*FAST, "--tracking.uri", "none", "--name", "cut"], 3) == 130
    begun = notes.read("runs/cut").package
    assert (begun != "") is (worth == 0)
    monkeypatch.setattr(choice, "WORTH", 10**9 - worth)
    assert launch.main(["--resume", "runs/cut"]) == 0
    summary = json.loads(Path("runs/cut/summary.json").read_text())
    assert (summary["backend"], summary["package"]) == ("compiled" if begun else "auto", begun)


SERIAL = ["--mode", "serial", "--clients-per-round", "1", "--sites", "history", "--selection"]


@pytest.mark.parametrize("options", [[*SERIAL, "hip"], ["--selection", "ksd"]])
def test_particles_and_the_choice_of_clients_go_on(options: list[str], cut: Callable[..., int]) -> None:
    argv = ["dsvgd", *FAST[1:], "--particles", "4", "--tracking.uri", "none", *options]
    assert launch.main([*argv, "--name", "whole"]) == 0
    assert cut([*argv, "--name", "cut"], 3) == 130
    assert launch.main(["--resume", "runs/cut", "--backend", "loop"]) == 0
    same_result("runs/whole", "runs/cut")


def test_validation_goes_on_with_the_same_examples(cut: Callable[..., int]) -> None:
    argv = [*FAST, "--tracking.uri", "none", "--data.validation", "0.2"]
    assert launch.main([*argv, "--name", "whole"]) == 0
    assert cut([*argv, "--name", "cut"], 3) == 130
    assert launch.main(["--resume", "runs/cut"]) == 0
    same_result("runs/whole", "runs/cut")
    assert "validation/personal/accuracy" in rows("runs/cut")[0]
    with pytest.raises(FedRayError, match=r"differs in data.validation"):
        launch.parse(["--resume", "runs/cut", "--data.validation", "0.3"])


def test_a_run_may_be_cut_off_again_and_again_and_lose_its_last_checkpoint(cut: Callable[..., int]) -> None:
    assert launch.main([*FAST, "--name", "whole"]) == 0
    assert cut([*FAST, "--name", "cut"], 2) == 130
    assert cut(["--resume", "runs/cut"], 3) == 130
    newest = max(Path("runs/cut/checkpoints").glob("round-*"))
    (newest / "server.safetensors").write_bytes(b"torn")
    assert cut(["--resume", "runs/cut"], 5) == 130
    assert launch.main(["--resume", "runs/cut"]) == 0
    same_result("runs/whole", "runs/cut")
    assert history("cut") == ("FINISHED", [1, 2, 3, 4, 5, 6])


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(
    cut: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert cut([*FAST, "--tracking.uri", "none", "--name", "cut"], 5) == 130
    away = Path("runs/cut/checkpoints").rename("away")
    assert launch.main(["--resume", "runs/cut"]) == 1
    assert "runs/cut/checkpoints: the checkpoint of round 5 is gone; bring it back" in capfd.readouterr().err
    shutil.rmtree("runs/cut/checkpoints", ignore_errors=True)
    away.rename("runs/cut/checkpoints")
    assert launch.main(["--resume", "runs/cut"]) == 0


def test_a_finished_run_that_is_resumed_keeps_its_end_time(
    cut: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    from fedray.running.tracking import MLflowTracker

    def ends() -> int:
        client = MlflowClient(f"sqlite:///{Path.cwd()}/runs/mlflow.db")
        (run,) = client.search_runs(["1"])
        assert run.info.status == "FINISHED"
        return run.info.end_time

    with monkeypatch.context() as dying:  # killed after its result was written, before the store knew
        dying.setattr(MLflowTracker, "finish", lambda *args: True)
        assert launch.main([*FAST, "--rounds", "2", "--name", "x"]) == 0
    written = Path("runs/x/config.json").stat().st_mtime
    time.sleep(1)
    assert launch.main(["--resume", "runs/x"]) == 0
    assert ends() == int(written * 1000)
    first = ends()
    os.utime("runs/x/config.json")
    assert launch.main(["--resume", "runs/x"]) == 0
    assert ends() == first


def test_steps_that_were_on_their_way_to_the_store_are_sent_again(
    cut: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedray.running.tracking import MLflowTracker

    with monkeypatch.context() as dying:  # what a SIGKILL loses
        dying.setattr(MLflowTracker, "flush", lambda self: True)
        dying.setattr(MLflowTracker, "finish", lambda *args: True)
        assert cut([*FAST, "--name", "cut"], 4) == 130
    assert history("cut") == ("RUNNING", [])
    assert launch.main(["--resume", "runs/cut"]) == 0
    assert history("cut") == ("FINISHED", [1, 2, 3, 4, 5, 6])
    assert history("cut", "train/nll")[1] == [1, 2, 3, 4, 5, 6]


def test_a_killed_process_loses_nothing() -> None:
    slow = [*FAST, "--local-steps", "40", "--rounds", "12", "--tracking.uri", "none"]
    assert launch.main([*slow, "--name", "whole"]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "fedray.launch", *slow, "--name", "cut"],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(Path("runs/cut").glob("checkpoints/round-*/manifest.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert launch.main(["--resume", "runs/cut"]) == 0
    same_result("runs/whole", "runs/cut")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--resume", "nowhere"], ["--resume nowhere", "holds no run"]),
        (["--resume", "runs/cut", "--zeta", "3"], ["another experiment", "algorithm.zeta"]),
        (["--resume", "runs/cut", "--rounds", "5"], ["--rounds 5", "rounds can only be added"]),
        (["fedavg", "--resume", "runs/cut"], ["is a run of pfedbayes; leave fedavg out"]),
        (["--resume", "runs/cut", "--name", "b"], ["--name b: --resume runs/cut goes on with cut; leave it out"]),
        (["--resume", "runs/cut", "--output", "b"], ["--output b: --resume runs/cut goes on with cut where it is"]),
        (["--name", "cut", *FAST[1:]], ["already holds something"]),
        (["--checkpoint.keep", "0"], ["--checkpoint.keep 0"]),
        (["--checkpoint.every", "-1"], ["--checkpoint.every -1"]),
        (["--round-timeout", "0"], ["--round-timeout 0"]),
        (["--on-failure", "pray"], ["--on-failure"]),
    ],
)
def test_what_cannot_be_resumed_is_refused(
    argv: list[str], words: list[str], cut: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert cut([*FAST, "--tracking.uri", "none", "--name", "cut"], 1) == 130
    capfd.readouterr()
    try:
        code = launch.main(argv)
    except SystemExit as stop:
        code = stop.code
    error = " ".join(capfd.readouterr().err.replace("│", " ").split())
    assert code == 2
    assert all(word in error for word in words), error
    assert "Traceback" not in error


def test_a_finished_run_is_not_asked_for_more(capfd: pytest.CaptureFixture[str]) -> None:
    """Its clients' states are gone; what it was asked before may be asked again, in whatever words."""
    again = ["--resume", "runs/x", "--tracking.uri", "none"]
    short = [*FAST, "--rounds", "2", "--name", "x", "--uncertainty", "--data.validation", "0.2"]
    assert launch.main([*short, "--tracking.uri", "none", "--no-elastic"]) == 0
    capfd.readouterr()
    for option in (["--loss-deviation"], ["--figures", "pdf"], ["--no-uncertainty"]):
        assert launch.main([*again, *option]) == 2
        assert "runs/x is finished, and its clients' states are gone; leave it out" in capfd.readouterr().err
    assert launch.main([*again, "--uncertainty", "--no-elastic", "--name", "x", "--output", "runs/x"]) == 0
    assert not Path("runs/x/loss_deviation.csv").exists()


def test_checkpoints_that_cannot_be_used_are_named(cut: Callable[..., int], capfd: pytest.CaptureFixture[str]) -> None:
    assert cut([*FAST, "--tracking.uri", "none", "--name", "cut"], 3) == 130
    capfd.readouterr()
    for path in Path("runs/cut/checkpoints").rglob("manifest.json"):
        path.write_text(json.dumps({"format": 99}))
    assert launch.main(["--resume", "runs/cut"]) == 1
    said = capfd.readouterr()
    assert "none of its 2 checkpoints can be used" in said.err
    assert "go on" not in said.err + said.out  # in the same way it would not
    for path in Path("runs/cut/checkpoints").rglob("manifest.json"):
        path.write_text("{")
    assert launch.main(["--resume", "runs/cut"]) == 1
    assert "manifest.json: " in capfd.readouterr().err


def test_two_processes_do_not_go_on_with_the_same_run(
    cut: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert cut([*FAST, "--tracking.uri", "none", "--name", "cut"], 3) == 130
    with lock.locked(Path("runs/cut").absolute()):
        assert launch.main(["--resume", "runs/cut"]) == 2
    assert "going on in another process" in capfd.readouterr().err
    assert launch.main(["--resume", "runs/cut"]) == 0


def test_the_status_follows_the_run(cut: Callable[..., int]) -> None:
    assert cut([*FAST, "--tracking.uri", "none", "--name", "cut"], 4) == 130
    found = progress.read(Path("runs/cut"))
    assert (found.state, found.round, found.rounds, found.checkpoint) == ("interrupted", 4, 6, 4)
    assert found.command.endswith(f"--resume {Path('runs/cut').absolute()}")
    assert 0 < found.measures["personal/accuracy"] <= 1
    assert found.seconds > 0
    assert launch.main(["--resume", "runs/cut"]) == 0
    found = progress.read(Path("runs/cut"))
    assert (found.state, found.round, found.checkpoint) == ("finished", 6, 5)


def test_a_note_gives_back_what_was_asked(tmp_path: Path) -> None:
    plan = small_plan("pfedbayes", {"data.labels_per_client": 3})
    request = launch.parse(["--gpus-per-client", "0.25", "--round-timeout", "9", "--on-failure", "skip"]).request
    note = notes.Note("x", plan.cfg, notes.absolute(request.execution, "sqlite:///x.db"), None)
    notes.write(tmp_path / "x", note)
    assert notes.read(str(tmp_path / "x")) == note


def test_a_run_does_not_go_on_with_a_file_whose_examples_changed(
    cut: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 5)), np.arange(200) % 4
    np.savez("mine.npz", x=x, y=y)
    argv = [*FAST, "--tracking.uri", "none", "--data.name", "mine.npz"]
    assert cut([*argv, "--name", "cut"], 3) == 130
    assert launch.main([*argv, "--name", "whole"]) == 0
    order = rng.permutation(200)
    np.savez("mine.npz", x=x[order], y=y[order])
    for asked in (["--resume", "runs/cut"], ["--resume", "runs/whole", "--rounds", "8"]):
        capfd.readouterr()
        assert launch.main(asked) == 2
        assert "mine.npz holds other examples than when the run began" in capfd.readouterr().err
    np.savez("mine.npz", x=x[:60], y=y[:60])  # too few for the run's split, too
    assert launch.main(["--resume", "runs/cut"]) == 2
    assert "mine.npz holds other examples than when the run began" in capfd.readouterr().err
    np.savez("mine.npz", x=x, y=y)
    assert launch.main(["--resume", "runs/cut"]) == 0
    same_result("runs/whole", "runs/cut")


def test_a_note_of_an_older_version_without_a_digest_goes_on(cut: Callable[..., int]) -> None:
    np.savez("mine.npz", x=np.eye(80), y=np.arange(80) % 4)
    assert cut([*FAST, "--tracking.uri", "none", "--data.name", "mine.npz", "--name", "cut"], 3) == 130
    note = json.loads(Path("runs/cut/run.json").read_text())
    assert note.pop("digests")
    Path("runs/cut/run.json").write_text(json.dumps(note))
    assert launch.main(["--resume", "runs/cut"]) == 0


def test_a_plug_in_that_changed_has_both_digests_and_one_that_came_back_as_many_as_it_had() -> None:
    plan = small_plan()

    def mended(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
        note = notes.Note("it", plan.cfg, Execution(), None, digests=before)
        return start.mended(note, plan._replace(digests=now))

    assert mended({"plug_in.a": "1", "plug_in.b": "2"}, {"plug_in.a": "1", "plug_in.b": "3"}) == {"plug_in.b": "2+3"}
    assert mended({"plug_in.b": "2+3"}, {"plug_in.b": "3"}) == {}
    assert mended({"plug_in.b": "2+3"}, {"plug_in.b": "2"}) == {"plug_in.b": "2+3+2"}
    assert mended({"data.examples": "1"}, {"data.examples": "2", "plug_in.b": "3"}) == {}  # refused, and unknown


def test_the_failures_before_an_interruption_stay_in_the_table(
    cut: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those of rounds that are played again are those of the second time."""
    honest, calls = checkpoint.write, iter(range(1, 100))

    def write(*words: Any) -> None:
        if next(calls) in (2, 5, 6):  # rounds 2 and 5; round 5 again
            raise OSError("the disk\nis full")
        honest(*words)

    monkeypatch.setattr(checkpoint, "write", write)
    assert cut([*FAST, "--tracking.uri", "none", "--name", "cut"], 5) == 130
    assert [row["round"] for row in table("runs/cut/failures.csv")] == ["2", "5"]
    with Path("runs/cut/failures.csv").open("a") as file:
        file.write('6,torn by the "kill')
    assert launch.main(["--resume", "runs/cut"]) == 0
    found = table("runs/cut/failures.csv")
    assert [(row["round"], row["action"]) for row in found] == [(n, "went on without it") for n in ("2", "5")]
    assert "the disk, while writing" in found[0]["reason"]
    assert progress.read(Path("runs/cut")).failures == 2
    assert launch.main(["--resume", "runs/cut", "--rounds", "7"]) == 0
    assert table("runs/cut/failures.csv") == found


def test_a_line_of_a_failure_that_was_cut_between_two_fields_is_left_out(tmp_path: Path) -> None:
    failure = Failure(1, "client 4", "exception", "no luck")
    failure_list.add(tmp_path, [failure])
    with (tmp_path / "failures.csv").open("a") as file:
        file.write("2,client 5,excep")
    assert failure_list.begin(tmp_path, 3) == (failure,)


def table(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_that_goes_on_in_another_experiment_of_the_store_is_whole_there(cut: Callable[..., int]) -> None:
    from mlflow.tracking import MlflowClient

    assert cut([*FAST, "--name", "cut", "--tracking.experiment", "a"], 3) == 130
    assert launch.main(["--resume", "runs/cut", "--tracking.experiment", "b"]) == 0
    client = MlflowClient(f"sqlite:///{Path.cwd()}/runs/mlflow.db")
    found = {}
    for name in ("a", "b"):
        experiment = client.get_experiment_by_name(name)
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "personal/accuracy")]
        found[name] = run.info.status, steps
    assert found == {"a": ("KILLED", [1, 2, 3]), "b": ("FINISHED", [1, 2, 3, 4, 5, 6])}
