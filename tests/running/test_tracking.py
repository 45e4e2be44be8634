"""A run in a real MLflow store is whole, whatever the store does; an unusable store is named at once."""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedray.running import mlflow_store, tracking
from fedray.running.mlflow_store import locate
from fedray.running.tracking import MLflowTracker, NullTracker, Tracker, git_commit
from fedray.types import FedRayError


def one_run(uri: str, name: str, together) -> None:
    together.wait()
    tracker = MLflowTracker(uri, "race", name, {}, {})
    tracker.log(0, {"a": 1.0})
    raise SystemExit(0 if tracker.finish("FINISHED") else 1)


@pytest.fixture(scope="module")
def race(tmp_path_factory):
    """(URI, exit codes) of a fresh store that two processes created at once; every test reuses it."""
    for name, value in mlflow_store.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401  (takes seconds: shared by the forked processes)

    uri = f"sqlite:///{tmp_path_factory.mktemp('store')}/new/mlflow.db"
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(2)
    processes = [fork.Process(target=one_run, args=(uri, f"run{i}", together)) for i in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return uri, [process.exitcode for process in processes]


@pytest.fixture
def store(race):
    return race[0]


@pytest.fixture
def warned():
    return []


def start(store: str, warned: list[str], **more) -> MLflowTracker:
    return MLflowTracker(store, "fedray", "run", more.get("params", {}), more.get("tags", {}), warned.append)


def read(tracker: MLflowTracker, metric: str) -> list[tuple[int, float]]:
    history = tracker._client.get_metric_history(tracker.run_id, metric)
    return [(entry.step, entry.value) for entry in history]


def run_files(tracker: MLflowTracker, folder: str | None):
    return tracker._client.list_artifacts(tracker.run_id, folder)


def test_two_processes_create_one_fresh_store(race):
    uri, exit_codes = race
    assert exit_codes == [0, 0]
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("race")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(run.info.run_name or "" for run in runs) == ["run0", "run1"]


def test_a_run_is_recorded_whole(store, warned, tmp_path):
    params = {f"algorithm.p{i}": i for i in range(150)} | {"long": "x" * 7000, "odd[0]": None}
    tracker = start(store, warned, params=params, tags={"sweep": "s1"})
    tracker._next_flush = math.inf  # all 1200 values in one flush: more than MLflow takes in one batch
    for step in range(60):
        tracker.log(step, {f"m{i}": step + i / 100 for i in range(19)} | {"bad[1]": math.nan})
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "accuracy.png").write_bytes(b"png")
    (tmp_path / "metrics.csv").write_text("round\n")
    assert tracker.finish("KILLED", tmp_path)
    run = tracker._client.get_run(tracker.run_id)
    assert run.info.status == "KILLED"
    assert run.info.run_name == "run"
    assert run.data.tags["sweep"] == "s1"
    assert len(run.data.params) == 152
    assert run.data.params["algorithm.p149"] == "149"
    assert run.data.params["long"] == "x" * 6000
    assert run.data.params["odd_0_"] == "None"
    for i in range(19):
        assert read(tracker, f"m{i}") == [(step, step + i / 100) for step in range(60)]
    assert [step for step, _ in read(tracker, "bad_1_")] == list(range(60))
    assert all(math.isnan(value) for _, value in read(tracker, "bad_1_"))
    files = [file for folder in (None, "figures") for file in run_files(tracker, folder)]
    assert sorted(file.path for file in files) == ["figures", "figures/accuracy.png", "metrics.csv"]
    beside = Path(store.removeprefix("sqlite:///")).parent / "artifacts"
    assert (beside / tracker.run_id / "artifacts" / "figures" / "accuracy.png").read_bytes() == b"png"
    assert not warned


def test_a_store_that_fails_in_mid_run_gets_everything_once(store, warned, monkeypatch):
    monkeypatch.setattr(tracking, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(tracking, "PATIENCE", 0.0)
    tracker = start(store, warned)
    send = tracker._client.log_batch

    def refuse(*args, **kwargs):
        raise ConnectionError("the server is gone")

    def deliver_and_lose_the_answer(*args, **kwargs):
        send(*args, **kwargs)
        raise ConnectionError("read timed out")

    behaviours = [send, refuse, refuse, deliver_and_lose_the_answer, refuse, send, refuse]
    for step, behaviour in enumerate(behaviours):
        monkeypatch.setattr(tracker._client, "log_batch", behaviour)
        tracker.log(step, {"a": step, "nan": math.nan})
    assert len(warned) == 1
    assert "the server is gone" in warned[0]
    assert read(tracker, "a") == [(step, step) for step in range(6)]
    monkeypatch.setattr(tracker._client, "log_batch", send)
    assert tracker.finish("FINISHED")
    assert read(tracker, "a") == [(step, step) for step in range(7)]
    assert [step for step, _ in read(tracker, "nan")] == list(range(7))


def test_a_store_that_never_comes_back_costs_no_exception(store, warned, monkeypatch, tmp_path):
    tracker = start(store, warned)

    def refuse(*args, **kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tracker._client, "log_batch", refuse)
    tracker.log(0, {"a": 1.0})
    assert tracker.finish("FINISHED", tmp_path) is False
    assert len(warned) == 2
    for part in ("no route to host", str(tmp_path), "--tracking.uri none"):
        assert part in warned[1]


def simulate(tracker: MLflowTracker, monkeypatch, seconds: int, cost: float, fails: bool) -> int:
    """Deliveries tried by a run that logs every second to a store that takes ``cost`` seconds to answer."""
    now, tries = 0.0, 0

    def answer(*args, **kwargs):
        nonlocal now, tries
        now, tries = now + cost, tries + 1
        if fails:
            raise TimeoutError("read timed out")

    monkeypatch.setattr(tracking, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    monkeypatch.setattr(tracker._client, "log_batch", answer)
    step = 0
    while now < seconds:
        tracker.log(step, {"a": 1.0})
        now, step = now + 1.0, step + 1
    return tries


def test_a_store_that_hangs_takes_a_tenth_of_the_time(store, warned, monkeypatch):
    tries = simulate(start(store, warned), monkeypatch, 2200, cost=20.0, fails=True)
    assert tries == 10  # 20 s blocked in each 220 s
    assert len(warned) == 1


def test_a_healthy_store_gets_one_batch_every_two_seconds(store, warned, monkeypatch):
    assert simulate(start(store, warned), monkeypatch, 100, cost=0.0, fails=False) == 50


def fails_fast(uri: str) -> str:
    begin = time.monotonic()
    with pytest.raises(FedRayError) as error:
        MLflowTracker(uri, "fedray", "run", {}, {})
    assert time.monotonic() - begin < 10
    message = str(error.value)
    assert "\n" not in message
    assert "none" in message  # the remedy that always works
    return message


@pytest.mark.usefixtures("race")  # the import of MLflow alone takes seconds
def test_a_server_that_is_down_is_named_at_once():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    message = fails_fast(f"http://someone:secret@127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in message
    assert "refused" in message
    assert "mlflow server" in message
    assert "secret" not in message


@pytest.mark.usefixtures("race")
def test_a_server_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert "timed out" in fails_fast(f"http://127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.usefixtures("race")
def test_a_file_that_cannot_hold_the_runs_is_named_at_once(tmp_path):
    (tmp_path / "folder.db").mkdir()
    (tmp_path / "text").write_text("this is no database, but rather a text. " * 100)
    assert "unable to open" in fails_fast(f"sqlite:///{tmp_path}/folder.db")
    assert "not a database" in fails_fast(f"sqlite:///{tmp_path}/text")
    assert str(tmp_path) in fails_fast(f"sqlite:///{tmp_path}/text/mlflow.db")
    assert "/proc/mlflow.db" in fails_fast("sqlite:////proc/mlflow.db")  # where no lock can be made


def test_a_store_is_made_whole_or_not_at_all(tmp_path, monkeypatch):
    """What a full disk or a killed process leaves of its tables does not block it."""
    from alembic import command

    upgrade = command.upgrade
    (tmp_path / ".mlflow.db.part-x").mkdir()
    with monkeypatch.context() as patched:

        def cut(config, revision):
            upgrade(config, "7f2a7d5fae7d")  # one in the middle
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(command, "upgrade", cut)
        assert "No space left" in fails_fast(f"sqlite:///{tmp_path}/mlflow.db")
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db.lock"]
    assert MLflowTracker(f"sqlite:///{tmp_path}/mlflow.db", "fedray", "run", {}, {}).finish("FINISHED")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlflow.db", "mlflow.db.lock"]


@pytest.mark.parametrize(
    "uri",
    ["foo bar", "runs/mlruns", "file:///tmp/x", "localhost:5000", "sqlite:///:memory:", "http://", "ftp://x"],
)
def test_what_is_not_a_store_is_refused(uri):
    assert uri in fails_fast(uri)


@pytest.mark.parametrize("folder", ["a?b", "a%20b"])
def test_a_folder_whose_name_leads_the_store_elsewhere_is_refused(folder, tmp_path, monkeypatch):
    """SQLAlchemy would open the files `a` and `a b/...` instead, beside what was asked for."""
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    assert "would lead to another file" in fails_fast("")
    assert f"--tracking.uri sqlite:///{tmp_path}/{folder}/x.db: " in fails_fast(f"sqlite:///{tmp_path}/{folder}/x.db")
    with pytest.raises(FedRayError, match=r"^--uri sqlite.* folders$"):
        locate("", "--uri")
    assert [path.name for path in tmp_path.rglob("*")] == [folder]
    assert locate(f"sqlite:///{tmp_path}/100% #1.db").database == tmp_path / "100% #1.db"


def test_a_store_that_may_not_be_written_says_so_in_its_first_words():
    """As SQLAlchemy tells of a read-only file."""
    aside = "(raised as a result of Query-invoked autoflush; consider a block if this flush is occurring prematurely)"
    error = RuntimeError(f"{aside}\n(sqlite3.OperationalError) attempt to write a readonly database\n[SQL: INSERT ...]")
    assert mlflow_store.reason(error) == "(sqlite3.OperationalError) attempt to write a readonly database"
    assert mlflow_store.reason(RuntimeError(aside)) == aside


def test_relative_addresses_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    assert locate("") == (f"sqlite:///{runs}/mlflow.db", f"file://{runs}/artifacts", runs / "mlflow.db")
    assert locate("sqlite:///a/b.db")[0] == f"sqlite:///{tmp_path}/a/b.db"
    assert locate("sqlite:////a/b.db") == ("sqlite:////a/b.db", "file:///a/artifacts", Path("/a/b.db"))
    assert locate("http://host:5000/") == ("http://host:5000", None, None)


def test_a_deleted_experiment_is_explained(store):
    tracker = MLflowTracker(store, "gone", "run", {}, {})
    tracker._client.delete_experiment(tracker._experiment)
    with pytest.raises(FedRayError, match=r"gone: it was deleted.*mlflow experiments restore"):
        MLflowTracker(store, "gone", "run", {}, {})


def test_the_hint_is_a_command_and_a_page_with_charts(store, warned):
    tracker = start(store, warned)
    command, page = tracker.hint().splitlines()
    assert command == f"mlflow ui --backend-store-uri {store}"
    assert f"/#/experiments/{tracker._experiment}/runs?workflowType=machine_learning" in page


def test_nothing_is_recorded_without_tracking():
    tracker: Tracker = NullTracker()
    tracker.log(0, {"a": 1.0})
    assert tracker.run_id is None
    assert tracker.finish("FAILED")


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    fails_fast("http://127.0.0.1:1")
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"


def test_git_commit_tells_clean_from_dirty(tmp_path, monkeypatch):
    def git(*args: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    # Installed, not a checkout: the current folder counts.
    monkeypatch.setattr(tracking, "__file__", str(tmp_path / "lib" / "fedray" / "run" / "tracking.py"))
    monkeypatch.chdir(tmp_path)
    assert git_commit() is None
    git("init", "-q")
    assert git_commit() is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    assert git_commit() == commit[:12]
    (tmp_path / "new.py").write_text("1")
    assert git_commit() == f"{commit[:12]}+dirty"


def test_a_trial_that_is_begun_again_has_the_averages_of_each_round_once(store, warned):
    """Its process was lost: it logs all rounds again, into the same run."""
    from mlflow.tracking import MlflowClient

    tracker = start(store, warned)
    for step in (*range(1, 11), *range(1, 21)):
        tracker.log(step, {"personal/accuracy": step / 100})
    tracker.finish("FINISHED")
    averaged = MlflowClient(store).get_run(tracker.run_id).data.metrics["averaged/personal_accuracy"]
    assert averaged == pytest.approx((0.19 + 0.20) / 2)
