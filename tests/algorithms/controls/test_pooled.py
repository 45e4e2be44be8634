"""All data at one place: what it trains on, who tests it, what it is equal to, and where it is refused."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import fedray
from fedray import registry
from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.bayes.gaussian import Gaussian
from fedray.config import Execution
from fedray.config.execution import TrackingConfig
from fedray.data.partition import Partition
from fedray.data.readers import Dataset
from fedray.data.shards import Shards
from fedray.federate import report
from fedray.federate.in_process import LocalFederation
from fedray.federate.measures import metrics
from fedray.federate.planning import make_plan, resolve
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.nets.likelihood import predictive
from fedray.types import FedRayError
from tests.helpers import block, differing, each_of, experiment, small_plan, whole_and_resumed

POSTERIORS = ("point", "gaussian")
every_posterior = pytest.mark.parametrize("posterior", POSTERIORS)


def plan_of(posterior, **settings):
    return small_plan("pooled", {"algorithm.posterior": posterior} | settings)


def dealt():
    """The partition before its training examples were pooled."""
    return small_plan("fedavg").partition


@every_posterior
def test_the_first_client_has_all_training_examples_and_everyone_its_own_test_examples(posterior):
    plan, before = plan_of(posterior), dealt()
    assert sorted(plan.partition.train[0]) == sorted(np.concatenate(before.train))
    assert [len(part) for part in plan.partition.train[1:]] == [0] * 5
    assert all(np.array_equal(a, b) for a, b in zip(plan.partition.test, before.test, strict=True))
    host = block(plan)
    assert host.shards.sizes.tolist() == [len(plan.partition.train[0]), 0, 0, 0, 0, 0]
    assert [len(host.shards.test(k)[1]) for k in range(6)] == [len(part) for part in before.test]
    federation = LocalFederation(plan)
    floats = plan.model.size * (2 if posterior == "gaussian" else 1)
    for found in federation:
        assert found.participants == (0,)
        assert (found.bytes_down, found.bytes_up) == (0, 4 * floats)
        assert found.personal is None
        assert found.global_.examples.tolist() == [len(part) for part in before.test]


@every_posterior
def test_it_is_local_training_of_one_client_that_has_everything(posterior):
    """So the budget is R minibatches per round of one model, whatever the number of clients."""
    plan = plan_of(posterior)
    union = Partition((plan.partition.train[0],), (plan.partition.test[0],))
    settings = {"algorithm.posterior": posterior, "clients": 1, "clients_per_round": 1}
    alone = make_plan(experiment("local", settings), partition=union)
    ends = []
    for each in (plan, alone):
        federation = LocalFederation(each, "loop")
        list(federation)
        ends.append(federation.snapshot())
    assert differing(trees.row(ends[0].clients, 0), trees.row(ends[1].clients, 0)) == []
    model = ends[0].clients.theta[0] if posterior == "point" else ends[0].clients.q.mu[0]
    assert torch.equal(model, next(iter(ends[0].server)))


def test_by_sgd_it_is_fedavg_of_one_client_that_has_everything():
    plan = plan_of("point")
    union = Partition((plan.partition.train[0],), (plan.partition.test[0],))
    other = make_plan(experiment("fedavg", {"clients": 1, "clients_per_round": 1}), partition=union)
    ends = [LocalFederation(each, "loop") for each in (plan, other)]
    assert [len(list(federation)) for federation in ends] == [2, 2]
    assert differing(ends[0].snapshot().server, ends[1].snapshot().server) == []


@every_posterior
def test_every_client_tests_the_one_model_on_its_own_examples(posterior):
    plan = plan_of(posterior, predict_samples=0)
    federation = LocalFederation(plan)
    *_, last = federation
    view, ctx = plan.view(federation.snapshot().server), plan.context
    zero = plan.prediction_noise(ctx, 0, "predict", 0, 0)
    for i, shard in enumerate(each_of(Shards(plan.dataset(), plan.partition, range(6)))):
        expected = metrics.evaluate(plan.algorithm.predict_global(ctx, view, shard.test_x, zero), shard.test_y)
        assert torch.equal(expected.nll, last.global_.nll[i])


@every_posterior
def test_it_is_bitwise_the_same_stacked_and_resumed(posterior, tmp_path):
    plan, store = plan_of(posterior, rounds=3), CheckpointStore(str(tmp_path))
    assert differing(*whole_and_resumed(plan, store)) == []


def test_its_round_has_one_client_whatever_is_asked_for():
    for asked in (None, 1, 4):
        cfg = experiment("pooled", {"clients_per_round": asked})
        assert resolve(cfg).clients_per_round == make_plan(cfg).facts.per_round == 1
    assert make_plan(cfg).facts.clients == 1
    with LocalFederation(small_plan("pooled", {"train_all": True, "rounds": 1})) as federation:
        assert [found.participants for found in federation] == [(0,)]


def test_examples_that_have_owners_are_pooled_only_if_asked_for():
    stream = np.random.default_rng(0)
    x, y = stream.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    users = np.arange(60) // 10
    theirs = Dataset(x, y, 3, None, users=users)
    refused = r"algorithm pooled: it puts the training examples .* belong to users; compare with .*local.*pool_users"
    with pytest.raises(FedRayError, match=refused):
        make_plan(experiment("pooled"), theirs)
    with pytest.raises(FedRayError, match=refused):
        make_plan(experiment("pooled"), partition=dealt())
    allowed = experiment("pooled", {"algorithm.pool_users": True})
    assert len(make_plan(allowed, partition=dealt()).partition.train[1]) == 0
    assert len(make_plan(allowed, theirs).partition.train[0]) > 30
    assert len(make_plan(experiment("pooled"), theirs._replace(users=None)).partition.train[0]) > 30


def test_nobody_can_be_held_out_of_it():
    with pytest.raises(FedRayError, match=r"novel_clients 2: pooled has no personal factors"):
        small_plan("pooled", {"novel_clients": 2})


def test_a_finished_run_says_what_it_is_and_predicts(tmp_path):
    cfg = experiment("pooled", {"rounds": 1})
    where = Execution(runtime="local", output=tmp_path / "run", tracking=TrackingConfig(uri="none"))
    result = fedray.run_experiment(cfg, where)
    protocol = result.summary["protocol"]
    assert protocol["control"].startswith("not federated: all training examples at one place")
    assert protocol["clients"] == "all 6 evaluated, 1 trained per round"
    assert protocol["global"] == "the pooled model on every client's test shard"
    assert protocol["train_examples"] == sum(map(len, dealt().train))
    again = fedray.load(result.folder)
    assert len(again.plan.partition.train[1]) == 0
    assert again.predict(np.zeros((2, 1, 8, 8), np.float32)).probs.shape == (2, 10)


def test_only_the_controls_are_marked():
    marked = {name: record.control for name, record in registry.algorithms().items() if record.control}
    assert set(marked) == {"local", "pooled"}
    assert all(text.startswith("not federated: ") for text in marked.values())
    for name in marked:
        found = report.protocol(small_plan(name), [1])
        assert found["control"] == marked[name]
    assert "control" not in report.protocol(small_plan("fedavg"), [1])


def test_a_pooled_posterior_predicts_by_draws():
    plan = plan_of("gaussian")
    q = Gaussian(plan.model.init(Stream(0, "mu")), torch.zeros(plan.model.padded))  # σ = softplus(0) = log 2
    x, eps = Stream(0, "x").normal([4, 1, 8, 8]), Stream(0, "eps").normal([3, plan.model.padded])
    found = plan.algorithm.predict_global(plan.context, q, x, eps)
    assert_close(found, predictive(plan.model, q.mu + math.log(2) * eps, x))
