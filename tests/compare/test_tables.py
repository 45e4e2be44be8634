"""A table says the same in every format: mean ± sd, the best in bold, the published figure beside it."""

from __future__ import annotations

import csv
import io
import re

import pytest
from scipy import stats

from fedray.compare import figures, groups, html, styles, tables
from fedray.compare.groups import Estimate, RunGroup
from fedray.compare.runs import FinishedRun
from fedray.types import FedRayError

PAPER = {
    "data.partition": "labels",
    "data.labels_per_client": "5",
    "clients": "10",
    "model.name": "mlp",
    "model.hidden": "[100]",
}
ACC, NLL = "global/accuracy", "global/nll"


def row(algorithm, accuracy, nll=None, size="medium", label="", data="mnist", **more):
    settings = PAPER | {"algorithm.name": algorithm, "data.name": data, "data.size": size} | more
    runs = tuple(FinishedRun(f"id{i}", "name", 0, settings, {}, frozenset()) for i in range(accuracy.n))
    return RunGroup((algorithm,), label, runs, {ACC: accuracy, NLL: nll or Estimate(0.5, None, 1)})


def build(*rows):
    return tables.build(rows, ["algorithm"], [ACC, NLL])


def texts(table):
    return [[entry.text for entry in line] for block in table.blocks for line in block]


def bold(table):
    return [[entry.text for entry in line if entry.bold] for block in table.blocks for line in block]


A = row("fedavg", Estimate(0.9012, 0.0034, 3), Estimate(0.31, 0.02, 3))
B = row("fedprox", Estimate(0.8, None, 1), Estimate(0.25, None, 1))


def test_percent_for_shares_and_no_sd_for_one_seed():
    table = build(A, B)
    assert table.header == ["algorithm", "n", "global accuracy (%) ↑", "global NLL (nats) ↓"]
    assert texts(table) == [["fedavg", "3", "90.12 ± 0.84", "0.310 ± 0.050"], ["fedprox", "1", "80.00", "0.250"]]


def test_large_numbers_are_scientific_and_compete_as_they_are_printed():
    few, many = (
        row(name, Estimate(0.9, None, 1), Estimate(value, 2.5e6, 2))
        for name, value in (("a", 1.234e7), ("b", 1.2342e7))
    )
    assert texts(build(few, many)) == [["a", "1", "90.00", "1.23e+07 ± 2.25e+07 (n=2)"],
                                       ["b", "1", "90.00", "1.23e+07 ± 2.25e+07 (n=2)"]]  # fmt: skip
    assert [line[-1] for line in bold(build(few, many))] == ["1.23e+07 ± 2.25e+07 (n=2)"] * 2


def test_the_best_is_bold_by_the_direction_of_the_metric():
    assert bold(build(A, B)) == [["90.12 ± 0.84"], ["0.250"]]


def test_what_prints_equal_ties_and_nothing_competes_alone_or_on_other_data():
    tie = row("other", Estimate(0.90123, None, 1), Estimate(0.4, None, 1))
    assert bold(build(A, tie)) == [["90.12 ± 0.84", "0.310 ± 0.050"], ["90.12"]]
    assert bold(build(A, row("fedprox", Estimate(0.95, None, 1), size="small"))) == [[], []]
    nan = row("other", Estimate(float("nan"), None, 1))
    assert bold(build(A, nan))[1] == []
    assert texts(build(A, nan))[1][-2] == "not finite"


def test_controls_stand_apart_and_do_not_compete():
    local, pooled = (row(name, Estimate(0.99, None, 1), Estimate(0.01, None, 1)) for name in ("local", "pooled"))
    table = build(A, B, local, pooled)
    assert [len(block) for block in table.blocks] == [2, 3]
    assert texts(table)[2] == ["Controls, not federated", "", "", ""]
    assert [line[0] for line in texts(table)[3:]] == ["local", "pooled"]
    assert bold(table) == [["90.12 ± 0.84"], ["0.250"], [], [], []]  # as without them
    assert "local trains every client alone, from below" in table.caption
    assert "Controls" not in build(A, B).caption
    assert "| Controls, not federated |  |  |  |" in tables.markdown(table)
    assert bold(build(local, pooled)) == [[], [], []]


def test_a_metric_that_some_seeds_lack_says_how_many_have_it():
    some = row("fedavg", Estimate(0.9, 0.1, 3), Estimate(0.3, None, 1))
    none = some._replace(estimates={ACC: Estimate(0.9, 0.1, 3)})
    assert texts(build(some))[0][3] == "0.300 (n=1)"
    assert texts(build(none))[0][3] == "–"


def test_markdown_has_the_published_figure_beside_the_cell():
    lines = tables.markdown(build(A, B._replace(label="mu=0.1|x"))).splitlines()
    assert lines[:4] == [
        "| algorithm | settings | n | global accuracy (%) ↑ | global NLL (nats) ↓ |",
        "| :-- | :-- | --: | --: | --: |",
        "| fedavg |  | 3 | **90.12 ± 0.84** (90.60 ± 0.19 [pFedBayes, Table 1]) | 0.310 ± 0.050 |",
        r"| fedprox | mu=0.1\|x | 1 | 80.00 (90.66 ± 0.17 [pFedBayes, Table 1]) | **0.250** |",
    ]
    assert "With a source in brackets: published results" in lines[-1]
    assert "of all rounds or, for pFedBayes, of rounds 700 to 800" in lines[-1]
    assert "700" not in tables.markdown(build(row("fedavg", Estimate(0.9, None, 1), data="digits")))


HOSTILE = r"<script>&|#%$_^~{\end{table}"


def test_html_shows_hostile_names_as_text():
    group = row(HOSTILE, Estimate(0.9, None, 1), label=HOSTILE)
    runs = tuple(run._replace(name=HOSTILE, id=HOSTILE, tags={"git_commit": HOSTILE}) for run in group.runs)
    group = group._replace(runs=runs)
    text = html.page([build(group, B)], [group], {HOSTILE: []}, {"study": HOSTILE})
    assert "<script" not in text
    assert text.count("&lt;script&gt;&amp;|") == 8  # two cells of the table, a fact, and five in the list of runs


@pytest.mark.parametrize("measure", ["accuracy", "rmse"])
def test_every_figure_has_a_caption_on_the_page(measure):
    series = figures.Series("a", [[{"round": 1, f"global/{measure}": 0.5}]], [], [])
    kinds = {name.partition("-")[0] for name in figures.builders([series])}
    assert measure in kinds
    assert kinds <= html.CAPTIONS.keys()


def test_csv_is_plain_numbers_to_the_last_bit():
    (line, other) = csv.DictReader(io.StringIO(tables.plain([A, B], ["algorithm"], [ACC, NLL])))
    assert float(line[f"{ACC} mean"]) == 0.9012
    assert float(line[f"{ACC} sd"]) == 0.0034
    assert line[f"{ACC} n"] == "3"
    assert (float(line[f"{ACC} published_mean"]), float(line[f"{ACC} published_sd"])) == (0.906, 0.0019)
    assert line[f"{ACC} published_source"] == "pFedBayes, Table 1"
    assert line["runs"] == "id0 id1 id2"
    assert (other[f"{ACC} sd"], other[f"{NLL} published_mean"]) == ("", "")


def test_html_is_escaped():
    text = html.page([build(A, row("<b>", Estimate(0.1, None, 1)))], [], {}, {})
    assert "<td>&lt;b&gt;</td>" in text
    assert (
        '<td class="number"><strong>90.12 ± 0.84</strong><small>90.60 ± 0.19 [pFedBayes, Table 1]</small></td>' in text
    )


def test_a_metric_that_is_no_measure_is_shown_as_stored():
    assert styles.style("train/nll") == styles.Style("train/nll")
    assert styles.style("validation/personal/f1") == styles.Style("validation/personal/f1")
    assert groups.estimate([[{"round": 1, ACC: 0.5, "train/nll": 0.3}]], "train/nll") == (0.3, None, 1)


def test_a_measure_on_validation_examples_is_named_and_shown_as_its_like():
    shown, test = styles.style("validation/personal/accuracy"), styles.style("personal/accuracy")
    assert shown.label == "personal validation accuracy (%)"
    assert shown._replace(label=test.label) == test


def test_traffic_is_in_megabytes_of_the_whole_run():
    cheap = A._replace(estimates={"comm/bytes_up": Estimate(2.5e6, 0.5e6, 3)})
    dear = B._replace(estimates={"comm/bytes_up": Estimate(7.1e8, None, 1)})
    table = tables.build([cheap, dear], ["algorithm"], ["comm/bytes_up"])
    assert table.header[-1] == "MB up ↓"
    assert [line[-1].text for line in table.blocks[0]] == ["2.5 ± 1.2", "710.0"]
    assert "Bytes are totals of the whole run" in table.caption
    assert "Bytes" not in build(A, B).caption


@pytest.mark.parametrize("setting", ["rounds", "adapt_rounds"])
def test_only_rows_of_the_same_length_and_protocol_compete(setting):
    long = [row(name, Estimate(x, None, 1), **{setting: "20"}) for name, x in (("a", 0.9), ("b", 0.8))]
    short = row("c", Estimate(0.95, None, 1), **{setting: "5"})
    assert bold(build(*long, short))[0][0] == "90.00"
    assert bold(build(*long, short))[2] == []


def seeded(algorithm, values, **more):
    """A row with one run per seed, and the rounds of its runs."""
    settings = {"algorithm.name": algorithm, "data.name": "digits"} | more
    runs = tuple(FinishedRun(f"{algorithm}{s}", "", 0, settings | {"seed": s}, {}, frozenset()) for s in values)
    rounds = {run.id: [{"round": 1, ACC: values[run.settings["seed"]]}] for run in runs}
    return RunGroup((algorithm,), "", runs, {ACC: groups.of_runs(list(values.values()))}), rounds


def test_differences_are_taken_seed_by_seed_and_tested_as_scipy_does():
    a, first = seeded("a", {"0": 0.5, "1": 0.6, "2": 0.8})
    b, second = seeded("b", {"1": 0.63, "2": 0.81, "0": 0.52, "9": 0.1})
    c, third = seeded("c", {"7": 0.9})
    d, fourth = seeded("d", {"0": 0.9, "1": 0.9}, clients="3")  # other examples
    e, fifth = seeded("e", {"0": 0.9, "1": 0.9}, novel_clients="3")  # these, too
    found = tables.differences([a, b, c, d, e], ["algorithm"], [ACC], first | second | third | fourth | fifth, "")
    test = stats.ttest_rel([0.52, 0.63, 0.81], [0.5, 0.6, 0.8])
    interval = test.confidence_interval(0.95)
    half = 50 * (interval.high - interval.low)
    assert texts(found) == [["b", "a", "3", f"+2.00 ± {half:.2f} (p {test.pvalue:.2g})"]]
    unmeasured = tables.differences([a, b], ["algorithm"], [NLL, ACC], first | second, "")
    assert unmeasured.header == ["row", "minus", "n", "global accuracy (%)"]  # no column of dashes
    swapped = tables.differences([a, b], ["algorithm"], [ACC], first | second, "b")
    assert texts(swapped) == [["a", "b", "3", f"-2.00 ± {half:.2f} (p {test.pvalue:.2g})"]]
    assert tables.differences([a, c], ["algorithm"], [ACC], first | third, "") is None
    with pytest.raises(FedRayError, match=r"--baseline x: no row has this name; choose from\n  a\n  b$"):
        tables.differences([a, b], ["algorithm"], [ACC], first | second, "x")


def test_a_control_is_no_baseline_unless_it_is_named():
    rows, rounds = zip(
        *(seeded(name, {"0": value}) for name, value in (("local", 0.5), ("fedavg", 0.6), ("pfedbayes", 0.8))),
        strict=True,
    )
    histories = rounds[0] | rounds[1] | rounds[2]
    found = texts(tables.differences(rows, ["algorithm"], [ACC], histories, ""))
    assert [line[:2] for line in found] == [["local", "fedavg"], ["pfedbayes", "fedavg"]]
    named = texts(tables.differences(rows, ["algorithm"], [ACC], histories, "local"))
    assert {line[1] for line in named} == {"local"}


def test_a_baseline_may_be_named_by_its_method_where_rows_are_called_by_something_else():
    (a, first), (b, second) = (seeded(name, {"0": x}) for name, x in (("fedavg", 0.6), ("pfedbayes", 0.8)))
    rows = [group._replace(values=(rate,)) for group, rate in ((a, "0.01"), (b, "0.001"))]
    found = texts(tables.differences(rows, ["algorithm.lr"], [ACC], first | second, "pfedbayes"))
    assert [line[:2] for line in found] == [["0.01", "0.001"]]


@pytest.mark.parametrize(
    ("value", "shown"), [(3.2145, "3.2145"), (0.0016, "0.00160"), (0.00031, "0.000310"), (0, "0.0000")]
)
def test_errors_in_the_unit_of_the_target_keep_three_digits(value, shown):
    rmse = styles.style("global/rmse")
    assert tables._number(Estimate(value, None, 1), rmse) == shown
    assert tables._as_printed(0.00031, rmse) != tables._as_printed(0.00026, rmse)
    assert tables._number(Estimate(0.0003, None, 1), styles.style("global/ece")) == "0.03"


def test_one_seed_has_a_difference_without_an_interval():
    (a, first), (b, second) = seeded("a", {"0": 0.5}), seeded("b", {"0": 0.25})
    found = tables.differences([a, b], ["algorithm"], [ACC], first | second, "")
    assert texts(found) == [["b", "a", "1", "-25.00"]]


def test_the_same_difference_in_all_seeds_has_no_p_value_where_subtraction_rounds():
    (a, first), (b, second) = (
        seeded("a", {"0": 780 / 850, "1": 770 / 850}),
        seeded("b", {"0": 790 / 850, "1": 780 / 850}),
    )
    assert 790 / 850 - 780 / 850 != 780 / 850 - 770 / 850
    found = tables.differences([a, b], ["algorithm"], [ACC], first | second, "")
    assert texts(found) == [["b", "a", "2", "+1.18 ± 0.00"]]


def test_a_difference_of_rows_of_unequal_rounds_says_so():
    a, first = seeded("a", {"0": 0.5, "1": 0.6})
    for more, said in (({}, False), ({"rounds": "99"}, True)):
        b, second = seeded("b", {"0": 0.7, "1": 0.9}, **more)
        found = tables.differences([a, b], ["algorithm"], [ACC], first | second, "")
        assert ("rounds" in found.caption) == said


def test_a_terminal_gets_columns_in_parts_that_fit():
    lines = tables.terminal(build(A, B), 40).splitlines()
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert all(len(line) <= 40 for line in plain)
    assert sum("fedavg" in line for line in plain) == 2  # once per part
    assert any("90.12 ± 0.84" in line for line in plain)
    assert any("0.310 ± 0.050" in line for line in plain)
    assert not any("|" in line for line in plain)
    wide = tables.terminal(build(A, B), 160)
    assert wide.count("fedavg") == 1
    assert re.search(r"\x1b\[1[;0-9]*m *90.12 ± 0.84", wide)  # the best is bold, with colours or without


def test_a_narrow_terminal_shows_settings_whole():
    long = A._replace(values=("fedavg_with_a_very_long_name", "digits"), label="learning_rate=0.0123456789")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", tables.terminal(build(long, B), 40))
    assert "…" not in plain
