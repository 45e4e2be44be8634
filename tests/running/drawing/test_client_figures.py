"""The figures by client show what the files hold."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.colors import to_hex

from fedray.data.readers import Names
from fedray.federate import report
from fedray.federate.in_process import LocalFederation
from fedray.running.drawing import client_figures, figures
from fedray.running.drawing.client_figures import (
    DeviationCurve,
    deviation_figure,
    reliability_figure,
    uncertainty_figure,
)
from fedray.running.drawing.figure_style import STYLE, save_all, titled
from tests.helpers import small_plan


def test_names_that_differ_at_their_end_differ_when_they_are_short():
    assert titled(["hospital_ward_07", "hospital_ward_08"], 1) == "hospita…ard_08"
    assert titled(["hospital_ward"], 0) == "hospital_ward"


def calibration(gaps, models=("personal", "global")):
    """Rows of clients that are underconfident by a gap in two filled bins; the global model twice as much."""
    rows = []
    for scale, model in enumerate(models, 1):
        for client, gap in enumerate(gaps):
            for b, count in ((2, 30), (4, 10), (7, 0)):
                confidence = (b + 0.5) / 10
                means = (confidence, confidence + scale * gap) if count else ("", "")
                values = zip(("count", "confidence", "accuracy"), (count, *means), strict=True)
                rows.append({"model": model, "client": str(client), "bin": str(b)} | {n: str(v) for n, v in values})
    return rows


def drawn(figure):
    assert figure is not None
    return [ax for ax in figure.axes if ax.get_visible()]


def test_each_client_has_a_reliability_diagram_the_worst_first():
    axes = drawn(reliability_figure(calibration([0.1, 0.2, 0.05])))
    assert [ax.get_title() for ax in axes] == [
        "Client 1\nECE 20.0 % personal, 40.0 % global",
        "Client 0\nECE 10.0 % personal, 20.0 % global",
        "Client 2\nECE 5.0 % personal, 10.0 % global",
    ]
    diagonal, personal, overall = axes[0].lines
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 100]
    for line, areas, model, scale in zip(
        (personal, overall), axes[0].collections, ("personal", "global"), (1, 2), strict=True
    ):
        assert to_hex(line.get_color()).upper() == figures.COLOURS[model]
        np.testing.assert_allclose(line.get_xdata(), [25, 45])
        np.testing.assert_allclose(line.get_ydata(), [25 + 20 * scale, 45 + 20 * scale])
        np.testing.assert_allclose(areas.get_offsets(), line.get_xydata())
        np.testing.assert_allclose(areas.get_sizes()[0] / areas.get_sizes()[1], 3)


def test_of_many_clients_the_worst_the_best_and_some_between_have_a_diagram():
    figure = reliability_figure(calibration(np.arange(40) / 100, ["global"]))
    axes = drawn(figure)
    clients = [int(ax.get_title().split()[1]) for ax in axes]
    assert len(clients) == client_figures.PANELS_MAX
    assert (clients[0], clients[-1]) == (39, 0)
    assert set(-np.diff(clients)) == {3, 4}
    assert (
        figure.get_suptitle()
        == "Clients by the ECE of the global model at the last evaluation, the worst first: 12 of 40, evenly spaced"
    )
    # Also where the last row is not full every column says what its axis is.
    for count in (1, 4, 7, 11):
        axes = drawn(reliability_figure(calibration(np.arange(count) / 100)))
        columns = {ax.get_subplotspec().colspan.start for ax in axes}
        assert [bool(ax.get_xlabel()) for ax in axes] == [False] * (count - len(columns)) + [True] * len(columns)


CLIENTS = [
    {"client": str(i), "personal_entropy": str(a), "global_entropy": str(b), "personal_mutual_information": str(a / 9),
     "global_mutual_information": str(b / 9)}
    for i, (a, b) in enumerate([(0.5, 1.5), (0.25, 1.75), (1.0, 1.25)])
]  # fmt: skip


def test_uncertainties_of_the_personal_and_the_global_model_are_joined_by_client():
    entropy, information = drawn(uncertainty_figure(CLIENTS))
    assert entropy.get_ylabel() == "Predictive entropy, client mean (nats)"
    for ax, scale in ((entropy, 1), (information, 9)):
        joined, (personal, overall) = ax.lines[:3], ax.lines[3:]
        for line, a, b in zip(joined, personal.get_xydata(), overall.get_xydata(), strict=True):
            np.testing.assert_allclose(line.get_xydata(), [a, b])
        np.testing.assert_allclose(personal.get_ydata(), np.array([0.5, 0.25, 1.0]) / scale)
        np.testing.assert_allclose(overall.get_ydata(), np.array([1.5, 1.75, 1.25]) / scale)
        medians = [segment[0, 1] for segment in ax.collections[0].get_segments()]
        np.testing.assert_allclose(medians, np.array([0.5, 1.5]) / scale)


def test_a_model_without_draws_has_no_panel_of_mutual_information():
    rows = [{"client": "0", "global_entropy": "1.5", "global_mutual_information": "1e-16"}]
    (ax,) = drawn(uncertainty_figure(rows))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["global model"]


def test_newcomers_have_panels_of_their_own_among_those_of_the_clients():
    rows = calibration([0.1, 0.3], ["personal"])
    newcomers = calibration([0.2], ["novel"])
    axes = drawn(figure := reliability_figure([*rows, *(row | {"client": "2"} for row in newcomers)]))
    titles = ["Client 1\nECE 30.0 % personal", "Client 2\nECE 20.0 % newcomer", "Client 0\nECE 10.0 % personal"]
    assert [ax.get_title() for ax in axes] == titles
    words = "Clients by the ECE of the personal model, newcomers by theirs at the last evaluation, the worst first"
    assert figure.get_suptitle().split() == words.split()
    assert "newcomers" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_newcomers_stand_beside_the_clients_and_no_line_joins_them():
    rows = [
        {"client": str(i), "personal_entropy": e, "novel_entropy": ""} for i, e in enumerate(("0.5", "0.25", "1.0"))
    ]
    rows += [{"client": "3", "personal_entropy": "", "novel_entropy": "2.0"}]
    for row in rows:
        row |= {name.replace("entropy", "mutual_information"): row[name] for name in list(row)[1:]}
    axes = drawn(figure := uncertainty_figure(rows))
    assert len(axes) == 2
    for ax in axes:
        assert [label.get_text() for label in ax.get_xticklabels()] == ["personal model", "newcomers"]
        medians = [segment[0, 1] for segment in ax.collections[0].get_segments()]
        np.testing.assert_allclose(medians, [0.5, 2.0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["median over clients"]


def deviations(offset=0.0):
    """Two clients, three classes; the first lacks class 1."""
    rows = []
    for client in (0, 1):
        for c, count in enumerate((20, 0, 5) if client == 0 else (10, 30, 0)):
            rows.append({"client": client, "class": c, "test_examples": count, "dG": offset + c + client})
            rows[-1]["dL"] = offset - c if count else ""
    return [{name: str(value) for name, value in row.items()} for row in rows]


def test_the_loss_deviation_of_a_client_stands_over_its_test_examples():
    looks = [{"color": "#0072B2", "marker": "o"}, {"color": "#D55E00", "marker": "s"}]
    figure = deviation_figure(
        [DeviationCurve("a", deviations(), looks[0]), DeviationCurve("b", deviations(0.5), looks[1])]
    )
    lines, bars = drawn(figure)
    curves = {line.get_label(): line for line in lines.lines}
    for name, offset in (("a", 0.0), ("b", 0.5)):
        union, own = curves[f"{name}: ΔG, all clients' examples"], curves[f"{name}: ΔL, its own examples"]
        np.testing.assert_allclose(union.get_ydata(), offset + np.array([0, 1, 2]))
        np.testing.assert_allclose(own.get_ydata(), offset + np.array([0, np.nan, -2]))
        assert union.get_linestyle() != own.get_linestyle()
    everyone, mine = bars.containers
    assert [bar.get_height() for bar in everyone] == [30, 30, 5]
    assert [bar.get_height() for bar in mine] == [20, 0, 5]
    assert bars.get_yscale() == "log"
    assert lines.get_zorder() > bars.get_zorder()
    (second, bars) = drawn(deviation_figure([DeviationCurve("", deviations(), looks[0])], client=1))
    np.testing.assert_allclose(second.lines[0].get_ydata(), [1, 2, 3])
    assert [bar.get_height() for bar in bars.containers[1]] == [10, 30, 0]


def test_every_figure_is_drawn_and_none_from_nothing(tmp_path: Path):
    assert save_all(tmp_path, client_figures.builders(tmp_path)) == []
    files = {"client_calibration.csv": calibration([0.1]), "clients.csv": CLIENTS, "loss_deviation.csv": deviations()}
    for name, rows in files.items():
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    paths = save_all(tmp_path, client_figures.builders(tmp_path))
    names = ["reliability_clients.png", "uncertainty_clients.png", "loss_deviation.png"]
    assert [path.name for path in paths] == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    empty = [row | {"count": "0", "confidence": "", "accuracy": ""} for row in calibration([0.1])]
    assert reliability_figure(empty) is None


def test_the_bins_of_the_clients_add_up_to_the_pooled_ones():
    federation = LocalFederation(small_plan("pfedbayes", {"rounds": 1}))
    (evaluated, *_) = federation
    plan = federation.plan
    by_client, pooled = list(report.client_calibration_rows(evaluated, plan)), report.calibration_rows(evaluated)
    assert [row["client"] for row in by_client] == 2 * [i for i in range(6) for _ in range(10)]
    assert any(row["count"] for row in pooled)
    for row in pooled:
        parts = [p for p in by_client if (p["model"], p["bin"]) == (row["model"], row["bin"]) and p["count"]]
        assert sum(p["count"] for p in parts) == row["count"]
        for name in ("confidence", "accuracy"):
            total = sum(p["count"] * p[name] for p in parts)
            assert total == pytest.approx(row["count"] * (row[name] or 0))


def test_of_many_clients_some_have_a_line_and_all_have_points(monkeypatch):
    monkeypatch.setattr(client_figures, "LINES_MAX", 2)
    absent = dict.fromkeys(CLIENTS[0], "")  # was not evaluated
    (ax, _) = drawn(uncertainty_figure([*CLIENTS, absent]))
    joined, points = ax.lines[:2], ax.lines[2:]
    assert [len(line.get_xdata()) for line in (*joined, *points)] == [2, 2, 3, 3]


def test_accuracies_of_clients_are_sorted_and_have_the_intervals_of_scipy():
    from scipy.stats import binomtest

    right, tests = [9, 3, 20], [10, 12, 20]
    rows = [
        {"client": i, "test_examples": n, "personal_accuracy": k / n, "global_accuracy": 0.5}
        for i, (k, n) in enumerate(zip(right, tests, strict=True))
    ]
    rows.append({"client": 3, "test_examples": 5, "personal_accuracy": "", "global_accuracy": ""})  # not evaluated
    ax = drawn(client_figures.accuracy_figure(rows, ("ann", "bob", "cem", "dee")))[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["bob", "ann", "cem"]
    assert ax.lines[0].get_ydata() == pytest.approx([25, 90, 100])
    bars = [segment[:, 1] for segment in ax.collections[0].get_segments()]
    for bar, k, n in zip(bars, (3, 9, 20), (12, 10, 20), strict=True):
        expected = binomtest(k, n).proportion_ci(0.95, "wilson")
        assert bar == pytest.approx([100 * expected.low, 100 * expected.high], abs=1e-3)


@pytest.mark.filterwarnings("error")
def test_clients_without_a_model_of_one_kind_are_ranked_by_another():
    models = ("personal", "global", "novel")
    shares = [("", "0.9", ""), ("0.5", "", ""), ("", "", "0.25")]
    rows = [
        {"client": i, "test_examples": 4} | {f"{model}_accuracy": x for model, x in zip(models, own, strict=True)}
        for i, own in enumerate(shares)
    ]
    ax = drawn(client_figures.accuracy_figure(rows))[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "1", "0"]


def test_errors_of_clients_have_no_intervals_and_the_largest_comes_first():
    rows = [{"client": i, "test_examples": 5, "personal_rmse": value} for i, value in enumerate((0.1, 0.7, 0.3))]
    ax = drawn(client_figures.accuracy_figure(rows))[0]
    assert ax.lines[0].get_ydata() == pytest.approx([0.7, 0.3, 0.1])
    assert "RMSE" in ax.get_ylabel()
    assert client_figures.accuracy_figure([]) is None


def texts_inside(figure):
    """Whether all texts of a figure lie within it."""
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    inside = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    return inside.x0 >= -1 and inside.y0 >= -1 and inside.x1 <= width + 1 and inside.y1 <= height + 1


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_the_title_and_the_legend_of_few_clients_fit(clients):
    with rc_context(STYLE):
        assert texts_inside(reliability_figure(calibration([0.1] * clients)))


def test_the_legend_of_a_client_with_a_long_name_fits():
    names = Names(classes=("a", "b", "c"), users=("a client with a name that is as long as its whole address", "b"))
    with rc_context(STYLE):
        figure = deviation_figure([DeviationCurve("", deviations(), {"color": "#0072B2"})], names=names)
        assert texts_inside(figure)


@pytest.mark.parametrize("named", [False, True])
def test_labels_of_a_hundred_classes_do_not_overlap(named):
    rows = [{"client": "0", "class": str(c), "test_examples": "5", "dG": "0.1", "dL": "0.2"} for c in range(100)]
    names = Names(classes=tuple(f"class number {c}" for c in range(100)) if named else (), users=())
    with rc_context(STYLE):
        figure = deviation_figure([DeviationCurve("", rows, {"color": "#0072B2"})], names=names)
        figure.draw_without_rendering()
        boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) > 30
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_clients_whose_model_diverged_are_counted_and_thinned_ones_are_said(monkeypatch):
    rows = [{"client": i, "test_examples": 5, "personal_accuracy": x} for i, x in enumerate(("0.5", "nan", "0.7", ""))]
    ax = drawn(client_figures.accuracy_figure(rows))[0]
    words, intervals = ax.get_xlabel().split("\n")
    assert words == "Client, of 2, the worst first; last evaluation; 1 with a model that is not finite"
    assert "95 %" in intervals
    assert client_figures.accuracy_figure([row | {"personal_accuracy": "nan"} for row in rows]) is None
    monkeypatch.setattr(client_figures, "LINES_MAX", 2)
    ax = drawn(client_figures.accuracy_figure([row | {"personal_accuracy": "0.5"} for row in rows]))[0]
    assert ax.get_xlabel().startswith("2 of 4 clients, evenly spaced, ")
