"""Waiting for machines: what is said, remembered and given up; the autoscaler is played by a list of what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.machines import autoscaler, boots, demand
from actors.machines.autoscaler import Starting
from actors.machines.demand import Cluster
from actors.machines.offer import MachineKind
from actors.machines.placement import Node
from fedray.federate.compiled import cache
from fedray.types import FedRayError

G6 = MachineKind("g6", Node(8, 1), 4)
ASKED = Cluster([Node(2, 0)], (G6, G6), "mine")
QUOTA = {("g6", 7.0): "no quota"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(autoscaler, "why_failed", lambda kind, reported: reported)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(demand.time, "monotonic", lambda: now[0])
    return now


def watched(
    looks: Sequence[Starting], clock: list[float], monkeypatch: pytest.MonkeyPatch, step: float = 10.0
) -> demand._Watch:
    """A watch that has looked at what the autoscaler said before, and then every ``step`` seconds."""
    before, *others = looks
    watch = demand._Watch(ASKED, before)
    for said in others:
        clock[0] += step
        monkeypatch.setattr(autoscaler, "look", lambda said=said: said)
        watch.look()
    return watch


def test_the_line_says_what_is_asked_for_and_starting_and_what_it_took_before(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    boots.remember("mine", {"g6": 252.0})
    boots.remember("other", {"g6": 9.0})
    assert watched([Starting()], clock, monkeypatch).progress() == (
        "asked for 2 x g6; starting: none; a g6 took 4.2 min before"
    )
    line = watched([Starting(), Starting(starting={"g6": 1, "big": 1})], clock, monkeypatch).progress()
    assert line == "asked for 2 x g6; starting: 1 x big, 1 x g6; a g6 took 4.2 min before"


def test_every_machine_that_comes_is_remembered_by_the_time_since_its_type_was_first_seen_to_start(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [
        Starting({"head": 1}),
        Starting({"head": 1}, {"g6": 2}),  # at 10 s
        Starting({"head": 1}, {"g6": 2}),
        Starting({"head": 1, "g6": 1}, {"g6": 1}),  # at 30 s: 20 s later
    ]
    watched(looks, clock, monkeypatch)
    assert boots.recall("mine") == {"g6": 20.0}
    clock[0] = 0.0
    watched([*looks, Starting({"head": 1, "g6": 1}, {"g6": 1}), looks[3]], clock, monkeypatch)
    assert boots.recall("mine") == {"g6": 20.0}  # the second one has not come
    assert boots.recall("yours") == {}
    clock[0] = 0.0
    both = [*looks, Starting({"head": 1, "g6": 2})]
    watched(both, clock, monkeypatch)
    assert boots.recall("mine") == {"g6": 30.0}  # the second one came at 40 s
    clock[0] = 0.0
    watched([*both, Starting({"g6": 2}, {"g6": 1}), Starting({"g6": 3})], clock, monkeypatch)
    assert boots.recall("mine") == {"g6": 10.0}  # one that was asked for later, at 50 s


def test_a_damaged_memory_is_forgotten(tmp_path: Path) -> None:
    boots.remember("mine", {"g6": 1.0})
    cache.write(boots.KEY, b'{"mine": 5}')
    assert boots.recall("mine") == {}
    boots.remember("mine", {"g6": 2.0})
    assert boots.recall("mine") == {"g6": 2.0}
    (tmp_path / "cache" / boots.KEY).write_bytes(b"x")
    assert boots.recall("mine") == {}


def test_a_refusal_ends_the_wait_where_no_other_type_is_starting(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    trying = Starting(starting={"g6": 1}, failed=QUOTA)  # the autoscaler asks again and again
    assert not watched([Starting(), trying], clock, monkeypatch).refusal()
    assert not watched([Starting(), trying, trying], clock, monkeypatch).refusal()
    late = watched([Starting(), trying, trying, trying], clock, monkeypatch)
    assert late.refusal() == "the provider does not start the machines that are needed (g6: no quota)"
    assert "refused: g6" in late.progress()


def test_a_refusal_is_no_reason_to_give_up_while_another_type_starts(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    trying = Starting(starting={"g6": 1, "big": 1}, failed=QUOTA)
    assert not watched([Starting(), *[trying] * 9], clock, monkeypatch).refusal()


def test_what_was_refused_before_we_asked_is_not_ours(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    old = Starting(failed=QUOTA)
    assert not watched([old, *[old] * 9], clock, monkeypatch).refusal()
    new = Starting(failed=QUOTA | {("g6", 8.0): "capacity"})
    assert "capacity" in watched([old, *[new] * 9], clock, monkeypatch).refusal()


def test_a_cluster_without_an_autoscaler_is_not_asked(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaler, "look", lambda: pytest.fail("asked"))
    watch = demand._Watch(Cluster([Node(2, 0)]), Starting())
    clock[0] = 5.0
    watch.look()
    assert (watch.took, watch.refusal()) == (5.0, "")
    assert "free" in watch.progress()


def test_the_process_of_a_trial_that_gets_no_room_is_named_where_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        def wait(self, seconds: float) -> bool:
            return False

    monkeypatch.setattr(demand, "placement_group", lambda *_, **__: Group())
    monkeypatch.setattr(demand, "remove_placement_group", lambda group: None)
    monkeypatch.setattr(demand, "here", dict)
    monkeypatch.setattr(demand.ray, "available_resources", lambda: {"CPU": 0.5})
    with pytest.raises(FedRayError, match=r"did not have 1 x \(CPU 1, GPU 0\) free, it has \{'CPU': 0.5\}"):
        demand.bring_up([{"CPU": 1.0}], Cluster([Node(2, 0)], (G6,), "", patience=0.0))
