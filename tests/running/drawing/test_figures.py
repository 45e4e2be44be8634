"""What the figures show is what the files hold; a missing or empty file draws nothing."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fedray.running.drawing import figures
from fedray.running.drawing.figure_style import save_all

ROUNDS = [1, 2, 4, 5]
ACCURACY = {"personal": [0.5, 0.7, 0.85, 0.9], "global": [0.3, 0.5, 0.6, 0.65]}
COUNT = {
    "personal": [0, 0, 0, 0, 10, 20, 30, 40, 50, 350],
    "global": [0, 5, 5, 10, 30, 50, 100, 100, 100, 100],
}


def write(path: Path, rows: list[list]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def calibration(model: str) -> np.ndarray:
    """[count, confidence, accuracy] of the filled bins: overconfident by 5 points, bin 5 underconfident."""
    bins = np.array([b for b in range(10) if COUNT[model][b]])
    confidence = (bins + 0.5) / 10
    return np.stack([[COUNT[model][b] for b in bins], confidence, confidence + np.where(bins == 5, 0.05, -0.05)])


@pytest.fixture
def folder(tmp_path):
    metrics = [["round", "personal/accuracy", "global/accuracy", "personal/nll", "personal/ece"]]
    metrics += [[r, ACCURACY["personal"][i], ACCURACY["global"][i], 1 / r, 0.1] for i, r in enumerate(ROUNDS)]
    metrics.insert(3, [3, "", "", "", ""])  # not evaluated
    metrics.append([6, "nan", "", "", ""])
    write(tmp_path / "metrics.csv", metrics)
    table = [["model", "bin", "count", "confidence", "accuracy"]]
    for model in COUNT:
        filled = iter(calibration(model).T)
        for b in range(10):
            table.append([model, b, *(next(filled) if COUNT[model][b] else (0, "", ""))])
    write(tmp_path / "calibration.csv", table)
    np.savez(tmp_path / "uncertainty.npz", **uncertainty(rounds=[0, 10], clients=[3, 7, 8]))
    return tmp_path


def uncertainty(rounds: list[int], clients: list[int]) -> dict[str, np.ndarray]:
    cells = [(r, c) for r in rounds for c in clients]
    probs = np.random.default_rng(0).dirichlet(np.ones(4), size=(len(cells), 9))
    pairs = np.array(cells)
    return {"round": pairs[:, 0], "client": pairs[:, 1], "label": pairs[:, 1] % 4, "probs": probs}


def drawn(figure):
    assert figure is not None
    return figure.axes


def test_every_figure_is_drawn(folder):
    paths = save_all(folder, figures.builders(folder))
    assert [path.relative_to(folder).as_posix() for path in paths] == [
        "figures/accuracy.png",
        "figures/reliability.png",
        "figures/uncertainty.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_nothing_is_drawn_from_nothing(tmp_path):
    assert save_all(tmp_path, figures.builders(tmp_path)) == []
    write(tmp_path / "metrics.csv", [["round", "personal/accuracy"], [1, ""]])
    write(
        tmp_path / "calibration.csv",
        [["model", "bin", "count", "confidence", "accuracy"], ["global", 0, 0, "", ""]],
    )
    np.savez(tmp_path / "uncertainty.npz", round=[], client=[], label=[], probs=np.empty((0, 9, 4)))
    assert save_all(tmp_path, figures.builders(tmp_path)) == []
    assert not (tmp_path / "figures").exists()


def test_accuracy_curves_are_the_table(folder):
    accuracy, nll = drawn(figures.accuracy_figure(folder))
    for line, model in zip(accuracy.lines, ACCURACY, strict=True):
        assert line.get_label() == f"{model} model"
        assert line.get_color() == figures.COLOURS[model]
        assert list(line.get_xdata()) == ROUNDS
        np.testing.assert_allclose(line.get_ydata(), 100 * np.array(ACCURACY[model]))
    (line,) = nll.lines
    np.testing.assert_allclose(line.get_ydata(), 1 / np.array(ROUNDS))
    assert [ax.get_ylabel() for ax in (accuracy, nll)] == ["Accuracy (%)", "NLL (nats)"]


def test_newcomers_are_called_so(tmp_path):
    write(tmp_path / "metrics.csv", [["round", "personal/accuracy", "novel/accuracy"], [1, 0.5, ""], [2, "", 0.25]])
    write(
        tmp_path / "calibration.csv", [["model", "bin", "count", "confidence", "accuracy"], ["novel", 0, 4, 0.05, 0.25]]
    )
    (accuracy,) = drawn(figures.accuracy_figure(tmp_path))
    assert [line.get_label() for line in accuracy.lines] == ["personal model", "newcomers"]
    assert drawn(figures.reliability_figure(tmp_path))[0].get_title() == "Newcomers: ECE 20.00 %"


def test_ece_stands_in_for_a_missing_nll(tmp_path):
    write(tmp_path / "metrics.csv", [["round", "global/accuracy", "global/ece"], [1, 0.5, 0.25]])
    accuracy, ece = drawn(figures.accuracy_figure(tmp_path))
    assert ece.get_ylabel() == "ECE (%)"
    assert list(ece.lines[0].get_ydata()) == [25.0]
    assert accuracy.lines[0].get_marker() != "None"  # one point is visible


def test_accuracy_alone_has_one_panel(tmp_path):
    write(tmp_path / "metrics.csv", [["round", "global/accuracy"], [1, 0.5], [2, 0.6]])
    assert len(drawn(figures.accuracy_figure(tmp_path))) == 1


def test_reliability_bars_are_the_table(folder):
    axes = drawn(figures.reliability_figure(folder))
    assert len(axes) == 4
    for top, below, model in zip(axes[:2], axes[2:], COUNT, strict=True):
        count, confidence, accuracy = calibration(model)
        *groups, gaps = top.containers
        bars = sorted((bar for group in groups for bar in group), key=lambda bar: bar.get_x())
        left = [10 * b for b in range(10) if COUNT[model][b]]
        np.testing.assert_allclose([bar.get_x() for bar in bars], left)
        np.testing.assert_allclose([bar.get_height() for bar in bars], 100 * accuracy)
        assert {to_hex(bar.get_facecolor()).upper() for bar in bars} == {figures.COLOURS[model]}
        np.testing.assert_allclose([gap.get_y() for gap in gaps], 100 * accuracy)
        np.testing.assert_allclose([gap.get_y() + gap.get_height() for gap in gaps], 100 * confidence)
        np.testing.assert_allclose([bar.get_height() for bar in below.containers[0]], count)
        (diagonal,) = top.lines
        assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 100]
        assert top.get_title() == f"{model.capitalize()} model: ECE 5.00 %"


def test_the_title_has_the_calibration_error_of_the_summary_and_says_of_which_rounds(folder):
    said = {"rounds": "mean of 2 evaluations, rounds 19-20"}
    summary = {"personal": {"ece": 0.0123}, "global": None, "protocol": said}
    (folder / "summary.json").write_text(json.dumps(summary))
    titles = [ax.get_title() for ax in drawn(figures.reliability_figure(folder))]
    assert titles[0] == "Personal model: ECE 1.23 %\nmean of 2 evaluations, rounds 19-20;\nbars: the last evaluation"
    assert titles[1] == "Global model: ECE 5.00 %"  # of the bars themselves


def test_a_model_without_predictions_has_no_panel(folder):
    rows = [row for row in csv.reader((folder / "calibration.csv").open()) if row[0] != "personal"]
    write(folder / "calibration.csv", rows)
    axes = drawn(figures.reliability_figure(folder))
    assert [ax.get_title() for ax in axes] == ["Global model: ECE 5.00 %", ""]


def test_uncertainty_boxes_are_the_draws(folder):
    cells = uncertainty(rounds=[0, 10], clients=[3, 7, 8])
    axes = drawn(figures.uncertainty_figure(folder))
    assert len(axes) == 6
    for ax, probs, label in zip(axes, cells["probs"], cells["label"], strict=True):
        low, first, median, third, high = np.quantile(probs, [0, 0.25, 0.5, 0.75, 1], axis=0)
        (boxes,) = ax.containers
        np.testing.assert_allclose([box.get_y() for box in boxes], first)
        np.testing.assert_allclose([box.get_y() + box.get_height() for box in boxes], third)
        whiskers, medians = (np.array(lines.get_segments()) for lines in ax.collections)
        np.testing.assert_allclose(whiskers[:, :, 1], np.stack([low, high], axis=1))
        np.testing.assert_allclose(medians[:, :, 1], np.stack([median, median], axis=1))
        coloured = [to_hex(box.get_facecolor()).upper() == figures.COLOURS["personal"] for box in boxes]
        assert coloured == [c == label for c in range(4)]
        assert list(ax.lines[0].get_xdata()) == [label]
    assert [ax.get_ylabel() for ax in axes[::3]] == ["Round 0\np(class)", "Round 10\np(class)"]
    assert [ax.texts[0].get_text() for ax in axes[:3]] == ["Client 3", "Client 7", "Client 8"]


def test_entropy_and_mutual_information_of_known_draws(tmp_path):
    sure = np.array([[1.0, 0.0], [0.0, 1.0]])  # each draw is certain, and they contradict each other
    assert figures._entropies(sure) == pytest.approx((np.log(2), np.log(2)))
    assert figures._entropies(np.full((3, 4), 0.25)) == pytest.approx((np.log(4), 0.0))
    np.savez(tmp_path / "uncertainty.npz", round=[1], client=[0], label=[0], probs=sure[None])
    (ax,) = drawn(figures.uncertainty_figure(tmp_path))
    assert ax.get_title() == "H 0.69, MI 0.69"


def test_a_large_grid_is_thinned_and_a_missing_cell_is_empty(tmp_path):
    cells = uncertainty(rounds=list(range(9)), clients=list(range(20)))
    np.savez(tmp_path / "uncertainty.npz", **{name: values[1:] for name, values in cells.items()})
    axes = drawn(figures.uncertainty_figure(tmp_path))
    assert len(axes) == 25
    assert [ax.get_ylabel().split("\n")[0] for ax in axes[::5]] == [f"Round {r}" for r in (0, 2, 4, 6, 8)]
    assert [ax.texts[0].get_text() for ax in axes[:5]] == [f"Client {c}" for c in (0, 5, 10, 14, 19)]
    assert axes[0].get_title() == "not evaluated"
    assert not axes[0].containers


def test_bins_of_few_examples_are_pale(folder):
    top = drawn(figures.reliability_figure(folder))[1]
    bars = {round(bar.get_x()): bar.get_alpha() for bar in top.patches if not bar.get_hatch()}
    assert bars == {left: (0.3 if COUNT["global"][left // 10] < 10 else None) for left in range(10, 100, 10)}
    words = [text.get_text() for text in top.figure.legends[0].get_texts()]
    assert "fewer than 10 examples" in words


def test_a_second_format_is_written_beside_the_first(folder):
    save_all(folder, figures.builders(folder), "svg")
    names = {path.name for path in (folder / "figures").iterdir()}
    assert {"accuracy.png", "accuracy.svg", "reliability.png", "reliability.svg"} <= names
    assert "<svg" in (folder / "figures/accuracy.svg").read_text()


def test_names_with_dollars_are_drawn_as_they_are(folder: Path) -> None:
    """Between two of them matplotlib would set mathematics, or raise."""
    names = {"classes": ["$0_to_$50", "$50_to_$100", "c", "d"], "users": [f"$a_$ {i}" for i in range(9)]}
    (folder / "config.json").write_text(json.dumps({"data": {"names": names}}))
    drawn = save_all(folder, figures.builders(folder))
    assert {path.stem for path in drawn} >= {"accuracy", "uncertainty", "reliability"}


def test_an_evaluation_that_cannot_be_drawn_is_said(folder):
    accuracy, nll = drawn(figures.accuracy_figure(folder))
    assert accuracy.get_title() == "personal model: 1 of 5 evaluations are not finite"
    assert nll.get_title() == ""


def test_no_accuracy_above_all_is_on_the_axis_and_no_legend_on_the_curves(tmp_path):
    write(tmp_path / "metrics.csv", [["round", "global/accuracy", "global/nll"], [1, 1.0, 0.5], [2, 1.0, 0.25]])
    figure = figures.accuracy_figure(tmp_path)
    accuracy, nll = drawn(figure)
    assert [tick for tick in accuracy.get_yticks() if 100 < tick <= accuracy.get_ylim()[1]] == []
    assert accuracy.get_ylim()[1] > 100  # the marker is whole
    assert accuracy.get_legend() is nll.get_legend() is None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["global model"]
