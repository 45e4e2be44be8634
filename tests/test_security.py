"""No code runs that was read from storage, nothing listens to the world, and passwords stay out of every text."""

from __future__ import annotations

import ast
import json
import os
import socket
import sqlite3
from pathlib import Path

import pytest

from fedray import cli, launch
from fedray.config import Execution, TrackingConfig
from fedray.running import mlflow_store
from fedray.running.mlflow_store import shown
from fedray.studies import study
from fedray.studies.agenda import Options
from fedray.types import FedRayError

ROOT = Path(__file__).parents[1]
SOURCES = [path for package in ("fedray", "actors", "tune") for path in sorted((ROOT / package).rglob("*.py"))]
UNPICKLERS = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "jsonpickle"}
CALLS = {"eval", "exec", "torch.load", "yaml.load", "os.system", "os.popen", "pd.read_pickle", "pandas.read_pickle"}
SECRET = "hunter2/@x"
USER = f"http://someone:{SECRET}@"


def dangers(source: str) -> set[str]:
    """What in a source could run code that was read, or open a port to everybody."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found |= {name.split(".")[-1] for name in module} & UNPICKLERS
            if isinstance(node, ast.ImportFrom):  # from torch import load, from ray import cloudpickle
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (names & CALLS) | ({alias.name for alias in node.names} & UNPICKLERS)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            found |= {called} & CALLS
            found |= {"ray." + called.split(".")[-2]} & {"ray.cloudpickle"} if called.count(".") >= 2 else set()
            settings = {word.arg: ast.unparse(word.value) for word in node.keywords}
            found |= {f"{n}={v}" for n, v in settings.items() if n in ("shell", "allow_pickle") and v != "False"}
            if called in ("np.load", "numpy.load") and "allow_pickle" not in settings:
                found.add("np.load without allow_pickle=False")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "0.0.0.0" in node.value:
            found.add("0.0.0.0")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_runs_what_it_reads_or_listens_to_everybody(path: Path) -> None:
    allowed = {"pickle"} if path.relative_to(ROOT) == Path("fedray/data/datasets/cifar10.py") else set()
    assert dangers(path.read_text(encoding="utf-8")) == allowed


DANGEROUS = {
    "import pickle": "pickle",
    "from pickle import loads": "pickle",
    "from ray import cloudpickle": "cloudpickle",
    "ray.cloudpickle.loads(x)": "ray.cloudpickle",
    "import torch\ntorch.load(path)": "torch.load",
    "from torch import load": "torch.load",
    "np.load(path, allow_pickle=True)": "allow_pickle=True",
    "np.load(path, allow_pickle=flag)": "allow_pickle=flag",
    "np.load(path)": "np.load without allow_pickle=False",
    "def f():\n    return eval(text)": "eval",
    "exec(text)": "exec",
    "yaml.load(text)": "yaml.load",
    "subprocess.run(text, shell=True)": "shell=True",
    "os.system(text)": "os.system",
    "serve(host='0.0.0.0')": "0.0.0.0",
    "command = ['mlflow', 'server', '--host=0.0.0.0']": "0.0.0.0",
}


@pytest.mark.parametrize("source", DANGEROUS)
def test_the_scan_finds(source: str) -> None:
    assert dangers(source) == {DANGEROUS[source]}


def test_the_scan_sees_every_file_and_lets_the_harmless_pass() -> None:
    assert len(SOURCES) > 40
    assert dangers("import json\nmodel.eval()\nnp.load(p, allow_pickle=False)\nyaml.safe_load(t)") == set()


def test_the_one_reader_of_pickles_resolves_no_name_but_its_own_stub() -> None:
    """CIFAR-10 is published as pickles; what they ask to call is a stub or refused (tests/data/test_loading.py)."""
    tree = ast.parse((ROOT / "fedray/data/datasets/cifar10.py").read_text(encoding="utf-8"))
    uses = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert [use for use in uses if use.startswith("pickle.")] == ["pickle.Unpickler"]
    (reader,) = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "_Unpickler"]
    assert [node.name for node in reader.body if isinstance(node, ast.FunctionDef)] == ["find_class"]


def test_cluster_files_bind_nothing_to_every_address() -> None:
    for path in sorted((ROOT / "cluster").iterdir()):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert "0.0.0.0" not in text.replace("0.0.0.0/0", ""), f"{path.name}, line {number}: {text}"


@pytest.mark.parametrize("password", ["simple", "a@b", "a/b", "a:b", "p?q=1&r", "%40", "'\""])
def test_a_password_of_any_signs_is_masked(password: str) -> None:
    assert shown(f"http://me:{password}@host:5000") == "http://me:***@host:5000"
    assert shown(f"failed for postgresql+x://me:{password}@host/db at noon") == (
        "failed for postgresql+x://me:***@host/db at noon"
    )


def test_what_holds_no_password_is_shown_as_it_is() -> None:
    for text in ("http://host:5000", "sqlite:////a/b.db", "http://me@host:5000/x", "a: b@c", "--tracking.uri none"):
        assert shown(text) == text
    assert shown("mysql://host/db?user=me&password=secret&ssl=1") == "mysql://host/db?user=me&password=***&ssl=1"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def holding(folder: Path, secret: str) -> list[str]:
    """Files, databases too, in whose name or bytes a secret appears."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if secret in str(path) or secret.encode() in path.read_bytes()]


FAST = ["--runtime", "local", "--rounds", "2", "--local-steps", "2", "--clients", "4"]


def test_a_store_that_is_down_is_named_without_its_password(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://someone:hunter2@127.0.0.1:{closed.getsockname()[1]}"
    for address in (uri, f"{USER}127.0.0.1:1", f"ftp{USER[4:]}host"):
        assert launch.main([*FAST, "--tracking.uri", address]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert "http://someone:***@127.0.0.1" in err or "ftp://someone:***@host" in err
        assert "hunter2" not in err
    assert holding(elsewhere, "hunter2") == []


@pytest.fixture
def store(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address, with a password, of a store that is really a file beside."""
    honest = mlflow_store.connect
    monkeypatch.setattr(mlflow_store, "connect", lambda uri: honest(f"sqlite:///{elsewhere}/mlflow.db"))
    return f"{USER}tracking.example:5000"


def test_a_run_leaves_no_password_in_its_output_result_or_store(
    elsewhere: Path, store: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert launch.main([*FAST, "--output", "result", "--tracking.uri", store]) == 0
    out, err = capfd.readouterr()
    assert "http://someone:***@tracking.example:5000" in out  # the hint: the store was used
    assert "hunter2" not in out + err
    assert holding(elsewhere, "hunter2") == []
    with sqlite3.connect(elsewhere / "mlflow.db") as database:  # not an empty store
        assert database.execute("select count(*) from params").fetchone()[0] > 10
        assert database.execute("select count(*) from runs where status = 'FINISHED'").fetchone() == (1,)


def test_a_run_that_is_resumed_asks_for_the_password(
    elsewhere: Path, store: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from fedray.running.drawing import all_figures

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(all_figures, "draw_all", stop)
        assert launch.main([*FAST, "--output", "r", "--tracking.uri", store]) == 130
    assert holding(elsewhere, "hunter2") == []
    assert launch.main(["--resume", "r"]) == 2
    assert "password of its store was not kept; add --tracking.uri http://someone:***@" in capfd.readouterr().err
    assert launch.main(["--resume", "r", "--tracking.uri", store]) == 0
    with sqlite3.connect(elsewhere / "mlflow.db") as database:  # the same run
        assert database.execute("select count(*), max(status) from runs").fetchone() == (1, "FINISHED")
    assert holding(elsewhere, "hunter2") == []


def test_a_study_says_what_to_type_next_without_the_password() -> None:
    execution = Execution(tracking=TrackingConfig(uri=f"{USER}host"))
    told = study._compare_command("quick", Options(execution=execution))
    assert "--uri 'http://someone:***@host'" in told
    assert SECRET not in told


@pytest.fixture
def sweep(elsewhere: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the store of a sweep in runs/s that was begun and cut off, without any trial."""
    import tune.__main__
    from tune import sweep

    def cut(request: sweep.SweepRequest, *_: object) -> None:
        tracker, _ = sweep._records(request)
        tracker.finish("KILLED")
        raise FedRayError("cut off")

    monkeypatch.setattr(sweep, "play", cut)
    assert tune.__main__.main(["fedavg", "--name", "s", "--rounds", "2", "--tracking.uri", store]) == 2
    return store


def test_the_folder_of_a_sweep_holds_no_password_and_resuming_asks_for_it(
    elsewhere: Path, sweep: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from tune.__main__ import main, read

    assert {path.name for path in (elsewhere / "runs/s").iterdir()} == {"sweep.json", "parent.json"}
    assert holding(elsewhere, "hunter2") == []
    noted = json.loads((elsewhere / "runs/s/parent.json").read_text())
    assert noted["uri"] == "http://someone:***@tracking.example:5000"
    with pytest.raises(FedRayError, match=r"password of its store was not kept; add --tracking.uri http://someone:\*"):
        read(["--resume", "runs/s"])
    other, _ = read(["--resume", "runs/s", "--tracking.uri", f"{USER}elsewhere"])  # a new run in another store
    assert other.execution.tracking.uri == f"{USER}elsewhere"
    path = elsewhere / "runs/s/parent.json"
    path.write_text(json.dumps(noted | {"uri": "http://other:***@tracking.example:5000"}))  # of the last command
    with pytest.raises(FedRayError, match=r"password of its store was not kept; add --tracking.uri http://other:\*"):
        read(["--resume", "runs/s"])
    path.write_text(json.dumps(noted))
    request, resume = read(["--resume", "runs/s", "--tracking.uri", sweep])
    assert resume
    assert request.execution.tracking.uri == sweep
    capfd.readouterr()
    assert main(["--resume", "runs/s", "--tracking.uri", sweep]) == 2  # as far as the cut, with the same run
    assert "cut off" in capfd.readouterr().err
    assert json.loads((elsewhere / "runs/s/parent.json").read_text()) == noted
    assert holding(elsewhere, "hunter2") == []


def test_the_launch_command_of_an_experiment_says_nothing_of_the_store() -> None:
    from tests.helpers import experiment

    assert "tracking" not in cli.command(experiment())


def test_telemetry_is_off() -> None:
    """Ray is told on import of our actors, MLflow when a store is opened."""
    import actors  # noqa: F401

    assert mlflow_store.ENVIRONMENT["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ.get("RAY_USAGE_STATS_ENABLED") == "0"
