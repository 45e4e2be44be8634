"""Runs in several processes at a time: the same bits as one after the other, and none lost with another."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import psutil
import pytest

from fedray.config import Execution, TrackingConfig, override
from fedray.running import side_by_side
from fedray.running.side_by_side import Ended
from fedray.running.stages import Request
from tests.helpers import experiment

pytestmark = pytest.mark.slow
SILENT = TrackingConfig(uri="none")


class Ears:
    """Hears how runs get on, and ends the process of one at its first round."""

    def __init__(self, victim: str = ""):
        self.victim = victim
        self.rounds: dict[str, list[int]] = {}
        self.heard: dict[str, Ended] = {}
        self.processes: set[int] = set()

    def reached(self, name: str, round_number: int) -> None:
        self.rounds.setdefault(name, []).append(round_number)
        workers = [psutil.Process(child.pid) for child in multiprocessing.active_children()]
        self.processes |= {child.pid for child in workers}
        if name == self.victim and round_number == 1:
            for child in workers:
                if any(f".{name}.lock" in file.path for file in child.open_files()):
                    os.kill(child.pid, signal.SIGKILL)

    def ended(self, ended: Ended) -> None:
        self.heard[ended.name] = ended


def played(folder: Path, at_once: int, victim: str = "") -> Ears:
    cfgs = {
        "a": experiment("fedavg"),
        "b": experiment("pfedbayes"),
        "c": override(experiment("fedavg"), {"algorithm.lr": 1e30}),
        "d": override(experiment("fedavg"), {"seed": 1}),
    }
    requests = [
        Request(
            override(cfg, {"rounds": 3}),
            Execution(runtime="local", name=name, output=folder / name, tracking=SILENT),
        )
        for name, cfg in cfgs.items()
    ]
    ears = Ears(victim)
    side_by_side.play(requests, {}, at_once, ears)
    return ears


def test_results_do_not_depend_on_how_many_are_played_at_a_time(tmp_path: Path) -> None:
    alone, together = played(tmp_path / "alone", 1), played(tmp_path / "together", 2)
    assert alone.processes == set()
    assert len(together.processes) == 2  # four runs, which hand their processes on
    assert alone.rounds == together.rounds
    for name in "abd":
        one, other = (ears.heard[name].summary for ears in (alone, together))
        assert one is not None
        assert other is not None
        assert dict(one) | {"seconds": 0} == dict(other) | {"seconds": 0}
        for part in ("global", "personal"):
            files = [tmp_path / way / name / f"{part}.safetensors" for way in ("alone", "together")]
            assert files[0].read_bytes() == files[1].read_bytes()
    for ears in (alone, together):
        assert ears.heard["c"].summary is None
        assert "lower the learning rates" in ears.heard["c"].failure


def test_a_process_that_dies_costs_only_its_run(tmp_path: Path) -> None:
    ears = played(tmp_path, 2, victim="a")
    assert ears.heard["a"] == Ended("a", None, "its process was lost (exit code -9)")
    assert ears.heard["b"].summary is not None
    assert ears.heard["d"].summary is not None
