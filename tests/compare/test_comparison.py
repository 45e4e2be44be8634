"""A comparison shows the finished runs of a real MLflow store, and says what it cannot compare."""

from __future__ import annotations

import csv
import errno
import json
import math
import sqlite3
import statistics
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedray
from fedray import launch
from fedray.compare import comparison
from fedray.compare.__main__ import main
from fedray.config import TrackingConfig
from fedray.running import mlflow_store
from fedray.running.tracking import MLflowTracker
from fedray.studies.tracked import finished

PAPER = {
    "data.name": "mnist",
    "data.size": "medium",
    "data.partition": "labels",
    "data.labels_per_client": 5,
    "clients": 10,
    "model.name": "mlp",
    "model.hidden": [100],
}
ZETA_10 = {seed: 0.90 + 0.02 * seed for seed in range(3)}  # the accuracy at the end, by seed


def log(uri, algorithm, accuracy, seed=0, status="FINISHED", tags=None, experiment="fedray", **settings):
    params = {"algorithm.name": algorithm} | PAPER | {"seed": seed}
    tags = {"config": f"{algorithm}-{seed}"} | (tags or {})
    params |= {f"algorithm.{name}": value for name, value in settings.items()}
    tracker = MLflowTracker(uri, experiment, f"{algorithm}-s{seed}", params, tags)
    tracker._next_flush = math.inf
    for step in (1, 2):
        tracker.log(step, {"global/accuracy": accuracy - 0.1 * (2 - step), "time/round_seconds": 1.0})
    assert tracker.finish(status)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """(URI, summary of a real run, folder) of a store with synthetic runs of every kind and one real run on digits."""
    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder}/mlflow.db"
    for seed, accuracy in ZETA_10.items():
        log(uri, "pfedbayes", accuracy, seed, zeta=10.0, tags={"study": "zetas"})
    log(uri, "pfedbayes", 0.5, 0, zeta=1.0)
    log(uri, "pfedbayes", 0.6, 0, zeta=1.0)  # again: it counts
    log(uri, "fedavg", 0.91, lr=0.1)
    log(uri, "fedavg", 0.01, 1, status="FAILED", lr=0.1)
    log(uri, "fedprox", 0.93, lr=0.1, tags={"mlflow.parentRunId": "parent"})
    log(uri, "fedprox", 0.99, tags={"fedray.kind": "sweep"})
    log(uri, "fedavg", 0.9, experiment="broken", status="FAILED")
    log(uri, "fedavg", 0.9, experiment="swept", tags={"mlflow.parentRunId": "parent"})
    words = f"pfedbayes --rounds 12 --local-steps 2 --predict-samples 2 --runtime local --tracking.uri {uri}"
    assert launch.main([*words.split(), "--tracking.experiment", "real", "--output", str(folder / "run")]) == 0
    words = (
        f"fedper --rounds 2 --local-steps 2 --novel-clients 2 --adapt-rounds 12 --runtime local --tracking.uri {uri}"
    )
    assert launch.main([*words.split(), "--tracking.experiment", "newcomers", "--output", str(folder / "held")]) == 0
    return uri, json.loads((folder / "run" / "summary.json").read_text()), folder


def run(store, output, *words):
    return main(["--uri", store[0], "--output", str(output), *words])


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_an_infinite_measure_is_not_the_largest_number_of_the_database(tmp_path, capsys):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for seed in (0, 1):
        log(uri, "fedavg", 0.9, seed)
        log(uri, "fedprox", math.inf, seed)
    assert run((uri,), tmp_path, "--metrics", "global/accuracy") == 0
    assert table(tmp_path)["fedprox", ""]["global/accuracy mean"] == "inf"
    assert capsys.readouterr().out.count("not finite") == 2  # in the table, and among the differences


def table(folder):
    with (folder / "table.csv").open(newline="") as file:
        return {(row["algorithm"], row["settings"]): row for row in csv.DictReader(file)}


@pytest.fixture
def unpainted_here(monkeypatch):
    """As ``unpainted``, for a test alone: others look at what is painted."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda self, path, **options: path.touch())


@pytest.mark.usefixtures("unpainted_here")
def test_figures_of_an_earlier_comparison_go_and_files_of_the_user_stay(store, tmp_path):
    assert run(store, tmp_path, "--experiment", "real", "--figures", "pdf") == 0
    mine = tmp_path / "figures" / "accuracy.png"
    mine.touch()
    assert {path.suffix for path in mine.parent.glob("reliability-*")} == {".png", ".pdf"}
    assert run(store, tmp_path, "--metrics", "global/accuracy") == 0
    assert {path.name for path in mine.parent.iterdir()} == {"accuracy.png", "accuracy-mnist-medium.png"}


def test_figures_come_in_a_format_for_print_too(store, tmp_path):
    assert run(store, tmp_path, "--metrics", "global/accuracy", "--figures", "pdf") == 0
    found = {path.stem: path.read_bytes()[:4] for path in (tmp_path / "figures").glob("*.pdf")}
    assert set(found.values()) == {b"%PDF"}
    assert found.keys() == {path.stem for path in (tmp_path / "figures").glob("*.png")}


def test_seeds_are_averaged_and_other_settings_are_not(store, tmp_path, capsys):
    assert run(store, tmp_path, "--metrics", "global/accuracy") == 0
    rows = table(tmp_path)
    assert set(rows) == {("fedavg", ""), ("pfedbayes", "zeta=1"), ("pfedbayes", "zeta=10")}
    seeds = rows["pfedbayes", "zeta=10"]
    assert float(seeds["global/accuracy mean"]) == pytest.approx(0.92)
    assert float(seeds["global/accuracy sd"]) == pytest.approx(statistics.stdev(ZETA_10.values()))
    assert float(seeds["global/accuracy sd"]) == pytest.approx(0.02)
    assert float(rows["pfedbayes", "zeta=1"]["global/accuracy mean"]) == 0.6
    assert rows["pfedbayes", "zeta=1"]["global/accuracy n"] == "1"
    printed = capsys.readouterr()
    assert printed.out == (tmp_path / "table.md").read_text()
    row = "| pfedbayes | mnist | medium | zeta=10 | 3 | **92.00 ± 4.97** (92.33 ± 0.76 [pFedBayes, Table 1]) |"
    assert row in printed.out
    assert "| fedavg | mnist | medium |  | 1 | 91.00 (90.60 ± 0.19 [pFedBayes, Table 1]) |" in printed.out
    assert "left out 1 older run:" in printed.err
    assert str(tmp_path / "report.html") in printed.err


NAMES = ("accuracy", "nll", "ece", "worst_decile")


@pytest.fixture(scope="module")
def real(store, tmp_path_factory):
    """The comparison of the real run."""
    folder = tmp_path_factory.mktemp("real")
    metrics = [f"{kind}/{name}" for kind in ("personal", "global") for name in (*NAMES, "stability")]
    metrics += ["comm/bytes_up", "comm/bytes_down"]
    assert run(store, folder, "--experiment", "real", "--metrics", ",".join(metrics)) == 0
    return folder


def test_the_figures_of_a_run_are_those_of_its_summary(store, real):
    from mlflow.tracking import MlflowClient

    ((_, row),) = table(real).items()
    summary = store[1]
    run_in_store = MlflowClient(store[0]).get_run(summary["run_id"])
    assert summary["protocol"]["rounds"].startswith("mean of 2 evaluations")
    assert run_in_store.data.tags["averaged"] == summary["protocol"]["rounds"]
    for kind in ("personal", "global"):
        for name in NAMES:
            assert float(row[f"{kind}/{name} mean"]) == summary[kind][name]
        assert float(row[f"{kind}/stability mean"]) == summary[kind]["stability"] > 0
        for name in ("accuracy", "nll", "ece"):
            assert run_in_store.data.metrics[f"averaged/{kind}_{name}"] == summary[kind][name]
    for way in ("up", "down"):
        assert float(row[f"comm/bytes_{way} mean"]) == summary[f"bytes_{way}"]
    drawn = sorted(path.name for path in (real / "figures").iterdir())
    kinds = ["accuracy", "clients", "reliability-global", "reliability-personal"]
    assert drawn == [f"{kind}-digits-medium.png" for kind in kinds]
    assert "[" not in (real / "table.md").read_text()  # no paper has figures for these data


def test_a_terminal_gets_a_table_and_markdown_only_on_request(store, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(store, tmp_path) == 0
    assert "| --" not in (shown := capsys.readouterr().out)
    assert "zeta=10" in shown
    assert "| fedavg |" in (tmp_path / "table.md").read_text()
    assert run(store, tmp_path, "--markdown") == 0
    assert capsys.readouterr().out == (tmp_path / "table.md").read_text()


def test_newcomers_have_a_column_and_figures_of_their_own(store, tmp_path, capsys):
    assert run(store, tmp_path, "--experiment", "newcomers", "--metrics", "personal/accuracy,novel/accuracy") == 0
    assert "| personal accuracy (%) ↑ | newcomers' accuracy (%) ↑ |" in capsys.readouterr().out
    ((_, row),) = table(tmp_path).items()
    (history,) = (path for path in store[2].glob("held/metrics.csv"))
    with history.open(newline="") as file:
        adapted = [float(line["novel/accuracy"]) for line in csv.DictReader(file) if line["novel/accuracy"]]
    assert len(adapted) == 12
    summary = json.loads((store[2] / "held" / "summary.json").read_text())
    assert float(row["novel/accuracy mean"]) == summary["novel"]["accuracy"] == pytest.approx(sum(adapted[-2:]) / 2)
    assert float(row["personal/accuracy mean"]) == summary["personal"]["accuracy"]
    assert (tmp_path / "figures" / "reliability-novel-digits-medium.png").exists()
    assert 'alt="reliability-novel-digits-medium"' in (tmp_path / "report.html").read_text()


def test_sweeps_and_studies_are_chosen(store, tmp_path):
    metric = ("--metrics", "global/accuracy", "--format", "csv")
    assert run(store, tmp_path / "sweeps", "--sweeps", *metric) == 0
    rows = table(tmp_path / "sweeps")
    assert float(rows["fedprox", ""]["global/accuracy mean"]) == 0.93  # the child, not the parent
    assert run(store, tmp_path / "study", "--study", "zetas", "--format", "csv") == 0  # has no personal models
    assert set(table(tmp_path / "study")) == {("pfedbayes", "")}


def test_a_store_is_read_to_its_last_page(store, tmp_path, monkeypatch):
    metric = ("--metrics", "global/accuracy", "--format", "csv")
    assert run(store, tmp_path / "whole", *metric) == 0
    monkeypatch.setattr(mlflow_store, "PAGE", 2)
    assert run(store, tmp_path / "paged", *metric) == 0
    assert table(tmp_path / "paged") == table(tmp_path / "whole")
    assert len(finished("zetas", store[0], "fedray")) == len(ZETA_10)


def test_the_formats_asked_for_are_written_and_the_first_is_printed(store, tmp_path, capsys):
    assert run(store, tmp_path, "--metrics", "global/accuracy", "--format", "latex,csv") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures", "table.csv", "table.tex"]
    assert capsys.readouterr().out == (tmp_path / "table.tex").read_text()
    # A later one leaves no table beside its own.
    assert run(store, tmp_path, "--metrics", "global/accuracy", "--format", "md") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures", "table.md"]


class Page(HTMLParser):
    """Checks that tags close, and collects what the page would load."""

    def __init__(self):
        super().__init__()
        self.open, self.loads = [], []

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_report_needs_nothing_else(store, real):
    text = (real / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert len(page.loads) == 4
    assert all(link.startswith("data:image/png;base64,iVBOR") for link in page.loads)
    assert "@import" not in text
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert store[1]["run_id"] in text


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--experiment", "fedry"], ["--experiment fedry", "choose from", "real"]),
        (["--experiment", "broken"], ["--experiment broken", "no finished runs", "fedray.launch"]),
        (["--experiment", "swept"], ["--experiment swept", "sweeps", "--sweeps"]),
        (["--study", "zeta"], ["--study zeta", "choose from zetas"]),
        (["--metrics", "global/accurcy"], ["--metrics global/accurcy", "global/accuracy"]),
        (["--metrics", ","], ["--metrics ','", "leave it out"]),
        (["--metrics", "global/accuracy", "--by", "zeta"], ["--by zeta", "algorithm.zeta"]),
        (["--format", "pdf"], ["--format pdf", "md, latex, csv, html"]),
    ],
)
def test_what_cannot_be_compared_is_refused(store, tmp_path, capsys, words, parts):
    output = tmp_path / "out"
    assert run(store, output, *words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    for part in parts:
        assert part in printed.err
    assert not output.exists()


def test_a_store_that_does_not_exist_is_not_made(tmp_path, capsys):
    missing, text, other = (tmp_path / name for name in ("none.db", "text.db", "other.db"))
    text.write_text("not a database " * 100)
    with sqlite3.connect(other) as connection:
        connection.execute("create table mine (x)")
    connection.close()
    before = other.read_bytes()
    for file, reason in ((missing, "no such file"), (text, "not a database"), (other, "not a store of MLflow")):
        assert main(["--uri", f"sqlite:///{file}", "--output", str(tmp_path / "out")]) == 2
        assert reason in capsys.readouterr().err
    assert not missing.exists()
    assert other.read_bytes() == before
    assert main(["--uri", "none"]) == 2
    assert "sqlite:///FILE.db" in capsys.readouterr().err


def test_a_store_that_may_not_be_read_is_said_to_be(store, monkeypatch, capsys):
    """SQLite calls it one that it cannot open. Whoever runs this may read everything, as root."""
    path, read = Path(store[0].removeprefix("sqlite:///")), Path.open

    def refuse(self, *args, **kwargs):
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    assert main(["--uri", store[0]]) == 2
    assert "cannot be read (permission denied); let yourself read it" in capsys.readouterr().err


@pytest.mark.usefixtures("unpainted_here")
def test_nothing_stays_in_the_folder_for_temporary_files(store, tmp_path, monkeypatch):
    """MLflow left a folder there for every file of every run, also for those that a run has not."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert run(store, tmp_path / "out", "--experiment", "real") == 0
    assert list((tmp_path / "out/figures").glob("reliability*"))
    assert not list((tmp_path / "temporary").iterdir())


def test_an_old_report_does_not_stay_beside_new_tables(store, tmp_path, monkeypatch):
    assert run(store, tmp_path / "out", "--metrics", "global/accuracy") == 0

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "_draw", stop)
    assert run(store, tmp_path / "out", "--metrics", "global/accuracy") == 130
    assert not (tmp_path / "out/report.html").exists()


def test_a_folder_that_cannot_be_written_is_named(store, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run(store, tmp_path / "file", "--metrics", "global/accuracy") == 2
    assert "--output" in capsys.readouterr().err


def test_a_folder_whose_figures_cannot_be_written_has_its_tables(store, tmp_path, capsys, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedray.compare.figures.draw", full)
    assert run(store, tmp_path, "--metrics", "global/accuracy") == 2
    assert (
        f"--output {tmp_path}: cannot be written (no space left on device); free space there" in capsys.readouterr().err
    )
    assert (tmp_path / "table.csv").stat().st_size > 0


def test_files_of_one_name_in_deep_folders_are_compared(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    deep = "/data/" + "/".join("x" * 40 for _ in range(8))
    for name in ("a", "b"):
        params = PAPER | {"data.name": f"{deep}/{name}/data.csv", "algorithm.name": "fedavg", "seed": 0}
        tracker = MLflowTracker(uri, "fedray", name, params, {})
        for step in (1, 2):
            tracker.log(step, {"global/accuracy": 0.5, "time/round_seconds": 1.0})
        assert tracker.finish("FINISHED")
    assert main(["--uri", uri, "--output", str(tmp_path / "out"), "--metrics", "global/accuracy"]) == 0
    assert len({path.name for path in (tmp_path / "out" / "figures").glob("accuracy*.png")}) == 2


def test_runs_that_were_stopped_early_are_not_averaged_with_whole_ones(tmp_path):
    """MLflow keeps the rounds that were planned; a callback and a scheduler play fewer."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    asked = {"rounds": 3, "local_steps": 1, "tracking": TrackingConfig(uri=uri)}
    for seed in (0, 1):
        stop = [lambda played, seed=seed: seed == 1 and played.number == 2]
        fedray.run("fedavg", seed=seed, callbacks=stop, name=f"s{seed}", output=tmp_path / f"s{seed}", **asked)
    assert main(["--uri", uri, "--output", str(tmp_path / "out"), "--metrics", "global/accuracy"]) == 0
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["settings"] for row in rows) == ["rounds=2", "rounds=3"]
