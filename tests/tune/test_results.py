"""Ranking, counting and the launch command of the best configuration."""

import dataclasses
import itertools
import re
import shlex
from types import SimpleNamespace

import pytest
import ray
from rich.console import Console

from fedray import cli, launch
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.bayesian.pfedbayes import PFedBayes
from fedray.config import DataConfig, Experiment, ModelConfig, TrackingConfig
from fedray.federate.measures.tasks import REGRESSION
from fedray.running.files import write_json, write_table
from fedray.running.folder import naming
from fedray.running.tracking import NullTracker
from fedray.types import Choice, FedRayError, LogUniform
from tune import record, results, search, sweep
from tune.__main__ import NOTE, SweepNote, main, read
from tune.options import Sweep, complete
from tune.results import TrialResult
from tune.space import Grid


def row(zeta, seed, score, rounds=12, text="finished"):
    return TrialResult(f"x_{zeta}{seed}", {"algorithm.zeta": zeta}, seed, rounds, score, text)


def test_a_configuration_is_ranked_by_its_mean_over_the_seeds():
    table = [row(1.0, 0, 0.9), row(1.0, 1, 0.5), row(2.0, 0, 0.8), row(2.0, 1, 0.7)]
    assert [group[0].settings["algorithm.zeta"] for group in results.ranked(table, "max")] == [2.0, 1.0]
    assert [group[0].settings["algorithm.zeta"] for group in results.ranked(table, "min")] == [1.0, 2.0]


def test_what_was_stopped_ranks_below_what_finished_and_what_failed_has_no_rank():
    table = [
        row(1.0, 0, 0.5),
        row(2.0, 0, 0.99, rounds=3, text="stopped early"),
        row(3.0, 0, 0.999, text="failed: NaN"),
        row(4.0, 0, None, rounds=0, text="unfinished"),
    ]
    assert [group[0].settings["algorithm.zeta"] for group in results.ranked(table, "max")] == [1.0, 2.0]
    assert results.ranked(table[2:], "max") == []


def test_a_configuration_of_which_one_seed_was_stopped_ranks_below_a_whole_one():
    stopped = [row(1.0, 0, 0.99), row(1.0, 1, 0.99, rounds=3, text="stopped early")]
    whole = [row(2.0, 0, 0.5), row(2.0, 1, 0.5)]
    ranked = results.ranked([*stopped, *whole], "max")
    assert [group[0].settings["algorithm.zeta"] for group in ranked] == [2.0, 1.0]


def test_of_a_configuration_that_was_drawn_twice_the_longer_trial_counts():
    """Its figures and the shorter one's are of unequal rounds, so they have no mean."""
    twice = [row(1.0, 0, 0.2, rounds=1, text="stopped early"), row(1.0, 0, 0.9)]
    other = row(2.0, 0, 0.8)
    assert results.ranked([*twice, other], "max") == [[twice[1]], [other]]
    assert results.by_rank([other, *twice], "max") == [*twice, other]
    assert results.repetition([twice[1]], 12, "asha") == "plays it again, bit for bit"


def shown(table, best=()):
    console = Console(width=150, record=True)
    console.print(results.show(results.by_rank(table, "max"), "m", best, "a note"))
    return [[cell for cell in re.split(r"\s*│\s*|\s{2,}", line) if cell] for line in console.export_text().splitlines()]


def test_with_several_seeds_the_table_has_the_mean_and_deviation_of_what_has_a_rank():
    two = [row(2.0, 0, 0.8), row(2.0, 1, 0.6)]
    failed = [row(1.0, 0, 0.9), row(1.0, 1, None, text="failed: it")]
    lines = shown([*failed, *two], two)
    assert [line for line in lines if "mean" in line] == [["mean", "0.7000 ± 0.1414", "2 seeds, ± their sd"]]
    at = lines.index(["mean", "0.7000 ± 0.1414", "2 seeds, ± their sd"])
    assert [line[1:3] for line in lines[at - 2 : at]] == [["0", "2"], ["1", "2"]]
    assert not any("mean" in line for line in shown([row(1.0, 0, 0.9), row(2.0, 0, 0.8)]))


def test_a_resumed_sweep_ranks_configurations_with_several_values_in_one_setting():
    """Ray Tune's files have tuples as lists, which cannot be counted."""

    def trial(number, hidden, score):
        ended = {"round": 3, "score": score, "done": True}
        config = {"model.hidden": hidden, "seed": 0}
        return SimpleNamespace(trial_id=f"x_{number}", config=config, last_result=ended, status="TERMINATED")

    made = [trial(0, [10], 0.5), trial(1, (20, 5), 0.7)]
    table = results.rows(made, {"model.hidden": Grid(((10,), (20, 5)))}, rounds=3)
    assert [group[0].settings for group in results.ranked(table, "max")] == [
        {"model.hidden": (20, 5)},
        {"model.hidden": (10,)},
    ]


def test_a_cut_reason_says_that_more_follows_and_the_first_failure_is_told_whole():
    reason = "failed: client 0, round 1, finish: its upload 'theta' is not finite; take a smaller learning rate"
    failed = row(1.0, 0, None, text=reason)
    assert results.shorten(reason) == f"{reason[:59]}…"
    assert results.shorten("finished") == "finished"
    assert results.failure([row(2.0, 0, 0.5), failed]) == f"{failed.trial[-5:]}: {reason.removeprefix('failed: ')}"
    assert results.failure([row(2.0, 0, 0.5)]) is None


@pytest.mark.parametrize(("low", "high"), [(1e-4, 1e-1), (0.5, 20), (1e-3, 2e-2)])
def test_the_ticks_of_a_logarithmic_axis_do_not_overlap(low, high):
    table = [row(zeta, 0, 0.5) for zeta in (low, high)]
    space = {f"algorithm.{name}": LogUniform(low, high) for name in ("zeta", "lr", "mu")}
    table = [each._replace(settings=dict.fromkeys(space, each.settings["algorithm.zeta"])) for each in table]
    figure = results._versus(table, space, "score")
    figure.canvas.draw()
    for ax in figure.axes:
        boxes = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
        shown = sorted((box for box in boxes if ax.bbox.x0 <= (box.x0 + box.x1) / 2 <= ax.bbox.x1), key=lambda b: b.x0)
        assert len(shown) >= 2
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(shown))


def test_a_search_that_learns_draws_by_the_seed():
    """Another seed has another configuration, and the same one the same."""

    def drawn(seed):
        asked, space = Sweep(search="tpe", metric="m", mode="max"), {"algorithm.zeta": LogUniform(0.1, 10)}
        found = search.searcher(asked, space, 1, [seed])
        found.set_search_properties("m", "max", search.parameters(space, "tpe", [seed]))
        return found.suggest("first")["algorithm.zeta"]

    assert drawn(1) == drawn(1)
    assert drawn(0) != drawn(1)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_what_diverged_without_an_error_has_no_rank(tmp_path, score):
    table = [row(z, 0, s) for z, s in enumerate([0.5, score, 0.9])]
    for mode, order in (("max", [2, 0]), ("min", [0, 2])):
        assert [group[0].settings["algorithm.zeta"] for group in results.ranked(table, mode)] == order
        assert [r.settings["algorithm.zeta"] for r in results.by_rank(table, mode)] == [*order, 1]
    space = {"algorithm.zeta": LogUniform(1, 2)}
    drawn = results.draw(table[2:], space, Sweep(metric="m", mode="max"), tmp_path)
    assert drawn == sorted(tmp_path.glob("figures/*.png"))
    assert len(drawn) == 2
    assert results.draw(table[1:2], space, Sweep(metric="m", mode="max"), tmp_path) == []


def test_the_best_score_so_far_is_that_of_no_trial_that_diverged(tmp_path):
    request = SimpleNamespace(sweep=Sweep(mode="max", metric="m"), folder=tmp_path, name="s", trials=2)
    notes = []
    trials = [SimpleNamespace(last_result={"score": s}, is_finished=lambda: True) for s in (float("nan"), 0.5)]
    sweep._show_progress(request, 0.0, lambda done, note: notes.append(note), trials)
    assert notes == ["best m 0.5000"]


@pytest.mark.parametrize(
    ("best", "scheduler", "said"),
    [
        ([row(1.0, 0, 0.5)], "asha", "plays it again, bit for bit"),
        ([row(1.0, 0, 0.5), row(1.0, 1, 0.6)], "none", "plays the first of its 2 seeds again, bit for bit"),
        ([row(1.0, 0, 0.5, rounds=3, text="stopped early")], "asha", "plays all 12 rounds; its trial ended after 3"),
        (
            [row(1.0, 0, 0.5), row(1.0, 1, 0.6, rounds=3, text="stopped early")],
            "asha",
            "plays all 12 rounds; its trial ended after 3",
        ),
        ([row(1.0, 0, 0.5)], "pbt", "plays all rounds with its last settings"),
    ],
)
def test_the_command_of_the_best_is_called_a_repetition_where_it_is_one(best, scheduler, said):
    assert results.repetition(best, 12, scheduler).startswith(said)


def test_the_table_shows_the_best_first_and_what_has_no_rank_last():
    table = [row(3.0, 0, 0.999, text="failed: NaN"), row(1.0, 0, 0.5), row(2.0, 0, 0.8)]
    assert [r.settings["algorithm.zeta"] for r in results.by_rank(table, "max")] == [2.0, 1.0, 3.0]
    assert [r.settings["algorithm.zeta"] for r in results.by_rank(table, "min")] == [1.0, 2.0, 3.0]


def test_a_table_is_read_as_it_was_written(tmp_path):
    """What a finished sweep shows again stands in its files: fractions to the last bit, words, tuples and gaps."""
    table = [
        TrialResult("x_0", {"a": 0.1 + 0.2, "b": "rho", "c": (8, 4)}, 3, 12, 1 / 3, "finished"),
        TrialResult("x_1", {"a": None, "b": "q", "c": ()}, 4, 0, None, "failed: it, and a comma"),
    ]
    write_table(tmp_path / "trials.csv", results.csv_rows(table, "m"))
    assert results.read_table(tmp_path / "trials.csv", dict.fromkeys("abc"), "m") == table


def test_a_finished_sweep_is_shown_again_without_ray(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["fedavg", "--space", "lr=grid(0.1,0.2)", "--name", "s", "--tracking.uri", "none", "--max-rounds", "3"]
    request, _ = read(words)
    ended = [
        SimpleNamespace(
            trial_id=f"x_{i}",
            config={"algorithm.lr": lr, "seed": 0},
            status="TERMINATED",
            last_result={"round": 3, "score": lr, "tested": {"global": {"accuracy": lr}}, "done": True},
        )
        for i, lr in enumerate((0.1, 0.2))
    ]
    assert sweep.concluded(request) is None
    told = sweep._conclude(request, ended, NullTracker())
    write_json(request.folder / NOTE, SweepNote("s", words, "")._asdict())
    assert main(["--resume", "runs/s"]) == 0
    out = capsys.readouterr().out
    assert f"best     {told.command}\n         plays it again, bit for bit\n" in out
    assert told.refit in out
    assert "tested   global 20.00% on test examples" in out
    assert out.index(" 0.2000 ") < out.index(" 0.1000 ")
    assert not ray.is_initialized()


@pytest.fixture
def over(tmp_path, monkeypatch):
    """A sweep over the clients of a round, all of whose trials have ended: all clients at a time, its default, won."""
    monkeypatch.chdir(tmp_path)
    words = ["fedavg", "--search", "grid", "--space", "clients_per_round=grid(5,None)", "--tracking.uri", "none"]
    request, _ = read([*words, "--max-rounds", "3"])
    ended = [
        SimpleNamespace(
            trial_id=f"x_{i}",
            config={"clients_per_round": chosen, "seed": 0},
            status="TERMINATED",
            last_result={"round": 3, "score": 0.1 * i, "tested": {"global": {"accuracy": 0.5}}, "done": True},
        )
        for i, chosen in enumerate((5, None))
    ]
    return request, ended


def test_the_best_is_found_again_where_its_setting_is_none(over):
    request, ended = over
    told = sweep._conclude(request, ended, NullTracker())
    again = sweep.concluded(request)
    assert again.hint == told.hint
    assert [(row.trial, row.settings) for row in again.best] == [("x_1", {"clients_per_round": None})]


def test_a_sweep_that_is_killed_before_all_is_uploaded_is_concluded_again(over):
    request, ended = over
    uploaded = []

    class Killed(NullTracker):
        def finish(self, status, artifacts=None, ended=None):
            uploaded.extend(path.name for path in artifacts.iterdir())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep._conclude(request, ended, Killed())
    assert set(uploaded) == {"trials.csv", "best.json", "space.json", "figures"}
    assert sweep.concluded(request) is None
    sweep._conclude(request, ended, NullTracker())
    assert sweep.concluded(request) is not None


def test_a_finished_sweep_is_shown_where_its_store_is_gone(over, tmp_path):
    request, ended = over
    sweep._conclude(request, ended, NullTracker())
    gone = tmp_path / "gone" / "mlflow.db"
    execution = dataclasses.replace(request.execution, tracking=TrackingConfig(uri=f"sqlite:///{gone}"))
    assert sweep.concluded(request._replace(execution=execution)).best
    assert not gone.parent.exists()


def test_a_sweep_over_seeds_plays_every_trial_to_its_end(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["fedavg", "--space", "lr=choice(0.1,0.2)", "--tracking.uri", "none", "--max-rounds", "3"]
    assert read(words)[0].sweep.scheduler == "asha"
    assert read([*words, "--seeds", "2"])[0].sweep.scheduler == "none"


def test_the_command_to_go_on_holds_in_a_folder_with_a_space(tmp_path):
    for told in (sweep.command(tmp_path / "my runs"), naming.command(tmp_path / "my runs")):
        assert shlex.split(told)[-2:] == ["--resume", str(tmp_path / "my runs")]


def test_help_is_one_page_with_what_a_sweep_searches(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fedavg", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 75
    assert "  lr=loguniform(0.0001,0.1)\n" in text
    assert (
        text.index("--samples INT") < text.index("--space NAME") < text.index("Options of fedavg") < text.index("--lr ")
    )
    assert "--help-all" in text
    assert "--rounds INT" not in text


def test_all_options_are_shown_in_groups_as_those_of_a_launch_are(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fedavg", "--help-all"])
    assert ended.value.code == 0
    text, _, boxes = capsys.readouterr().out.partition("╭─ this command")
    assert "uci-NAME" in text
    words = ("--samples INT", "╭─ options of fedavg", "--lr FLOAT", "╭─ federation", "--rounds INT", "╭─ execution")
    places = [boxes.index(word) for word in words]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("status", "last", "said"),
    [
        ("TERMINATED", {"round": 12, "done": True}, "finished"),
        ("RUNNING", {"round": 12, "done": True}, "finished"),
        ("TERMINATED", {"round": 5, "done": True}, "stopped early"),
        ("TERMINATED", {"round": 11, "done": True}, "stopped early"),
        ("TERMINATED", {"round": 5, "done": False}, "unfinished"),  # as Tune leaves it on Ctrl-C
        ("PENDING", None, "unfinished"),
        ("TERMINATED", {"round": 5, "done": True, "failure": "`on_failure=skip`"}, "failed: --on-failure skip"),
        ("TERMINATED", {"round": 12, "done": True, "score": float("nan")}, "failed: its score is nan"),
        ("TERMINATED", {"round": 5, "done": True, "score": float("inf")}, "failed: its score is inf"),
        ("TERMINATED", {"round": 5, "done": False, "score": float("nan")}, "unfinished"),
        ("TERMINATED", {"round": 12, "done": True, "score": 0.5}, "finished"),
    ],
)
def test_a_trial_that_ctrl_c_cut_off_is_not_taken_for_one_that_was_stopped(status, last, said):
    trial = SimpleNamespace(status=status, last_result=last)
    assert record.outcome_of(trial, 12) == said


@pytest.mark.parametrize(
    "experiment",
    [
        Experiment(algorithm=PFedBayes(zeta=0.1 + 0.2, average="sigma", keep_global_moments=True), rounds=3, seed=5),
        Experiment(algorithm=FedAvg(lr=1e-3 / 3), model=ModelConfig(hidden=(50, 20)), clients=7),
        Experiment(algorithm=FedAvg(), data=DataConfig(name="mnist", size="small", labels_per_client=3), batch_size=7),
    ],
)
def test_the_launch_command_gives_back_the_experiment(experiment):
    words = shlex.split(cli.command(experiment))
    assert words[:3] == ["python", "-m", "fedray.launch"]
    assert launch.parse(words[3:]).request.experiment == experiment


def test_trials_are_counted_as_tune_makes_them():
    space = {"a": Grid((1, 2, 3)), "b": Choice((1, 2)), "c": LogUniform(1, 2)}
    assert search.count(space, "random", 4, 2) == 24
    del space["c"]
    assert search.count(space, "grid", 4, 2) == 12
    del space["b"]
    assert search.count(space, "random", 4, 2) == 6  # nothing is left to draw


def test_a_search_says_what_it_cannot_do():
    with pytest.raises(FedRayError, match=r"--search grid: zeta=loguniform\(1,2\) has no grid"):
        search.parameters({"algorithm.zeta": LogUniform(1, 2)}, "grid", [0])
    space = {"algorithm.zeta": Choice((1, 2))}
    with pytest.raises(FedRayError, match="--seeds 2: tpe"):
        search.searcher(Sweep(search="tpe", seeds=2), space, 1, [0, 1])
    with pytest.raises(FedRayError, match="--search tpe: does not cover a grid"):
        search.searcher(Sweep(search="tpe"), {"a": Grid((1,))}, 1, [0])
    with pytest.raises(FedRayError, match="--search tpe: --scheduler pbt"):
        search.scheduler(Sweep(scheduler="pbt", search="tpe"), space)
    for name in ("asha", "median", "pbt"):
        with pytest.raises(FedRayError, match=f"--seeds 2: --scheduler {name} .*use --scheduler none, or one seed"):
            search.scheduler(Sweep(scheduler=name, seeds=2), space)
    with pytest.raises(FedRayError, match="--space clients: --scheduler pbt copies"):
        search.scheduler(Sweep(scheduler="pbt"), space | {"clients": Choice((2, 5))})


def test_options_are_completed_from_the_algorithm():
    from fedray import registry

    records = registry.algorithms()
    done = complete(Sweep(), records["pfedbayes"], 20)
    assert (done.metric, done.mode) == ("validation/personal/accuracy", "max")
    assert (done.max_rounds, done.grace_rounds) == (20, 5)
    assert complete(Sweep(max_rounds=4, grace_rounds=4), records["pfedbayes"], 20).grace_rounds == 4
    assert complete(Sweep(), registry.algorithm_of(FedAvg()), 20).metric == "validation/global/accuracy"
    assert complete(Sweep(), registry.algorithm_of(FedAvg(ft=1)), 20).metric == "validation/personal/accuracy"
    assert complete(Sweep(metric="test/global/nll"), records["pfedbayes"], 20).mode == "min"
    entropy = Sweep(metric="validation/personal/entropy", mode="max")
    assert complete(entropy, records["pfedbayes"], 20).mode == "max"
    assert complete(Sweep(), records["pfedbayes"], 20, REGRESSION).mode == "min"
    with pytest.raises(
        FedRayError, match=r"metric_mode auto: neither more nor less of validation/personal/coverage is"
    ):
        complete(Sweep(metric="validation/personal/coverage"), records["pfedbayes"], 20, REGRESSION)
    with pytest.raises(FedRayError, match=r"--metric personal/f1: no such measure.*validation/personal/accuracy"):
        complete(Sweep(metric="personal/f1"), records["pfedbayes"], 20)
    with pytest.raises(FedRayError, match="--grace-rounds 30: exceeds the 20 rounds"):
        complete(Sweep(grace_rounds=30), records["pfedbayes"], 20)
    with pytest.raises(FedRayError, match=r"concurrency.*several.*use auto"):
        Sweep(concurrency="several")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_gets_the_table_in_parts_and_no_number_is_cut(width):
    long = {f"setting_{k}": 1.234e-05 * 10**k for k in range(7)}
    table = [TrialResult(f"x_{i:05d}", long, 0, 12, 0.5 + i / 7, "finished") for i in range(2)]
    console = Console(width=width, record=True)
    console.print(results.show(table, "validation/personal/accuracy", table[:1], "a note", width))
    text = console.export_text()
    wholes = ["validation/personal/accuracy", "0.6429", *long, *(f"{value:.4g}" for value in long.values())]
    assert [whole for whole in wholes if whole not in text] == []
    assert text.count("2 trials by") == text.count("a note") == 1
    assert text.count("00001") == text.count("trial ") > 1  # every part names its trials
