"""The benchmark of a GPU runs from end to end where there is none, so that the first GPU needs one run."""

import pytest
import torch

from tests.benchmarks import gpu


@pytest.mark.slow
@pytest.mark.ray
def test_the_rehearsal_plays_every_part(own_cluster, capsys):
    assert gpu.main(["--device", "cpu", "--quick", "--minutes", "5"]) == 0
    out = capsys.readouterr().out
    assert "failed: nothing" in out
    assert "**no**" not in out
    assert "| failed" not in out


def test_a_part_that_fails_or_takes_too_long_is_said_and_the_next_one_begins(monkeypatch, capsys):
    def broken(bench):
        raise ValueError("no such kernel")

    def endless(bench):
        while True:
            pass

    for name in ("agreement", "generator", "rounds", "whole", "actors"):
        monkeypatch.setattr(gpu, name, lambda *_: print("played"))
    monkeypatch.setattr(gpu, "machine", broken)
    monkeypatch.setattr(gpu, "agreement", endless)
    assert gpu.main(["--device", "cpu", "--quick", "--minutes", "0.2"]) == 1
    out = capsys.readouterr().out
    assert "**failed**: ValueError: no such kernel" in out
    assert "**failed**: TimeoutError" in out
    assert out.count("played") == 5
    assert "failed: Machine, Agreement with the CPU" in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(capsys):
    assert gpu.main([]) == 2
    assert "no GPU" in capsys.readouterr().out
