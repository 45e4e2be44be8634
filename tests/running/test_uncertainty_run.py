"""A run with --uncertainty: its files, its tables, its figures, its metrics, and the sets of fedray.load."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from mlflow.tracking import MlflowClient

import fedray
from fedray.compare.__main__ import main as compare
from fedray.federate.uncertainty import summary
from fedray.launch import main
from fedray.running.drawing import figures, uncertainty_figures
from fedray.running.predictor import _uncertainty
from fedray.types import FedRayError

pytestmark = pytest.mark.usefixtures("unpainted")
FAST = ["--runtime", "local", "--rounds", "2", "--local-steps", "4", "--model.hidden", "8", "--data.validation", "0.3"]
NEW = {"client_uncertainty.csv", "risk_coverage.csv", "shift.csv"}
PICTURES = {"risk_coverage.png", "unknown.png", "sets.png", "shift.png"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of one command, with and without the report, in one store."""
    place = tmp_path_factory.mktemp("uncertain")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(figures, "builders", lambda *_: {})  # others' figures take their time
        assert main([*FAST, "--output", "with", "--uncertainty"]) == 0
        assert main([*FAST, "--output", "without", "--tracking.uri", "none"]) == 0
    return place


def found(folder, name="with"):
    return json.loads((folder / name / "summary.json").read_text())


def test_it_adds_files_and_leaves_all_others_as_they_were(folder):
    names = [{path.name for path in (folder / name).rglob("*")} for name in ("with", "without")]
    assert names[0] - names[1] == NEW | PICTURES
    for name in ("clients.csv", "calibration.csv", "personal.safetensors", "config.json"):
        assert (folder / "with" / name).read_bytes() == (folder / "without" / name).read_bytes()
    kinds = ("personal", "global")
    assert [found(folder)[kind] for kind in kinds] == [found(folder, "without")[kind] for kind in kinds]
    assert "uncertainty" not in found(folder, "without")


def test_the_summary_says_what_its_numbers_mean(folder):
    measured = found(folder)["uncertainty"]
    assert measured["clients"] == 10
    assert measured["protocol"]["calibration"] == "every client on its validation examples"
    for kind in ("personal", "global"):
        assert measured[kind]["nll"] == pytest.approx(found(folder)[kind]["nll"])
        assert 0 <= measured[kind]["unknown_auroc_mi"] <= 1
        assert 0.5 < measured[kind]["aps_coverage"] <= 1


def test_the_tracking_store_has_the_headlines_and_at_most_sixty_metrics(folder):
    client = MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("fedray").experiment_id])
    wanted = summary.tracked(found(folder))
    assert {name: run.data.metrics[name] for name in wanted} == pytest.approx(wanted)
    assert set(wanted) == {f"personal/{name}" for name in summary.TRACKED if not name.startswith("far")}
    assert len(run.data.metrics) + 2 <= 60  # with those of another dataset


def test_the_comparison_has_its_columns_and_figures(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert compare(["--format", "csv"]) == 0
    printed = capsys.readouterr().out.splitlines()[0]
    for name in ("adaptive_ece", "aurc", "unknown_auroc", "unknown_fpr95", "thr_coverage"):
        assert f"personal/{name} mean" in printed
    drawn = {path.name for path in Path("runs/compare/figures").iterdir()}
    assert {f"{kind}-personal-digits-medium.png" for kind in ("risk_coverage", "unknown", "shift")} <= drawn


def test_a_loaded_run_predicts_sets(folder):
    run = fedray.load(folder / "with")
    rows = list(csv.DictReader((folder / "with" / "client_uncertainty.csv").open()))
    x = run.plan.dataset().x[:40]
    for client in (3, None):
        predicted = run.predict(x, client=client)
        model = "global" if client is None else "personal"
        (own,) = [row for row in rows if row["model"] == model and row["client"] == "3"]
        q = (
            found(folder)["uncertainty"]["global"]["thr_threshold_federated"]
            if client is None
            else own["thr_threshold"]
        )
        assert predicted.set.shape == (40, 10)
        np.testing.assert_array_equal(predicted.set, 1 - predicted.probs.double() <= float(q))
        assert run.predict(x, client=client, samples=run.plan.cfg.predict_samples).set is not None
        assert run.predict(x, client=client, samples=1).set is None  # other draws than it was calibrated with
    assert fedray.load(folder / "without").predict(x, client=3).set is None


def test_sets_are_told_by_probabilities_that_a_float_rounds_to_1():
    """Of confident models, whose thresholds are about 1e-8."""
    log_probs = torch.tensor([[[-17.5, -2.5e-8], [-18.5, -9e-9]]])
    assert _uncertainty(log_probs, None, 1.5e-8).set.tolist() == [[False, False], [False, True]]


def test_a_damaged_table_of_thresholds_is_refused(folder, tmp_path):
    import shutil

    shutil.copytree(folder / "with", tmp_path / "run")
    (tmp_path / "run" / "client_uncertainty.csv").write_text("model,client\npersonal,0\n")
    with pytest.raises(FedRayError, match=r"client_uncertainty\.csv cannot be read"):
        fedray.load(tmp_path / "run")
    shutil.copy(folder / "with" / "client_uncertainty.csv", tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text("")
    with pytest.raises(FedRayError, match=r"run/summary\.json cannot be read"):
        fedray.load(tmp_path / "run")


def test_figures_show_what_the_files_hold(folder):
    rows = figures.read_csv(folder / "with" / "client_uncertainty.csv")
    unknown = uncertainty_figures.unknown_figure(rows)
    (ax,) = unknown.axes
    own = [100 * float(row["unknown_auroc"]) for row in rows if row["model"] == "personal"]
    assert sorted(ax.lines[0].get_ydata()) == pytest.approx(sorted(own))
    sets = uncertainty_figures.sets_figure(rows)
    assert [ax.get_title() for ax in sets.axes] == ["THR", "APS"]
    alone = [{name: x for name, x in row.items() if not name.endswith("_mi")} for row in rows]
    (ax, *_) = uncertainty_figures.unknown_figure(alone).axes  # without draws there is no mutual information
    assert [label.get_text() for label in ax.get_xticklabels()] == ["maximum\nprobability", "entropy"]
    assert uncertainty_figures.unknown_figure([]) is uncertainty_figures.sets_figure([]) is None
    assert uncertainty_figures.risk_figure([]) is uncertainty_figures.shift_figure([]) is None
