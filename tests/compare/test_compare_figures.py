"""The figures of a comparison show the rounds and tables of its runs."""

from __future__ import annotations

import numpy as np
import pytest

from fedray.compare import figures
from fedray.compare.curves import COSTS, curve
from fedray.compare.figures import Series
from fedray.compare.runs import DOWN, SECONDS, UP
from fedray.data.readers import Names


def rounds(values, seconds=2.0, every=1):
    """Rounds that cost ``seconds`` and 3 + 1 MB each, evaluated after every k-th."""
    rows = []
    for i, value in enumerate(values, 1):
        rows.append({"round": i, SECONDS: seconds, UP: 3e6, DOWN: 1e6})
        rows[-1] |= {"global/accuracy": value} if i % every == 0 else {}
    return rows


def bins(count, model="global"):
    return [
        {"model": model, "bin": str(b), "count": str(n), "confidence": "0.8" if n else "", "accuracy": a if n else ""}
        for b, (n, a) in enumerate(count)
    ]


_, TIME, TRAFFIC = COSTS
ONE = Series("a", [rounds([0.5, 0.7])], [bins([(0, ""), (10, "0.5")])], [[{"global_accuracy": "0.25"}]])
TWO = Series(
    "b, zeta=1",
    [rounds([0.6, 0.8], 1.0), rounds([0.8, 0.9], 3.0)],
    [bins([(0, ""), (10, "0.5")]), bins([(0, ""), (30, "0.9")])],
    [[{"global_accuracy": "0.5"}, {"global_accuracy": "0.7"}], [{"global_accuracy": "1.0"}]],
)


def test_a_curve_is_mean_and_sample_sd_against_the_cumulative_cost():
    x, mean, sd = curve(TWO.histories, "global", TIME)
    np.testing.assert_allclose(x, [2, 4])
    np.testing.assert_allclose(mean, [0.7, 0.85])
    np.testing.assert_allclose(sd, np.array([0.1, 0.05]) * 2**0.5)
    np.testing.assert_allclose(curve(TWO.histories, "global", TRAFFIC).x, [4, 8])


def test_rounds_without_evaluation_cost_too_and_seeds_meet_where_all_were_evaluated():
    histories = [rounds([0.1, 0.2, 0.3, 0.4], every=2), rounds([0.3, 0.4])]
    x, mean, _ = curve(histories, "global", TIME)
    assert list(x) == [4.0]
    assert mean == pytest.approx([0.3])
    assert len(curve(histories, "personal", TIME).x) == 0


def test_accuracy_has_three_panels_per_kind_with_a_line_per_row():
    figure = figures.accuracy_figure([ONE, TWO])
    assert figure is not None
    assert [ax.get_xlabel() for ax in figure.axes] == [cost.label for cost in COSTS]
    for ax, last in zip(figure.axes, ([2, 2], [4, 4], [8, 8]), strict=True):
        assert [line.get_xdata()[-1] for line in ax.lines] == last
        assert [line.get_ydata()[-1] for line in ax.lines] == pytest.approx([70, 85])
        assert len(ax.collections) == 1  # a band only where there are seeds
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b, zeta=1"]


LAST = [0.1] * 18 + [0.4, 0.6]  # twenty evaluations, of which the last two count
ALONE = Series("local", [rounds(LAST), rounds([v / 2 for v in LAST])], [], [], control=True)


def test_a_control_is_a_line_at_its_result_in_every_panel():
    """Also beside a kind of model that it does not have."""
    alone = ALONE._replace(histories=[
        [{name.replace("global", "personal"): value for name, value in row.items()} for row in history]
        for history in ALONE.histories
    ])  # fmt: skip
    figure = figures.accuracy_figure([ONE, TWO, alone])
    assert figure is not None
    assert len(figure.axes) == len(COSTS)  # no panel of its own
    for ax in figure.axes:
        *curves, line = ax.lines
        assert len(curves) == 2
        assert line.get_ydata() == pytest.approx([37.5, 37.5])  # of 50 and 25 %
        assert line.get_linestyle() != "-"
        (band,) = ax.patches
        low = 37.5 - 12.5 * 2**0.5
        assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((low, 75 - low))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b, zeta=1", "local"]


def test_newcomers_of_a_control_are_beside_newcomers_alone():
    alone = [rounds([0.5, 0.7]), rounds([0.6, 0.8])]
    assert figures.bound(alone, "novel") is None
    found = figures.bound([[*alone[0], {"round": 3, "novel/accuracy": 0.9}]], "novel")
    assert found is not None
    assert found.mean == 0.9


def test_controls_are_never_crowded_out():
    shown = figures._shown([*(ONE._replace(name=str(i)) for i in range(20)), ALONE, ALONE])
    assert [each.name for each in shown] == [*map(str, range(10)), "local", "local"]
    assert figures._shown([ONE, TWO]) == [ONE, TWO]


def test_controls_alone_are_drawn_as_what_they_are():
    figure = figures.accuracy_figure([ALONE])
    assert figure is not None
    assert len(figure.axes[0].lines) == 1


def test_newcomers_are_drawn_where_a_run_has_them():
    adapting = [{"round": 3, SECONDS: 2.0, UP: 0.0, DOWN: 1e6, "novel/accuracy": 0.4}]
    held = Series("c", [[*rounds([0.5, 0.7]), *adapting]], [bins([(9, "0.5")], "novel")], [[{"novel_accuracy": "0.4"}]])
    figure = figures.accuracy_figure([ONE, held])
    assert figure is not None
    overall, newcomers = figure.axes[0], figure.axes[3]
    assert [overall.get_ylabel(), newcomers.get_ylabel()] == [
        "Accuracy of the global model (%)",
        "Accuracy of the newcomers (%)",
    ]
    assert len(overall.lines) == 2
    ((line),) = newcomers.lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([3], [40])
    figure = figures.clients_figure([ONE, held])
    assert figure is not None
    assert figure.axes[1].get_xlabel() == "Accuracy on a client, newcomers (%)"
    figure = figures.reliability_figure([ONE, held], "novel")
    assert figure is not None
    assert figure.axes[0].get_title() == "c\nNewcomers: ECE 30.00 %"


def test_rows_are_told_apart_without_colour():
    looks = [figures._look(i) for i in range(figures.ROWS_MAX)]
    assert len({(str(look["linestyle"]), look["marker"]) for look in looks}) == len(looks)


def test_reliability_adds_up_the_bins_of_the_seeds():
    empty, full = figures.pool(TWO.calibration, "global")
    assert empty["count"] == 0
    assert full == {"bin": 1, "count": 40, "confidence": pytest.approx(0.8), "accuracy": pytest.approx(0.8)}
    assert figures.pool(TWO.calibration, "personal") == []
    figure = figures.reliability_figure([ONE, TWO], "global")
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes[:2]] == [
        "a\nGlobal model: ECE 30.00 %",
        "b, zeta=1\nGlobal model: ECE 0.00 %",
    ]


def test_the_error_of_a_reliability_diagram_is_that_of_the_table():
    rounds = [[{"round": 1, "global/accuracy": 0.5, "global/ece": ece}] for ece in (0.1, 0.2)]
    figure = figures.reliability_figure([TWO._replace(histories=rounds)], "global")
    assert figure is not None
    assert "Global model: ECE 15.00 %\nas in the table;\nbars: the last evaluation" in figure.axes[0].get_title()


def test_clients_are_points_of_all_seeds_with_their_quartiles():
    figure = figures.clients_figure([ONE, TWO])
    assert figure is not None
    (ax,) = figure.axes
    np.testing.assert_allclose(sorted(ax.lines[1].get_xdata()), [50, 70, 100])
    (box,) = ax.containers[1]
    assert (box.get_x(), box.get_x() + box.get_width()) == pytest.approx((60, 85))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b, zeta=1"]


def test_loss_deviations_are_compared_on_the_same_test_examples():
    def table(count, gap):
        return [{"client": "0", "class": "0", "test_examples": count, "dL": "", "dG": gap}]

    rows = [ONE, TWO._replace(deviation=[[], table("5", "0.5"), table("5", "9")])]
    rows += [
        ONE._replace(name="elsewhere", deviation=[table("6", "1")]),
        ONE._replace(name="d", deviation=[table("5", "2")]),
    ]
    figure = figures.deviation_figure(rows)
    assert figure is not None
    found = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines if "ΔG" in line.get_label()}
    assert found == {"b, zeta=1: ΔG, all clients' examples": [0.5], "d: ΔG, all clients' examples": [2]}
    assert figures.deviation_figure([ONE, TWO]) is None


def test_a_loss_deviation_has_the_names_of_its_data():
    table = [{"client": "0", "class": c, "test_examples": "5", "dL": "0", "dG": "1"} for c in ("0", "1")]
    names = Names(classes=("cat", "dog"), users=("north", "south"))
    figure = figures.deviation_figure([ONE, TWO._replace(deviation=[table], names=names)])
    assert figure is not None
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["cat", "dog"]
    assert figure.axes[0].get_title() == "Loss deviation of north"


def test_a_control_has_its_colour_in_every_figure():
    rows = [ONE, ALONE._replace(clients=[[{"global_accuracy": "0.5"}]])]
    (ax,) = figures.clients_figure(rows).axes
    assert [line.get_color() for line in ax.lines] == [figures.PALETTE[0], figures.BOUND]


def test_a_band_says_what_it_is_where_there_is_one():
    titles = [figures.accuracy_figure(rows).legends[0].get_title().get_text() for rows in ([ONE], [ONE, TWO])]
    assert titles == ["", "lines: means over seeds; bands: one sample standard deviation on either side"]


def test_points_boxes_and_lines_say_what_they_are_and_a_row_without_them_is_left_out():
    uncertain = [[{"model": "personal", "unknown_auroc": "0.75"}]]
    rows = [ONE, TWO._replace(uncertain=uncertain)]
    figure = figures.unknown_figure(rows, "personal")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["b, zeta=1"]
    for drawn in (figure, figures.clients_figure(rows)):
        assert "quartiles (box)" in drawn.get_supxlabel()
    assert figures.unknown_figure([ONE], "personal") is None


def test_every_figure_is_written_and_none_from_nothing(tmp_path):
    paths = figures.draw(tmp_path, "mnist", [ONE, TWO], "png")
    names = ["accuracy-mnist.png", "clients-mnist.png", "reliability-global-mnist.png"]
    assert [path.name for path in paths] == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert figures.draw(tmp_path, "none", [Series("a", [[]], [[]], [[]])], "png") == []


def test_of_real_targets_the_rmse_is_drawn_in_their_units():
    def real(name, *values):
        rows = [{"round": i, SECONDS: 1.0, "global/rmse": value} for i, value in enumerate(values, 1)]
        return Series(name, [rows], [[]], [[{"global_rmse": "2.5"}]])

    rows = [real("a", 4.0, 3.0), real("b", 5.0, 2.0)]
    built = figures.builders(rows)
    assert ("rmse" in built, "accuracy" in built) == (True, False)
    (ax, *_) = built["rmse"]().axes
    assert [line.get_ydata().tolist() for line in ax.lines] == [[4.0, 3.0], [5.0, 2.0]]
    assert ax.get_ylabel().replace("\n", " ") == "RMSE of the global model (units of the target)"
    (ax,) = built["clients"]().axes
    assert 2.5 in ax.lines[0].get_xdata()
