"""What a command line may change of a sweep that it goes on with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedray.running.files import write_json
from fedray.types import FedRayError, LogUniform
from tune import search, sweep
from tune.__main__ import NOTE, SweepNote, read
from tune.options import Sweep
from tune.space import Grid

WORDS = ["fedavg", "--space", "lr=uniform(0.1,0.2)", "--samples", "6", "--clients", "4", "--name", "s"]


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What resumes a sweep in runs/s."""
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "runs/s" / NOTE, SweepNote("s", WORDS, "")._asdict())
    return ["--resume", "runs/s"]


def test_a_resumed_sweep_takes_its_trials_at_a_time_and_its_store_from_the_new_command(begun: list[str]) -> None:
    first, _ = read([*WORDS[:-1], "other"])
    where = ["--tracking.uri", "sqlite:///other.db", "--tracking.experiment", "e"]
    for more in ([], WORDS):
        request, resume = read([*more, *begun, "--concurrency", "2", *where])
        assert resume
        assert (request.sweep.concurrency, request.sweep.samples) == ("2", 6)
        assert (request.execution.tracking.uri, request.execution.tracking.experiment) == ("sqlite:///other.db", "e")
        assert (request.base, request.space, request.name) == (first.base, first.space, "s")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["pfedbayes"], "algorithm"),
        (["--lr", "0.5"], "algorithm.lr"),
        (["--name", "t", "--output", "elsewhere"], "name, output"),
        (["--samples", "7", "--space", "lr=uniform(0.1,0.3)"], "samples, space"),
        (["--backend", "loop"], "backend"),
    ],
)
def test_what_else_a_command_line_would_change_is_refused_by_name(
    begun: list[str], options: list[str], names: str
) -> None:
    algorithm, more = (options[:1], options[1:]) if not options[0].startswith("-") else ([], options)
    with pytest.raises(FedRayError) as error:
        read([*algorithm, *begun, *more])
    assert f"--resume runs/s: holds another sweep (it differs in {names}); leave these options out" in str(error.value)


@pytest.fixture
def tracked(begun: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str, str | None]]:
    """Open the run of the sweep as a command line asks for it: its store, its experiment, and the run that goes on."""

    def tracker(uri: str, experiment: str, *_: Any, run_id: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(uri=uri, experiment=experiment, old=run_id, run_id=run_id or "new")

    def opened(*options: str) -> tuple[str, str, str | None]:
        found: Any = sweep._records(read([*begun, *options])[0])[0]
        return found.uri, found.experiment, found.old

    monkeypatch.setattr(sweep, "MLflowTracker", tracker)
    return opened


def test_its_run_goes_on_in_its_store_and_begins_anew_in_another(
    tracked: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert tracked() == (here, "fedray", None)
    assert tracked() == (here, "fedray", "new")
    assert tracked("--tracking.experiment", "e") == (here, "e", None)
    other = f"sqlite:///{tmp_path}/other.db"
    assert tracked("--tracking.uri", other) == (other, "fedray", None)
    assert tracked("--tracking.uri", other) == (other, "fedray", "new")
    assert tracked() == (other, "fedray", "new")  # where it was last
    assert tracked("--tracking.uri", here, "--tracking.experiment=e") == (here, "e", None)  # and back
    assert tracked() == (here, "e", "new")


def test_the_store_of_a_sweep_is_found_from_another_folder(
    begun: list[str], tracked: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked()
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    request, _ = read(["--resume", str(tmp_path / "runs/s")])
    assert request.execution.tracking.uri == f"sqlite:///{tmp_path}/runs/mlflow.db"


def test_a_sweep_goes_on_with_the_examples_it_began_with_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = np.random.default_rng(0).random((60, 4)), np.arange(60) % 3
    np.savez("mine.npz", x=x, y=y)
    words = [*WORDS, "--data.name", "mine.npz"]
    first, _ = read(words)
    assert first.base.data.name == str(tmp_path / "mine.npz")
    note = SweepNote("s", words, str(tmp_path), first.examples)
    write_json(tmp_path / "runs/s" / NOTE, note._asdict())
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    resume = ["--resume", str(tmp_path / "runs/s")]
    assert read(resume)[0].base == first.base
    np.savez(tmp_path / "mine.npz", x=x, y=y[::-1])
    with pytest.raises(FedRayError, match=r"mine\.npz holds other examples than when the sweep began"):
        read(resume)


@pytest.mark.parametrize("kind", ["random", "tpe"])
def test_a_searcher_that_is_restored_keeps_to_the_trials_at_a_time_of_the_new_command(kind: Any) -> None:
    asked = Sweep(search=kind, metric="m", mode="max")
    space = {"algorithm.lr": LogUniform(0.1, 1)}
    old, new = (search.searcher(asked, space, at_once, [0]) for at_once in (3, 1))
    new.set_state(old.get_state())
    assert new.max_concurrent == 1


def test_the_description_of_a_sweep_keeps_its_best_however_much_is_searched() -> None:
    """MLflow cuts what is too long at its end, where the command is."""
    request, _ = read(WORDS[:1])
    space = {"algorithm.lr": Grid(tuple(i / 10_000 for i in range(1, 3000)))}
    text = sweep._description(request._replace(space=space), "The best")
    assert text.startswith("**fedavg** on **digits**: a sweep of 8 trials over `lr=grid(0.0001,0.0002,")
    assert text.endswith(
        " ...; ranked on validation examples, 20% of every client's training examples; the best is "
        "tested once\n\nThe best"
    )
    assert len(text) < 8000
