"""By what a sweep chooses: validation examples. What is planted in the test data must not reach the choice."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors import server
from actors.machines.placement import Layout
from fedray import cli
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import Experiment, flatten, override, to_dict
from fedray.data import loading
from fedray.federate import report
from fedray.federate.in_process import LocalFederation
from fedray.federate.measures.tasks import CLASSIFICATION
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from fedray.types import Choice
from tests.helpers import experiment
from tune import children, results, search, sweep
from tune import trial as trial_module
from tune.__main__ import main, read
from tune.children import ChildRun, ParentRun
from tune.options import Sweep, validation_share
from tune.planner import Planner
from tune.results import TrialResult
from tune.trial import CommonToTrials, Trial

LAYOUT = Layout((tuple(range(6)),), 0.1, 0.0, inside=True)
RATES = (0.02, 0.05, 0.1, 0.2, 0.4)


def mislabelled(part: str, plan: Plan) -> Plan:
    """The plan with every label of a part of the shards wrong: the class that follows the true one."""
    indices = np.concatenate(getattr(plan.partition, part))
    labels = loading.load(plan.cfg.data).y
    wrong = np.stack([indices, (labels[indices] + 1) % plan.model.classes], 1)
    return plan._replace(partition=plan.partition._replace(relabel=wrong))


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Play trials in this process; ``fault`` changes their plans. Their last results come back."""

    def played(
        metric: str, fault: Callable[[Plan], Plan] = lambda plan: plan, algorithm: str = "fedavg", rate: str = "lr"
    ) -> list[dict[str, Any]]:
        share = validation_share(metric, 0.0)
        base = override(experiment(algorithm), {"clients_per_round": 6, "rounds": 3, "data.validation": share})
        monkeypatch.setattr(trial_module, "make_plan", lambda cfg, dataset=None: fault(make_plan(cfg, dataset)))
        monkeypatch.setattr(server, "fix_numerics", lambda: None)
        found = []
        for value in RATES:
            trial = object.__new__(Trial)
            trial._trial_info = None
            trial.setup({f"algorithm.{rate}": value, "seed": 0}, CommonToTrials(base, LAYOUT, "loop", metric, (), None))
            while not (result := trial.step())["done"]:
                pass
            found.append(result | {"rate": value})
        return found

    return played


def ranking(found: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """(learning rate, score) of the trials, best first, as the sweep's table has them."""
    table = [
        TrialResult(f"x_{i}", {"algorithm.lr": result["rate"]}, 0, result["round"], result["score"], "finished")
        for i, result in enumerate(found)
    ]
    return [(group[0].settings["algorithm.lr"], results.mean(group)) for group in results.ranked(table, "max")]


def read_by_tune(found: Sequence[dict[str, Any]], metric: str) -> list[float]:
    return [result[metric] for result in found]


def test_a_leak_of_test_data_into_the_choice_would_be_seen(play: Callable[..., Any]) -> None:
    metric = "validation/global/accuracy"
    honest, planted = play(metric), play(metric, functools.partial(mislabelled, "test"))
    assert [r["tested"]["global"]["accuracy"] for r in honest] != [r["tested"]["global"]["accuracy"] for r in planted]
    assert ranking(planted) == ranking(honest)
    assert read_by_tune(planted, metric) == read_by_tune(honest, metric)  # what stops trials early


def test_validation_data_are_what_the_choice_is_made_by(play: Callable[..., Any]) -> None:
    metric = "validation/global/accuracy"
    honest, planted = play(metric), play(metric, functools.partial(mislabelled, "validation"))
    assert [r["tested"] for r in honest] == [r["tested"] for r in planted]
    (best, _), (spoilt, _) = ranking(honest)[0], ranking(planted)[0]
    assert spoilt != best
    assert read_by_tune(planted, metric) != read_by_tune(honest, metric)


def test_test_data_choose_where_they_are_asked_to(play: Callable[..., Any]) -> None:
    metric = "test/global/accuracy"
    honest, planted = play(metric), play(metric, functools.partial(mislabelled, "test"))
    assert not any(
        name.startswith("validation/") for name in honest[0]["rows"][-1]
    )  # all training examples are trained on
    assert ranking(planted)[0] != ranking(honest)[0]
    assert [result["score"] for result in honest] == [r["tested"]["global"]["accuracy"] for r in honest]


def test_a_score_is_that_of_the_summary_of_a_launch(play: Callable[..., Any]) -> None:
    """Of three evaluations the last one counts; a personal measure is that of the personal models."""
    found = play("validation/personal/nll", algorithm="pfedbayes", rate="lr_personal")[-1]
    cfg = {"clients_per_round": 6, "rounds": 3, "data.validation": 0.2, "algorithm.lr_personal": RATES[-1]}
    plan = make_plan(override(experiment("pfedbayes"), cfg))
    rows = [{"round": m.round} | report.measures(m) for m in LocalFederation(plan, "loop")]
    summary = report.summarize(plan, rows, None)
    assert found["score"] == summary["validation"]["personal"]["nll"]
    assert found["tested"] == {kind: summary[kind] for kind in ("personal", "global")}


@pytest.mark.parametrize("scheduler", ["asha", "median", "pbt"])
def test_early_stopping_and_searchers_read_the_metric_of_the_ranking(scheduler: str) -> None:
    options = Sweep(scheduler=scheduler, metric="validation/global/accuracy", mode="max", max_rounds=9, grace_rounds=1)  # type: ignore[arg-type]
    assert search.scheduler(options, {"algorithm.lr": Choice((0.1, 0.2))})._metric == "validation/global/accuracy"


def test_the_searcher_of_optuna_reads_it_too() -> None:
    options = Sweep(search="tpe", metric="validation/global/accuracy", mode="max")
    assert search.searcher(options, {}, 1, [0]).metric == "validation/global/accuracy"


@pytest.mark.parametrize(
    ("options", "metric", "share"),
    [
        ([], "validation/global/accuracy", 0.2),
        (["--data.validation", "0.1"], "validation/global/accuracy", 0.1),
        (["--metric", "test/global/accuracy"], "test/global/accuracy", 0.0),
        (["--metric", "test/global/accuracy", "--data.validation", "0.1"], "test/global/accuracy", 0.1),
    ],
)
def test_a_sweep_holds_out_what_its_metric_needs(tmp_path, monkeypatch, options, metric, share) -> None:
    monkeypatch.chdir(tmp_path)
    request, _ = read(["fedavg", "--space", "lr=uniform(0.1,0.2)", *options])
    assert (request.sweep.metric, request.base.data.validation) == (metric, share)


class Finished(SimpleNamespace):
    """A trial as Tune leaves it."""

    def is_finished(self) -> bool:
        return True


def concluded(
    tmp_path, monkeypatch, found: Sequence[dict[str, Any]], metric: str, *options: str, left: int = 0
) -> sweep.Report:
    """What a sweep over these results reports; ``left`` of its trials were not begun."""
    monkeypatch.chdir(tmp_path)
    rates = [result["rate"] for result in found] + [10.0 + k for k in range(left)]
    space = f"lr=grid({','.join(map(str, rates))})"
    request, _ = read(
        ["fedavg", "--search", "grid", "--space", space, "--max-rounds", "3", "--metric", metric, *options]
    )
    trials = [
        Finished(
            trial_id=f"x_{i}",
            config={"algorithm.lr": result["rate"], "seed": 0},
            last_result=result,
            status="TERMINATED",
        )
        for i, result in enumerate(found)
    ]
    tracked: dict[str, float] = {}
    tracker = SimpleNamespace(
        log=lambda step, values: tracked.update(values),
        tag=lambda *_: None,
        finish=lambda *_: None,
        hint=lambda: "",
    )
    told = sweep._conclude(request, trials, tracker)  # type: ignore[arg-type]
    best = json.loads((request.folder / "result/best.json").read_text())
    assert (best["tested"], best["refit"]) == (told.tested, told.refit)
    assert set(tracked) == {f"best/{metric}"} | ({"best/test/global/accuracy"} if told.tested else set())
    return told


def test_only_the_best_is_tested_and_only_at_the_end(play: Callable[..., Any], tmp_path, monkeypatch) -> None:
    metric = "validation/global/accuracy"
    found = play(metric)
    told = concluded(tmp_path, monkeypatch, found, metric)
    best = next(result for result in found if result["rate"] == told.best[0].settings["algorithm.lr"])
    shown = {name: best["tested"]["global"][name] for name in CLASSIFICATION.measures}
    assert told.tested == {"global": shown}
    assert "--data.validation 0.2" in told.command
    assert told.refit + " --backend vmap" == told.command.replace(" --data.validation 0.2", "")
    header, *_ = (told.request.folder / "result/trials.csv").read_text().splitlines()
    assert header == f"trial,algorithm.lr,seed,rounds,{metric},outcome"
    early = concluded(tmp_path, monkeypatch, found, metric, left=1)
    assert (early.interrupted, early.tested, early.refit) == (True, {}, "")


@pytest.mark.parametrize(("options", "backend"), [([], " --backend vmap"), (["--backend", "loop"], " --backend loop")])
def test_the_command_of_the_best_computes_as_the_trials_did(options, backend, tmp_path, monkeypatch) -> None:
    """A launch compiles long runs on CPUs, unless it is told otherwise; trials never do."""
    monkeypatch.chdir(tmp_path)
    request, _ = read(["fedavg", "--space", "lr=uniform(0.1,0.2)", *options])
    command = cli.command(request.base)
    assert sweep._best_command(request, request.base, gpus=False) == command + backend
    if not options:
        assert sweep._best_command(request, request.base, gpus=True) == command


def test_a_choice_by_test_data_is_said_in_the_table(play: Callable[..., Any], tmp_path, monkeypatch) -> None:
    from rich.console import Console

    texts = {}
    for metric in ("test/global/accuracy", "validation/global/accuracy"):
        told = concluded(tmp_path, monkeypatch, play(metric), metric)
        console = Console(width=150, record=True)
        note = results.basis(metric, told.request.base.data.validation)
        console.print(results.show(told.table, metric, told.best, note))
        texts[metric] = console.export_text()
        assert metric in texts[metric]
        best = json.loads((told.request.folder / "result/best.json").read_text())
        assert best["basis"] == note
        assert bool(told.tested) == (metric[0] == "v")
    assert "ranked by TEST data" in texts["test/global/accuracy"]
    assert "ranked on validation examples, 20% of every client's" in texts["validation/global/accuracy"]


@pytest.mark.parametrize("metric", ["validation/global/accuracy", "test/global/accuracy"])
def test_the_store_holds_no_test_measure_of_a_trial_unless_test_data_choose(
    metric: str, play: Callable[..., Any]
) -> None:
    logged: dict[str, float] = {}
    tracker = SimpleNamespace(log=lambda step, values: logged.update(values))
    child = ChildRun(tracker, 0, Finished(config={}), 3, Sweep(metric=metric, mode="max"))  # type: ignore[arg-type]
    for row in play(metric)[0]["rows"]:
        child.add(row)
    assert ("global/accuracy" in logged) == metric.startswith("test/")
    assert ("validation/global/accuracy" in logged) == metric.startswith("validation/")
    assert "time/round_seconds" in logged


def test_the_store_has_a_trials_settings_as_those_of_any_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a comparison takes the same experiment for one on other data."""
    logged: dict[str, Any] = {}
    monkeypatch.setattr(children, "find_child", lambda *_: None)
    monkeypatch.setattr(children, "MLflowTracker", lambda *args, **_: logged.update(args[3]))
    parent = ParentRun("sqlite:///x.db", "fedray", "1", "sweep", "fedavg")
    base = Experiment(algorithm=FedAvg())
    children.child_run(parent, base, Sweep(), Planner(), SimpleNamespace(trial_id="t", config={"algorithm.lr": 0.2}))
    launched = make_plan(override(base, {"algorithm.lr": 0.2})).cfg
    assert logged == {"algorithm.name": "fedavg"} | flatten(to_dict(launched))
    assert logged["data.partition"] != base.data.partition


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_on_ray_test_labels_do_not_move_the_choice(tmp_path, monkeypatch, capsys) -> None:
    """Two sweeps over files that differ in the labels of the test examples alone."""
    monkeypatch.chdir(tmp_path)
    digits = loading.load(experiment().data)
    options = ["--data.partition", "iid", "--clients", "4", "--model.hidden", "8", "--local-steps", "15"]
    options += ["--clients-per-actor", "4", "--concurrency", "1", "--tracking.uri", "none", "--max-rounds", "3"]
    options += ["--space", "lr=grid(0.05,0.4)", "--search", "grid", "--scheduler", "none"]
    x = digits.x.astype(np.float32) / 8 - 1
    np.savez(tmp_path / "honest.npz", x=x, y=digits.y)
    request, _ = read(["fedavg", "--data.name", "honest.npz", *options])
    test = np.concatenate(make_plan(request.base).partition.test)
    y = digits.y.copy()
    y[test] = (y[test] + 1) % 10
    np.savez(tmp_path / "planted.npz", x=x, y=y)
    found = {}
    for name in ("honest", "planted"):
        assert main(["fedavg", "--data.name", f"{name}.npz", "--name", name, *options]) == 0
        folder = tmp_path / "runs" / name / "result"
        lines = (folder / "trials.csv").read_text().splitlines()
        found[name] = [line.split(",", 1)[1] for line in lines], json.loads((folder / "best.json").read_text())
        assert "on test examples, which had no part in the choice" in capsys.readouterr().out
    (honest, best), (planted, other) = found.values()
    assert planted == honest
    assert (other["settings"], other["score"]) == (best["settings"], best["score"])
    assert best["tested"]["global"]["accuracy"] > other["tested"]["global"]["accuracy"] + 0.3
