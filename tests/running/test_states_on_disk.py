"""Runs whose clients keep their states on disk: the same result, in files of its own kind, interrupted or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fedray
from fedray import launch
from fedray.running.folder import checkpoint_place
from fedray.types import FedRayError
from tests.running.resumed.test_resume import elsewhere, rows  # noqa: F401

pytestmark = pytest.mark.usefixtures("unpainted", "elsewhere")
FAST = ["pfedbayes", "--runtime", "local", "--rounds", "4", "--local-steps", "2", "--model.hidden", "8"]
FAST += ["--clients-per-round", "2", "--tracking.uri", "none", "--seed", "3"]
DISK = ["--client-states", "disk"]


def same(a: str, b: str) -> None:
    """Two results with the same measures and models, in whatever files."""
    assert rows(a) == rows(b)
    assert (Path(a) / "clients.csv").read_bytes() == (Path(b) / "clients.csv").read_bytes()
    x = np.random.default_rng(0).random((5, 1, 8, 8))
    one, other = fedray.load(a), fedray.load(b)
    for client in (None, *range(10)):
        assert torch.equal(one.predict(x, client).draws, other.predict(x, client).draws)


def test_the_result_is_the_same_and_holds_a_file_for_each_client_that_trained() -> None:
    for name, options in (("memory", []), ("disk", DISK)):
        assert launch.main([*FAST, *options, "--name", name]) == 0
    same("runs/memory", "runs/disk")
    kept = sorted(path.name for path in Path("runs/disk/personal").glob("*.safetensors"))
    assert 2 <= len(kept) <= 8
    assert not Path("runs/disk/personal.safetensors").exists()
    assert not Path("runs/disk/checkpoints").exists()
    file = Path("runs/disk/personal", kept[0])
    changed = bytearray(file.read_bytes())
    changed[-9] ^= 1
    for damaged in (b"torn", changed):
        file.write_bytes(damaged)
        with pytest.raises(FedRayError, match=r"runs/disk/personal.*run it again"):
            fedray.load("runs/disk").predict(np.zeros((1, 1, 8, 8)), int(kept[0][8:14]))


@pytest.mark.parametrize(("before", "after"), [(DISK, DISK), (DISK, ["--client-states", "memory"]), ([], DISK)])
def test_an_interrupted_run_goes_on_with_its_states_on_disk_or_in_memory(
    before: list[str],
    after: list[str],
    cut: Callable[..., int],
) -> None:
    assert launch.main([*FAST, "--name", "whole"]) == 0
    assert cut([*FAST, *before, "--name", "cut"], 3) == 130
    assert Path("runs/cut/checkpoints/fedray-states").exists() == bool(before)
    assert launch.main(["--resume", "runs/cut", *after]) == 0
    same("runs/whole", "runs/cut")
    assert not Path("runs/cut/checkpoints").exists()


@pytest.mark.parametrize("name", ["../../../../../../victim", "{here}/victim", "..", ""])
def test_a_list_that_names_a_file_outside_of_its_folder_is_refused(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("the user's")
    assert launch.main([*FAST, *DISK, "--name", "crafted"]) == 0
    listed = Path("runs/crafted/personal/files.json")
    first, *others = json.loads(listed.read_text())
    listed.write_text(json.dumps([first | {"name": name.format(here=tmp_path)}, *others]))
    assert launch.main(["--resume", "runs/crafted", "--rounds", "6"]) == 2
    assert victim.read_text() == "the user's"
    assert "is no plain name of a file" in capfd.readouterr().err
    with pytest.raises(FedRayError, match=r"runs/crafted.*is no plain name of a file.*run it again"):
        fedray.load("runs/crafted")


def test_beside_a_remote_store_states_lie_on_this_machine() -> None:
    from fedray.config import CheckpointConfig, Execution

    kept = checkpoint_place.store(
        Path("x"), Execution(client_states="disk", checkpoint=CheckpointConfig(url="memory://y"))
    )
    assert kept.url == "memory://y"
    assert Path(kept.states).is_absolute()
    assert checkpoint_place.store(Path("x"), Execution()).states == ""
