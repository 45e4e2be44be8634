"""When clients move, and when rather not: the decisions, with a cluster and a cohort that only exist here."""

import math
import time
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError

from actors import moves
from actors.crew import Recruit
from actors.machines import seats
from actors.machines.cluster import Machine
from actors.machines.placement import Layout, Node
from actors.machines.seats import LEAVE_SECONDS, Seat, doomed
from actors.machines.spread import even
from actors.moves import LeaveError, Mover
from actors.server import ServerActor
from fedray.federate.failures import ClientsLostError
from fedray.federate.storage.checkpoint import CheckpointStore
from tests.helpers import small_plan

FULL, FREE = Node(0.0, 0.0), Node(2.0, 0.0)
HEAD = Machine("head", FULL)


class Cohort:
    """Six clients on two actors of the machine ``a``; it notes what it is told."""

    def __init__(self):
        self.layout = Layout(even(6, 2), 1.0, 0.0)
        self.seats = [Seat("a", "first", 1), Seat("a", "first", 2)]
        self.invited, self.settled, self.failures = [], [], []

    def invite(self, seat, block):
        self.invited.append((seat.machine, block))
        return Recruit("actor", seat, block, "ready")

    def settle(self, kept, recruits):
        self.settled.append((tuple(kept), [recruit.seat.machine for recruit in recruits]))
        self.seats = [self.seats[slot] for slot in kept] + [recruit.seat for recruit in recruits]
        self.layout = self.layout._replace(blocks=even(6, len(self.seats)))

    def hosted(self, there):
        return {}

    def report(self, failure):
        self.failures.append(failure)


class Scene:
    """A mover that sees the machines of ``there``; recruits are ready, or not, or raise."""

    def __init__(self, monkeypatch, on_disk=False, most=6):
        self.there = {"a": Machine("a", FULL), "h": HEAD}
        self.ready, self.error, self.groups, self.refused = True, None, {"first": ["h", "a", "a"]}, False
        self.versions = {}  # by machine: why it cannot take part; None: it has not answered
        self.cohort = Cohort()
        context = SimpleNamespace(get_node_id=lambda: "h")
        monkeypatch.setattr(moves, "machines", lambda: self.there)
        monkeypatch.setattr(moves, "LOOK_SECONDS", 0.0)
        monkeypatch.setattr(moves.versions, "unfit", lambda node: self.versions.get(node, ""))
        monkeypatch.setattr(moves, "reserved", lambda g: [Seat(m, g, k) for k, m in enumerate(self.groups[g])])
        monkeypatch.setattr(moves, "placement_group", self.reserve)
        monkeypatch.setattr(moves, "added_name", lambda group: f"{group}+")
        monkeypatch.setattr(moves, "remove_placement_group", lambda group: self.groups.pop(group, None))
        monkeypatch.setattr(moves.ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(moves.ray, "wait", lambda refs, **_: (refs, []) if self.ready else ([], refs))
        monkeypatch.setattr(moves.ray, "get", self.get)
        monkeypatch.setattr(moves.ray, "kill", lambda actor: None)
        self.mover = Mover(self.cohort, "first", most, on_disk)  # type: ignore[arg-type]

    def reserve(self, bundles, strategy, name, bundle_label_selector):
        class Group(str):
            wait = lambda _, seconds: not self.refused  # noqa: E731

        group = Group(f"group {len(self.groups)}")
        self.groups[group] = [label["ray.io/node-id"] for label in bundle_label_selector]
        return group

    def get(self, refs):
        if self.error and refs:
            raise self.error

    def announce(self, name, seconds=math.inf):
        self.there[name] = self.there[name]._replace(stays=False, leaves=time.time() + seconds)


@pytest.fixture
def scene(monkeypatch):
    return Scene(monkeypatch)


def test_recruits_start_beside_the_rounds_and_take_over_when_they_are_ready(scene):
    assert scene.mover.follow(1) is None
    scene.there["b"] = Machine("b", FREE)
    scene.ready = False
    assert scene.mover.follow(2) is None
    assert scene.cohort.invited == [("b", (4,)), ("b", (5,))]
    assert scene.mover.follow(3) is None
    assert scene.cohort.settled == []
    scene.ready = True
    move = scene.mover.follow(4)
    assert (move.round, move.reason) == (4, "spread to b")
    assert scene.cohort.settled == [((0, 1), ["b", "b"])]
    assert len(scene.cohort.invited) == 2  # once


def test_nobody_waits_for_room_that_others_have(scene):
    scene.there["b"] = Machine("b", FREE)
    scene.refused = True
    assert scene.mover.follow(1) is None
    assert scene.cohort.invited == []
    assert set(scene.groups) == {"first"}  # nothing stays reserved, or in demand
    scene.refused = False
    assert scene.mover.follow(2) is not None


def test_a_machine_on_which_recruits_fail_is_left_alone(scene):
    scene.there["b"] = Machine("b", FREE)
    scene.error = ActorDiedError()
    assert scene.mover.follow(1) is None
    (failure,) = scene.cohort.failures
    assert (failure.who, failure.action) == ("new actors on b", "went on without them")
    assert set(scene.groups) == {"first"}
    scene.error = None
    assert scene.mover.follow(2) is None
    assert len(scene.cohort.invited) == 2
    scene.there["c"] = Machine("c", FREE)
    assert scene.mover.follow(3).reason == "spread to c"


def test_a_machine_from_which_there_is_no_sign_in_time_is_left_alone(scene, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(moves, "time", SimpleNamespace(monotonic=lambda: now, perf_counter=time.perf_counter))
    scene.there["b"], scene.ready = Machine("b", FREE), False
    assert scene.mover.follow(1) is None
    now += moves.START_SECONDS - 1
    assert scene.mover.follow(2) is None
    assert scene.cohort.failures == []
    now += 2
    assert scene.mover.follow(3) is None
    (failure,) = scene.cohort.failures
    assert (failure.who, failure.action) == ("new actors on b", "went on without them")
    assert failure.reason.startswith("no sign of them")
    assert set(scene.groups) == {"first"}
    scene.ready = True
    assert scene.mover.follow(4) is None
    assert len(scene.cohort.invited) == 2


def test_a_machine_of_other_versions_takes_nobody(scene):
    scene.there["b"] = Machine("b", FREE)
    scene.versions["b"] = None
    assert scene.mover.follow(1) is None
    assert (scene.cohort.invited, scene.cohort.failures) == ([], [])  # it has not answered yet
    scene.versions["b"] = "torch 2.13.0 there, 2.15.0 here"
    for number in (2, 3):
        assert scene.mover.follow(number) is None
    (failure,) = scene.cohort.failures
    assert (failure.round, failure.who, failure.reason) == (2, "b", "torch 2.13.0 there, 2.15.0 here")
    assert scene.cohort.invited == []
    scene.there["c"] = Machine("c", FREE)
    assert scene.mover.follow(4).reason == "spread to c"


def test_recruits_whose_machine_is_gone_again_are_forgotten(scene):
    scene.there["b"] = Machine("b", FREE)
    scene.ready = False
    scene.mover.follow(1)
    del scene.there["b"]
    scene.ready = True
    assert scene.mover.follow(2) is None
    assert scene.cohort.settled == []
    assert set(scene.groups) == {"first"}


def test_those_who_stay_take_over_from_those_who_go_and_free_what_these_had(scene):
    scene.there["b"] = Machine("b", FREE)
    scene.mover.follow(1)
    assert len(scene.groups) == 2
    scene.announce("b")
    assert scene.mover.follow(2).reason == "b announced the end"
    assert scene.cohort.settled[-1] == ((0, 1), [])
    assert set(scene.groups) == {"first"}


def test_recruits_that_are_not_ready_when_machines_announce_their_end_are_dismissed(scene):
    scene.there["b"] = Machine("b", FREE)
    scene.mover.follow(1)
    scene.there |= {"b": Machine("b", FULL), "c": Machine("c", FREE)}
    scene.ready = False
    assert scene.mover.follow(2) is None
    assert len(scene.groups) == 3
    scene.announce("b")
    assert scene.mover.follow(3).reason == "b announced the end"
    assert set(scene.groups) == {"first"}
    scene.ready = True
    assert scene.mover.follow(4).reason == "spread to c"
    assert scene.cohort.settled[-1] == ((0, 1), ["c", "c"])


def test_where_nobody_stays_recruits_come_wherever_there_is_room(scene):
    scene.announce("a")
    assert scene.mover.follow(1) is None  # no room: they go on while they can
    scene.there["b"] = Machine("b", Node(1.0, 0.0))
    assert scene.mover.follow(2).reason == "spread to b"
    assert scene.cohort.settled == [((), ["b"])]


def test_a_lost_machine_is_noticed_before_a_round(scene):
    del scene.there["a"]
    with pytest.raises(ClientsLostError):
        scene.mover.follow(1)


def test_the_server_goes_only_where_there_is_a_place_to_go_to(monkeypatch):
    scene = Scene(monkeypatch)
    scene.announce("h")
    with pytest.raises(LeaveError, match="head announced the end"):
        scene.mover.follow(1)
    scene.announce("a")
    assert scene.mover.follow(1) is None
    scene.there["b"] = Machine("b", FREE)
    with pytest.raises(LeaveError):
        scene.mover.follow(1)


@pytest.mark.parametrize(("played", "kept"), [(0, False), (1, True), (2, False), (3, False), (4, False)])
def test_what_leaves_keeps_a_checkpoint_of_a_round_that_another_run_can_go_on_from(played, kept, monkeypatch):
    """Every second round is kept anyway, and after the third newcomers adapt."""

    def follow(number):
        raise LeaveError("the head announced the end")

    plan = small_plan("fedper", {"rounds": 3, "novel_clients": 1, "adapt_rounds": 2})
    server, written = object.__new__(ServerActor), []
    server._mover, server._plan, server._cohort = SimpleNamespace(follow=follow), plan, None
    server._store, server._state = CheckpointStore("nowhere", every=2), SimpleNamespace(round=played)
    monkeypatch.setattr("actors.server.checkpoint.keep", lambda *args: written.append(args))
    with pytest.raises(ClientsLostError, match="announced the end"):
        server._follow()
    assert bool(written) == kept


def test_states_on_disk_stay_with_their_machine_while_it_does(monkeypatch):
    scene = Scene(monkeypatch, on_disk=True)
    scene.there["b"] = Machine("b", FREE)
    assert scene.mover.follow(1) is None
    assert scene.cohort.invited == []
    scene.announce("a")
    with pytest.raises(LeaveError, match="a announced the end"):
        scene.mover.follow(2)


def test_a_round_is_broken_off_only_if_its_machine_goes_before_it_may_end(monkeypatch):
    now = 1e9
    monkeypatch.setattr(seats, "time", SimpleNamespace(time=lambda: now))
    there = {"a": Machine("a", FULL), "b": Machine("b", FULL, False), "c": Machine("c", FULL, False, now + 999)}
    assert doomed("abc", there) == ""
    assert doomed("ax", there) == "a machine was lost"
    there["c"] = there["c"]._replace(leaves=now + LEAVE_SECONDS / 2)
    assert doomed("ab", there) == ""
    assert doomed("abc", there).startswith("c goes in 1")
