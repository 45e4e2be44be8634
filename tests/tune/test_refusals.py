"""Sweeps that cannot run are refused before Ray starts."""

import pytest
import ray

from tune.__main__ import main

REFUSED = [
    (["--space", "lrr=uniform(1,2)"], "--space lrr: no such setting"),
    (["--space", "lr=uniform(2,1)"], "empty range"),
    (["--metric", "personal/accuracy2"], "no such measure"),
    (["--metric", "test/personal/accuracy"], "no such measure"),  # fedavg has no personal models
    (["--metric", "global/nll"], "give validation/global/nll, or test/global/nll to choose by test data all the same"),
    (["--space", "data.validation=uniform(0.1,0.3)"], "ranked on the same validation examples"),
    (["--data.partition", "iid", "--clients", "850"], "has one training example, which it needs"),
    (["--data.partition", "iid", "--space", "clients=grid(2,850)"], "has one training example, which it needs"),
    (["--resume", "nowhere"], "holds no sweep"),
    (["--runtime", "local"], "a sweep runs on Ray"),
    (["--backend", "compiled"], "--backend compiled: the settings that a sweep varies are constants"),
    (["--loss-deviation"], "launch its best configuration"),
    (["--uncertainty"], "launch its best configuration"),
    (["--tracking.system-metrics"], "its trials share the machines"),
    (["--figures", "svg"], "launch its best configuration"),
    (["--no-elastic"], "a trial keeps its machines"),
    (["--checkpoint.every", "2"], "--checkpoint.every 2: a sweep keeps every trial"),
    (["--checkpoint.keep", "5"], "--checkpoint.keep 5: the scheduler decides"),
    (["--checkpoint.url", "s3://bucket"], "--checkpoint.url s3://bucket: a sweep keeps its checkpoints"),
    (["--checkpoint.on-error", "stop"], "stop: Tune repeats a trial"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_bad_requests_are_refused_before_ray_starts(tmp_path, monkeypatch, capsys, options, words):
    monkeypatch.chdir(tmp_path)
    space = [] if "--space" in options else ["--space", "lr=uniform(0.1,0.2)"]
    assert main(["fedavg", *options, *space]) == 2
    assert words in capsys.readouterr().err
    assert not ray.is_initialized()
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_of_a_version_that_ranked_by_test_data_is_not_resumed(tmp_path, capsys):
    (tmp_path / "sweep.json").write_text('{"name": "s", "argv": ["fedavg", "--space", "lr=uniform(0.1,0.2)"]}')
    assert main(["--resume", str(tmp_path)]) == 2
    assert "an older version began this sweep, and ranked its trials by test data" in capsys.readouterr().err


@pytest.mark.parametrize("note", ["", "[]", '{"name": "s"}', '{"name": "s", "argv": 3}', "[" * 100_000])
def test_a_damaged_note_of_a_sweep_is_refused(tmp_path, capsys, note):
    (tmp_path / "sweep.json").write_text(note, encoding="utf-8")
    assert main(["--resume", str(tmp_path)]) == 2
    assert f"--resume {tmp_path}: holds no sweep" in capsys.readouterr().err
