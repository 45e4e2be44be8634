"""Federations on real Ray actors: the same bits wherever the clients live, and whatever happens to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.cohort import RayCohort
from actors.crew import Crew
from actors.federation import RayFederation
from actors.hosted import Hosted
from actors.machines.placement import Layout
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.bayesian.pfedbayes import PFedBayes
from fedray.algorithms.particles.dsvgd import DSVGD
from fedray.arrays import trees
from fedray.config import Execution, Experiment
from fedray.federate.in_process import LocalFederation
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan
from fedray.federate.rounds import Snapshot, TrainingError, play_round, start
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.types import FedRayError
from tests.chaos.faults import faulty, issue

EXPONENTS = (-45, -45)  # units for the terms of pFedBayes, whose μ and ρ are far below 2^6

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


def small(**settings: object) -> Plan:
    """Two short rounds on digits; 7 of 10 clients train in each, so that idle ones are covered too."""
    defaults = {"rounds": 2, "local_steps": 3, "clients_per_round": 7, "batch_size": 32, "algorithm": PFedBayes()}
    return make_plan(Experiment(**(defaults | settings)))  # type: ignore[arg-type]


def played(federation: LocalFederation | RayFederation) -> tuple[Snapshot, list[float]]:
    with federation:
        rounds = list(federation)
        snapshot = federation.snapshot()
    return snapshot, [float(m.personal.nll.sum()) for m in rounds if m.personal is not None]


def assert_same(a: Snapshot, b: Snapshot) -> None:
    for (name, x), (_, y) in zip(trees.named_leaves(a), trees.named_leaves(b), strict=True):
        assert torch.equal(x, y), f"{name} differs by {(x - y).abs().max()}"


@pytest.fixture(scope="module")
def reference() -> tuple[Snapshot, list[float]]:
    return played(LocalFederation(small(), "loop"))


def test_stacked_in_process(reference: tuple[Snapshot, list[float]]) -> None:
    snapshot, nll = played(LocalFederation(small(), "vmap"))
    assert_same(snapshot, reference[0])
    assert nll == reference[1]


@pytest.mark.parametrize(
    ("clients_per_actor", "backend"),
    [pytest.param(10, "loop", marks=pytest.mark.slow), (5, "vmap"), pytest.param(1, "auto", marks=pytest.mark.slow)],
)
def test_on_1_2_and_10_actors(reference: tuple[Snapshot, list[float]], clients_per_actor: int, backend: str) -> None:
    execution = Execution(clients_per_actor=clients_per_actor, backend=backend)  # type: ignore[arg-type]
    federation = RayFederation(small(), execution)
    assert len(federation.layout.blocks) == 10 // clients_per_actor
    snapshot, nll = played(federation)
    assert_same(snapshot, reference[0])
    assert nll == reference[1]


PARTICLES = {
    "serial": {"algorithm": DSVGD(mode="serial", particles=3), "clients_per_round": 1, "selection": "hip", "rounds": 3},
    "parallel": {"algorithm": DSVGD(particles=3), "selection": "hip_two_phase"},
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", PARTICLES)
def test_particles_and_who_is_chosen_by_them_are_the_same_on_1_and_2_actors(mode: str) -> None:
    plan = small(**PARTICLES[mode])
    local = LocalFederation(plan, "loop")
    expected = list(local)
    for clients_per_actor in (10, 5):
        with RayFederation(plan, Execution(clients_per_actor=clients_per_actor, backend="vmap")) as federation:
            found = list(federation)
            assert_same(federation.snapshot(), local.snapshot())
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.participants, ours.selection) == (theirs.participants, theirs.selection)
            assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)
            assert ours.global_ is not None
            assert theirs.global_ is not None
            assert torch.equal(ours.global_.nll, theirs.global_.nll)


@pytest.mark.parametrize("on_disk", [False, True])
def test_an_actor_killed_in_mid_round_changes_nothing(on_disk: bool, tmp_path: Path) -> None:
    """An actor has five clients; it dies as it trains a sixth time, which is in the second round."""
    plan, tickets = small(rounds=3), tmp_path / "tickets"
    undisturbed, _ = played(LocalFederation(plan, "loop"))
    issue(tickets, "exit", 0)
    store = CheckpointStore(str(tmp_path / "kept"), states=str(tmp_path / "states") if on_disk else "")
    execution = Execution(clients_per_actor=5, backend="loop")
    with RayFederation(faulty(plan, tickets, spared=5), execution, store) as federation:
        before = federation.client_pids()
        rounds = list(federation)
        after = federation.client_pids()
        snapshot = federation.snapshot()
    assert len(set(before) & set(after)) == 1
    assert [(failure.round, failure.kind) for played in rounds for failure in played.failures] == [(2, "lost")]
    assert_same(snapshot, undisturbed)


@pytest.mark.slow
def test_an_actor_killed_before_its_first_round_and_between_rounds() -> None:
    plan = small(rounds=2)
    undisturbed, _ = played(LocalFederation(plan, "loop"))
    with RayFederation(plan, Execution(clients_per_actor=5)) as federation:
        os.kill(federation.client_pids()[0], signal.SIGKILL)
        rounds = iter(federation)
        next(rounds)
        os.kill(federation.client_pids()[1], signal.SIGKILL)
        assert next(rounds).round == 2
        snapshot = federation.snapshot()
    assert_same(snapshot, undisturbed)


@pytest.mark.slow
def test_the_loss_deviation_is_the_same_on_actors_even_where_one_dies() -> None:
    plan = small()
    with LocalFederation(plan, "loop") as alone:
        list(alone)
        expected = alone.class_losses()
    with RayFederation(plan, Execution(clients_per_actor=5, backend="vmap")) as federation:
        list(federation)
        os.kill(federation.client_pids()[0], signal.SIGKILL)
        found = federation.class_losses()
    for (name, x), (_, y) in zip(trees.named_leaves(expected), trees.named_leaves(found), strict=True):
        assert torch.equal(x, y), name


@pytest.mark.slow
def test_the_uncertainty_report_is_the_same_on_actors_even_where_one_dies() -> None:
    plan = small()
    far = torch.rand(20, *plan.model.input_shape)
    with LocalFederation(plan, "loop") as alone:
        list(alone)
        expected = alone.uncertainty(far)
    with RayFederation(plan, Execution(clients_per_actor=5, backend="vmap")) as federation:
        list(federation)
        os.kill(federation.client_pids()[0], signal.SIGKILL)
        found = federation.uncertainty(far)
    assert found.ids == expected.ids == tuple(range(10))
    for (name, x), (_, y) in zip(trees.named_leaves(expected[1:]), trees.named_leaves(found[1:]), strict=True):
        assert torch.equal(x.nan_to_num(-1), y.nan_to_num(-1)), name


@pytest.mark.slow
def test_an_upload_with_infinities_names_the_client_and_leaves_no_actor() -> None:
    plan = make_plan(Experiment(algorithm=PFedBayes(lr_global=1e38), rounds=2, local_steps=3))
    federation = RayFederation(plan, Execution(clients_per_actor=5))
    pids = federation.client_pids()
    with pytest.raises(TrainingError, match=r"client 0, round 1, finish: its upload 'mu' is not finite"), federation:
        list(federation)
    assert_gone(pids)


def test_who_raises_in_an_evaluation_is_asked_again(reference: tuple[Snapshot, list[float]], tmp_path: Path) -> None:
    plan, raised = small(), tmp_path / "raised"
    predict = plan.algorithm.predict_personal
    assert predict is not None

    def once(*args: Any) -> torch.Tensor:
        if not raised.exists():
            raised.touch()
            raise RuntimeError("a passing trouble")
        return predict(*args)

    flaky = plan._replace(algorithm=plan.algorithm._replace(predict_personal=once))
    with RayFederation(flaky, Execution(clients_per_actor=10)) as federation:
        rounds = list(federation)
        assert_same(federation.snapshot(), reference[0])
    assert [float(m.personal.nll.sum()) for m in rounds if m.personal is not None] == reference[1]
    (failure,) = [failure for each in rounds for failure in each.failures]
    assert (failure.stage, failure.action) == ("evaluate", "asked again")
    assert "a passing trouble" in failure.reason


def test_what_leaves_an_actor() -> None:
    """No reply of any method holds a tensor of the shape of a client's examples."""
    from actors.client import ClientActor

    plan = small()
    actor = ClientActor(plan, [0, 1], "loop")
    down = trees.to_numpy(plan.initial_server())
    replies = [actor.train(1, [0, 1], down, EXPONENTS, []), actor.evaluate(1, down, True), actor.snapshot()]
    pixels = 64
    assert all(pixels not in getattr(leaf, "shape", ()) for leaf in trees.leaves(replies))


def test_train_is_idempotent_and_copies_what_it_receives() -> None:
    from actors.client import ClientActor

    plan = small()
    actor = ClientActor(plan, [0, 1], "loop")
    down = trees.to_numpy(plan.initial_server())
    before = [leaf.copy() for leaf in trees.leaves(down)]
    (first, _), (again, committed) = (actor.train(1, [0, 1], down, units, [0, 1]) for units in ((), EXPONENTS))
    assert all((x == y).all() for x, y in zip(first.largest, again.largest, strict=True))
    assert first.sums is None
    assert all((x == y).all() for x, y in zip(before, trees.leaves(down), strict=True))
    # A successor that starts from the committed state goes on as the actor itself would.
    successor = ClientActor(plan, [0, 1], "loop", None, "", committed)
    (theirs, _), (ours, _) = (a.train(2, [0, 1], down, EXPONENTS, []) for a in (actor, successor))
    for x, y, before in zip(*(trees.leaves(reply.sums) for reply in (theirs, ours, again)), strict=True):
        assert (x == y).all()
        assert (x != before).any()


def test_a_successor_trains_again_before_it_adds() -> None:
    """An actor may die before its sums are asked for in another unit; what it had trained is not committed then."""
    from actors.client import ClientActor

    plan = small()
    down = trees.to_numpy(plan.initial_server())
    actor, successor = (ClientActor(plan, [0, 1], "loop") for _ in range(2))
    actor.train(1, [0, 1], down, (), [])
    theirs, ours = (a.add(1, [0, 1], down, [1], EXPONENTS) for a in (actor, successor))
    for x, y in zip(trees.leaves(theirs), trees.leaves(ours), strict=True):
        assert (x == y).all()


@pytest.mark.parametrize("expected", [True, False])
def test_an_actor_that_dies_before_its_sums_are_taken_trains_again_if_they_are_asked_for(
    expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the unit that was expected they came with its reply: then it is not asked again."""
    asked = []
    ask = Crew.ask

    def noted(crew, question):
        asked.extend((question.round_number, question.stage) for _ in question.args)
        return ask(crew, question)

    class Dying(RayCohort):
        def add(self, round_number, ids, exponents):
            os.kill(self.pids()[1], signal.SIGKILL)
            self._units = self._units if expected else ()
            return super().add(round_number, ids, exponents)

    monkeypatch.setattr(Crew, "ask", noted)
    plan = small(rounds=3, clients_per_round=10)
    undisturbed, _ = played(LocalFederation(plan, "loop"))
    cohort = Dying(Hosted(plan, Layout((range(5), range(5, 10)), 0.5, 0), "loop"))
    state = start(plan)
    for _ in range(3):
        state, metrics = play_round(plan, state, cohort)
    assert_same(Snapshot(state.server, cohort.snapshot()), undisturbed)
    cohort.close()
    assert metrics.participants == tuple(range(10))
    assert (3, "train") in asked
    assert ((3, "add") in asked) == (not expected)


def test_newcomers_adapt_as_they_do_in_process() -> None:
    plan = small(clients_per_round=6, novel_clients=3, adapt_rounds=2)
    local = LocalFederation(plan, "loop")
    expected = list(local)
    with RayFederation(plan, Execution(clients_per_actor=5)) as federation:
        found = list(federation)
        snapshot = federation.snapshot()
    assert_same(snapshot, local.snapshot())
    assert [m.novel is not None for m in found] == [False, False, True, True]
    assert ["start" in m.seconds for m in found] == [True, False, False, False]  # of the actors, apart from the round
    for ours, theirs in zip(found[2:], expected[2:], strict=True):
        assert ours.novel is not None
        assert theirs.novel is not None
        assert torch.equal(ours.novel.nll, theirs.novel.nll)


@pytest.mark.slow
def test_methods_without_private_state_run_too() -> None:
    plan = make_plan(Experiment(algorithm=FedAvg(lr=0.1), rounds=2, local_steps=3))
    snapshot, nll = played(RayFederation(plan, Execution(clients_per_actor=5)))
    assert nll == []
    assert_same(snapshot, played(LocalFederation(plan, "loop"))[0])


@pytest.mark.parametrize("module", ["actors.federation", "tune.sweep"])
def test_workers_do_not_build_an_environment_of_their_own_under_uv(module: str) -> None:
    """Ray reads the switch while it is imported, so it must be set before."""
    code = f"import {module}; from ray._private import ray_constants as c; print(c.RAY_ENABLE_UV_RUN_RUNTIME_ENV)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert found.stdout.split() == ["False"], found.stderr


@pytest.mark.parametrize("noted", [False, True])
def test_only_a_cluster_of_ray_start_is_joined_unasked(noted: bool) -> None:
    """A private cluster ends with the run that started it, and would take guests with it."""
    import ray

    code = "from actors.machines.cluster import connect; print('own' if connect(None) else 'joined')"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's are too long for Ray's sockets
        (Path(folder) / "ray").mkdir()
        if noted:
            (Path(folder) / "ray/ray_current_cluster").write_text(ray.get_runtime_context().gcs_address)
        # Ray sets the mode in this process as it starts a cluster; a user's shell has none, and a token by then.
        own = ("RAY_ADDRESS", "RAY_AUTH_MODE")
        environment = {name: value for name, value in os.environ.items() if name not in own}
        environment["RAY_TMPDIR"] = folder
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert found.stdout.split() == ["joined" if noted else "own"], found.stderr


def test_gpus_that_are_not_there_are_refused_before_any_actor() -> None:
    import ray

    before = ray.available_resources().get("CPU")
    with pytest.raises(FedRayError, match="has 0 GPU"):
        RayFederation(small(), Execution(gpus_per_client=0.5))
    assert ray.available_resources().get("CPU") == before


def assert_gone(pids: list[int]) -> None:
    deadline = time.time() + 30
    while time.time() < deadline and any(os.path.exists(f"/proc/{pid}") for pid in pids):
        time.sleep(0.1)
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
