"""Whatever is lost or fails on Ray, the federation ends with the bits of one that was left alone."""

from __future__ import annotations

import functools
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from actors.federation import RayFederation
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import DataConfig, Execution, Experiment, override
from fedray.federate.failures import StageError
from fedray.federate.in_process import LocalFederation
from fedray.federate.messages import Failure
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from fedray.federate.rounds import Snapshot, TrainingError
from fedray.federate.storage import checkpoint
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.types import FedRayError, RunError
from tests.chaos.faults import always, fails_in, faulty, issue
from tests.helpers import differing, small_plan

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]
SETTINGS = {"rounds": 4, "clients_per_round": 6}
TWO = Execution(clients_per_actor=3, backend="loop")


def played(plan: Plan) -> Snapshot:
    with LocalFederation(plan, "loop") as federation:
        list(federation)
        return federation.snapshot()


@functools.cache
def undisturbed() -> Snapshot:
    return played(small_plan("pfedbayes", SETTINGS))


def ends_alike(
    federation: RayFederation, meddle: dict[int, str] | None = None, act=None, as_in: Snapshot | None = None
) -> list[Failure]:
    """Play to the end, acting after given rounds; the failures that were reported."""
    failures: list[Failure] = []
    with federation:
        for metrics in federation:
            failures += metrics.failures
            if metrics.round in (meddle or {}):
                act(meddle[metrics.round])
        assert [row["round"] for row in federation.history().rows] == [1, 2, 3, 4]
        assert differing(federation.snapshot(), as_in or undisturbed()) == []
    return failures


@pytest.mark.parametrize("kept", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_lost_server_is_rebuilt_from_the_last_checkpoint_or_the_start(kept: bool, tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path)) if kept else None
    federation = RayFederation(small_plan("pfedbayes", SETTINGS), TWO, store)
    # After the last round it is rebuilt for its snapshot.
    moments = {2: "", 4: ""} if kept else {2: ""}
    (failure,) = ends_alike(federation, moments, lambda _: os.kill(federation.server_pid(), signal.SIGKILL))
    assert (failure.who, failure.kind) == ("server", "lost")
    assert failure.action.startswith("rebuilt from round")
    assert (failure.action == "rebuilt from round 0") == (not kept)


def test_a_round_whose_reply_was_lost_with_the_server_is_played_again(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    found = []
    with RayFederation(small_plan("pfedbayes", SETTINGS), TWO, store) as federation:
        for metrics in federation:
            found.append(metrics.round)
            if metrics.round == 1:
                federation.history()  # the server has played on meanwhile, and kept a checkpoint of round 2
                assert checkpoint.rounds(store) == [1, 2]
                os.kill(federation.server_pid(), signal.SIGKILL)
                federation._ahead = None
        assert differing(federation.snapshot(), undisturbed()) == []
    assert found == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_resumed_federation_may_have_other_actors_or_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan, store = small_plan("pfedbayes", SETTINGS), CheckpointStore(str(tmp_path))
    with RayFederation(plan, Execution(clients_per_actor=1, backend="loop"), store) as first:
        rounds = iter(first)
        assert [next(rounds).round, next(rounds).round] == [1, 2]
    begun = checkpoint.newest(store, plan, pytest.fail)
    assert begun is not None
    assert begun.state.round in (2, 3)  # the server is ahead of who listens
    ends_alike(RayFederation(plan, TWO, store, begun))
    again = RayFederation(plan, TWO, None, begun)  # of which no round is kept
    ends_alike(again, {4: ""}, lambda _: os.kill(again.server_pid(), signal.SIGKILL))
    assert f"the federation is rebuilt from round {begun.state.round}\n" in capfd.readouterr().err
    with LocalFederation(plan, "vmap", begun=begun) as local:
        list(local)
    assert differing(local.snapshot(), undisturbed()) == []


@pytest.mark.slow
def test_clients_that_fail_or_hang_once_are_asked_again_in_a_new_process(tmp_path: Path) -> None:
    # Rounds take a tenth of a second: a machine under load gets time, too.
    patient = Execution(clients_per_actor=3, backend="loop", round_timeout=20.0)
    kinds = {1: "exception", 3: "nan", 5: "exit", 7: "hang"}
    rounds = {"rounds": 9}
    ill = faulty(small_plan("pfedbayes", SETTINGS | rounds), tmp_path)
    with LocalFederation(small_plan("pfedbayes", SETTINGS | rounds), "loop") as whole:
        list(whole)
    failures: list[Failure] = []
    with RayFederation(ill, patient) as federation:
        for metrics in federation:
            failures += metrics.failures
            if metrics.round in kinds:
                issue(tmp_path, kinds[metrics.round], metrics.round)
        assert differing(federation.snapshot(), whole.snapshot()) == []
    assert [(failure.kind, failure.action) for failure in failures] == [
        ("exception", "asked again"),
        ("not finite", "asked again"),
        ("lost", "replaced"),
        ("late", "replaced"),
    ]
    assert failures[0].traceback.startswith("Traceback")
    assert [failure.who.split()[0] for failure in failures] == ["client", "client", "actor", "actor"]


@pytest.mark.slow
def test_a_client_that_keeps_failing_stops_the_run_or_is_left_out() -> None:
    ill = always(plan(), len(plan().partition.train[2]), "exception")
    with (
        pytest.raises(TrainingError, match=r"^client 2, round 1, finish: RuntimeError: this client cannot"),
        RayFederation(ill, TWO) as federation,
    ):
        list(federation)
    ill = with_policy(ill, "skip")
    with RayFederation(ill, TWO) as federation, LocalFederation(ill, "loop") as expected:
        found = [metrics.participants for metrics in federation]
        list(expected)
        assert differing(federation.snapshot(), expected.snapshot()) == []
    assert found == [(0, 1, 3, 4, 5)] * 4


def test_what_an_algorithm_raises_in_an_evaluation_names_the_client_and_the_stage() -> None:
    ill = fails_in(plan(), "predict_personal")
    with (
        pytest.raises(StageError, match=r"^client [03], evaluate: RuntimeError: no luck\nTraceback"),
        RayFederation(ill, TWO) as federation,
    ):
        list(federation)


@pytest.mark.slow
def test_nothing_is_tried_again_where_the_policy_is_abort(tmp_path: Path) -> None:
    issue(tmp_path, "exit", 1)
    ill = with_policy(faulty(plan(), tmp_path), "abort")
    with pytest.raises(RunError, match="given up after round 0"), RayFederation(ill, TWO) as run:
        list(run)


@pytest.mark.slow
def test_many_kills_at_random_moments(tmp_path: Path) -> None:
    """Server and client actors in turn, while rounds are under way."""
    federation = RayFederation(plan(), TWO, CheckpointStore(str(tmp_path)))
    timers = []

    def strike(who: str) -> None:
        pid = federation.server_pid() if who == "server" else federation.client_pids()[int(who)]
        timers.append(threading.Timer(0.05 * len(timers), os.kill, (pid, signal.SIGKILL)))
        timers[-1].start()

    failures = ends_alike(federation, {1: "1", 2: "server", 3: "0"}, strike)
    assert len(failures) >= 1


@pytest.mark.slow
def test_particles_outlive_actors_that_die_while_clients_are_chosen(tmp_path: Path) -> None:
    """One is killed before the first round, which starts with the scores, and one each later, at whatever moment."""
    chosen = {"selection": "hip_two_phase", "algorithm.mode": "serial", "algorithm.particles": 3}
    serial = small_plan("dsvgd", SETTINGS | chosen | {"clients_per_round": 1})
    federation = RayFederation(serial, TWO, CheckpointStore(str(tmp_path)))
    os.kill(federation.client_pids()[1], signal.SIGKILL)

    def strike(who: str) -> None:
        os.kill(federation.client_pids()[int(who)], signal.SIGKILL)

    failures = ends_alike(federation, {1: "0", 2: "1"}, strike, played(serial))
    assert {failure.action for failure in failures} == {"replaced"}
    assert len(failures) >= 2


def with_policy(plan: Plan, on_failure: str) -> Plan:
    return plan._replace(cfg=override(plan.cfg, {"on_failure": on_failure}))


def plan() -> Plan:
    return small_plan("pfedbayes", SETTINGS)


def test_files_that_a_machine_lacks_are_named_and_not_looked_for_again(tmp_path: Path, capfd) -> None:
    np.savez(tmp_path / "mine.npz", x=np.random.default_rng(0).random((60, 4)), y=np.arange(60) % 3)
    data = DataConfig(name=str(tmp_path / "mine.npz"), partition="iid")
    plan = make_plan(Experiment(algorithm=FedAvg(), data=data, clients=6, rounds=2))
    (tmp_path / "mine.npz").unlink()
    with RayFederation(plan, TWO) as federation, pytest.raises(FedRayError, match=r"could not start: .*mine\.npz"):
        list(federation)
    assert "replaced" not in capfd.readouterr().err
