"""FedAvg in the cases where another method is known to give the same."""

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from fedray import data, trees
from fedray.algorithms import fedavg
from fedray.algorithms.fedavg import FedAvg, Local, Point
from fedray.federation import LocalFederation
from fedray.optim import descent
from fedray.rng import Passes, Stream
from tests.helpers import NETS, block, differing, examples, small_plan


def test_one_full_batch_step_is_a_gradient_step_on_the_pooled_loss():
    cfg, model, shards = FedAvg(lr=0.3), NETS["mlp"], [examples(n) for n in (3, 8, 20)]
    server = Point(model.init(Stream(0, "server")).double())
    ups = []
    for shard in shards:
        local = fedavg.begin(cfg, model, fedavg.Nothing(), server, shard)
        ups.append(fedavg.finish(cfg, model, fedavg.step(cfg, model, local, shard, torch.zeros(0))[0], shard)[1])
    n = torch.tensor([3, 8, 20])
    after = fedavg.aggregate(cfg, model, server, (0, 1, 2), trees.stack(ups), n)
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
    (shard,) = data.shards(data.load(plan.cfg.data), plan.partition, [0])
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


def test_averaging_equal_uploads_returns_them():
    theta = Stream(0, "theta").normal([5, 64])[:1].expand(5, 64)
    n = torch.tensor([3, 1, 4, 1, 5])
    after = fedavg.aggregate(FedAvg(), NETS["mlp"], Point(torch.zeros(64)), range(5), Point(theta), n)
    assert torch.equal(after.theta, theta[0])


def test_clients_start_from_the_broadcast_and_keep_nothing():
    plan = small_plan()
    server = plan.initial_server()
    local = fedavg.begin(plan.cfg.algorithm, plan.model, fedavg.Nothing(), server, examples(3))
    assert differing(local, Local(server.theta, server.theta, descent("sgd", server.theta))) == []
    assert trees.leaves(block(plan).states) == []
