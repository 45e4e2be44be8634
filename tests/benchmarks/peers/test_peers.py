"""The comparison's arithmetic on sides that only pretend, and FedRay's own side on a small case."""

import subprocess
import sys

import numpy as np
import pytest

from tests.benchmarks.peers import environments, harness
from tests.benchmarks.peers.sides.measured import Case, Meter, Result, family_cpu
from tests.benchmarks.peers.sides.play_fedray import side

DONE = Result(rounds=2, clients=4, parameters=10, gradients=1000, cpu=1.0, wall=2.0, start_cpu=3.0, start_wall=4.0)


def turns(*cpus, **others):
    return [DONE._replace(cpu=cpu, wall=2 * cpu, **others) for cpu in cpus]


def test_sides_play_in_turn():
    played = []

    def pretend(name):
        return lambda: played.append(name) or DONE

    results = harness.in_turn({"peer": pretend("peer"), "FedRay": pretend("FedRay")}, 3, lambda line: None)
    assert played == ["peer", "FedRay"] * 3
    assert results == {"peer": [DONE] * 3, "FedRay": [DONE] * 3}


def test_figures_are_medians_per_round_and_ratios_those_of_each_turn():
    """The machine was twice as slow in the second turn, and four times in the third, for both: the ratio stays 1/2."""
    found = harness.figures({"peer": turns(2.0, 4.0, 8.0), "FedRay": turns(1.0, 2.0, 40.0)})
    assert found["peer"] == harness.Figures(cpu=2.0, wall=4.0, start_cpu=3.0, cpu_ratio=1.0, wall_ratio=1.0)
    assert found["FedRay"] == harness.Figures(cpu=1.0, wall=2.0, start_cpu=3.0, cpu_ratio=0.5, wall_ratio=0.5)


def test_the_ratio_is_not_that_of_the_medians():
    """Ratios 3, 1 and 1/2; the medians are 3 and 2."""
    found = harness.figures({"peer": turns(1.0, 2.0, 10.0), "FedRay": turns(3.0, 2.0, 5.0)})["FedRay"]
    assert (found.cpu_ratio, found.wall_ratio) == (1.0, 1.0)


@pytest.mark.parametrize("what", ["rounds", "clients", "parameters", "gradients"])
def test_work_that_differs_stops_the_comparison(what):
    other = DONE._replace(**{what: getattr(DONE, what) + 1})
    with pytest.raises(harness.UnequalWorkError, match=f"differ in {what}.*FedRay"):
        harness.in_turn({"peer": lambda: DONE, "FedRay": lambda: other}, 1, lambda line: None)


def test_a_side_that_changes_between_turns_stops_the_comparison():
    played = iter([DONE, DONE._replace(gradients=999)])
    with pytest.raises(harness.UnequalWorkError, match="gradients"):
        harness.in_turn({"peer": lambda: next(played)}, 2, lambda line: None)


def test_the_table_is_per_million_gradients_or_per_client_round():
    """A round of 500 gradients at 0.5 s is 1,000 s per million; of 4 clients, 125 ms each."""
    row = harness.table({"peer": [DONE]}).splitlines()[-1]
    assert row == "| peer | 0.5 | 1e+03 | 1.00 | 1 | 1.00 | 3 |"
    row = harness.table({"peer": [DONE._replace(gradients=0)]}).splitlines()[-1]
    assert row == "| peer | 0.5 | 125 | 1.00 | 1 | 1.00 | 3 |"


def test_a_process_gives_its_last_line():
    code = f"import json; print('progress'); print(json.dumps({DONE._asdict()!r}))"
    assert harness.from_process([sys.executable, "-c", code], {})() == DONE


def test_a_process_that_fails_is_shown():
    with pytest.raises(RuntimeError, match="no such thing"):
        harness.from_process([sys.executable, "-c", "raise SystemExit('no such thing')"], {})()


def test_processes_that_have_ended_count():
    before = family_cpu()
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert family_cpu() - before > 0.25


def test_an_environment_is_made_once_and_again_when_its_requirements_change(tmp_path, monkeypatch):
    made = []

    def pretend(command, check):
        made.append([str(part) for part in command])
        (tmp_path / "pfl").mkdir(exist_ok=True)

    monkeypatch.setattr(environments.subprocess, "run", pretend)
    python = environments.python_of("pfl", tmp_path)
    assert python == tmp_path / "pfl" / "bin" / "python"
    assert [command[:3] for command in made] == [["uv", "venv", "--quiet"], ["uv", "pip", "install"]]
    environments.python_of("pfl", tmp_path)
    assert len(made) == 2
    (tmp_path / "pfl" / "made").write_text("other requirements")
    environments.python_of("pfl", tmp_path)
    assert len(made) == 4


@pytest.mark.parametrize("peer", ["flower", "pfl", "blazefl", "pfedbayes"])
def test_every_peer_pins_its_release(peer):
    head = environments.script(peer).read_text().split("# ///\n")[0]
    assert "torch==" in head
    assert float(environments.python_version(peer)) >= 3.11
    released = {"flower": "flwr[simulation]==", "pfl": "pfl[pytorch]==", "blazefl": "]==3"}
    assert released.get(peer, "torch==") in head


def test_fedrays_side_counts_the_gradients_of_the_measured_rounds(tmp_path):
    """Shards of 10 examples in batches of 4 are 4, 4, 2, ...: three steps are a pass."""
    x, y = np.zeros((40, 1, 28, 28), np.uint8), np.arange(40) % 10
    parts = {f"train{i}": np.arange(10) + 10 * i for i in range(3)} | {f"test{i}": np.array([30 + i]) for i in range(3)}
    np.savez(tmp_path / "shards.npz", x=x, y=y, **parts)
    case = Case("fedavg", "in process", 3, 2, 1, steps=3, batch=4, lr=0.1, shards=str(tmp_path / "shards.npz"))
    result = side(case, Meter())
    assert result[:4] == (2, 3, 79_510, 2 * 3 * 10)
    assert result.cpu >= 0
    assert result.wall > 0


def test_fedrays_side_that_does_nothing():
    assert side(Case("no-op", "in process", 3, 2, 1), Meter())[:4] == (2, 3, 80_035, 0)
