"""A study: its runs and their fingerprints, that it goes on where it stopped, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedray import registry
from fedray.config import fingerprint, override
from fedray.data.readers import Dataset
from fedray.data.scaling import within
from fedray.federate.planning import make_plan, resolve
from fedray.running import progress, session, stages
from fedray.running.folder import lock
from fedray.studies import agenda as agenda_module
from fedray.studies import study as study_module
from fedray.studies.__main__ import main, parse
from fedray.studies.agenda import plan_runs
from fedray.studies.cell import Cell
from fedray.studies.named import STUDIES
from fedray.studies.named.pfedbayes import base
from fedray.studies.named.quick import quick
from fedray.types import FedRayError

pytestmark = pytest.mark.usefixtures("unpainted")
ALONE = ["--runtime", "local", "--concurrency", "1"]  # in this process, where a test can reach into it
FAST = ["--rounds", "1", *ALONE]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def short() -> list[Cell]:
    """The quick study with two minibatches per round."""
    return [cell._replace(experiment=override(cell.experiment, {"local_steps": 2})) for cell in quick()]


def test_the_fingerprint_is_of_what_the_numbers_depend_on() -> None:
    cfg = resolve(base("pfedbayes", "mnist"))
    known = fingerprint(cfg)
    assert len(known) == 16
    assert int(known, 16)
    same = [{"data.root": Path("/elsewhere")}, {"data.download": True}, {"algorithm.zeta": 10}]
    assert {fingerprint(override(cfg, change)) for change in same} == {known}
    other = [{"algorithm.zeta": 9.0}, {"algorithm.zeta": 9.5}, {"seed": 1}, {"rounds": 3}, {"data.size": "small"}]
    found = {fingerprint(override(cfg, change)) for change in other}
    assert len(found | {known}) == len(other) + 1


def test_a_setting_that_came_later_counts_only_where_it_changes_the_numbers() -> None:
    from dataclasses import dataclass

    from fedray.types import added

    @dataclass(frozen=True, kw_only=True)
    class Method:
        lr: float = 0.1

    before = Method

    @dataclass(frozen=True, kw_only=True)
    class Method:  # type: ignore[no-redef]
        lr: float = 0.1
        width: float = added(1.0)

    before.__qualname__ = Method.__qualname__  # the same class, a version later
    cfg = resolve(base("fedavg", "digits"))
    known = fingerprint(override(cfg, {"algorithm": before()}))
    assert fingerprint(override(cfg, {"algorithm": Method()})) == known
    assert fingerprint(override(cfg, {"algorithm": Method(width=2.0)})) != known
    assert Method().width == 1.0


def test_the_fingerprint_tells_algorithms_with_the_same_settings_apart() -> None:
    from dataclasses import dataclass

    from fedray.algorithms.averaging.fedavg import FedAvg

    @dataclass(frozen=True, kw_only=True)
    class Twin(FedAvg):
        pass

    cfg = resolve(base("fedavg", "digits"))
    assert fingerprint(override(cfg, {"algorithm": Twin()})) != fingerprint(cfg)


def test_a_study_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setattr(agenda_module, "STUDIES", {"quick": short})
    command = ["quick", "--limit", "1", *FAST]
    assert main(command) == 0
    assert "[1/1] fedavg-s0" in capfd.readouterr().err
    assert main(command) == 0
    err = capfd.readouterr().err
    assert "[1/1] pfedbayes-s0" in err
    assert "fedavg-s0" not in err
    assert "4 in all, 1 finished before, 1 to run now" in err
    assert "python -m fedray.compare --study quick" in err
    assert main([*command, "--list"]) == 0
    assert capfd.readouterr().out.split() == [
        "finished", "fedavg-s0", "finished", "pfedbayes-s0", "to", "run", "fedavg-s1", "later", "pfedbayes-s1",
    ]  # fmt: skip
    assert {path.name[:-7] for path in Path("runs/quick").iterdir() if path.is_dir()} == {"fedavg-s0", "pfedbayes-s0"}
    client = MlflowClient(f"sqlite:///{Path.cwd()}/runs/mlflow.db")  # stores are cached by address
    tagged = client.search_runs(["1"], "tags.study = 'quick' and tags.config != ''")
    assert {(run.info.run_name, run.info.status) for run in tagged} == {
        ("fedavg-s0", "FINISHED"),
        ("pfedbayes-s0", "FINISHED"),
    }
    # Neither another study nor a run that did not finish counts.
    assert study_module.finished("table2", "", "fedray") == {}
    assert len(study_module.finished("quick", "", "fedray")) == 2
    client.set_terminated(tagged[0].info.run_id, "FAILED")
    assert len(study_module.finished("quick", "", "fedray")) == 1


def test_finished_runs_that_are_not_here_are_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agenda_module, "STUDIES", {"quick": short})
    monkeypatch.setattr("fedray.running.tracking.git_commit", lambda: "abc")
    command = ["quick", *FAST, "--seeds", "1", "--only", "fedavg", "--record", "data"]
    assert main(command) == 0
    first = capfd.readouterr().err
    assert "data     data/quick.csv" in first
    assert "again" not in first
    assert main([*command, "--tracking.experiment", "another", "--output", "second"]) == 0
    assert "in data already, but played again: 1;" in capfd.readouterr().err
    Path("data/quick.csv").unlink()
    Path("runs/quick").rename("moved")
    assert main(command) == 0
    told = capfd.readouterr().err
    assert "no data  fedavg-s0: it is finished, but not in runs/quick/fedavg-s0" in told
    assert "data/quick.csv" not in told


def test_a_cell_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    played = []

    def run(request: stages.Request, tags: dict[str, str], tell: object) -> SimpleNamespace:
        played.append((request.execution.name, tags["study"]))
        if request.execution.name == "fedavg-s0":
            raise launch_error()
        if request.execution.name == "pfedbayes-s0":
            raise RuntimeError("a bug")
        return SimpleNamespace(summary={"personal": None, "global": {"accuracy": 0.5}, "seconds": 1.0})

    def launch_error() -> Exception:
        from fedray.types import FedRayError

        return FedRayError("it diverged; lower --lr")

    monkeypatch.setattr(session, "run", run)
    assert main(["quick", *FAST]) == 1
    assert played == [(f"{name}-s{seed}", "quick") for seed in (0, 1) for name in ("fedavg", "pfedbayes")]
    err = capfd.readouterr().err
    assert "failed: it diverged; lower --lr" in err
    assert "2 run, 0 finished before, 2 failed" in err
    assert "failed   fedavg-s0: it diverged; lower --lr\nfailed   pfedbayes-s0: a bug\nagain    python -m " in err
    assert f"again    python -m fedray.studies quick {' '.join(FAST)}" in err
    assert "global 50.00%" in err
    # A mistake in the program is shown whole, what a cell refuses is one line.
    assert err.count("Traceback") == 1


def test_ctrl_c_ends_the_study(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def run(request: stages.Request, tags: dict[str, str], tell: object) -> SimpleNamespace:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "run", run)
    assert main(["quick", *FAST]) == 130
    assert "the same command continues" in capfd.readouterr().err


def stored(name: str) -> tuple[str, str, dict[int, float]]:
    """Id and status of the only run of that name in the store, and the seconds that each of its rounds took."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{Path.cwd()}/runs/mlflow.db")
    (run,) = client.search_runs(["1"], f"attributes.run_name = '{name}'")
    seconds = client.get_metric_history(run.info.run_id, "time/round_seconds")
    return run.info.run_id, run.info.status, {entry.step: entry.value for entry in seconds}


def test_an_interrupted_run_of_a_study_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedray.running.tracking import MLflowTracker

    log = MLflowTracker.log

    def log_three_rounds(self: MLflowTracker, step: int, values: dict[str, float]) -> None:
        log(self, step, values)
        if step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(agenda_module, "STUDIES", {"quick": lambda: short()[1:]})
    command = ["quick", "--rounds", "5", *ALONE, "--seeds", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(MLflowTracker, "log", log_three_rounds)
        assert main(command) == 130
    run_id, status, before = stored("pfedbayes-s0")
    assert (status, sorted(before)) == ("KILLED", [1, 2, 3])
    assert main(command) == 0
    resumed_id, status, after = stored("pfedbayes-s0")
    assert (resumed_id, status, sorted(after)) == (run_id, "FINISHED", [1, 2, 3, 4, 5])
    # The first rounds were not run again, or they would have taken another time.
    assert {step: after[step] for step in before} == before


def test_a_study_that_is_stopped_at_its_table_is_ended_by_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    def stop(options: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(agenda_module, "STUDIES", {"quick": short})
    command = ["quick", *FAST, "--seeds", "1", "--only", "fedavg"]
    with monkeypatch.context() as patched:
        patched.setattr(study_module.comparison, "compare", stop)
        assert main(command) == 130
    run_id, status, _ = stored("quick")
    assert (status, progress.read(Path("runs/quick")).state) == ("KILLED", "interrupted")
    assert main(command) == 0
    assert stored("quick")[:2] == (run_id, "FINISHED")
    assert progress.read(Path("runs/quick")).state == "finished"
    client = MlflowClient(f"sqlite:///{Path.cwd()}/runs/mlflow.db")
    assert "table.md" in {file.path for file in client.list_artifacts(run_id)}


def test_two_processes_do_not_play_the_same_study(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agenda_module, "STUDIES", {"quick": short})
    command = ["quick", *FAST, "--seeds", "1", "--only", "fedavg"]
    with lock.locked(Path("runs/quick")):
        assert main(command) == 2
    said = capfd.readouterr().err
    assert "--output runs/quick: what is there is going on in another process" in said
    assert not Path("runs/quick").exists()
    assert main(command) == 0


def names(*argv: str) -> list[str]:
    return [cell.name for cell in plan_runs(*parse(argv)).runs]


def test_parts_of_a_study() -> None:
    zeta = ["base", "zeta=0.5", "zeta=1", "zeta=5", "zeta=20"]
    chosen = ["table2", "--only", "zeta", "--seed-start", "3", "--seeds", "2"]
    assert names(*chosen) == [f"{name}-s{seed}" for seed in (3, 4) for name in zeta]
    assert names("table1-mnist", "--only", "fedavg", "fedprox", "--size", "small", "--seeds", "1") == [
        "fedavg-small-s0",
        "fedprox-small-s0",
    ]
    asked = ["table2", "--seeds", "1", "--rounds", "7", "--eval-every", "5", "--data.root", "mine"]
    study, options = parse(asked)
    cell = plan_runs(study, options).runs[0]
    cfg = cell.experiment
    assert (cfg.rounds, cfg.eval_every, cfg.data.root, cfg.seed) == (7, 5, Path("mine"), 0)
    # Other settings, another folder: a longer study does not meet the results of a shorter one.
    longer = cell._replace(experiment=override(cfg, {"rounds": 8}))
    # FedAvg has no personal models, and does not stand in the way of the other cells.
    _, deviating = parse(["table1-mnist", "--loss-deviation"])
    both = {cell.name.split("-")[0]: cell for cell in plan_runs("table1-mnist", deviating).runs}
    asked = {name: study_module.request("s", c, deviating).execution.loss_deviation for name, c in both.items()}
    assert (asked["fedavg"], asked["pfedbayes"]) == (False, True)
    folders = [study_module.request(study, c, options).execution.output for c in (cell, longer)]
    assert len(set(folders)) == 2


def test_the_report_is_asked_for_by_an_option_where_the_study_does_not_ask() -> None:
    for words, asked in (([], False), (["--uncertainty"], True)):
        study, options = parse(["quick", *words])
        planned = plan_runs(study, options).runs[0]
        assert study_module.request(study, planned, options).execution.uncertainty == asked


BAD = {
    "no study": ([], ["no study", "table2, table3, table1-mnist"]),
    "study": (["tabel2"], ["tabel2", "table2, table3, table1-mnist"]),
    "limit": (["quick", "--limit", "0"], ["--limit 0", "at least one"]),
    "seeds": (["quick", "--seeds", "0"], ["--seeds 0", "at least one"]),
    "seed": (["quick", "--seed-start", "-1"], ["--seed-start -1", "at least zero"]),
    "rounds": (["quick", "--rounds", "0"], ["--rounds 0", "at least one"]),
    "row": (["table2", "--only", "zetta"], ["--only zetta", "zeta, rho_init, lr"]),
    "size": (["table2", "--size", "large"], ["--size large", "choose from all, medium"]),
    "no row": (["quick", "--only", "--list"], ["only", "no cell is named"]),
    "row of another size": (
        ["table1-mnist", "--only", "fedavg-small", "--size", "large"],
        ["only fedavg-small", "no such cell of table1-mnist has the size large"],
    ),
    "record": (["quick", *ALONE, "--record", "/dev/null/data"], ["--record /dev/null/data", "choose a folder"]),
    "name": (["quick", "--name", "mine"], ["--name mine", "--output"]),
    "data": (["table2", "--data.root", "nowhere"], ["nowhere", "is missing", "--data.download"]),
    "no store": (
        ["quick", "--tracking.uri", "none"],
        ["--tracking.uri none", "which runs are finished", "sqlite:///FILE.db"],
    ),
    "store": (["quick", "--tracking.uri", "http://127.0.0.1:9"], ["http://127.0.0.1:9", "Start the server"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_anything_runs(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    argv, words = BAD[case]
    try:
        code = main(argv)
    except SystemExit as stop:  # tyro's own refusals
        code = stop.code
    err = " ".join(capfd.readouterr().err.replace("│", " ").split())
    assert code == 2
    assert "Traceback" not in err
    assert all(word in err for word in words), err
    assert not list(Path.cwd().iterdir())
    assert case == "no store" or "--tracking.uri none" not in err  # a study needs a store


def test_a_study_says_what_it_leaves_out_and_why(capfd: pytest.CaptureFixture[str]) -> None:
    """And it is what a plan refuses once it has the data: six cells of CIFAR-10, and no other, of these methods."""
    examples = 60_000
    pictures = Dataset(np.broadcast_to(np.uint8(0), (examples, 3, 32, 32)), np.arange(examples) % 10, 10, within(255))
    refused = {}
    methods = ["dsvgd", "fedavg", "pfedbayes", "svgd"]
    for cell in STUDIES["table1-cifar10"]():
        if cell.tags[0] in methods:
            try:
                make_plan(cell.experiment, dataset=pictures)
            except FedRayError as error:
                refused[cell.name] = str(error)
    agenda = plan_runs(*parse(["table1-cifar10", "--only", *methods, "--seeds", "1"]))
    assert agenda.left_out == refused
    assert sorted(refused) == sorted(
        f"{name}-{size}" for name in ("dsvgd", "svgd") for size in ("small", "medium", "large")
    )
    assert len(agenda.runs) == 6
    assert main(["table1-cifar10", "--list", "--seeds", "1", "--only", "svgd", "fedavg", "--size", "small"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "to run    fedavg-small-s0",
        f"left out  svgd-small: {refused['svgd-small']}",
    ]
    assert main(["table1-cifar10", "--only", "svgd", "--runtime", "local"]) == 2
    assert "none of the selected cells can be played; svgd-small, svgd-medium, svgd-large: clients_per_round" in (
        " ".join(capfd.readouterr().err.replace("│", " ").split())
    )


def test_what_a_study_leaves_out_does_not_keep_it_from_being_complete(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reasons = {"fedavg": None, "pfedbayes": "zeta 10: it is too large; lower it"}
    monkeypatch.setattr(agenda_module, "STUDIES", {"quick": short})
    monkeypatch.setattr(agenda_module, "refusal", lambda cfg: reasons[registry.algorithm_name(cfg.algorithm)])
    assert main(["quick", "--seeds", "1", *FAST]) == 0
    told = capfd.readouterr()
    assert "left out  pfedbayes: zeta 10: it is too large; lower it" in told.err
    assert "1 in all, 0 finished before, 1 to run now" in told.err
    assert "fedavg" in told.out  # the table: nothing is missing from it
    assert "pfedbayes" not in told.out


def test_a_complete_study_ends_in_its_table_and_figures(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    small = {"algorithm.particles": 2, "model.hidden": (8,), "clients": 6, "rounds": 4, "local_steps": 2}
    cells = [cell._replace(experiment=override(cell.experiment, small)) for cell in STUDIES["selection-digits"]()]

    def two() -> list[Cell]:
        """In turn, and by HIP."""
        return [cells[0], cells[3]]

    monkeypatch.setattr(agenda_module, "STUDIES", {"selection-digits": two})
    command = ["selection-digits", *ALONE, "--seeds", "1"]
    assert main([*command, "--limit", "1"]) == 0
    assert capfd.readouterr().out == ""  # half of it is no comparison
    assert main(command) == 0
    table = capfd.readouterr().out
    hip, turns = (line.split(" | ") for line in table.splitlines()[2:4])
    assert (hip[:2], turns[:2]) == (["| digits", "hip"], ["| digits", "round_robin"])
    assert turns[-4] == "–"  # whom it chooses has no score
    assert "NLL" in table
    assert "sd over the last 10 evaluations" in table
    folder = Path("runs/selection-digits/comparison")
    assert (folder / "report.html").exists()
    assert {path.name.partition("-")[0] for path in (folder / "figures").iterdir()} >= {"accuracy", "reliability"}
    assert main(command) == 0
    again = capfd.readouterr()
    assert again.out == table
    assert "0 run, 2 finished before" in again.err
    up = [float(row[-2].strip("*")) for row in (hip, turns)]
    particles = 4 * 2 * (65 * 8 + 9 * 10)
    sums = 2 * 4 * (65 * 8 + 9 * 10)
    assert up == pytest.approx([4 * (particles + sums + 6 * particles) / 1e6, 4 * (particles + sums) / 1e6], abs=0.05)
