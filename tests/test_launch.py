"""The command line: what it prints, what it leaves behind, and how it refuses."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fedray
from fedray import cli, registry
from fedray.cli import helptext
from fedray.launch import main, parse
from fedray.studies.cell import experiment
from fedray.types import FedRayError
from tests.helpers import ALGORITHMS

FAST = ["--runtime", "local", "--rounds", "2", "--local-steps", "2", "--tracking.uri", "none"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(argv: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """The message of a command line that must be refused with exit code 2 and without a trace of Python."""
    try:
        code = main(argv)
    except SystemExit as stop:  # tyro's own refusals
        code = stop.code
    out, err = capfd.readouterr()
    assert code == 2
    assert "Traceback" not in err
    assert out == ""
    return " ".join(err.replace("│", " ").split())


BAD = {
    "algorithm": (["pfedbayess"], ["pfedbayess", *ALGORITHMS]),
    "algorithm that looks like markup": (["[/]", "--clients-per-actor", "5"], ["[/]", "choose from"]),
    "more particles than memory": (["svgd", "--particles", "2147483648"], ["svgd with", "memory", "lower --particles"]),
    "option": (["--zetta", "3"], ["--zetta", "--zeta"]),
    "option of another algorithm": (["fedavg", "--zeta", "3"], ["--zeta"]),
    "algorithm behind options": (["--json", "fedavg"], ["fedavg: an algorithm comes before the options", "fedavg ..."]),
    "value": (["--rounds", "ten"], ["rounds", "ten"]),
    "zeta": (["--zeta", "-1"], ["--zeta -1.0", "not negative", "try 10"]),
    "no rounds": (["--rounds", "0"], ["--rounds 0", "at least one"]),
    "no steps": (["--local-steps", "0"], ["--local-steps 0"]),
    "learning rate": (["fedavg", "--lr", "0"], ["--lr 0.0", "positive"]),
    "dataset": (["--data.name", "minst"], ["minst", "mnist", ".npz"]),
    "missing data": (["--data.name", "mnist", "--data.root", "nowhere"], ["nowhere", "--data.download"]),
    "too many clients": (["--clients", "40"], ["--clients 40", "lower --clients to at most"]),
    "too many per round": (["--clients-per-round", "11"], ["--clients-per-round 11", "all 10 clients"]),
    "selection": (["--selection", "ksd"], ["ksd", "uniform"]),
    "preset": (["--preset", "b_parity"], ["b_parity", "a_parity"]),
    "model": (["--model.name", "vgg"], ["--model.name vgg", "(1, 8, 8)", "mlp"]),
    "deviation of newcomers": (
        ["bpfed", "--loss-deviation", "--novel-clients", "1"],
        ["--loss-deviation", "leave --novel-clients"],
    ),
    "deviation of no model": (["fedavg", "--loss-deviation"], ["--loss-deviation", "fedavg has no personal models"]),
    "another dataset without a report": (["--ood", "mnist"], ["--ood mnist", "add --uncertainty"]),
    "name": (["--name", "a/b"], ["--name a/b", "--output"]),
    "no permission": (["--output", "/proc/result"], ["--output /proc/result", "cannot be written"]),
    "store down": (["--tracking.uri", "http://127.0.0.1:9"], ["http://127.0.0.1:9", "--tracking.uri none"]),
    "store unknown": (["--tracking.uri", "ftp://x"], ["ftp://x"]),
    "gpus": (
        ["--runtime", "ray", "--address", "local", "--gpus-per-client", "0.5"],
        ["--gpus-per-client 0.5", "has 0 GPU"],
    ),
    "cluster": (["--runtime", "ray", "--address", "127.0.0.1:9"], ["--address 127.0.0.1:9", "ray start"]),
    "gpus of one process": (["--gpus", "2"], ["--gpus 2", "one GPU", "--runtime ray"]),
    "share": (["--gpus-per-client", "-1"], ["--gpus-per-client -1.0", "not negative"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_value_reason_and_remedy(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    argv, words = BAD[case]
    head, rest = (argv[:1], argv[1:]) if not argv[0].startswith("-") else ([], argv)
    given = {word for word in rest if word.startswith("--")}
    fast = [w for pair in zip(FAST[::2], FAST[1::2], strict=True) if pair[0] not in given for w in pair]
    message = refused([*head, *rest, *fast], capfd)
    assert all(word in message for word in words), message
    assert not list(Path.cwd().rglob("*.safetensors"))


def test_a_gpu_that_is_not_there_is_refused(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = refused([*FAST, "--gpus", "1"], capfd)
    assert all(word in message for word in ("--gpus 1", "PyTorch sees no GPU", "use 0")), message
    with pytest.raises(FedRayError, match="PyTorch sees no GPU"):
        fedray.run("fedavg", "digits", rounds=1, gpus=1, play=False)
    assert main([*FAST, "--gpus", "0", "--name", "a"]) == 0


def test_a_name_like_an_algorithms_is_not_taken_for_one(capfd: pytest.CaptureFixture[str]) -> None:
    for option in ("--name", "--output", "--tracking.experiment"):
        assert "comes before" not in refused([option, "fedavg", "--rouns", "3"], capfd)


def test_options_that_only_ray_has_a_use_for_are_named_without_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*FAST, "--round-timeout", "9", "--cpus", "2", "--no-elastic", "--name", "a"]) == 0
    assert "warning: --runtime local has no use for --cpus, --round-timeout, --no-elastic\n" in capfd.readouterr().err
    assert main([*FAST, "--name", "b"]) == 0
    assert "warning" not in capfd.readouterr().err


def test_a_taken_output_is_not_overwritten(capfd: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("years of work")
    assert "already holds something" in refused(["--output", "mine", *FAST], capfd)
    assert [p.name for p in Path.cwd().iterdir()] == ["mine"]


def test_corrupt_arrays_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    Path("bad.npz").write_bytes(b"PK\x03\x04 not really")
    assert "bad.npz" in refused(["--data.name", "bad.npz", *FAST], capfd)


def test_json_is_one_object_on_stdout_and_the_result_reads_back(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", "here", "--json", *FAST]) == 0
    out, _ = capfd.readouterr()
    summary = json.loads(out)
    assert list(summary) == [
        "run_id", "algorithm", "rounds", "seed", "personal", "global", "seconds", "bytes_up", "bytes_down", "protocol",
        "backend", "package", "device",
    ]  # fmt: skip
    assert {"accuracy", "nll", "ece", "brier"} <= set(summary["personal"])
    assert json.loads(Path("here/summary.json").read_text()) == summary
    with open("here/metrics.csv") as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["1", "2"]
    assert sorted(p.name for p in Path("here/figures").iterdir()) == [
        "accuracy.png",
        "accuracy_clients.png",
        "reliability.png",
        "reliability_clients.png",
        "uncertainty.png",
        "uncertainty_clients.png",
    ]
    assert [p.name for p in Path.cwd().iterdir()] == ["here"]  # nothing half-written beside it


def test_a_method_without_personal_models_says_null(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["fedavg", "--output", "here", "--json", *FAST]) == 0
    assert json.loads(capfd.readouterr().out)["personal"] is None
    assert "global models of fedavg" in repr(fedray.load("here"))


def test_the_loaded_predictor_predicts_as_the_run_did(capfd: pytest.CaptureFixture[str]) -> None:
    from fedray.config import DataConfig
    from fedray.data.loading import load

    assert main(["--output", "here", "--predict-samples", "0", *FAST]) == 0
    model, digits = fedray.load("here"), load(DataConfig())
    with open("here/clients.csv") as file:
        rows = list(csv.DictReader(file))
    for client in (0, 9):
        test = model.plan.partition.test[client]
        prediction = model.predict(digits.x[test], client=client)
        accuracy = (prediction.probs.argmax(-1).numpy() == digits.y[test]).mean()
        assert accuracy == pytest.approx(float(rows[client]["personal_accuracy"]))
        assert prediction.mutual_information.abs().max() < 1e-6  # mean weights: one draw
    prediction = model.predict(digits.x[:5], samples=20)
    assert prediction.draws.shape == (20, 5, 10)
    assert prediction.probs.sum(-1).numpy() == pytest.approx(np.ones(5))
    assert (prediction.mutual_information > 0).all()
    for wrong in ({"client": 10}, {"client": -1}):
        with pytest.raises(FedRayError, match="clients 0 to 9"):
            model.predict(digits.x[:1], **wrong)


def test_a_damaged_result_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    from fedray.types import FedRayError

    assert main(["--output", "here", *FAST]) == 0
    path = Path("here/personal.safetensors")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FedRayError, match=r"personal\.safetensors"):
        fedray.load("here")
    with pytest.raises(FedRayError, match=r"config\.json"):
        fedray.load("nowhere")


def test_a_preset_changes_the_defaults_and_yields_to_options(capfd: pytest.CaptureFixture[str]) -> None:
    request = parse(["--preset", "a_parity", "--predict-samples", "3", "--zeta", "4"]).request
    assert request.experiment.algorithm.noise_sd == 0.001
    assert (request.experiment.predict_samples, request.experiment.algorithm.zeta) == (3, 4.0)
    assert main(["--preset=a_parity", *FAST]) == 0
    assert "not a posterior" in capfd.readouterr().err


def test_help_names_every_algorithm_and_the_documented_options(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(["--help-all"])
    assert stop.value.code == 0
    text = capfd.readouterr().out
    assert "-h, --help" not in text  # once per box, otherwise
    boxes = ["this command", "options of pfedbayes", "federation", "data options", "model options", "execution",
             "checkpoint options", "tracking options"]  # fmt: skip
    assert re.findall(r"^╭─ (.*?) ─+╮$", text, re.MULTILINE) == boxes
    options = re.findall(r"^│ (--[\w.-]+)", text, re.MULTILINE)
    assert len(options) == len(set(options)) > 60
    expected = (
        "fedavg fedprox pfedbayes --rounds --clients --clients-per-round --seed --data.name --data.root --data.size "
        "--data.labels-per-client --data.layout --batch-size --local-steps --eval-every --predict-samples --runtime "
        "--clients-per-actor --gpus-per-client --tracking.uri --tracking.experiment --name --json --zeta --rho-init "
        "--lr-personal --lr-global --output --loss-deviation --uncertainty --ood"
    )
    assert not [word for word in expected.split() if word not in text]
    plug_ins = [registry.selections(), registry.partitions(), registry.networks(), registry.algorithms()]
    squeezed = " ".join(text.split())
    assert not [name for table in plug_ins for name in table if f"{name} " not in squeezed]


@pytest.fixture
def all_help(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[int], str]:
    """What --help-all shows on a terminal of some width."""

    def shown(width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit):
            parse(["--help-all"])
        return capfd.readouterr().out

    return shown


def test_help_on_a_wide_terminal_names_boxes_that_stand_side_by_side(
    all_help: Callable[[int], str],
) -> None:
    text = all_help(200)
    assert "╮╭" in text
    boxes = re.findall(r"╭─ (.*?) ─+╮", text)
    assert {"federation", "data options", "model options", "tracking options"} <= set(boxes)
    # Beside the line for --help, which goes; what it is depends on the version of tyro.
    assert re.search(r"││ (The dataset and how its examples are dealt|--data\.name STR)", text)


def test_the_help_of_an_option_is_a_paragraph(all_help: Callable[[int], str]) -> None:
    """Its lines end where the terminal does, not where they do in the code."""
    (box,) = re.findall(r"^╭─ federation ─+╮\n(.*?)\n╰", all_help(80), re.MULTILINE | re.DOTALL)
    rows = [line.strip("│ ") for line in box.splitlines()]
    start = rows.index("default the paper's for the dataset (all; 10 of 20")
    assert rows[start + 1] == "for cifar10; 4 of 10 for sent140; 20 of 198 for"


@pytest.mark.parametrize("width", [80, 200])
def test_help_shows_no_default_that_is_empty(width: int, all_help: Callable[[int], str]) -> None:
    """The text says what is done then, as with "by default the paper's"."""
    shown = re.findall(r"\(default: ?([^)]*)\)", all_help(width))
    assert len(shown) > 50
    assert not {"", "None", "''"} & set(shown)


def test_the_help_of_a_switch_does_not_call_it_given(all_help: Callable[[int], str]) -> None:
    """--no-elastic is off by default: what is on is the setting that it turns off."""
    text = all_help(200)
    assert "--no-elastic" in text
    assert "(default: True)" not in text


def test_a_value_that_cannot_be_read_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert refused(["--rounds", "x"], capfd).count("Error parsing --rounds") == 1


def test_help_is_one_page_with_what_matters_first(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(["fedavg", "--rounds", "7", "--help"])
    assert stop.value.code == 0
    text = capfd.readouterr().out
    assert len(text) < 5000
    assert max(map(len, text.splitlines())) <= 110
    assert "--lr 0.01" in text
    assert "--zeta" not in text
    assert "--help-all" in text
    assert text.index("--data.name is one of") < text.index("a dataset of the list above")
    assert not [name for name in registry.algorithms() if f" {name}" not in text]
    assert {"--data.name", "--clients", "--rounds", "--output"} <= set(
        re.findall(r"^  (--[\w.-]+)  ", text, re.MULTILINE)
    )


@pytest.mark.parametrize("name", registry.algorithms())
def test_help_shows_options_as_they_are_typed(name: str) -> None:
    """Switches without a value, and several words for several values: what is shown can be given."""
    settings = registry.algorithms()[name].config()
    text = helptext.own(name, settings)
    shown = text.partition("with their defaults:")[2].split("--")[1:]
    given = [words for each in shown for words in [f"--{each}".split()] if words[-1] not in ("(on)", "(off)")]
    switches = [f"--{each.split()[0]}" for each in shown if each.split()[-1] in ("(on)", "(off)")]
    on = {field.name for field in dataclasses.fields(settings) if getattr(settings, field.name) is True}
    assert {word for word in switches if word.startswith("--no-")} == {f"--no-{each.replace('_', '-')}" for each in on}
    argv = [name, *(word for words in given for word in words)]
    assert parse(argv).request.experiment.algorithm == settings
    turned = parse([*argv, *switches]).request.experiment.algorithm
    assert all(getattr(turned, field) is False for field in on)


@pytest.mark.ray
def test_the_whole_command_on_ray_with_mlflow(tmp_path: Path) -> None:
    """As a user types it: stdout holds the JSON only, the store holds every round, the artifacts are there."""
    from mlflow.tracking import MlflowClient

    command = [sys.executable, "-m", "fedray.launch", "--rounds", "3", "--local-steps", "2", "--json", "--name", "mine",
               "--address", "local"]  # fmt: skip
    root = str(Path(fedray.__file__).parent.parent)
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": root}, timeout=300
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    client = MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db")
    run = client.get_run(summary["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm.zeta"] == "10.0"
    assert {"algorithm", "dataset", "seed", "git_commit"} <= set(run.data.tags)
    history = client.get_metric_history(summary["run_id"], "personal/accuracy")
    assert [m.step for m in history] == [1, 2, 3]
    assert history[-1].value == pytest.approx(summary["personal"]["accuracy"])
    stored = {file.path for file in client.list_artifacts(summary["run_id"])}
    local = {p.name for p in (tmp_path / "runs" / "mine").iterdir()}
    states = {"global.safetensors", "personal.safetensors"}  # are among those of the model
    assert stored == local - states | {"clients.json", "page"}  # for MLflow's own page of the run
    assert {
        "config.json",
        "partition.npz",
        "clients.csv",
        "global.safetensors",
        "personal.safetensors",
        "figures",
    } <= local
    machines = json.loads((tmp_path / "runs/mine/status.json").read_text())["machines"]
    assert list(machines.values()) == [10]


@pytest.mark.parametrize("name", registry.algorithms())
def test_the_command_that_runs_it_again_says_every_switch(name: str) -> None:
    cfg = registry.algorithms()[name].config()
    switched = {f.name: not getattr(cfg, f.name) for f in dataclasses.fields(cfg) if type(getattr(cfg, f.name)) is bool}
    for field, value in switched.items():
        try:
            wanted = experiment(name, {f"algorithm.{field}": value})
        except FedRayError:  # a switch that needs another one
            continue
        words = shlex.split(cli.command(wanted))[3:]
        assert parse(words).request.experiment == wanted


@pytest.mark.filterwarnings("error::RuntimeWarning")  # as one of NumPy while drawing
def test_a_model_that_predicts_nan_is_told_of_once(capfd: pytest.CaptureFixture[str]) -> None:
    huge = ["fedavg", *FAST, "--lr", "1e25", "--local-steps", "1", "--rounds", "1"]  # weights are finite, products not
    assert main([*huge, "--name", "x"]) == 0
    told = " ".join(capfd.readouterr().err.split())
    assert told.count("round 1: NaN among the predictions of the global model: training has diverged") == 1
    assert "could not be drawn" not in told
    assert "NaN among the predictions" in Path("runs/x/log.txt").read_text()


def test_a_reader_who_leaves_before_the_table_gets_the_exit_code_of_one() -> None:
    talking = subprocess.Popen(
        [sys.executable, "-m", "fedray.launch", "fedavg", *FAST], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert talking.stdout is not None
    talking.stdout.close()
    assert talking.wait(timeout=300) == 141
