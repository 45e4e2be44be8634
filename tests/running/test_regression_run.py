"""A whole run on real targets: its files, its predictor, its figures, newcomers, and what is refused."""

import csv
import json
import math

import numpy as np
import pytest

import fedray
from fedray import launch, newcomers
from fedray.compare import __main__ as compare
from fedray.running.predictor import RealPrediction

DATA = "--clients 3 --data.scaling feature"  # and iid, as labels are none
ARGS = f"{DATA} --rounds 3 --model.hidden 8 --runtime local --tracking.uri none"


def line(n=200, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, 500 + 20 * (x @ [1.0, -1.0] + 0.1 * rng.normal(size=n))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("regression")
    x, y = line()
    np.savez(folder / "line.npz", x=x, y=y)
    done = launch.main(
        ["pfedbayes", "--data.name", str(folder / "line.npz"), *ARGS.split(), "--output", str(folder / "run")]
    )
    assert done == 0
    return folder


def test_the_result_speaks_of_errors_and_not_of_classes(finished, capsys):
    run = finished / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert {"rmse", "nll", "coverage", "aleatoric_sd", "epistemic_sd", "worst_rmse", "stability"} == set(
        summary["personal"]
    )
    assert not (run / "calibration.csv").exists()
    assert not (run / "uncertainty.npz").exists()
    with (run / "coverage.csv").open(newline="") as file:
        found = [(row["model"], float(row["level"]), float(row["coverage"])) for row in csv.DictReader(file)]
    assert [(model, level) for model, level, _ in found] == [
        (model, tenths / 10) for model in ("personal", "global") for tenths in range(1, 10)
    ]
    with (run / "metrics.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    for model in ("personal", "global"):
        shares = [share for which, _, share in found if which == model]
        assert shares == sorted(shares)  # a wider interval holds what a narrower one holds
        assert shares[-1] == float(last[f"{model}/coverage"])
    assert (run / "figures" / "coverage.png").exists()
    assert (run / "figures" / "rmse.png").exists()
    assert not (run / "figures" / "accuracy.png").exists()
    with (run / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    assert float(rows[0]["personal_rmse"]) > 0


def test_runs_are_compared_on_a_page(finished):
    store = f"sqlite:///{finished}/mlflow.db"
    words = f"fedavg --data.name {finished}/line.npz {DATA} --rounds 2 --runtime local --tracking.uri {store}"
    assert launch.main([*words.split(), "--output", str(finished / "compared")]) == 0
    assert compare.main(["--uri", store, "--output", str(finished / "page")]) == 0
    page = (finished / "page" / "report.html").read_text()
    assert "RMSE" in page
    assert page.count("data:image/png") >= 2


def test_the_predictor_answers_in_the_targets_units_and_as_the_run_was_measured(finished):
    model = fedray.load(finished / "run")
    x, y = line()
    plan = model.plan
    error, examples = 0.0, 0
    for client, test in enumerate(plan.partition.test):
        found = model.predict(x[test], client=client, samples=0)
        assert isinstance(found, RealPrediction)
        assert found.epistemic_sd.abs().max() < 1e-6  # one prediction, with the mean weights
        several = model.predict(x[test], client=client, samples=20)
        assert (several.sd**2 - several.aleatoric_sd**2 - several.epistemic_sd**2).abs().max() < 1e-6 * 20**2
        assert several.draws.shape == (20, len(test), 2)
        assert 400 < several.mean.mean() < 600
        error += float((several.mean - y[test]).square().sum())
        examples += len(test)
    with (finished / "run" / "metrics.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert math.sqrt(error / examples) == pytest.approx(float(last["personal/rmse"]), rel=0.2)


def test_newcomers_bring_real_targets_too(finished, capsys):
    x, y = line(60, seed=3)
    np.savez(finished / "new.npz", x=x, y=y)
    options = [
        str(finished / "run"),
        "--data",
        str(finished / "new.npz"),
        "--rounds",
        "2",
        "--output",
        str(finished / "new"),
    ]
    assert newcomers.main([*options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["novel"]["rmse"] > 0
    np.savez(finished / "labels.npz", x=x, y=np.arange(60) % 1)
    assert newcomers.main([str(finished / "run"), "--data", str(finished / "labels.npz")]) == 2
    assert "its targets are labels, those of the run real numbers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("algorithm", "options", "words"),
    [
        ("fedrep", "", "--model.likelihood gaussian: fedrep learns no noise precision; it is for labels"),
        ("pfedbayes", "--loss-deviation", "is by class, and the targets are real numbers"),
        ("pfedbayes", "--estimator local", "the noise of a Gaussian likelihood"),
        ("pfedbayes", "--model.likelihood categorical", "the targets are real numbers, not labels"),
        ("pfedbayes", "--data.partition labels", "it deals by labels, and the targets are real numbers"),
        ("dsvgd", "--prior gamma", "it needs log ξ among the parameters"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(finished, capsys, algorithm, options, words):
    run = f"--data.name {finished / 'line.npz'} {ARGS} {options} --output {finished / 'refused'}"
    assert launch.main([algorithm, *run.split()]) == 2
    assert words in capsys.readouterr().err
    assert not (finished / "refused").exists()


def test_a_prior_of_the_noise_needs_a_noise(capsys):
    assert launch.main(["dsvgd", "--prior", "noise", "--runtime", "local", "--tracking.uri", "none"]) == 2
    assert "it is of the noise's precision, which this likelihood does not have" in capsys.readouterr().err
