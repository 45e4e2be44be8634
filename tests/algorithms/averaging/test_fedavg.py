"""FedAvg in the cases where another method is known to give the same."""

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.averaging.fedavg import FedAvg, Local, Point
from fedray.arrays import trees
from fedray.arrays.minibatches import random_batch, tuning_noise
from fedray.arrays.optim import initial_state
from fedray.arrays.rng import Passes, Stream
from fedray.data import loading
from fedray.data.shards import Shards
from fedray.federate import report
from fedray.federate.in_process import LocalFederation
from tests.helpers import NETS, aggregated, block, context, differing, each_of, examples, play, small_plan


def test_one_full_batch_step_is_a_gradient_step_on_the_pooled_loss():
    model, shards = NETS["mlp"], [examples(n) for n in (3, 8, 20)]
    ctx = context(FedAvg(lr=0.3), model)
    server = Point(model.init(Stream(0, "server")).double())
    ups = []
    for shard in shards:
        local = fedavg.begin(ctx, fedavg.Nothing(), server, shard)
        ups.append(fedavg.finish(ctx, fedavg.step(ctx, local, shard, torch.zeros(0))[0], shard)[1])
    n = torch.tensor([3, 8, 20])
    after = aggregated(fedavg.ALGORITHM, ctx, server, (0, 1, 2), trees.stack(ups), n)
    theta = server.theta.clone().requires_grad_()
    loss = functional.cross_entropy(
        model.apply(theta, torch.cat([s.x for s in shards])), torch.cat([s.y for s in shards])
    )
    loss.backward()
    assert_close(after.theta, server.theta - 0.3 * theta.grad)


def test_a_federation_of_one_is_stochastic_gradient_descent():
    plan = small_plan("fedavg", {"clients": 1, "clients_per_round": 1, "batch_size": 1000, "algorithm.lr": 0.3})
    federation = LocalFederation(plan, "loop")
    rounds = list(federation)
    (shard,) = each_of(Shards(loading.load(plan.cfg.data), plan.partition, [0]))
    theta = plan.initial_server().theta.clone().requires_grad_()
    optimizer, losses = torch.optim.SGD([theta], lr=0.3), []
    passes = Passes(plan.cfg.seed, 0, len(shard.train_y), 1000)
    for position in range(2 * plan.cfg.local_steps):  # 1348 examples: every second batch is short
        at = passes[position]
        loss = functional.cross_entropy(plan.model.apply(theta, shard.train_x[at]), shard.train_y[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert_close(federation.snapshot().server.theta, theta.detach(), rtol=1e-5, atol=1e-5)
    assert [r.train["nll"] for r in rounds] == pytest.approx([sum(losses[:5]) / 5, sum(losses[5:]) / 5], rel=1e-5)


def test_without_a_step_nothing_moves():
    """No decay, no momentum: of a learning rate that float32 cannot tell from 0, bit for bit."""
    plan = small_plan("fedavg", {"algorithm.lr": 1e-30})
    server, _, seen = play(plan, [block(plan)])
    assert differing(server, plan.initial_server()) == []
    assert torch.equal(seen[0][0].theta, server.theta.expand(4, -1))


def test_averaging_equal_uploads_returns_them():
    theta = Stream(0, "theta").normal([5, 64])[:1].expand(5, 64)
    n = torch.tensor([3, 1, 4, 1, 5])
    after = aggregated(
        fedavg.ALGORITHM, context(FedAvg(), NETS["mlp"]), Point(torch.zeros(64)), range(5), Point(theta), n
    )
    assert torch.equal(after.theta, theta[0])


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_the_server_steps_towards_the_average_and_beyond(beta, weighting):
    cfg, model, old = FedAvg(beta=beta, weighting=weighting), NETS["mlp"], Stream(0, "old").normal([64])
    ups, n = Stream(0, "ups").normal([3, 64]), torch.tensor([1, 2, 5])
    shares = n / 8 if weighting == "examples" else torch.full((3,), 1 / 3)
    after = aggregated(fedavg.ALGORITHM, context(cfg, model), Point(old), range(3), Point(ups), n).theta
    assert_close(after, (1 - beta) * old + beta * (shares[:, None] * ups).sum(0))
    still = aggregated(fedavg.ALGORITHM, context(cfg, model), Point(old), range(3), Point(old.expand(3, 64)), n).theta
    assert torch.equal(still, old)
    rules = [context(FedAvg(beta=beta, weighting=rule), model) for rule in ("examples", "uniform")]
    same = [aggregated(fedavg.ALGORITHM, ctx, Point(old), range(3), Point(ups), 0 * n + 4) for ctx in rules]
    assert differing(*same) == []


def test_without_fine_tuning_there_is_no_personal_model():
    for name in ("fedavg", "fedprox"):
        plan = small_plan(name)
        assert not plan.personal
        assert next(iter(LocalFederation(plan))).personal is None
        assert report.protocol(plan, [1])["personal"] is None
        assert report.protocol(plan, [1])["prediction"] == "one prediction, without draws"
    assert report.protocol(small_plan("pfedbayes"), [1])["prediction"] == "average of 3 posterior draws"


def test_fine_tuned_the_global_model_is_personal():
    settings = {"algorithm.lr": 0.1, "rounds": 1}
    plan = small_plan("fedavg", settings | {"algorithm.ft": 2})
    running, plain = (LocalFederation(p, "loop") for p in (plan, small_plan("fedavg", settings)))
    (found,), (without,) = list(running), list(plain)
    assert differing(running.snapshot(), plain.snapshot()) == []  # what it learns is the same
    assert differing(found.global_, without.global_) == []
    shards = Shards(loading.load(plan.cfg.data), plan.partition, range(6))
    for k, shard in enumerate(each_of(shards)):
        eps = plan.stream("personalize", k, 1).normal(tuning_noise(2, plan.facts))
        theta = running.snapshot().server.theta.clone().requires_grad_()
        for own in eps:
            at = random_batch(trees.row(shards.padded([k], plan.facts.shard), 0), own).place
            at = at[at < len(shard.train_y)]  # a client may have fewer examples than a minibatch
            loss = functional.cross_entropy(plan.model.apply(theta, shard.train_x[at]), shard.train_y[at])
            theta = (theta - 0.1 * torch.autograd.grad(loss, theta)[0]).detach().requires_grad_()
        logits = plan.model.apply(theta, shard.test_x).detach()
        assert_close(found.personal.nll[k].float(), functional.cross_entropy(logits, shard.test_y, reduction="sum"))
    assert (found.personal.nll < found.global_.nll).all()
    assert report.protocol(plan, [1])["personal"].startswith("each client's copy of the global model, fine-tuned by 2")


def test_clients_start_from_the_broadcast_and_keep_nothing():
    plan = small_plan()
    server = plan.initial_server()
    local = fedavg.begin(plan.context, fedavg.Nothing(), server, examples(3))
    assert differing(local, Local(server.theta, server.theta, initial_state("sgd", server.theta))) == []
    assert trees.leaves(block(plan).states) == []
