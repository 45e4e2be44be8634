"""Rounds: who trains, what is refused, what is counted, when is evaluated, and that something is learned."""

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fedray import registry
from fedray.arrays import trees
from fedray.bayes.gaussian import Gaussian
from fedray.config import DataConfig, Experiment, override
from fedray.federate import evaluation
from fedray.federate.failures import FailurePolicy
from fedray.federate.in_process import LocalCohort, LocalFederation
from fedray.federate.measures import metrics
from fedray.federate.messages import Failure, TrainReply
from fedray.federate.planning import make_plan
from fedray.federate.rounds import TrainingError, play_round, start
from fedray.federate.uploads import payload_bytes, sound
from fedray.types import FedRayError, Selection, Stage
from tests.helpers import ALGORITHMS, aggregated, block, built, differing, small_plan


class Packed(LocalCohort):
    """The same clients in two blocks, as two actors would host them."""

    def __init__(self, plan):
        self.blocks = [block(plan, ids, gather=False) for ids in ((0, 1, 2), (3, 4, 5))]

    def train(self, round_number, ids, down):
        replies = []
        for host in self.blocks:
            mine = [i for i in ids if i in host.ids]
            rows = trees.rows(down, [ids.index(i) for i in mine]) if host.plan.algorithm.down_per_client else down
            replies += [host.train(round_number, mine, rows)] if mine else []
        return replies

    def add(self, round_number, ids, exponents):
        return [host.add(ids, exponents) for host in self.blocks]

    def evaluate(self, round_number, view, spotlight):
        return [evaluation.evaluate(host, round_number, view, spotlight) for host in self.blocks]

    def probe(self, score, number, view, message):
        return itertools.chain.from_iterable(host.probe(score, number, view, message) for host in self.blocks)

    def snapshot(self):
        return trees.concatenate([host.states for host in self.blocks])


def rounds(plan, cohort):
    state, found = start(plan), []
    while state.round < plan.cfg.rounds:
        state, result = play_round(plan, state, cohort)
        found.append(result)
    return state, found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_federation_does_not_depend_on_where_its_clients_live(name):
    plan = small_plan(name)
    one, two = LocalCohort(plan, "vmap"), Packed(plan)
    (state, first), (other, second) = rounds(plan, one), rounds(plan, two)
    assert differing(state.server, other.server) == []
    assert differing(one.snapshot(), two.snapshot()) == []
    for a, b in zip(first, second, strict=True):
        a, b = (r._replace(seconds={}, spotlights=()) for r in (a, b))
        assert (a.participants, a.train, a.bytes_up, a.bytes_down) == (
            b.participants,
            b.train,
            b.bytes_up,
            b.bytes_down,
        )
        assert differing((a.personal, a.global_), (b.personal, b.global_)) == []
    for a, b in zip(first[-1].spotlights, second[-1].spotlights, strict=True):
        assert differing(tuple(a)[2:], tuple(b)[2:]) == []
        assert (a.round, a.ids) == (b.round, b.ids) == (2, tuple(range(6)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_learns_within_six_rounds(name):
    experiment = Experiment(algorithm=registry.algorithms()[name].config(), rounds=6)
    if name == "pfedgp":  # whose cost grows with the cube of its points
        experiment = override(experiment, {"algorithm.points": 64, "algorithm.chains": 3})
    plan = make_plan(experiment)
    found = list(LocalFederation(plan))
    assert [r.round for r in found] == [1, 2, 3, 4, 5, 6]
    for kind, chance in (("personal", 0.2), ("global_", 0.1)):
        if getattr(found[-1], kind) is not None:
            accuracy = [metrics.summarize(metrics.pooled(getattr(r, kind))).accuracy for r in found]
            assert accuracy[-1] > chance + 0.2, f"{kind}: {accuracy}"
            assert accuracy[-1] > accuracy[0]
    assert found[-1].train["nll_last"] < found[0].train["nll_first"]


@pytest.mark.parametrize(("bad", "client"), [(math.nan, 2), (math.inf, 2), (-math.inf, 5)])
@pytest.mark.parametrize("field", ["mu", "rho"])
def test_an_upload_that_is_not_finite_is_refused_by_name(bad, client, field):
    up = Gaussian(torch.zeros(3, 64), torch.zeros(3, 64))
    reply = TrainReply(7, (0, 2, 5), up, torch.ones(3), torch.zeros(3))
    assert sound(reply) is reply
    getattr(up, field)[reply.ids.index(client), 63] = bad
    left = sound(reply)
    assert left.ids == tuple(i for i in (0, 2, 5) if i != client)
    assert len(left.up.mu) == len(left.up.rho) == len(left.examples) == 2
    (failure,) = left.failures
    assert failure[:4] == (7, f"client {client}", "not finite", f"its upload {field!r} is not finite")


def test_a_run_stops_at_an_upload_that_is_not_finite_before_it_is_averaged():
    plan = small_plan("fedavg", {"algorithm.lr": 1e30, "clients_per_round": 6})
    running = LocalFederation(plan)
    with pytest.raises(TrainingError, match=r"^client 0, round 1, finish: its upload 'theta'"):
        next(iter(running))
    assert running.state.round == 0


@pytest.mark.parametrize(("name", "size"), [("fedavg", 318_040), ("fedprox", 318_040), ("pfedbayes", 636_080)])
def test_messages_have_the_papers_size(name, size):
    plan = small_plan(name)._replace(model=built("mlp", (1, 28, 28), 10, hidden=(100,)))
    server = plan.initial_server()
    down = plan.algorithm.broadcast(plan.context, server, (0, 1, 2))
    assert payload_bytes(down, plan) == size
    assert payload_bytes(trees.stack([server] * 3), plan) == 3 * size
    assert payload_bytes((torch.zeros(3), torch.zeros(3, dtype=torch.float64), torch.zeros(())), plan) == 12 + 24 + 4


@pytest.mark.parametrize("per_client", [False, True])
def test_a_round_counts_what_it_sent(per_client):
    plan = small_plan()
    if per_client:
        record = plan.algorithm._replace(
            down_per_client=True,
            broadcast=lambda ctx, server, ids: trees.stack([server] * len(ids)),
            publish=lambda ctx, server: server,
        )
        plan = plan._replace(algorithm=record)
    result = next(iter(LocalFederation(plan)))
    assert result.bytes_up == result.bytes_down == 4 * 610 * 4
    assert len(result.participants) == 4


ALL = {"train_all": True}


@pytest.mark.parametrize("where", [LocalCohort, lambda plan: Packed(plan)], ids=["one", "packed"])
def test_all_may_train_where_only_the_selected_are_averaged(where):
    plan = small_plan("pfedme", ALL)
    cohort, host, server = where(plan), block(plan), plan.initial_server()
    state, (first, second) = rounds(plan, cohort)
    for number, found in ((1, first), (2, second)):
        reply = host.train(number, range(6), server)
        rows = list(found.participants)
        server = aggregated(
            plan.algorithm, plan.context, server, rows, trees.rows(reply.up, rows), reply.examples[rows]
        )
        assert len(rows) == 4
        assert (found.bytes_up, found.bytes_down) == (4 * 610 * 4, 6 * 610 * 4)
        assert found.train["nll"] == pytest.approx(float(reply.info.nll.double().mean()))
    assert first.participants != second.participants
    assert differing(state.server, server) == []
    assert differing(cohort.snapshot(), host.states) == []
    usual = small_plan("pfedme")
    other = where(usual)
    assert [r.participants for r in rounds(usual, other)[1]] == [first.participants, second.participants]
    assert differing(other.snapshot(), cohort.snapshot())


def test_training_all_changes_nothing_where_clients_keep_nothing():
    states = [rounds(plan, LocalCohort(plan))[0].server for plan in (small_plan(), small_plan("fedavg", ALL))]
    assert differing(*states) == []


@pytest.mark.parametrize("per_client", [False, True])
def test_those_who_train_get_their_own_rows_of_what_is_sent(per_client):
    """A server that sends client i the number i: only the selected one's comes back into the average."""

    def broadcast(ctx, server, ids):
        return trees.stack([server._replace(theta=server.theta * 0 + i) for i in ids]) if per_client else server

    plan = small_plan("fedavg", ALL | {"clients_per_round": 1})
    record = plan.algorithm._replace(
        down_per_client=per_client, broadcast=broadcast, publish=lambda ctx, server: server,
        step=lambda ctx, local, batch, noise: (local, (local.theta[0],)),
    )  # fmt: skip
    running = LocalFederation(plan._replace(algorithm=record), "loop")
    result = next(iter(running))
    (chosen,) = result.participants
    expected = torch.full_like(plan.initial_server().theta, chosen) if per_client else plan.initial_server().theta
    assert torch.equal(running.state.server.theta, expected)
    assert result.bytes_down == 6 * 610 * 4


def test_a_client_that_fails_is_left_out_whether_it_was_selected_or_not():
    plan = small_plan("pfedme", ALL)

    class Failing(Packed):
        def __init__(self, plan, lost):
            super().__init__(plan)
            self.lost = lost

        def train(self, round_number, ids, down):
            good = [i for i in ids if i not in self.lost]
            found = super().train(round_number, good, down)
            return [*found, found[0]._replace(ids=(), up=None, examples=None, info=None, failures=tuple(
                Failure(round_number, f"client {i}", "exception", "no luck") for i in self.lost))]  # fmt: skip

    _, usual = play_round(plan, start(plan), Packed(plan))
    others = sorted(set(range(6)) - set(usual.participants))
    for lost, left in ((others, usual.participants), (usual.participants[:1], usual.participants[1:])):
        _, found = play_round(plan, start(plan), Failing(plan, lost), FailurePolicy(skip=True))
        assert found.participants == left
        assert found.bytes_up == 610 * 4 * len(left)
        assert found.bytes_down == 610 * 4 * (6 - len(lost))
        with pytest.raises(TrainingError, match=f"^client {lost[0]}, round 1: no luck"):
            play_round(plan, start(plan), Failing(plan, lost))
    with pytest.raises(TrainingError, match=f"^client {usual.participants[0]}, round 1: no luck"):
        play_round(plan, start(plan), Failing(plan, usual.participants), FailurePolicy(skip=True))


def test_evaluation_follows_the_schedule_and_the_spotlights_theirs():
    plan = small_plan("pfedbayes", {"rounds": 14, "eval_every": 4, "local_steps": 1, "algorithm.personal_steps": 1})
    found = list(LocalFederation(plan))
    evaluated = [r.round for r in found if r.personal is not None]
    assert evaluated == [r.round for r in found if r.global_ is not None] == [1, 4, 8, 10, 12, 14]
    assert [(r.round, [s.round for s in r.spotlights]) for r in found if r.spotlights] == [
        (1, [0, 1]), (10, [10]), (14, [14])
    ]  # fmt: skip
    each = plan._replace(cfg=override(plan.cfg, {"eval_last": 3}))
    assert [r.round for r in LocalFederation(each) if r.personal is not None] == [1, 4, 8, 10, 12, 13, 14]
    assert {tuple(r.seconds) for r in found} == {("train", "aggregate", "evaluate", "round", "cpu")}
    assert len({r.participants for r in found}) > 5


def test_a_round_reports_means_over_participants_and_steps():
    class Info(NamedTuple):
        value: Tensor

    def step(ctx, local, batch, noise):
        return local._replace(theta=local.theta + 1), Info(local.theta.sum() - local.start.sum())

    plan = small_plan()
    running = LocalFederation(plan._replace(algorithm=plan.algorithm._replace(step=step)), "loop")
    result = next(iter(running))
    for name, steps in (("value", 2), ("value_first", 0), ("value_last", 4)):
        assert result.train[name] == pytest.approx(640 * steps, rel=1e-4)
    assert_close(running.state.server.theta, plan.initial_server().theta + 5)


def test_a_score_goes_through_its_stages_to_the_policy():
    """The clients with the largest share of all examples train: a sum, then its use, then the choice."""

    def shard_size(ctx, client, view, message, data):
        assert message is None
        return data.total

    def share(ctx, client, view, message, data):
        return data.total / message

    stages = (
        Stage(shard_size, lambda ctx, server, replies: sum(replies)),
        Stage(share, lambda ctx, server, replies: torch.stack(list(replies)) * 100),
    )
    seen = []

    def select(state, scores, clients, m, rng):
        seen.append((state, scores))
        return tuple(sorted(scores.argsort(descending=True)[:m].tolist())), state + 1

    plan = small_plan("fedavg", {"clients_per_round": 2})
    plan = plan._replace(
        algorithm=plan.algorithm._replace(scores={"size": stages}),
        selection=Selection("the largest", "size", lambda clients: 10 * clients, select),
    )
    sizes = torch.tensor([float(len(shard)) for shard in plan.partition.train])
    largest = tuple(sorted(sizes.argsort(descending=True)[:2].tolist()))
    for cohort in (LocalCohort(plan), Packed(plan)):
        _, found = rounds(plan, cohort)
        assert [r.participants for r in found] == [largest, largest]
    assert [state for state, _ in seen] == [60, 61, 60, 61]
    assert all(torch.allclose(scores, 100 * sizes / sizes.sum()) for _, scores in seen)


def test_a_policy_is_refused_where_its_score_is_not_offered(monkeypatch):
    policy = registry.selections()["uniform"]._replace(score="ksd")
    monkeypatch.setattr(registry, "selections", lambda: {"ksd": policy})
    with pytest.raises(FedRayError, match=r"^selection ksd: fedavg offers no ksd score; choose `selection=uniform`"):
        small_plan("fedavg", {"selection": "ksd"})


def test_a_federation_starts_its_rounds_where_it_stands():
    plan = small_plan("pfedbayes")
    with LocalFederation(plan) as running:
        assert next(iter(running)).round == 1
        assert [r.round for r in running] == [2]
        assert list(running) == []
        whole = LocalFederation(plan)
        assert [r.round for r in whole] == [1, 2]
        assert differing(running.snapshot(), whole.snapshot()) == []
        assert all(leaf.shape[0] == 6 for leaf in trees.leaves(running.snapshot().clients))


def test_the_data_decide_how_many_clients_there_are():
    plan = make_plan(Experiment(algorithm=registry.algorithms()["fedavg"].config(), data=DataConfig()))
    assert (plan.clients, plan.cfg.clients_per_round, plan.cfg.model.name) == (10, 10, "mlp")
    few = make_plan(override(plan.cfg, {"clients": 4, "clients_per_round": None}))
    assert (few.clients, few.cfg.clients_per_round) == (4, 4)
