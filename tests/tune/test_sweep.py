"""Sweeps on real Ray with a real MLflow store: what the README promises about them."""

import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tune.__main__ import main

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

TINY = [
    "--data.partition", "dirichlet", "--clients", "4", "--model.hidden", "8", "--local-steps", "3",
    "--batch-size", "32", "--predict-samples", "1",
]  # fmt: skip


ONE = ["--concurrency", "1", "--clients-per-actor", "4"]  # one process to start
ZETAS = ["--space", "zeta=loguniform(0.5,20)", "--samples", "5", "--scheduler", "none", "--max-rounds", "12"]


def sweep(folder, *options, algorithm="fedavg"):
    """(exit code, stdout, stderr) of a sweep on the cluster of these tests."""
    return tuned(folder, algorithm, *TINY, "--name", "sweep", *options)


def tuned(folder, *argv):
    """The same of any command line of tune."""
    out, err, here = io.StringIO(), io.StringIO(), Path.cwd()
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return main(argv), out.getvalue(), err.getvalue()
    finally:
        os.chdir(here)


def command(folder, *options, algorithm="fedavg"):
    """A sweep in a process and on a cluster of its own, as a user starts it."""
    folder.mkdir(exist_ok=True)
    words = [sys.executable, "-m", "tune", algorithm, *TINY, "--name", "sweep", *options]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, seconds=600):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def children(folder):
    """(parent run, child runs) of the only sweep of the default store, read as a user would."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("fedray").experiment_id
    (parent,) = client.search_runs([experiment], "tags.`fedray.kind` = 'sweep'")
    query = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    return client, parent, client.search_runs([experiment], query, max_results=1000)


def steps(client, run, metric="validation/global/accuracy"):
    return {m.step: m.value for m in client.get_metric_history(run.info.run_id, metric)}


def table(folder):
    """trials.csv without the trials' identities, which differ between runs."""
    lines = (Path(folder) / "runs/sweep/result/trials.csv").read_text().splitlines()
    return [line.split(",", 1)[1] for line in lines]


def wait_for(condition, ended, seconds=300):
    began = time.monotonic()
    while not condition():
        assert not ended(), "it ended before"
        assert time.monotonic() - began < seconds, "nothing happened"
        time.sleep(0.1)


def workers(name):
    """Ray's processes below this one that host an actor of a class."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if name in " ".join(child.cmdline()):
                found.append(child)
    return found


def kill_one(name):
    """SIGKILL an actor of a class, if one is there at this moment."""
    found = workers(name)[:1]
    for worker in found:
        worker.kill()
    return bool(found)


@pytest.fixture(scope="module")
def asha(tmp_path_factory):
    """Thirty trials, more than the machine can hold at a time; most are stopped early."""
    folder = tmp_path_factory.mktemp("asha")
    space = ["--space", "lr=loguniform(1e-5,1)", "--samples", "30", "--max-rounds", "9", "--grace-rounds", "1"]
    return folder, finish(command(folder, *space, "--scheduler", "asha"))


@pytest.mark.slow
def test_every_trial_is_a_child_with_every_step_that_it_reported(asha):
    folder, (code, _, err) = asha
    assert code == 0, err
    client, parent, runs = children(folder)
    assert len(runs) == 30
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert parent.info.status == "FINISHED"
    outcomes = [run.data.tags["outcome"] for run in runs]
    assert outcomes.count("stopped early") >= 3
    assert outcomes.count("finished") >= 1
    rounds = {line.split(",")[0]: int(line.split(",")[3]) for line in _lines(folder)[1:]}
    for run in runs:
        assert sorted(steps(client, run)) == list(range(1, rounds[run.data.tags["trial"]] + 1))
    assert "locked" not in err
    began, ended = ([getattr(run.info, name) for run in runs] for name in ("start_time", "end_time"))
    at_once = max(sum(a <= t < b for a, b in zip(began, ended, strict=True)) for t in began)
    # Of the trial, not of its run's creation; a slow start of the second process leaves all trials to the first.
    assert at_once < len(runs)


def _lines(folder):
    return (folder / "runs/sweep/result/trials.csv").read_text().splitlines()


@pytest.mark.slow
def test_the_best_trials_command_gives_its_figures_bitwise(asha):
    folder, (_, out, _) = asha
    best = json.loads((folder / "runs/sweep/result/best.json").read_text())
    assert best["command"] in out
    options = best["command"].split()[3:]
    command = [
        sys.executable,
        "-m",
        "fedray.launch",
        *options,
        "--json",
        "--runtime",
        "local",
        "--tracking.uri",
        "none",
    ]
    again = json.loads(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)
    assert again["validation"]["global"]["accuracy"] == best["score"]
    tested = {name: value for name, value in again["global"].items() if name != "stability"}
    assert best["tested"] == {"global": tested}
    client, parent, runs = children(folder)
    assert parent.data.tags["best"] == best["command"]
    (run,) = [run for run in runs if run.data.params["algorithm.lr"] == str(best["settings"]["algorithm.lr"])]
    assert steps(client, run)[9] == best["score"]
    assert parent.data.metrics["best/test/global/accuracy"] == again["global"]["accuracy"]
    names = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert {"trials.csv", "best.json", "space.json", "figures"} <= names


@pytest.mark.slow
def test_nothing_is_left_running(asha):
    folder, _ = asha
    mine = [p for p in psutil.process_iter(["cwd", "cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or [])]
    assert mine == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cluster):
    """The table of a sweep that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    assert sweep(folder, *ZETAS, algorithm="pfedbayes")[0] == 0
    return table(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "names"),
    [((), ("ray::Trial",)), (("--clients-per-actor", "2"), ("ray::Trial", "ray::ClientActor"))],
    ids=["inside", "apart"],
)
def test_killed_actors_cost_no_trial_and_no_step(tmp_path, whole, options, names):
    """SIGKILL of a trial's own process, its server, and of a client actor; figures as in a sweep left alone."""
    with ThreadPoolExecutor() as threads:
        running = threads.submit(sweep, tmp_path, *ZETAS, *options, algorithm="pfedbayes")
        wait_for(lambda: len(list((tmp_path / "runs/sweep").glob("*/checkpoint_*"))) >= 2, running.done)
        for name in names:
            wait_for(functools.partial(kill_one, name), running.done)
        code, _, err = running.result()
    assert code == 0, err
    assert table(tmp_path) == whole
    client, _, runs = children(tmp_path)
    assert len(runs) == 5
    for run in runs:
        assert sorted(steps(client, run)) == list(range(1, 13))
        assert len(client.get_metric_history(run.info.run_id, "validation/personal/accuracy")) == 12


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_and_repeats_nothing(tmp_path, whole):
    process = command(tmp_path, *ZETAS, algorithm="pfedbayes")
    wait_for(lambda: _finished(tmp_path) >= 2, lambda: process.poll() is not None)
    os.kill(process.pid, signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130, err
    assert f"python -m tune --resume {tmp_path}/runs/sweep" in out
    done = {run.info.run_id for run in children(tmp_path)[2] if run.info.status == "FINISHED"}
    assert 2 <= len(done) < 5
    ended = {run.info.run_id: run.info.end_time for run in children(tmp_path)[2] if run.info.run_id in done}
    code, _, err = tuned(tmp_path, "--resume", "runs/sweep")
    assert code == 0, err
    assert table(tmp_path) == whole
    client, parent, runs = children(tmp_path)
    assert len(runs) == 5
    assert parent.info.status == "FINISHED"
    assert {run.info.run_id: run.info.end_time for run in runs if run.info.run_id in done} == ended
    for run in runs:
        assert len(steps(client, run)) == 12
    code, _, err = tuned(tmp_path, "fedavg", "--samples", "6", "--resume", "runs/sweep")
    assert code == 2
    assert "holds another sweep (it differs in" in err


def _finished(folder):
    try:
        return sum(run.info.status == "FINISHED" for run in children(folder)[2])
    except Exception:  # the store is being made
        return 0


def test_a_diverging_trial_fails_with_its_reason_and_is_not_the_best(tmp_path):
    options = ["--space", "lr=grid(0.1,1e30)", "--search", "grid", "--scheduler", "none", "--max-rounds", "3"]
    code, out, err = sweep(tmp_path, *options, *ONE)
    assert code == 0, err
    assert "--lr 0.1" in out
    _, parent, runs = children(tmp_path)
    note = parent.data.tags["mlflow.note.content"]
    assert note.startswith("**fedavg** on **digits**: a sweep of 2 trials over `lr=grid(0.1,1e+30)`; ranked on ")
    assert "The best configuration has validation/global/accuracy 0." in note
    assert "python -m fedray.launch fedavg " in note
    assert " --lr 0.1 " in note
    (bad,) = [run for run in runs if run.info.status == "FAILED"]
    assert bad.data.tags["outcome"].startswith("failed: ")
    assert "client" in bad.data.tags["outcome"]


@pytest.mark.slow
def test_a_combination_that_cannot_run_fails_with_its_reason_and_the_others_end(tmp_path):
    """Four clients of which ten take part: each value is planned before Ray starts, but not both together."""
    space = ["--space", "clients=grid(10,4)", "--space", "clients_per_round=grid(4,10)", "--search", "grid"]
    code, _, err = sweep(
        tmp_path, *space, "--scheduler", "none", "--max-rounds", "2", "--concurrency", "1", "--clients-per-actor", "10"
    )
    assert code == 0, err
    outcomes = {tuple(line.split(",")[1:3]): line.split(",", 6)[-1] for line in _lines(tmp_path)[1:]}
    assert outcomes.pop(("4", "10")).strip('"').startswith("failed: clients_per_round 10: a round needs between 1 and")
    assert set(outcomes.values()) == {"finished"}


@pytest.mark.slow
def test_particles_are_swept_with_their_own_space_and_a_policy_that_asks_for_scores(tmp_path):
    options = ["--samples", "2", "--max-rounds", "2", "--scheduler", "none", "--mode", "serial", "--selection", "hip"]
    code, _, err = sweep(tmp_path, *options, *ONE, "--clients-per-round", "1", algorithm="dsvgd")
    assert code == 0, err
    client, _, runs = children(tmp_path)
    assert len({run.data.params["algorithm.lr"] for run in runs}) == 2
    assert all(run.data.params["algorithm.mode"] == "serial" for run in runs)
    assert all(set(steps(client, run, "selection/effective")) == {1, 2} for run in runs)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["pbt", "median"])
def test_other_schedulers_end_by_themselves(tmp_path, scheduler):
    options = ["--space", "lr=loguniform(1e-4,0.5)", "--samples", "4", "--max-rounds", "8", "--grace-rounds", "2"]
    code, _, err = sweep(tmp_path, *options, "--scheduler", scheduler)
    assert code == 0, err
    client, _, runs = children(tmp_path)
    assert len(runs) == 4
    if scheduler == "pbt":
        assert all(sorted(steps(client, run)) == list(range(1, 9)) for run in runs)
        used = [set(steps(client, run, "config/algorithm.lr").values()) for run in runs]
        assert any(len(values) > 1 for values in used)  # somebody was copied over and perturbed


@pytest.mark.slow
def test_federations_of_several_sizes_are_swept_in_several_actors(tmp_path):
    """The most clients come neither first nor last, nor are they the base's."""
    options = ["--space", "clients=grid(2,5,3)", "--search", "grid", "--scheduler", "none", "--max-rounds", "2"]
    code, _, err = sweep(tmp_path, *options, "--concurrency", "1", "--clients-per-actor", "2")
    assert code == 0, err
    assert "5 clients in 3 actor(s) each" in err
    rows = [line.split(",") for line in _lines(tmp_path)[1:]]
    assert [(clients, outcome) for _, clients, *_, outcome in rows] == [(n, "finished") for n in ("2", "5", "3")]


@pytest.mark.slow
def test_the_sampler_of_optuna_learns_over_seeds_of_its_own(tmp_path):
    options = ["--space", "lr=loguniform(1e-4,0.5)", "--samples", "6", "--search", "tpe", "--scheduler", "none"]
    code, _, err = sweep(tmp_path, *options, *ONE, "--max-rounds", "2")
    assert code == 0, err
    assert len({run.data.params["algorithm.lr"] for run in children(tmp_path)[2]}) == 6


@pytest.mark.parametrize(
    ("options", "words"), [(["--gpus-per-client", "0.5"], "GPU"), (["--concurrency", "300"], "room for")]
)
def test_what_the_cluster_cannot_hold_is_refused_in_seconds(tmp_path, options, words):
    code, _, err = sweep(tmp_path, *options, "--space", "lr=uniform(0.1,0.2)")
    assert code == 2, err
    assert words in err
    assert "Traceback" not in err
