"""A short run of the chaos suite, and that it would see what it looks for."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from fedray import launch
from fedray.running.files import write_table
from tests.chaos.__main__ import compare, main
from tests.chaos.arena import ARGV

ROUNDS = 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody disturbed."""
    root = tmp_path_factory.mktemp("runs")
    store = f"sqlite:///{root}/mlflow.db"
    options = ["--rounds", str(ROUNDS), "--runtime", "local", "--tracking.uri", store]
    assert launch.main([*ARGV, *options, "--output", str(root / "whole")]) == 0
    return root / "whole"


@pytest.fixture
def copy(finished: Path) -> Path:
    """Another one, beside the same store, to be spoilt."""
    target = finished.parent / "copy"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(finished, target)
    return target


def test_an_undisturbed_run_is_found_whole(finished: Path) -> None:
    assert compare(finished, ROUNDS).total() == 0


@pytest.mark.parametrize("name", ["global.safetensors", "personal.safetensors"])
def test_a_single_bit_is_seen(copy: Path, name: str) -> None:
    path = copy / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert compare(copy, ROUNDS)["differing"] == 1


@pytest.mark.parametrize(("spoil", "seen"), [("drop", "lost"), ("double", "lost"), ("change", "differing")])
def test_a_round_that_is_missing_doubled_or_different_is_seen(copy: Path, spoil: str, seen: str) -> None:
    with (copy / "metrics.csv").open(newline="") as file:
        first, second, *rest = csv.DictReader(file)
    accuracy = {"personal/accuracy": str(float(second["personal/accuracy"]) + 1e-15)}
    rows = {"drop": [first], "double": [first, first, second], "change": [first, second | accuracy]}
    write_table(copy / "metrics.csv", [*rows[spoil], *rest])
    assert compare(copy, ROUNDS)[seen] >= 1


def test_a_step_that_the_store_lacks_is_seen(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    honest = MlflowClient.get_metric_history
    monkeypatch.setattr(MlflowClient, "get_metric_history", lambda *args: honest(*args)[1:])
    assert compare(finished, ROUNDS)["lost"] == 1


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_ends_whole_whatever_dies(capfd: pytest.CaptureFixture[str]) -> None:
    """The long version is `python -m tests.chaos`; here one fault each of the kinds that are recovered differently."""
    kinds = ["client", "server", "node", "driver", "nan"]
    code = main(["--faults", str(len(kinds)), "--kinds", *kinds, "--seed", "3", "--pace", "0.4"])
    out = capfd.readouterr().out
    assert code == 0, out
    assert f"{len(kinds)} faults in" in out
