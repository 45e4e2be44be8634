"""A client that fails, in this process: who is named, who is left out, and what the others make of it."""

import pytest

from fedray.config import override
from fedray.federate.in_process import LocalFederation
from fedray.federate.rounds import TrainingError
from tests.chaos.faults import always
from tests.helpers import differing, small_plan

SETTINGS = {"rounds": 3, "clients_per_round": 6}
VICTIM = 2


def ill(kind):
    plan = small_plan("pfedbayes", SETTINGS)
    totals = [len(shard) for shard in plan.partition.train]
    assert totals.count(totals[VICTIM]) == 1
    return plan, always(plan, totals[VICTIM], kind)


def skipping(plan):
    return plan._replace(cfg=override(plan.cfg, {"on_failure": "skip"}))


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize(("kind", "reason"), [("exception", "RuntimeError: this client cannot"), ("nan", "not finite")])
def test_a_client_that_fails_stops_the_run_by_name(kind, reason, backend):
    _, plan = ill(kind)
    running = LocalFederation(plan, "loop" if kind == "exception" else backend)
    with pytest.raises(
        TrainingError, match=rf"^client {VICTIM}, round 1, finish: .*{reason}.*--on-failure skip"
    ) as caught:
        next(iter(running))
    assert ("Traceback" in str(caught.value)) == (kind == "exception")
    assert running.state.round == 0


@pytest.mark.parametrize("kind", ["exception", "nan"])
def test_a_client_that_fails_can_be_left_out(kind):
    whole, plan = ill(kind)
    running = LocalFederation(skipping(plan), "loop")
    found = list(running)
    for metrics in found:
        assert metrics.participants == tuple(i for i in range(6) if i != VICTIM)
        (failure,) = metrics.failures
        assert failure.who == f"client {VICTIM}"
        assert failure.action == "left out"
        assert metrics.personal is not None
        assert len(metrics.personal.examples) == 6  # it still evaluates what it has
    clients = running.snapshot().clients
    fresh = whole.algorithm.client_init(whole.cfg.algorithm, whole.model, whole.initial_server())
    assert differing([leaf[VICTIM] for leaf in clients.q], list(fresh.q)) == []
    assert [row["failures"] for row in running.history().rows] == [1.0, 1.0, 1.0]


def test_a_client_is_left_out_exactly_as_if_it_had_not_been_selected():
    _, plan = ill("nan")
    without = small_plan("pfedbayes", SETTINGS)
    chosen = tuple(i for i in range(6) if i != VICTIM)
    policy = without.selection._replace(select=lambda state, scores, clients, m, rng: (chosen, state))
    running, expected = LocalFederation(skipping(plan), "loop"), LocalFederation(without._replace(selection=policy))
    list(running), list(expected)
    assert differing(running.snapshot(), expected.snapshot()) == []


def test_a_round_without_any_client_stops_the_run():
    plan = small_plan("fedavg", {"algorithm.lr": 1e30, "clients_per_round": 6})
    with pytest.raises(TrainingError, match=r"^client 0, round 1"):
        list(LocalFederation(skipping(plan)))
