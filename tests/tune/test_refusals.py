"""Sweeps that cannot run are refused before Ray starts."""

import pytest
import ray

from fedray.config import fingerprint
from fedray.data import loading
from fedray.federate.planning import make_plan
from fedray.running.files import write_json
from fedray.running.folder import lock
from tune import planner, sweep
from tune.__main__ import SweepNote, main, read

REFUSED = [
    (["--space", "lrr=uniform(1,2)"], "--space lrr: no such setting"),
    (["--space", "lr=uniform(2,1)"], "empty range"),
    (["--metric", "personal/accuracy2"], "no such measure"),
    (["--metric", "test/personal/accuracy"], "no such measure"),  # fedavg has no personal models
    (["--metric", "global/nll"], "give validation/global/nll, or test/global/nll to choose by test data all the same"),
    (["--space", "data.validation=uniform(0.1,0.3)"], "ranked on the same validation examples"),
    (["--data.partition", "iid", "--clients", "850"], "has one training example, which it needs"),
    (["--data.partition", "iid", "--space", "clients=grid(2,850)"], "has one training example, which it needs"),
    (["--space", "model.name=grid(mlp,typo)"], "--space model.name=grid(mlp,typo): --model.name 'typo' is not"),
    (["--space", "selection=grid(uniform,typo)"], "typo"),
    (
        ["--search", "grid", "--space", "lr=choice(0.1,0.10)"],
        "grid: lr=choice(0.1,0.1): a value is given twice",
    ),
    (["--space", "clients_per_round=grid(5,50)"], "--clients-per-round 50: a round needs between 1 and all 10"),
    (["--space", "data.labels_per_client=grid(2,50)"], "--data.labels-per-client 50"),
    (["--space", "novel_clients=choice(0,50)"], "--novel-clients 50: it leaves none of 10 clients"),
    (["--space", "eval_clients=choice(3,500)"], "--eval-clients 500: the federation has 10 clients"),
    (["--data.partition", "dirichlet", "--space", "data.alpha=loguniform(0.001,1)"], "alpha 0.001: 100 draws"),
    (["--data.partition", "dirichlet", "--data.alpha", "0.02", "--seeds", "4"], "--seeds 4: seed 1: "),
    (["--space", "clients=grid(2,6)", "--space", "clients_per_round=grid(2,4)"], "--clients-per-round 4"),
    (["--resume", "nowhere"], "holds no sweep"),
    (["--name", "../x"], "--name ../x: is not a plain name"),
    (["--runtime", "local"], "a sweep runs on Ray"),
    (["--backend", "compiled"], "--backend compiled: the settings that a sweep varies are constants"),
    (["--loss-deviation"], "launch its best configuration"),
    (["--uncertainty"], "launch its best configuration"),
    (["--tracking.system-metrics"], "its trials share the machines"),
    (["--figures", "svg"], "launch its best configuration"),
    (["--no-elastic"], "a trial keeps its machines"),
    (["--tracking.uri", "runs/mlruns"], "--tracking.uri runs/mlruns: not the address of a database"),
    (["--checkpoint.every", "2"], "--checkpoint.every 2: a sweep keeps every trial"),
    (["--checkpoint.keep", "5"], "--checkpoint.keep 5: the scheduler decides"),
    (["--checkpoint.url", "s3://bucket"], "--checkpoint.url s3://bucket: a sweep keeps its checkpoints"),
    (["--checkpoint.on-error", "stop"], "stop: Tune repeats a trial"),
]


COMBINED = ["--space", "clients=grid(9,15,300)", "--space", "data.partition=grid(iid,dirichlet)"]


def test_the_configurations_that_decide_how_many_clients_there_are_are_planned_together(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["fedavg", *COMBINED, "--metric", "test/global/accuracy", "--data.alpha", "0.1"]) == 2
    words = "--space clients=300, data.partition=dirichlet: --data.alpha 0.1: 100 draws left some of 300 clients"
    assert words in capsys.readouterr().err


def test_what_one_must_know_of_the_trials_is_said_once_and_before_the_first():
    searched = ["--space", "lr=grid(0.1,0.2)", "--space", "data.moments=grid(training,all)", "--seeds", "2"]
    told = read(["fedavg", "--data.alpha", "0.3", "--data.scaling", "feature", *searched])[0].preview.messages
    assert [line.split(":")[0] for line in told] == ["warning"] * len(told)
    assert ["--data.alpha 0.3 changes nothing" in line for line in told].count(True) == 1
    assert ["--data.moments all: inputs are scaled" in line for line in told].count(True) == 1
    assert len(set(told)) == len(told)


def test_no_experiment_is_planned_twice_and_the_examples_are_loaded_once(monkeypatch):
    planned, loads = [], []
    monkeypatch.setattr(
        planner, "make_plan", lambda cfg, given: planned.append(fingerprint(cfg)) or make_plan(cfg, given)
    )
    monkeypatch.setattr(loading, "load", lambda cfg, load=loading.load: loads.append(cfg) or load(cfg))
    space = ["--space", "lr=loguniform(0.01,0.1)", "--space", "clients=grid(4,6)", "--space", "data.classes=grid(8)"]
    request, _ = read(["fedavg", "--data.partition", "iid", "--seeds", "3", *space])
    assert request.preview.clients == 6
    assert len(set(planned)) == len(planned) == 1 + 1 + 1 + 1 + 2  # base; first values; lr, clients and two seeds
    assert len(loads) == 2  # of all classes, and of eight


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_bad_requests_are_refused_before_ray_starts(tmp_path, monkeypatch, capsys, options, words):
    monkeypatch.chdir(tmp_path)
    space = [] if "--space" in options else ["--space", "lr=uniform(0.1,0.2)"]
    assert main(["fedavg", *options, *space]) == 2
    assert words in capsys.readouterr().err
    assert not ray.is_initialized()
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_is_not_written_where_a_file_is(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert main(["fedavg", "--space", "lr=uniform(0.1,0.2)", "--output", str(tmp_path / "file")]) == 2
    assert f"--output {tmp_path}/file: already holds something" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_sweep_that_another_process_plays_is_left_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "play", lambda *_: pytest.fail("it was played"))
    words = ["fedavg", "--space", "lr=uniform(0.1,0.2)"]
    folder = tmp_path / "runs/s"
    with lock.locked(folder):
        assert main([*words, "--name", "s"]) == 2
        assert "going on in another process" in capsys.readouterr().err
        assert not folder.exists()
        write_json(folder / "sweep.json", SweepNote("s", words, "")._asdict())
        assert main(["--resume", "runs/s"]) == 2
        assert "going on in another process" in capsys.readouterr().err


@pytest.mark.parametrize("note", ["", "[]", '{"name": "s"}', '{"name": "s", "argv": 3}', "[" * 100_000])
def test_a_damaged_note_of_a_sweep_is_refused(tmp_path, capsys, note):
    (tmp_path / "sweep.json").write_text(note, encoding="utf-8")
    assert main(["--resume", str(tmp_path)]) == 2
    assert f"--resume {tmp_path}: holds no sweep" in capsys.readouterr().err
