"""Checkpoints outside of a run's folder: the run outlives its folder, and leaves alone what is not its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedray import launch
from fedray.federate.storage import checkpoint
from fedray.running.folder import lock, notes
from tests.running.resumed.test_resume import FAST, elsewhere, rows, same_result  # noqa: F401

pytestmark = pytest.mark.usefixtures("unpainted", "elsewhere")


def test_checkpoints_may_be_elsewhere_and_rarer(cut: Callable[..., int]) -> None:
    options = ["--checkpoint.url", "kept", "--checkpoint.every", "2", "--tracking.uri", "none"]
    assert cut([*FAST, *options, "--name", "cut"], 5) == 130
    assert sorted(path.name for path in Path("kept").iterdir()) == ["round-000002", "round-000004", "run.json"]
    note = notes.read("runs/cut")
    assert note.execution.checkpoint.url == str(Path("kept").absolute())
    assert launch.main(["--resume", "runs/cut"]) == 0
    assert not Path("kept").exists()
    assert launch.main([*FAST, "--tracking.uri", "none", "--name", "whole"]) == 0
    same_result("runs/whole", "runs/cut")


@pytest.mark.parametrize("place", ["memory://moved", "moved"])
def test_a_run_that_is_to_keep_checkpoints_elsewhere_goes_on_from_those_that_it_has(
    place: str, cut: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert launch.main([*FAST, "--tracking.uri", "none", "--name", "whole"]) == 0
    assert cut([*FAST, "--tracking.uri", "none", "--name", "cut"], 3) == 130
    # Cut off again before it has kept one there.
    assert cut(["--resume", "runs/cut", "--checkpoint.url", place, "--checkpoint.every", "0"], 5) == 130
    assert launch.main(["--resume", "runs/cut"]) == 0
    assert Path("runs/cut/log.txt").read_text().count("goes on after round 3") == 2
    assert "starts again at round 0" not in capfd.readouterr().err
    assert sorted(path.name for path in Path("runs/cut/checkpoints").iterdir()) == ["round-000002", "round-000003"]
    assert not Path("moved").exists()
    shutil.rmtree("runs/cut/checkpoints")
    same_result("runs/whole", "runs/cut")


@pytest.mark.parametrize("other", [["--seed", "4", "--name", "cut"], ["--name", "other"]])
def test_a_resumed_run_does_not_take_the_place_of_another(
    other: list[str], cut: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    quiet = [*FAST, "--tracking.uri", "none"]
    assert cut([*quiet, "--name", "cut"], 3) == 130
    assert cut([*quiet, *other, "--output", "b", "--checkpoint.url", "kept"], 4) == 130
    before = Path("kept/run.json").read_bytes()
    assert launch.main(["--resume", "runs/cut", "--checkpoint.url", "kept"]) == 2
    assert "holds the checkpoints of another run, up to round 4" in capfd.readouterr().err
    assert Path("kept/run.json").read_bytes() == before
    for place in ("runs/cut", "b"):
        assert launch.main(["--resume", place]) == 0


@pytest.mark.parametrize("place", ["memory://kept", "kept"])
def test_a_run_outlives_its_folder_where_its_checkpoints_are_elsewhere(
    place: str, cut: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--checkpoint.url", place, "--tracking.uri", "none"]
    assert cut([*FAST, *options, "--name", "cut"], 4) == 130
    shutil.rmtree("runs/cut")
    assert launch.main([*FAST, *options, "--name", "another"]) == 2
    assert "holds the checkpoints of another run, up to round 4" in capfd.readouterr().err
    assert launch.main(["--resume", place]) == 0
    assert launch.main([*FAST, "--tracking.uri", "none", "--name", "whole"]) == 0
    same_result("runs/whole", "runs/cut" if "://" in place else place)
    assert checkpoint.rounds(checkpoint.CheckpointStore(place if "://" in place else str(Path(place).absolute()))) == []


def test_a_place_of_another_run_is_not_taken_before_its_first_checkpoint_nor_a_result(
    cut: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    quiet = [*FAST, "--tracking.uri", "none"]
    assert cut([*quiet, "--name", "slow", "--checkpoint.url", "kept", "--checkpoint.every", "0"], 3) == 130
    before = Path("kept/run.json").read_bytes()
    assert launch.main([*quiet, "--name", "quick", "--checkpoint.url", "kept"]) == 2
    assert "kept: holds the note of another run, slow, which may be going on" in capfd.readouterr().err
    assert Path("kept/run.json").read_bytes() == before
    assert launch.main(["--resume", "runs/slow"]) == 0
    assert launch.main([*quiet, "--name", "quick", "--checkpoint.url", "runs/slow"]) == 2
    assert "runs/slow: holds the result of another run" in capfd.readouterr().err
    assert notes.read("runs/slow").name == "slow"


def test_a_place_or_a_folder_under_another_name_is_not_gone_on_with_twice(
    cut: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert cut([*FAST, "--tracking.uri", "none", "--name", "cut", "--checkpoint.url", "kept"], 3) == 130
    Path("linked").symlink_to("runs/cut")
    Path("also").symlink_to("kept")
    for busy, asked, named in (
        ("kept", ["--resume", "runs/cut"], "--checkpoint.url"),
        ("kept", ["--resume", "kept"], "--resume"),
        ("kept", ["--resume", "also"], "--resume"),
        ("runs/cut", ["--resume", "linked"], "--resume"),
        ("also", [*FAST, "--tracking.uri", "none", "--output", "kept"], "--output"),
    ):
        with lock.locked(Path(busy).absolute()):
            assert launch.main(asked) == 2
        error = capfd.readouterr().err
        assert f"error: {named} {Path.cwd()}" in error
        assert "is going on in another process" in error
    assert launch.main(["--resume", "linked"]) == 0


def test_the_checkpoints_of_a_run_that_has_none_yet_are_not_taken(
    cut: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    quiet = [*FAST, "--tracking.uri", "none"]
    assert cut([*quiet, "--name", "slow", "--checkpoint.every", "5"], 3) == 130
    assert launch.main([*quiet, "--name", "quick", "--checkpoint.url", "runs/slow/checkpoints"]) == 2
    error = capfd.readouterr().err
    assert "checkpoints: holds the checkpoints of slow, which may be going on; give an empty place" in error
    assert not Path("runs/slow/checkpoints").exists()
    Path("kept/fedray-states").mkdir(parents=True)
    assert launch.main([*quiet, "--name", "quick", "--checkpoint.url", "kept"]) == 2
    assert "kept: holds the clients' states of another run" in capfd.readouterr().err
    assert [path.name for path in Path("kept").iterdir()] == ["fedray-states"]


def test_a_resumed_run_leaves_nothing_at_a_place_that_it_is_refused(
    cut: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    """Whose checkpoints lie there without a note, or its own with a torn one."""
    quiet = [*FAST, "--tracking.uri", "none"]
    assert cut([*quiet, "--name", "other", "--seed", "4"], 3) == 130
    assert cut([*quiet, "--name", "cut", "--checkpoint.url", "kept"], 3) == 130
    shutil.copytree("runs/other/checkpoints", "foreign")
    assert launch.main(["--resume", "runs/cut", "--checkpoint.url", "foreign"]) == 2
    error = capfd.readouterr().err
    assert "foreign: holds the checkpoints of another run, up to round 3; give an empty place" in error
    assert "run.json" not in {path.name for path in Path("foreign").iterdir()}
    Path("kept/run.json").write_text('{"name": "cu')
    assert launch.main(["--resume", "runs/cut"]) == 0
    assert "goes on after round 3" in Path("runs/cut/log.txt").read_text()


def test_a_run_knows_its_own_checkpoints_that_were_moved_by_hand(cut: Callable[..., int]) -> None:
    assert cut([*FAST, "--tracking.uri", "none", "--name", "cut"], 3) == 130
    Path("runs/cut/checkpoints").rename("moved")
    assert launch.main(["--resume", "runs/cut", "--checkpoint.url", "moved"]) == 0
    assert "goes on after round 3" in Path("runs/cut/log.txt").read_text()
    assert not Path("moved").exists()


def test_a_finished_run_leaves_what_another_has_put_where_its_checkpoints_were(cut: Callable[..., int]) -> None:
    options = [*FAST, "--tracking.uri", "none", "--checkpoint.url", "kept"]
    assert launch.main([*options, "--name", "first"]) == 0
    assert cut([*options, "--name", "second"], 3) == 130
    assert launch.main(["--resume", "runs/first"]) == 0
    assert launch.main(["--resume", "runs/second"]) == 0
    assert "goes on after round 3" in Path("runs/second/log.txt").read_text()
    assert not Path("kept").exists()


def test_nothing_is_made_beside_a_place_to_lock_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside a volume, whose parent is not the user's; nor is a folder above it, which would be taken then."""
    quiet = [*FAST, "--rounds", "2", "--tracking.uri", "none"]
    assert launch.main([*quiet, "--output", "deep", "--checkpoint.url", "deep/a/b"]) == 0
    with monkeypatch.context() as patched:
        patched.setattr("os.access", lambda path, mode: str(path) != str(tmp_path))
        assert launch.main([*quiet, "--name", "x", "--checkpoint.url", "kept"]) == 0


def test_nothing_but_its_own_is_removed_where_a_run_kept_its_checkpoints() -> None:
    Path("shared/states").mkdir(parents=True)
    Path("shared/states/mine.csv").write_text("precious")
    for options in ([], ["--client-states", "disk"]):
        assert launch.main([*FAST, "--tracking.uri", "none", "--checkpoint.url", "shared", *options]) == 0
        assert [path.name for path in Path("shared").iterdir()] == ["states"]
        assert Path("shared/states/mine.csv").read_text() == "precious"


@pytest.mark.parametrize("name", ["..", "a\nb"])
def test_a_name_is_that_of_a_folder_below_the_runs(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.main([*FAST, "--tracking.uri", "none", "--name", name]) == 2
    assert "is not a plain name" in capfd.readouterr().err
    assert not any(Path().iterdir())


def test_a_url_is_not_resumed_into_the_folder_of_another_run(
    cut: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert cut([*FAST, "--checkpoint.url", "memory://other", "--tracking.uri", "none", "--name", "cut"], 4) == 130
    shutil.rmtree("runs/cut")
    assert launch.main([*FAST, "--seed", "4", "--tracking.uri", "none", "--name", "cut"]) == 0
    assert launch.main(["--resume", "memory://other"]) == 2
    assert "already holds something; choose another --output" in capfd.readouterr().err
    assert launch.main(["--resume", "memory://other", "--output", "here"]) == 0
    assert rows("here")


def test_a_place_for_checkpoints_that_takes_nothing_is_refused_before_training(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("file").write_text("")
    for place, word in (("file", "file"), ("nosuch://x", "nosuch"), ("ftp://me:hunter2@host/x", "FSSPEC_")):
        assert launch.main([*FAST, "--tracking.uri", "none", "--name", "x", "--checkpoint.url", place]) == 2
        error = capfd.readouterr().err
        assert "--checkpoint.url" in error
        assert word in error
        assert "hunter2" not in error
    assert not Path("runs/x").exists()
