"""fedray.compare_runs puts runs side by side, as the table of the command line does."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import fedray
from fedray import launch
from fedray.compare.__main__ import main
from fedray.compare.runs import RunStore
from fedray.config import TrackingConfig

QUICK = {"rounds": 2, "local_steps": 2, "hidden": (8,)}


@pytest.fixture(scope="module")
def runs():
    return [fedray.run("fedavg", lr=lr, seed=seed, **QUICK) for lr in (0.1, 0.3) for seed in (0, 1)]


def test_rows_average_runs_that_differ_in_their_seeds(runs):
    frame = fedray.compare_runs(runs).frame
    assert list(frame.index) == [("fedavg", "lr=0.1"), ("fedavg", "lr=0.3")]
    found = [run.summary["global"]["accuracy"] for run in runs[:2]]
    row = frame.loc[("fedavg", "lr=0.1")]
    assert row["global/accuracy"] == pytest.approx(statistics.mean(found))
    assert row["global/accuracy sd"] == pytest.approx(statistics.stdev(found))
    assert row["n"] == 2


@pytest.mark.slow
def test_the_table_is_that_of_the_command_line(tmp_path, capsys):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    words = "fedavg --rounds 2 --local-steps 2 --model.hidden 8 --runtime local --figures none"
    assert launch.main([*words.split(), "--tracking.uri", uri, "--output", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["--uri", uri, "--by", "algorithm", "--output", str(tmp_path / "compared")]) == 0
    assert capsys.readouterr().out == repr(fedray.compare_runs([tmp_path / "run"]))


def test_names_are_rows_and_own_metrics_are_columns(runs):
    surest = fedray.run("fedavg", metrics={"surest": lambda probs, y: probs.max()}, **QUICK)
    compared = fedray.compare_runs({"mine": surest, "others": runs[:2], "<b>": runs[2]})
    assert [name for name, _ in compared.frame.index] == ["<b>", "mine", "others"]
    assert compared.frame["global/surest"].notna().sum() == 1
    page = compared._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_figures_are_returned(runs):
    compared = fedray.compare_runs(runs)
    assert isinstance(compared.plot("accuracy"), Figure)
    with pytest.raises(fedray.FedRayError, match="there is none of that name"):
        compared.plot("nothing")


def test_the_figures_that_are_listed_are_those_that_can_be_drawn(runs):
    for either in (runs[0], fedray.compare_runs(runs)):
        assert {"accuracy", "reliability-global" if either is not runs[0] else "reliability"} <= set(either.figures)
        assert all(isinstance(either.plot(name), Figure) for name in either.figures)
        assert not any(name.startswith(("shift", "loss_deviation", "coverage")) for name in either.figures)


def test_classes_and_clients_keep_their_names_in_a_store_and_in_folders(tmp_path):
    x, y = np.random.default_rng(0).random((60, 4)), np.array(["cat", "dog", "cow"])[np.arange(60) % 3]
    owners = np.array(["north", "south"])[np.arange(60) // 30]
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = fedray.run(
        "local", (x, y, owners), rounds=1, local_steps=1, loss_deviation=True, tracking=TrackingConfig(uri=uri)
    )
    figure = fedray.compare_runs([run]).plot("loss_deviation")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["cat", "cow", "dog"]
    assert figure.axes[0].get_title() == "Loss deviation of north"
    store = RunStore(uri)
    (found,) = store.find("fedray", None, sweeps=False)
    assert store.names(found).users == ("north", "south")


def test_what_cannot_be_compared_is_refused(runs, tmp_path):
    started = fedray.run("fedavg", play=False, **QUICK)
    for wrong, message in (
        ([started], "round 0 of 2"),
        ([], "none to compare"),
        ([tmp_path], "holds no finished run"),
        ([3], "neither a run nor the folder"),
        ([runs[0], runs[0]], "same settings and seed; name them"),
    ):
        with pytest.raises(fedray.FedRayError, match=message):
            fedray.compare_runs(wrong)
    with pytest.raises(fedray.FedRayError, match=r"^metrics speed: no run has it"):
        fedray.compare_runs(runs, metrics=["speed"])
    with pytest.raises(fedray.FedRayError, match="measured on digits"):
        fedray.compare_runs(runs).plot("accuracy", data="mnist")


def test_runs_on_other_data_owners_or_networks_are_rows_of_their_own():
    """All of them are called "given"."""
    x, y = np.random.default_rng(0).random((60, 4)), np.arange(60) % 3
    small = {"rounds": 1, "local_steps": 1, "clients": 2}
    halves, thirds = {0: range(30), 1: range(30, 60)}, {0: range(20), 1: range(20, 60)}
    wide = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    runs = [
        fedray.run("fedavg", (x, y), partition=halves, **small),
        fedray.run("fedavg", (x, y), partition=halves, seed=1, **small),
        fedray.run("fedavg", (x, y[::-1]), partition=halves, seed=2, **small),
        fedray.run("fedavg", (x, y), partition=thirds, seed=3, **small),
        fedray.run("fedavg", (x, y), partition=halves, model=torch.nn.Linear(4, 3), seed=4, **small),
        fedray.run("fedavg", (x, y), partition=halves, model=wide, seed=5, **small),
    ]
    assert sorted(fedray.compare_runs(runs).frame["n"]) == [1, 1, 1, 1, 2]


def test_a_file_whose_examples_have_changed_is_other_data(tmp_path):
    x, y = np.random.default_rng(0).random((60, 4)), np.arange(60) % 3
    runs = []
    for seed, labels in enumerate((y, y, y[::-1])):
        np.savez(tmp_path / "mine.npz", x=x, y=labels)
        runs.append(fedray.run("fedavg", tmp_path / "mine.npz", rounds=1, local_steps=1, clients=2, seed=seed))
    frame = fedray.compare_runs(runs).frame
    assert sorted(frame["n"]) == [1, 2]
    assert all("data.examples=" in name for _, name in frame.index)


def test_files_of_one_name_have_figures_of_their_own(tmp_path):
    runs = []
    for place in ("first", "second"):
        (tmp_path / place).mkdir()
        x = np.random.default_rng(0).random((60, 4), np.float32)
        np.savez(tmp_path / place / "train.npz", x=x, y=np.arange(60) % 3)
        data = tmp_path / place / "train.npz"
        runs.append(fedray.run("fedavg", data, rounds=1, local_steps=1, clients=2))
    titles = list(fedray.compare_runs(runs)._series)
    assert len(titles) == 2
    assert all(place in title for place, title in zip(("first", "second"), titles, strict=True))


def test_the_uncertainty_report_of_a_run_with_newcomers_is_compared(tmp_path):
    settings = QUICK | {"novel_clients": 2, "adapt_rounds": 1, "uncertainty": True}
    run = fedray.run("fedper", output=tmp_path / "run", figures="none", **settings)
    frame = fedray.compare_runs([run], ["personal/aurc"]).frame
    assert frame["personal/aurc"].item() == run.summary["uncertainty"]["personal"]["aurc"]
