"""Only runs that differ in nothing but their seed are averaged, and what differs is said."""

from __future__ import annotations

import math
import statistics

import pytest

from fedray.compare import comparison, groups
from fedray.compare.runs import FinishedRun
from fedray.federate import report
from fedray.types import FedRayError

BY = ("algorithm", "data.name", "data.size")


def run(id="r", started=0, tags=None, **settings):
    """Settings are written with __ for the dot."""
    base = {"algorithm.name": "pfedbayes", "data.name": "mnist", "data.size": "medium", "rounds": "20", "seed": "0"}
    changed = {name.replace("__", "."): str(value) for name, value in settings.items()}
    return FinishedRun(id, f"name-{id}", started, base | changed, tags or {}, frozenset())


def ids(rows):
    return [[each.id for each in row.runs] for row in rows]


def evaluations(values, metric="global/accuracy"):
    return [{"round": i, metric: value} for i, value in enumerate(values, 1)]


def test_files_of_ones_own_are_shown_by_name_and_have_no_size():
    files = ("/home/me/a/mine.csv", "/home/me/b/mine.npz", "/home/me/other.csv")
    rows = groups.arrange([run(name, data__name=name) for name in (*files, "mnist")], BY)
    assert [row.values[1:] for row in rows] == [
        ("/home/me/a/mine.csv", "–"), ("/home/me/b/mine.npz", "–"), ("other", "–"), ("mnist", "medium")
    ]  # fmt: skip


def test_a_size_that_a_file_of_ones_own_does_not_have_parts_no_rows():
    sizes = [
        run(size, data__name="/home/me/mine.csv", data__size=size, seed=n) for n, size in enumerate(("small", "large"))
    ]
    rows = groups.arrange(sizes, BY)
    assert ids(rows) == [["small", "large"]]
    assert list(comparison.blocks(rows)) == ["mine"]


def test_seeds_and_what_decides_nothing_share_a_row():
    rows = groups.arrange(
        [
            run("b", seed=10, data__root="/elsewhere", runtime="ray"),
            run("a", seed=2, data__root="/here", runtime="local", data__download=True),
        ],
        BY,
    )
    assert ids(rows) == [["a", "b"]]  # by number
    assert rows[0].values == ("pfedbayes", "mnist", "medium")
    assert rows[0].label == ""


def test_settings_that_older_or_longer_runs_name_otherwise_part_no_rows():
    kinds = {"old": {}, "a": {"on_failure": "retry"}, "b": {"on_failure": "abort"}, "c": {"on_failure": "skip"}}
    kinds |= {"d": {"noise_generator": "auto"}, "e": {"noise_generator": "sfc64"}, "f": {"noise_generator": "philox"}}
    rows = groups.arrange([run(id, seed=n, **more) for n, (id, more) in enumerate(kinds.items())], BY)
    assert sorted(ids(rows)) == [["c"], ["f"], ["old", "a", "b", "d", "e"]]


def test_older_runs_held_nothing_out_for_validation():
    kinds = {"old": {}, "a": {"data__validation": 0.0}, "b": {"data__validation": 0.2}}
    rows = groups.arrange([run(id, seed=n, **more) for n, (id, more) in enumerate(kinds.items())], BY)
    assert sorted(ids(rows)) == [["b"], ["old", "a"]]


def test_settings_that_came_later_and_other_spellings_of_a_number_share_a_row():
    later = {"eval_last": 0, "eval_clients": None, "precision": "float32", "data__alternate": 2}
    kinds = {"old": {"algorithm__zeta": 1}, "new": later | {"algorithm__zeta": 1.0}, "dense": {"eval_last": 100}}
    rows = groups.arrange([run(id, seed=n, **more) for n, (id, more) in enumerate(kinds.items())], BY)
    assert sorted(ids(rows)) == [["dense"], ["old", "new"]]
    assert len({row.protocol for row in rows}) == 2
    assert groups.arrange([run("a", batch_size=1), run("b", batch_size=1.0)], ("batch_size",))[0].values == ("1",)


def test_other_settings_are_not_mixed_but_named():
    rows = groups.arrange([run("a", algorithm__zeta=10.0), run("b", algorithm__zeta=2.0, seed=1)], BY)
    assert ids(rows) == [["b"], ["a"]]
    assert [row.label for row in rows] == ["zeta=2", "zeta=10"]


def test_the_newest_of_the_same_settings_and_seed_counts():
    assert ids(groups.arrange([run("old", 1), run("new", 3), run("middle", 2)], BY)) == [["new"]]


def test_hyperparameters_are_compared_within_a_method_and_the_protocol_on_a_dataset():
    rows = groups.arrange(
        [
            run("a", algorithm__zeta=1.0),
            run("b", algorithm__name="fedavg", algorithm__lr=0.1, rounds=100),
            run("c", data__name="cifar10", rounds=7),
        ],
        BY,
    )
    assert {row.runs[0].id: row.label for row in rows} == {"a": "rounds=20", "b": "rounds=100", "c": ""}


def test_the_file_of_a_plug_in_parts_its_own_rows_only():
    def mine(name, digest, seed=0):
        return run(name, algorithm__name="mine", **{"plug_in.mine": digest}, seed=seed)

    rows = groups.arrange([run("a"), mine("b", "f00"), mine("c", "f00", seed=1)], BY)
    assert {tuple(ids([row])[0]): row.label for row in rows} == {("a",): "", ("b", "c"): ""}
    rows = groups.arrange([run("a"), mine("b", "f00"), mine("c", "bad", seed=1)], BY)
    labels = {row.runs[0].id: row.label for row in rows}
    assert labels == {"a": "", "b": "plug_in.mine=f00", "c": "plug_in.mine=bad"}


def test_what_by_leaves_out_is_in_the_label():
    rows = groups.arrange([run("a"), run("b", algorithm__name="fedavg", algorithm__lr=0.1)], ["data.name"])
    assert [(row.values, row.label) for row in rows] == [
        (("mnist",), "algorithm=fedavg"),
        (("mnist",), "algorithm=pfedbayes"),
    ]


def test_rows_can_be_told_apart_by_seed_or_tag():
    runs = [run("a", tags={"git_commit": "x"}), run("b", seed=1, tags={"git_commit": "y"})]
    assert ids(groups.arrange(runs, ["seed"])) == [["a"], ["b"]]
    assert [row.values for row in groups.arrange(runs, ["git_commit"])] == [("x",), ("y",)]


def test_controls_come_after_the_federated_methods_of_their_data():
    found = [
        run(id=name + size, **{"algorithm.name": name, "data.name": "mnist", "data.size": size})
        for name in ("local", "pfedbayes", "pooled", "fedavg")
        for size in ("medium", "small")
    ]
    arranged = groups.arrange(found, ["algorithm", "data.size"])
    names = ["fedavg", "pfedbayes", "local", "pooled"]
    assert [group.values for group in arranged] == [(name, size) for size in ("small", "medium") for name in names]
    assert [group.control for group in arranged] == [False, False, True, True] * 2


def test_one_place_for_all_data_is_no_choice_of_the_user():
    """Who pools has one client per round, which tells no row from another; a federated run's choice still does."""

    def rows(*runs):
        return {row.values[0]: row.label for row in groups.arrange(runs, BY)}

    pooled = run("p", algorithm__name="pooled", clients_per_round=1, rounds=20)
    every, few = run("a", clients_per_round=10), run("f", algorithm__name="fedavg", clients_per_round=2)
    assert rows(pooled, every) == {"pfedbayes": "", "pooled": ""}
    assert rows(pooled, every, few) == {
        "fedavg": "clients_per_round=2", "pfedbayes": "clients_per_round=10", "pooled": ""
    }  # fmt: skip
    longer = run("p", algorithm__name="pooled", clients_per_round=1, rounds=50)
    assert rows(longer, every) == {"pfedbayes": "rounds=20", "pooled": "rounds=50"}  # this one was chosen


def test_only_the_same_data_compete():
    a, b = groups.arrange([run("a", data__layout="cluster"), run("b", data__layout="window")], BY)
    assert a.block != b.block
    assert (a.label, b.label) == ("data.layout=cluster", "data.layout=window")


def test_a_key_that_nothing_has_is_refused():
    with pytest.raises(FedRayError, match=r"--by zetta: .*choose from algorithm.name, data.name"):
        groups.arrange([run()], ["zetta"])


def test_a_run_counts_with_the_mean_of_the_last_tenth():
    assert groups.run_value(evaluations([0.5] * 23 + [0.6, 0.8]), "global/accuracy") == pytest.approx(
        (0.5 + 0.6 + 0.8) / 3
    )
    assert groups.run_value(evaluations([0.1] * 150 + [0.9] * 10), "global/accuracy") == pytest.approx(0.9)
    assert groups.run_value(evaluations([0.5]), "personal/accuracy") is None


def test_trials_that_have_only_validation_measures_count_alike():
    rows = evaluations([0.5] * 23 + [0.6, 0.8], "validation/global/nll")
    assert groups.run_value(rows, "validation/global/nll") == pytest.approx((0.5 + 0.6 + 0.8) / 3)


def test_stability_is_the_sd_of_the_last_ten_evaluations():
    late = [0.80, 0.82, 0.84, 0.80, 0.81, 0.83, 0.80, 0.85, 0.79, 0.80]
    rows = evaluations([0.1] * 30 + late)
    rows[35]["global/nll"] = rows[0]["global/nll"] = 1.0
    rows.append({"round": 41, "comm/bytes_up": 8.0})  # was not evaluated
    assert groups.run_value(rows, "global/stability") == pytest.approx(statistics.stdev(late))
    assert groups.run_value(rows, "personal/stability") is None
    assert groups.run_value(rows[:1], "global/stability") is None
    for broken in (math.nan, math.inf):  # a model that has diverged keeps its result
        assert math.isnan(report.stability([*rows, {"global/accuracy": broken}], "global"))
    assert groups.measurable(run()._replace(measured=frozenset({"personal/accuracy", "train/nll"}))) == {
        "personal/accuracy", "personal/stability", "train/nll"
    }  # fmt: skip


def test_bytes_add_up_and_choices_average_over_all_rounds():
    rows = evaluations([10.0] * 99 + [30.0], "comm/bytes_up")
    rows = [row | {"selection/chosen": row["round"], "global/accuracy": 0.5} for row in rows]
    assert groups.run_value(rows, "comm/bytes_up") == 1020.0
    assert groups.run_value(rows, "selection/chosen") == 50.5
    assert groups.run_value(rows, "comm/bytes_down") is None


def test_mean_and_sample_sd_over_seeds():
    histories = [evaluations([0.9]), evaluations([0.92]), evaluations([0.97])]
    found = groups.estimate(histories, "global/accuracy")
    assert found is not None
    assert found.mean == pytest.approx(0.93)
    assert found.sd == pytest.approx(statistics.stdev([0.9, 0.92, 0.97]))  # by hand: sqrt(0.0026/2)
    assert found.sd == pytest.approx(math.sqrt(0.0013))
    assert groups.estimate(histories[:1], "global/accuracy") == (0.9, None, 1)
    assert groups.estimate(histories, "personal/ece") is None
