"""A disk that is full ends a run with one message: which folder, why, and how to go on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedray import Execution, launch
from fedray.federate.storage import checkpoint, states
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.running.folder import notes
from fedray.running.writer import Writer
from fedray.types import RunError
from tests.helpers import small_plan
from tests.running.resumed.test_resume import elsewhere, same_result  # noqa: F401

pytestmark = pytest.mark.usefixtures("unpainted", "elsewhere")
ARGV = ["pfedbayes", "--runtime", "local", "--rounds", "3", "--local-steps", "2", "--model.hidden", "8"]
ARGV += ["--tracking.uri", "none", "--figures", "none"]


def full(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("place", "name", "options", "folder"),
    [
        (Writer, "table", [], "runs/x"),
        (Writer, "table", ["--loss-deviation"], "runs/x"),
        (Writer, "commit", [], "runs/x"),
        (Writer, "run", ["--client-states", "disk"], "runs/x"),
        (states.OnDisk, "save", ["--client-states", "disk", "--checkpoint.every", "0"], "runs/x"),
        (
            states,
            "write_some",
            ["--client-states", "disk"],
            "runs/x/checkpoints/fedray-states/000000-000009/round-000001",
        ),
        (notes, "write_json", [], "runs/x"),
    ],
)
def test_a_full_disk_ends_a_run_that_can_go_on(
    place: Any,
    name: str,
    options: list[str],
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert launch.main([*ARGV, *options, "--name", "whole"]) == 0
    with monkeypatch.context() as patched:
        patched.setattr(place, name, full)
        assert launch.main([*ARGV, *options, "--name", "x"]) == 1
    said = capfd.readouterr().err
    reason = "cannot be written (no space left on device); free space there"
    assert f"error: {Path(folder).absolute()}: {reason}" in said
    assert "Traceback" not in said
    if Path("runs/x/run.json").exists():
        assert launch.main(["--resume", "runs/x"]) == 0
        same_result("runs/whole", "runs/x")


def test_checkpoints_that_cannot_be_written_are_said_once_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkpoint, "write", full)
    assert launch.main([*ARGV, "--name", "x", "--checkpoint.on-error", "warn"]) == 0
    said = capfd.readouterr()
    assert said.err.count("warning: ") == 1
    assert "warning: round 1: no checkpoint ([Errno 28] No space left on device, while writing" in said.err
    assert "2 failures" in said.out


@pytest.mark.ray
def test_actors_that_cannot_write_their_states_say_so(cluster: Callable[..., object], tmp_path: Path) -> None:
    from actors.federation import RayFederation

    (tmp_path / "file").touch()
    store = CheckpointStore(str(tmp_path / "kept"), states=str(tmp_path / "file"))
    with (
        pytest.raises(RunError, match=r"file/000.*: cannot be written \(file exists\); make it a folder"),
        RayFederation(small_plan("pfedbayes"), Execution(clients_per_actor=3), store) as federation,
    ):
        next(iter(federation))
