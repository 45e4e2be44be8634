"""runs/NAME/log.txt: all that is known of a run, as it happens, in one place."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.machines import streams
from fedray import launch
from fedray.federate.in_process import LocalFederation
from fedray.federate.messages import Failure
from fedray.running.log import Log
from fedray.terminal import heard
from tests.running.resumed.test_resume import FAST

pytestmark = pytest.mark.usefixtures("unpainted")
QUIET = [*FAST, "--tracking.uri", "none", "--name", "x"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lines(name: str = "x") -> list[str]:
    """The log without its times."""
    text = Path(f"runs/{name}/log.txt").read_text()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  |    ", line) for line in text.splitlines())
    return [line[21:] if line[0] != " " else line for line in text.splitlines()]


def test_the_log_has_the_messages_and_the_rounds_and_goes_on_when_the_run_does(cut: Callable[..., int]) -> None:
    assert cut(QUIET, 4) == 130
    first = lines()
    assert any(line.startswith("pfedbayes on digits: 10 clients, 6 rounds") for line in first)
    assert [line.split()[1] for line in first if line.startswith("round ")] == ["1/6", "2/6", "3/6", "4/6"]
    assert first[-2:] == ["interrupted", f"go on    python -m fedray.launch --resume {Path('runs/x').absolute()}"]
    assert launch.main(["--resume", "runs/x"]) == 0
    both = lines()
    assert both[: len(first)] == first
    assert "goes on after round 4" in both
    assert [line.split()[1] for line in both[len(first) :] if line.startswith("round ")] == ["5/6", "6/6"]
    assert both[-1] == f"finished: {Path('runs/x').absolute()}"


def test_every_round_is_in_the_file_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = LocalFederation.__iter__
    seen = []

    def watched(self):
        for metrics in honest(self):
            yield metrics
            seen.append(lines()[-1].split()[1])

    monkeypatch.setattr(LocalFederation, "__iter__", watched)
    assert launch.main(QUIET) == 0
    assert seen == [f"{number}/6" for number in range(1, 7)]


def test_failures_have_their_traces_and_so_does_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = LocalFederation.__iter__
    failure = Failure(2, "client 3", "exception", "ValueError: odd", "left out", "Trace\n  of it", "step")

    def failing(self):
        for metrics in honest(self):
            if metrics.round == 3:
                raise ZeroDivisionError("our own")
            yield metrics._replace(failures=(failure,)) if metrics.round == 2 else metrics

    monkeypatch.setattr(LocalFederation, "__iter__", failing)
    with pytest.raises(ZeroDivisionError):
        launch.main(QUIET)
    found = lines()
    at = found.index("exception: client 3, round 2, step: ValueError: odd (left out)")
    assert found[at + 1 : at + 3] == ["    Trace", "      of it"]
    assert found[at + 3].startswith("round 2/6")
    assert any("ZeroDivisionError: our own" in line for line in found)


def test_a_run_that_is_refused_leaves_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch.main([*QUIET, "--zeta", "-1"]) == 2
    assert not Path("runs/x").exists()


def test_what_actors_print_is_recorded_with_who_printed_it_and_other_lines_are_not() -> None:
    found: list[str] = []
    batch = {"actor_name": "x clients 0-4", "pid": 17, "ip": "10.0.0.2", "lines": ["UserWarning: odd", " "]}
    with heard(found.append):
        streams.hear(batch)
        streams.hear(batch | {"actor_name": None})
    assert found == ["x clients 0-4 (process 17, 10.0.0.2): UserWarning: odd"]


def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    log = Log()
    log.write("early")
    log.open(tmp_path / "missing")
    log.write("late")
    (tmp_path / "missing").mkdir()
    log.write("later")
    assert (tmp_path / "missing" / "log.txt").read_text().endswith("later\n")
