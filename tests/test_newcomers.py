"""Clients that are held out: the federation never sees them, and afterwards they adapt and nothing else changes."""

import itertools

import pytest
import torch

from fedray import registry
from fedray.arrays import trees
from fedray.federate import report
from fedray.federate.in_process import LocalFederation
from fedray.federate.storage import checkpoint
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.types import FedRayError, Selection
from tests.helpers import block, differing, small_plan

pytestmark = pytest.mark.usefixtures("unpainted")
ABLE = [name for name, record in registry.algorithms().items() if record.adapt is not None]
HELD = {"clients_per_round": 3, "novel_clients": 2, "adapt_rounds": 3}
able = pytest.mark.parametrize("name", ABLE)
trainable = pytest.mark.parametrize("name", [name for name in ABLE if name != "pfedgp"])  # which only computes


def whole(name, backend="loop", **settings):
    federation = LocalFederation(small_plan(name, HELD | settings), backend)
    return federation, list(federation)


def numbers(rows):
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


@able
def test_a_loop_and_a_stack_adapt_alike(name):
    (loop, first), (stack, second) = whole(name), whole(name, "vmap")
    assert differing(loop.snapshot(), stack.snapshot()) == []
    assert [differing(a.novel, b.novel) for a, b in zip(first[2:], second[2:], strict=True)] == [[]] * 3


@trainable
def test_adaptation_changes_the_newcomers_alone(name):
    plan = small_plan(name, HELD)
    federation = LocalFederation(plan, "loop")
    rounds = iter(federation)
    next(rounds), next(rounds)
    before = trees.tree_map(torch.clone, federation.snapshot())
    members, novel = list(plan.members), list(plan.novel)
    fresh = block(plan).states
    assert differing(trees.rows(before.clients, novel), trees.rows(fresh, novel)) == []  # never touched
    assert differing(trees.rows(before.clients, members), trees.rows(fresh, members))
    later = list(rounds)
    after = federation.snapshot()
    assert differing(after.server, before.server) == []
    assert differing(trees.rows(after.clients, members), trees.rows(before.clients, members)) == []
    assert all(differing(trees.row(after.clients, i), trees.row(before.clients, i)) for i in novel)
    for metrics in later:
        assert metrics.participants == (4, 5)
        assert metrics.bytes_up == 0
        assert metrics.personal is None
        assert metrics.novel.examples.shape == (2,)


@able
def test_nobody_learns_from_a_newcomer(name):
    plan = small_plan(name, HELD)
    down = plan.algorithm.broadcast(plan.context, plan.initial_server(), (4, 5))
    assert block(plan).train(3, (4, 5), down).up is None


def test_only_members_are_selected_and_evaluated():
    _, rounds = whole("fedper", rounds=6)
    assert {i for metrics in rounds[:6] for i in metrics.participants} == {0, 1, 2, 3}
    assert all(metrics.personal.examples.shape == (4,) for metrics in rounds[:6])
    assert all(metrics.novel is None for metrics in rounds[:6])


@trainable
def test_newcomers_learn(name):
    """Their models are better than before they adapted and, where there is one, than the global model."""
    weak = {"algorithm.zeta": 0.1} if name == "pfedbayes" else {}  # else its prior outweighs shards this small
    federation = LocalFederation(small_plan(name, HELD | weak | {"rounds": 6, "adapt_rounds": 8, "local_steps": 10}))
    rounds = list(itertools.islice(federation, 6))
    (before,) = federation.cohort.evaluate(7, federation.plan.view(federation.state.server), False)
    rounds += list(federation)
    (last,) = federation.cohort.evaluate(14, federation.plan.view(federation.state.server), False)
    assert torch.equal(last.personal.nll, rounds[-1].novel.nll)
    if last.global_ is not None:
        assert (last.personal.nll < last.global_.nll).all()
        return
    assert last.personal.nll.sum() < 0.99 * before.personal.nll.sum()


@able
def test_what_is_interrupted_in_adaptation_plays_the_last_evaluation_of_the_others_again(name, tmp_path):
    """The result needs it: that is why there are no later checkpoints."""
    plan, store = small_plan(name, HELD), CheckpointStore(str(tmp_path))
    expected, _ = whole(name)
    first = iter(LocalFederation(plan, "loop", store=store))
    assert [next(first).round for _ in range(4)] == [1, 2, 3, 4]
    begun = checkpoint.newest(store, plan, pytest.fail)
    assert begun.state.round == 1
    with LocalFederation(plan, "loop", begun=begun) as second:
        played = list(second)
    assert [metrics.round for metrics in played] == [2, 3, 4, 5]
    assert played[0].personal is not None
    assert differing(second.snapshot(), expected.snapshot()) == []
    assert numbers(second.history().rows) == numbers(expected.history().rows)


def test_the_result_reports_them_apart():
    federation, rounds = whole("bpfed")
    rows = federation.history().rows
    summary = report.summarize(federation.plan, rows, None)
    assert summary["novel"]["accuracy"] == rows[-1]["novel/accuracy"]
    assert summary["personal"]["accuracy"] == rows[1]["personal/accuracy"]
    assert summary["rounds"] == 2
    dealt = federation.plan.partition
    members, novel = ([sum(len(part[i]) for i in some) for part in dealt[:2]] for some in (range(4), (4, 5)))
    assert [summary["protocol"][f"{kind}_examples"] for kind in ("train", "test")] == members
    assert f"with {novel[0]} training and {novel[1]} test examples" in summary["protocol"]["novel"]
    evaluated = report.with_newcomers(rounds[1], rounds[-1], federation.plan)
    table = list(report.client_rows(evaluated, federation.plan))
    assert [row["personal_accuracy"] != "" for row in table] == [True] * 4 + [False] * 2
    assert [row["novel_accuracy"] != "" for row in table] == [False] * 4 + [True] * 2
    bins = list(report.client_calibration_rows(evaluated, federation.plan))
    assert {row["client"] for row in bins if row["model"] == "novel"} == {4, 5}
    assert {row["client"] for row in bins if row["model"] == "personal"} == {0, 1, 2, 3}


def test_a_policy_with_a_state_for_each_client_goes_on_beside_newcomers(tmp_path):
    """The newcomers are none of those whom it selects."""

    def select(state, scores, clients, m, rng):
        return tuple(range(m)), state + 1

    plan, store = small_plan("fedper", HELD | {"rounds": 4}), CheckpointStore(str(tmp_path))
    plan = plan._replace(selection=Selection("the first", None, torch.zeros, select))
    federation = iter(LocalFederation(plan, "loop", store=store))
    next(federation), next(federation)
    begun = checkpoint.newest(store, plan, pytest.fail)
    assert begun.state.selection.tolist() == [2.0] * 4


REFUSED = [
    ("fedavg", {"novel_clients": 1}, "novel_clients 1: fedavg has no personal factors"),
    ("fedper", {"novel_clients": 6}, "novel_clients 6: it leaves none of 6 clients"),
    ("fedper", {"novel_clients": 3}, "clients_per_round 4: a round needs between 1 and all 3 clients"),
    ("fedper", {"novel_clients": -1}, "novel_clients -1: a number of clients"),
    ("fedper", {"novel_clients": 1, "adapt_rounds": 0}, "adapt_rounds 0: newcomers take a round or more"),
]


@pytest.mark.parametrize(("name", "settings", "words"), REFUSED)
def test_what_cannot_be_held_out_is_refused(name, settings, words):
    with pytest.raises(FedRayError, match=words):
        small_plan(name, settings)
