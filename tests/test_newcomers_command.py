"""`fedray newcomers`: a finished run takes in clients that it has never met."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedray
from fedray import launch, newcomers
from fedray.algorithms.bayesian.pfedbayes import PFedBayes
from fedray.config import DataConfig, Experiment
from fedray.data import loading
from fedray.federate.planning import make_plan
from fedray.running.folder import lock
from fedray.types import FedRayError
from tests.helpers import differing, each_of

pytestmark = pytest.mark.usefixtures("unpainted")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, and a file of examples that it has not seen: pictures turned upside down, of three classes."""
    folder = tmp_path_factory.mktemp("newcomers")
    options = ["--runtime", "local", "--tracking.uri", "none", "--rounds", "3", "--model.hidden", "8"]
    for name in ("bpfed", "fedavg"):
        assert launch.main([name, *options, "--output", str(folder / name)]) == 0
    x, y = loading.load(DataConfig()).x[:, :, ::-1].copy(), loading.load(DataConfig()).y
    few = np.isin(y, [2, 5, 7])
    np.savez(folder / "theirs.npz", x=x[few], y=y[few])
    np.savez(folder / "wide.npz", x=np.zeros((9, 1, 9, 9), np.uint8), y=np.arange(9))
    np.savez(folder / "twelve.npz", x=np.zeros((12, 1, 8, 8), np.uint8), y=np.arange(12))
    return folder


def test_a_finished_run_takes_in_clients_that_it_has_never_met(finished, capsys):
    command = [str(finished / "bpfed"), "--data", str(finished / "theirs.npz"), "--clients", "2", "--json"]
    assert newcomers.main([*command, "--rounds", "12"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (
        summary["train_examples"] + summary["test_examples"] == np.isin(loading.load(DataConfig()).y, [2, 5, 7]).sum()
    )
    assert summary["novel"]["accuracy"] > 0.6
    theirs, run = fedray.load(finished / "bpfed-newcomers"), fedray.load(finished / "bpfed")
    assert differing(theirs.snapshot.server, run.snapshot.server) == []
    own, shared = theirs.plan.model.part(("head",)), theirs.plan.model.rest(("head",))
    first, second = (theirs.snapshot.clients.row(k).posterior.q.mu for k in range(2))
    assert torch.equal(first[shared], run.snapshot.server.mu[shared])
    assert torch.equal(second[shared], run.snapshot.server.mu[shared])
    assert not torch.equal(first[own], second[own])
    with np.load(finished / "theirs.npz") as archive:
        held = theirs.plan.partition.test[1]
        answer = theirs.predict(archive["x"][held], client=1)
        assert (answer.probs.argmax(-1).numpy() == archive["y"][held]).mean() > 0.6
    assert newcomers.main(command) == 2  # and its result is not overwritten
    assert "already holds something" in capsys.readouterr().err


def test_newcomers_are_dealt_and_trained_by_their_seed(finished):
    run = fedray.load(finished / "bpfed").plan
    asked = newcomers.Options(run=finished / "bpfed", data=str(finished / "theirs.npz"), clients=2)
    plans = [newcomers.make_plan(run, dataclasses.replace(asked, seed=seed))[0] for seed in (0, 1, 1)]
    assert not np.array_equal(plans[0].partition.train[0], plans[1].partition.train[0])
    assert np.array_equal(plans[1].partition.train[0], plans[2].partition.train[0])
    first, other, again = (plan.normals("noise", 1, 4, (8,)) for plan in plans)
    assert torch.equal(other, again)
    assert not torch.equal(first, other)


def test_newcomers_do_not_answer_to_the_names_of_others(tmp_path):
    x, y = np.random.default_rng(0).random((60, 4)), np.arange(60) % 3
    names = np.array(["alice", "bob", "carol"])[np.arange(60) // 20]
    fedray.run("fedper", (x, y, names), rounds=1, output=tmp_path / "run", figures="none", hidden=(8,))
    np.savez(tmp_path / "theirs.npz", x=x, y=y)
    run = str(tmp_path / "run")
    assert newcomers.main([run, "--data", str(tmp_path / "theirs.npz"), "--rounds", "1"]) == 0
    theirs = fedray.load(f"{run}-newcomers")
    assert theirs.plan.names.users == ()
    with pytest.raises(FedRayError, match="have numbers only"):
        theirs.predict(x[:1], client="alice")
    assert newcomers.main([run, "--data", str(tmp_path / "theirs.npz"), "--seed", "-1", "--output", "none"]) == 2


def test_owners_of_the_examples_are_newcomers_by_their_names(tmp_path, capsys):
    x, y = np.random.default_rng(0).random((60, 4)), np.arange(60) % 3
    names = np.array(["dora", "emil"])[np.arange(60) % 5 % 2]
    fedray.run("fedper", (x, y), rounds=1, output=tmp_path / "run", figures="none", hidden=(8,), clients=2)
    np.savez(tmp_path / "theirs.npz", x=x, y=y, client=names)
    run = [str(tmp_path / "run"), "--data", str(tmp_path / "theirs.npz"), "--rounds", "1"]
    assert newcomers.main(run) == 0
    assert "2 newcomers after 1 rounds" in capsys.readouterr().out
    theirs = fedray.load(tmp_path / "run-newcomers")
    for name, train, test in zip(
        ("dora", "emil"), theirs.plan.partition.train, theirs.plan.partition.test, strict=True
    ):
        assert set(names[train]) == set(names[test]) == {name}
    assert torch.equal(theirs.predict(x[:2], client="emil").probs, theirs.predict(x[:2], client=1).probs)
    assert newcomers.main([*run, "--clients", "1", "--output", str(tmp_path / "one")]) == 0
    assert fedray.load(tmp_path / "one").plan.names.users == ()
    assert newcomers.main([*run, "--clients", "3", "--output", str(tmp_path / "three")]) == 2
    assert "--clients 3: the dataset has 2 users" in capsys.readouterr().err


def test_what_newcomers_are_tested_on_is_checked_in_the_words_of_their_own_options(finished, tmp_path, capsys):
    run = [str(finished / "bpfed"), "--output", str(tmp_path / "out")]
    assert newcomers.main([*run, "--data", str(finished / "theirs.npz"), "--test-fraction", "1.0"]) == 2
    assert "error: --test-fraction 1.0: is not between 0 and 1" in capsys.readouterr().err
    np.savez(tmp_path / "one.npz", x=np.zeros((1, 1, 8, 8), np.uint8), y=np.zeros(1, int))
    assert newcomers.main([*run, "--data", str(tmp_path / "one.npz")]) == 2
    assert (
        "one.npz: it has one example, and a newcomer needs one to train and one to test on" in capsys.readouterr().err
    )


def test_the_runs_own_examples_are_said_to_be_no_newcomers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("mine.npz", x=rng.normal(size=(80, 4)), y=np.arange(80) % 2)
    fast = ["fedper", "--runtime", "local", "--rounds", "1", "--local-steps", "1", "--tracking.uri", "none"]
    fast += ["--clients", "4", "--data.labels-per-client", "2", "--figures", "none"]
    assert launch.main([*fast, "--data.name", "mine.npz", "--output", "run"]) == 0
    capsys.readouterr()
    assert newcomers.main(["run", "--data", "mine.npz", "--rounds", "1", "--clients", "2"]) == 0
    assert "warning: --data mine.npz: holds the run's own examples, and its clients are no" in capsys.readouterr().err


def test_grey_images_need_no_channel(finished, tmp_path):
    run = fedray.load(finished / "bpfed")
    with np.load(finished / "theirs.npz") as archive:
        np.savez(tmp_path / "grey.npz", x=archive["x"].reshape(-1, 8, 8).astype(np.float32), y=archive["y"])
    options = [newcomers.Options(run=Path(), data=str(folder / name)) for folder, name in
               ((finished, "theirs.npz"), (tmp_path, "grey.npz"))]  # fmt: skip
    (plan, shards), (other, others) = (newcomers.make_plan(run.plan, each) for each in options)
    assert plan.partition.train[0].tolist() == other.partition.train[0].tolist()
    assert torch.equal(each_of(shards)[0].train_x, each_of(others)[0].train_x)


UNFIT = [
    (["fedavg", "theirs.npz"], "fedavg has no personal factors"),
    (["bpfed", "wide.npz"], "its inputs have the shape [1, 9, 9], those of the run [1, 8, 8]"),
    (["bpfed", "twelve.npz"], "the label '10' is none of the model's: 0, 1"),
    (["bpfed", "none.npz"], "none.npz"),
    (["bpfed", "notes.txt"], "notes.txt: is no file of examples; give a file that ends in .json"),
    (["nowhere", "theirs.npz"], "give the folder of a finished run"),
]


@pytest.mark.parametrize(("names", "words"), UNFIT)
def test_what_does_not_fit_the_run_is_refused(finished, capsys, names, words):
    run, file = (str(finished / name) for name in names)
    before = sorted(finished.iterdir())
    assert newcomers.main([run, "--data", file, "--output", str(finished / "out")]) == 2
    assert words in capsys.readouterr().err
    assert sorted(finished.iterdir()) == before


def test_newcomers_may_come_in_a_table_whose_columns_are_those_of_the_run_in_any_order(tmp_path, capsys):
    x, y = np.random.default_rng(0).random((60, 3)).round(3), np.arange(60) % 3
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y})
    table.to_csv(tmp_path / "mine.csv", index=False)
    fedray.run("fedper", tmp_path / "mine.csv", rounds=1, output=tmp_path / "run", clients=2)
    table[["c", "y", "a", "b"]].to_csv(tmp_path / "theirs.csv", index=False)
    run = [str(tmp_path / "run"), "--rounds", "1"]
    assert newcomers.main([*run, "--data", str(tmp_path / "theirs.csv")]) == 0
    theirs = fedray.load(tmp_path / "run-newcomers")
    assert np.allclose(theirs.dataset.x, x)
    known = theirs.predict(x[:2], client=0).probs
    assert torch.equal(theirs.predict(table[["b", "c", "a"]][:2], client=0).probs, known)
    with pytest.raises(FedRayError, match="x: it has no column b; the model's features are a, b, c"):
        theirs.predict(table[["a", "c"]][:2], client=0)
    (tmp_path / "theirs.csv").rename(tmp_path / "moved.csv")
    moved = fedray.load(tmp_path / "run-newcomers", data=tmp_path / "moved.csv")
    assert torch.equal(moved.predict(x[:2], client=0).probs, known)
    table["b"] = table["b"] > 0.5
    assert theirs.predict(table[["b", "c", "a"]].rename(columns={"b": " b"})[:2], client=0).probs.shape == (2, 3)
    table.rename(columns={"b": "d"}).to_csv(tmp_path / "others.csv", index=False)
    assert newcomers.main([*run, "--data", str(tmp_path / "others.csv"), "--output", str(tmp_path / "out")]) == 2
    assert "others.csv: it has no column b; the model's features are a, b, c" in capsys.readouterr().err


TEXTS = np.array(["good film", "bad film", "a film"])[np.arange(60) % 3]


def test_newcomers_may_bring_texts_whose_words_have_the_vectors_of_the_run(tmp_path):
    (tmp_path / "vectors.txt").write_text("good 1 2\nfilm 3 4\nbad 5 6\n")
    y = np.arange(60) % 3
    np.savez(tmp_path / "mine.npz", x=TEXTS, y=y)
    np.savez(tmp_path / "theirs.npz", x=TEXTS[:20], y=y[:20])
    data = DataConfig(name=str(tmp_path / "mine.npz"), embedding=str(tmp_path / "vectors.txt"), partition="iid")
    run = make_plan(Experiment(algorithm=PFedBayes(), data=data, clients=2))
    options = newcomers.Options(run=tmp_path, data=str(tmp_path / "theirs.npz"))
    plan, shards = newcomers.make_plan(run, options)
    assert each_of(shards)[0].train_x.shape[1:] == (25, 2)
    texts = TEXTS[plan.partition.train[0]]
    first = {"good film": [1, 2], "bad film": [5, 6], "a film": [0, 0]}
    assert each_of(shards)[0].train_x[:, 0].tolist() == [first[str(each)] for each in texts]
    np.savez(tmp_path / "vectors.npz", x=np.ones((20, 25, 2), np.float32), y=y[:20])  # what predict takes, too
    as_vectors = newcomers.Options(run=tmp_path, data=str(tmp_path / "vectors.npz"))
    assert each_of(newcomers.make_plan(run, as_vectors)[1])[0].train_x.shape[1:] == (25, 2)


@pytest.mark.parametrize(
    ("ran", "theirs", "words"),
    [
        ("texts", "numbers", r"its inputs have the shape \[25\], those of the run \[25, 50\]"),
        ("numbers", "texts", "its inputs are texts, those of the run numbers; give numbers"),
    ],
)
def test_texts_among_numbers_are_refused_and_numbers_among_texts(tmp_path, ran, theirs, words):
    x = {"texts": TEXTS, "numbers": np.random.default_rng(0).random((60, 25))}  # as many as a text has words
    np.savez(tmp_path / "theirs.npz", x=x[theirs], y=np.arange(60) % 3)
    cfg = Experiment(algorithm=PFedBayes(), data=DataConfig(partition="iid"), clients=2)
    options = newcomers.Options(run=tmp_path, data=str(tmp_path / "theirs.npz"))
    with pytest.raises(FedRayError, match=words):
        newcomers.make_plan(make_plan(cfg, (x[ran], np.arange(60) % 3)), options)


WORDS, REALS = np.array(["ant", "bee"])[np.arange(20) % 2], np.arange(20) / 8


@pytest.mark.parametrize(("ran", "theirs"), [(WORDS, REALS), (REALS, WORDS), (REALS, np.arange(20) % 2)])
def test_targets_of_another_kind_than_the_runs_are_refused(tmp_path, ran, theirs):
    x = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    np.savez(tmp_path / "theirs.npz", x=x, y=theirs)
    cfg = Experiment(algorithm=PFedBayes(), data=DataConfig(partition="iid"), clients=2)
    options = newcomers.Options(run=tmp_path, data=str(tmp_path / "theirs.npz"))
    with pytest.raises(FedRayError, match=r"its targets are (labels|real numbers), those of the run (lab|real)"):
        newcomers.make_plan(make_plan(cfg, (x, ran)), options)


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_a_few_real_targets_of_newcomers_may_all_be_whole(tmp_path, suffix):
    x = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    path, y = tmp_path / f"theirs{suffix}", np.arange(20.0) % 5
    if suffix == ".npz":
        np.savez(path, x=x, y=y)
    else:
        pd.DataFrame(x, columns=list("abc")).assign(y=y).to_csv(path, index=False)
    cfg = Experiment(algorithm=PFedBayes(), data=DataConfig(partition="iid"), clients=2)
    run = make_plan(cfg, (x, REALS))
    plan, shards = newcomers.make_plan(run, newcomers.Options(run=tmp_path, data=str(path)))
    found = shards.test(0)[1] * float(run.target.divisor) + float(run.target.shift)
    assert np.allclose(np.sort(found), np.sort(y[plan.partition.test[0]]), atol=1e-5)


def test_newcomers_are_all_measured_and_their_models_predict_whatever_the_run_was_limited_to(tmp_path, capsys):
    """The run: five of ten classes, two clients evaluated. FedEM reads a client's examples before it predicts."""
    run, theirs = tmp_path / "run", tmp_path / "theirs.npz"
    options = [
        "--runtime",
        "local",
        "--tracking.uri",
        "none",
        "--rounds",
        "2",
        "--model.hidden",
        "8",
        "--figures",
        "none",
    ]
    options += ["--data.classes", "5", "--data.partition", "iid", "--eval-clients", "2"]
    assert launch.main(["fedem", *options, "--output", str(run)]) == 0
    data = loading.load(DataConfig())
    few = data.y < 3
    np.savez(theirs, x=data.x[few], y=data.y[few])
    assert newcomers.main([str(run), "--data", str(theirs), "--clients", "4", "--rounds", "1"]) == 0
    found = fedray.load(f"{run}-newcomers")
    assert found.plan.cfg.eval_clients is None
    assert found.predict(data.x[few][:5], client=3).probs.shape == (5, 5)


def test_two_commands_do_not_write_the_same_newcomers(finished, capsys):
    command = [str(finished / "bpfed"), "--data", str(finished / "theirs.npz"), "--output", str(finished / "twice")]
    with lock.locked(finished / "twice"):
        assert newcomers.main(command) == 2
    assert "going on in another process" in capsys.readouterr().err
