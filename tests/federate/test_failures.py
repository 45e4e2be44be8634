"""A client that fails, in this process: who is named, who is left out, and what the others make of it."""

import pickle
import time

import pytest

from fedray.config import fingerprint, override
from fedray.federate.failures import ATTEMPTS, FailurePolicy, StageError, failure_policy
from fedray.federate.in_process import LocalCohort, LocalFederation
from fedray.federate.rounds import TrainingError, play_round, start
from fedray.types import RunError
from tests.chaos.faults import always, fails_in
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
        TrainingError, match=rf"^client {VICTIM}, round 1, finish: .*{reason}.*`on_failure=skip`"
    ) as caught:
        next(iter(running))
    assert ("Traceback" in str(caught.value)) == (kind == "exception")
    assert running.state.round == 0


@pytest.mark.parametrize("kind", ["exception", "nan", "nan state"])
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
    fresh = whole.algorithm.client_init(whole.context, whole.initial_server())
    assert differing([leaf[VICTIM] for leaf in clients.q], list(fresh.q)) == []
    assert [row["failures"] for row in running.history().rows] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_client_that_diverges_and_sends_nothing_is_noticed(backend):
    """A control has no upload, and a newcomer's is of the parts that it does not train."""
    plan = small_plan("local", SETTINGS | {"algorithm.lr": 1e30})
    with pytest.raises(TrainingError, match=r"^client 0, round 1, finish: its private state 'theta' is not finite"):
        list(LocalFederation(plan, backend))


def test_a_client_is_left_out_exactly_as_if_it_had_not_been_selected():
    _, plan = ill("nan")
    without = small_plan("pfedbayes", SETTINGS | {"clients_per_round": 5})
    chosen = tuple(i for i in range(6) if i != VICTIM)
    policy = without.selection._replace(select=lambda state, scores, clients, m, rng: (chosen, state))
    running, expected = LocalFederation(skipping(plan), "loop"), LocalFederation(without._replace(selection=policy))
    list(running), list(expected)
    assert differing(running.snapshot(), expected.snapshot()) == []


def test_a_round_without_any_client_stops_the_run():
    plan = small_plan("fedavg", {"algorithm.lr": 1e30, "clients_per_round": 6})
    with pytest.raises(TrainingError, match=r"^client 0, round 1.*no selected client is left in this round") as caught:
        list(LocalFederation(skipping(plan)))
    assert "on_failure=skip" not in str(caught.value)  # that is what it did
    assert "lower the learning rates" in str(caught.value)


def test_the_policy_is_read_from_the_settings_once():
    def policy(on_failure):
        return failure_policy(override(small_plan().cfg, {"on_failure": on_failure}), 5.0)

    assert policy("retry") == FailurePolicy(ATTEMPTS, skip=False, timeout=5.0)
    assert policy("skip") == FailurePolicy(ATTEMPTS, skip=True, timeout=5.0)
    assert policy("abort") == FailurePolicy(1, skip=False, timeout=5.0)


def test_an_experiment_that_leaves_clients_out_is_another_one():
    cfg = small_plan().cfg
    found = {name: fingerprint(override(cfg, {"on_failure": name})) for name in ("retry", "abort", "skip")}
    assert found["retry"] == found["abort"] != found["skip"]


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("name", ["begin", "step", "finish"])
def test_a_failure_of_a_client_names_the_stage(name, backend):
    plan = fails_in(small_plan("pfedbayes", SETTINGS), name)
    with pytest.raises(TrainingError, match=rf"^client 0, round 1, {name}: RuntimeError: no luck") as caught:
        next(iter(LocalFederation(plan, backend)))
    assert "learning rates" not in str(caught.value)  # they are no reason for an exception


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("broadcast", "server, round 1, broadcast"),
        ("absorb", "server, round 1, absorb"),
        ("predict_personal", "client 0, round 0, evaluate"),
        ("personalize", "client 0, round 0, evaluate"),
    ],
)
def test_what_fails_outside_of_training_names_its_stage_too(name, where):
    where = where.replace(", round 0", "")  # the evaluation before the first round
    plan = fails_in(small_plan("pfedbayes", SETTINGS), name)
    if name == "broadcast":  # it also makes the view that evaluations get, unless there is a function for that
        view = small_plan("pfedbayes", SETTINGS).algorithm.broadcast
        publish = plan.algorithm.publish or (lambda ctx, server: view(ctx, server, range(6)))
        plan = plan._replace(algorithm=plan.algorithm._replace(publish=publish))
    with pytest.raises(StageError, match=rf"^{where}: RuntimeError: no luck\nTraceback") as caught:
        next(iter(LocalFederation(plan)))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.failure) == (str(caught.value), caught.value.failure)


def test_an_upload_that_is_not_finite_was_made_by_finish():
    _, plan = ill("nan")
    (failure,) = next(iter(LocalFederation(skipping(plan)))).failures
    assert (failure.who, failure.stage, failure.kind) == (f"client {VICTIM}", "finish", "not finite")


class Starting(LocalCohort):
    """Clients that take a while to come up."""

    waited = False

    def wait_until_ready(self):
        if self.waited:
            return False
        self.waited = True
        time.sleep(0.3)
        return True


def test_the_start_of_the_clients_is_measured_apart_from_the_first_round():
    plan = small_plan("fedavg", {"rounds": 2})
    cohort = Starting(plan)
    state, first = play_round(plan, start(plan), cohort)
    state, second = play_round(plan, state, cohort)
    assert first.seconds["start"] >= 0.3
    assert "start" not in second.seconds
    parts = sum(first.seconds[name] for name in ("train", "aggregate", "evaluate"))
    assert first.seconds["round"] == pytest.approx(parts)
    assert state.rows[0]["time/start_seconds"] == first.seconds["start"]


def test_what_is_no_log_p_is_refused_with_the_name_of_the_function():
    def logits(ctx, view, x, noise):
        return ctx.model.apply(view.theta, x)[None]

    plan = small_plan("fedavg")
    record = plan.algorithm._replace(predict_global=logits)
    with pytest.raises(RunError, match=r"predict_global: its probabilities add up to .*, not 1; return log p"):
        list(LocalFederation(plan._replace(algorithm=record)))


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ((0, 1, 2, 3), r"it chose \[0, 1, 2, 3\]; return 3 different clients of 0 to 5, in ascending order"),
        ((0, 1), r"it chose \[0, 1\]"),
        ((2, 1, 0), r"it chose \[2, 1, 0\]"),
        ((0, 0, 1), r"it chose \[0, 0, 1\]"),
        ((4, 5, 6), r"it chose \[4, 5, 6\]"),
        (None, "select: TypeError"),
    ],
)
def test_a_choice_of_clients_that_no_round_can_have_names_the_policy(chosen, reason):
    plan = small_plan("fedavg", {"clients_per_round": 3})
    policy = plan.selection._replace(select=lambda state, scores, clients, m, rng: (chosen, state))
    with pytest.raises(RunError, match=rf"policy uniform, round 1.*{reason}"):
        list(LocalFederation(plan._replace(selection=policy)))
