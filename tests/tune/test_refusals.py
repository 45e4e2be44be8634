"""Sweeps that cannot run are refused before Ray starts."""

import pytest
import ray

from tune.__main__ import main

REFUSED = [
    (["--space", "lrr=uniform(1,2)"], "--space lrr: no such setting"),
    (["--space", "lr=uniform(2,1)"], "empty range"),
    (["--metric", "personal/accuracy2"], "no such measure"),
    (["--resume", "nowhere"], "holds no sweep"),
    (["--runtime", "local"], "a sweep runs on Ray"),
    (["--loss-deviation"], "launch its best configuration"),
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
