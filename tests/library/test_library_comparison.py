"""fedray.compare_runs puts runs side by side, as the table of the command line does."""

from __future__ import annotations

import statistics

import pytest
from matplotlib.figure import Figure

import fedray
from fedray import launch
from fedray.compare.__main__ import main

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
