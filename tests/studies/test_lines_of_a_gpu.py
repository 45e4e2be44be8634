"""Lines of data of runs that a GPU played; no GPU is needed here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedray.config import Execution, Experiment, TrackingConfig, override
from fedray.running import session
from fedray.studies import agenda
from fedray.studies.results import machine, record, verify
from tests.studies.published import short


@pytest.mark.parametrize(("played", "here", "gpus"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_what_a_gpu_played_is_played_again_on_a_gpu_where_there_is_one(
    played: bool, here: bool, gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of a run says so, as does its command; where there is no GPU, the CPU tells whether it comes near."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agenda, "STUDIES", {"quick": short})
    monkeypatch.setattr(verify, "STUDIES", {"quick": short})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: here)
    [planned] = agenda.plan_runs("quick", agenda.Options(seeds=1, rounds=1, eval_every=1)).runs
    asked: list[object] = []
    play = session.run_experiment

    def run(cfg: Experiment, execution: Execution) -> None:
        asked.append(execution.gpus)
        play(cfg, override(execution, {"gpus": 0}))
        path = Path(str(execution.output)) / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"device": "Some GPU" if played else "cpu"}))

    run(planned.experiment, Execution(runtime="local", output="once", tracking=TrackingConfig(uri="none")))
    found = record.line("quick", planned, Path("once"), "abc")
    assert found is not None
    assert found.command.endswith("--runtime local --gpus 1") == machine.has_gpu(found.machine) == played
    monkeypatch.setattr(session, "run_experiment", run)
    assert verify.judge(found, verify.again(found, agenda.Data()), [found]).same
    assert asked[-1] == gpus
