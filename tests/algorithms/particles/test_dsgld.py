"""DSGLD: who visits whom, an unbiased drift, and the stationary distribution in closed form."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.particles import dsgld
from fedray.algorithms.particles.dsgld import DSGLD, Server, Visit
from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.bayes.particles import network
from fedray.federate.rounds import start
from fedray.nets.densities import CATEGORICAL
from fedray.selection import uniform
from fedray.types import Facts, FedRayError
from tests.helpers import NETS, block, context, differing, examples, play, small_plan

pytestmark = pytest.mark.usefixtures("one_thread")

PRIOR = 1.0


class Toy:
    """Three clients with likelihoods N(m_k; θ, 1/a_k) of very different widths, and all of DSGLD but the network."""

    m, a = torch.tensor([[-1.0, 2.0], [1.0, 0.5], [0.5, -1.0]]), torch.tensor([[0.5, 2.0], [3.0, 0.3], [1.0, 1.0]])
    model = SimpleNamespace(size=2, padded=2)

    def __init__(self, chains, together, a0, decay=0.0):
        self.cfg = DSGLD(prior_precision=PRIOR, particles=chains, a0=a0, decay=decay)
        shape = together, chains // together
        x = Stream(1, "start").normal([*shape, 2])
        self.server = Server(x, torch.zeros(shape), torch.zeros(()), torch.tensor(7.0))
        self.x, self.seen = x, []
        self.ctx = context(self.cfg, self.model, Facts(3, together, 1, 1, 1, 1))

    def likelihood(self, k):
        return lambda x: (torch.zeros(()), self.a[k] * (self.m[k] - x))

    def play(self, rounds, steps, keep=0):
        """The chains after every round, the last ``keep`` of them together [keep·M, d]."""
        kept, state, together = [], uniform.SELECTION.init(3), len(self.server.x)
        for number in range(rounds):
            ids, state = uniform.SELECTION.select(state, None, 3, together, Stream(0, "select", 0, number))
            down, ups = dsgld.broadcast(self.ctx, self.server, ids), []
            for row, k in enumerate(ids):
                local, noise = trees.row(down, row), Stream(0, "noise", k, number)
                self.seen.append((k, local.chain))
                for _ in range(steps):
                    eps = noise.normal(local.x.shape)
                    local, _ = dsgld.langevin(self.cfg, 2, 3, local, self.likelihood(k), eps)
                ups.append(dsgld.finish(self.ctx, local, None)[1])
            self.server = dsgld.aggregate(self.ctx, self.server, ids, trees.stack(ups), None)
            kept += [self.server.x.flatten(0, 1)] if number >= rounds - keep else []
        return torch.cat(kept) if kept else None

    def stationary(self, steps):
        """Mean and variance [d] of the chain between visits, in closed form for constant steps of any size.

        A visit makes θ ← A_k θ + B_k + N(0, C_k), k uniform; mean and second moment are fixed points.
        """
        eps = self.cfg.a0
        c, b = 1 - eps / 2 * (PRIOR + 3 * self.a), eps / 2 * 3 * self.a * self.m
        powers = torch.stack([c**i for i in range(steps)])
        a, b, noise = c**steps, b * powers.sum(0), eps * powers.square().sum(0)
        mean = b.mean(0) / (1 - a.mean(0))
        second = (2 * (a * b).mean(0) * mean + b.square().mean(0) + noise.mean(0)) / (1 - a.square().mean(0))
        return mean, second - mean.square()

    def posterior(self):
        precision = PRIOR + self.a.sum(0)
        return (self.a * self.m).sum(0) / precision, 1 / precision


@pytest.mark.parametrize(
    ("together", "steps", "a0", "rounds"), [(3, 1, 0.1, 240), (2, 1, 0.1, 640), (3, 5, 0.05, 140), (3, 1, 0.01, 800)]
)
def test_its_stationary_distribution_in_closed_form(together, steps, a0, rounds):
    """Of steps so large that it is far from the posterior, too; the mean is exact where a visit is one step."""
    toy, keep = Toy(1200, together, a0), rounds // 8 * 5
    x = toy.play(rounds, steps, keep)
    mean, variance = toy.stationary(steps)
    parts = x.view(5, -1, 2).mean(1)  # of five stretches of rounds: how far off a mean can be
    error = parts.std(0) / 5**0.5
    assert error.max() < 0.03
    assert ((x.mean(0) - mean).abs() < 4 * error).all()
    assert_close(x.var(0), variance, rtol=0.05, atol=0)
    if a0 == 0.01:
        assert_close((mean, variance), toy.posterior(), rtol=0.15, atol=0)


def test_several_steps_at_a_client_cost_a_bias_that_shrinks_with_them():
    gaps = [(Toy(3, 3, a0).stationary(steps)[0] - Toy(3, 3, a0).posterior()[0]).abs().max() for a0, steps in
            ((0.05, 1), (0.05, 5), (0.005, 5))]  # fmt: skip
    assert gaps[0] < 1e-5
    assert gaps[1] > 0.02
    assert gaps[2] < gaps[1] / 5


@pytest.mark.parametrize("together", [1, 2, 3])
def test_every_chain_visits_every_client_equally_often_and_one_in_a_round(together):
    toy, rounds = Toy(6, together, 0.01), 600
    toy.play(rounds, 1)
    counts = torch.zeros(3, 6)
    for k, place in toy.seen:
        counts[k, place.long()] += 1
    assert torch.equal(counts.sum(0), torch.full((6,), float(rounds)))  # a step in every round, of every chain
    assert torch.equal(toy.server.t, torch.full_like(toy.server.t, rounds))
    assert ((counts / rounds - 1 / 3).abs() < 4 * (2 / 9 / rounds) ** 0.5).all()
    if together == 3:  # and chains part ways: two of them meet as often as chance has it, one time in five
        at = torch.stack([place for _, place in toy.seen]).view(rounds, 3, 2)
        met = ((at == 0).any(-1) & (at == 1).any(-1)).any(-1).float().mean()
        assert met == pytest.approx(0.2, abs=4 * (0.16 / rounds) ** 0.5)


def test_the_mean_drift_over_clients_is_that_of_the_whole_posterior():
    toy = Toy(3, 3, 0.02)
    x, quiet = Stream(0, "x").normal([1, 2]), torch.zeros(1, 2)
    moved = []
    for k in range(3):
        local = Visit(x, torch.zeros(1), torch.zeros(1))
        local, _ = dsgld.langevin(toy.cfg, 2, 3, local, toy.likelihood(k), quiet)
        moved.append(local.x - x)
    score = sum(toy.likelihood(k)(x)[1] for k in range(3)) - PRIOR * x
    assert_close(torch.stack(moved).mean(0), 0.01 * score)


def test_a_step_on_a_network():
    """Autograd of log p0 + N log p_k, of two chains with steps of their own; the noise has variance ε, padding none."""
    model, batch = NETS["mlp"], examples(9, total=36)
    cfg = DSGLD(particles=2, a0=1e-3, decay=0.5, prior_precision=3.0)
    x, noise = (Stream(0, name).normal([2, model.padded]).double() for name in ("x", "noise"))
    x = torch.stack([model.pad(row) for row in x])
    local = Visit(x, torch.tensor([0.0, 40.0]).double(), torch.arange(2.0))
    found, info = dsgld.langevin(cfg, model.size, 5, local, network(model, batch), noise)
    for row, eps in enumerate((1e-3 / 0.5**0.5, 1e-3 / 40.5**0.5)):
        theta = x[row].clone().requires_grad_()
        log_p = (
            -5 * 4 * CATEGORICAL.nll(model.apply(theta, batch.x), theta[:0], batch.y, batch.weight)
            - 1.5 * theta.square().sum()
        )
        (grad,) = torch.autograd.grad(log_p, theta)
        assert_close(found.x[row], x[row] + eps / 2 * grad + eps**0.5 * model.pad(noise[row]))
    assert found.t.tolist() == [1, 41]
    assert float(info.step_size) == pytest.approx((1e-3 / 0.5**0.5 + 1e-3 / 40.5**0.5) / 2)


def test_chains_do_not_know_of_each_other_nor_of_their_order():
    model, batch, order = NETS["deep"], examples(9), [2, 0, 1]
    cfg = DSGLD(particles=3)
    x, noise = (Stream(0, name).normal([3, model.padded]) for name in ("x", "noise"))
    visit = Visit(x, torch.tensor([0.0, 3.0, 9.0]), torch.arange(3.0))
    likelihood = network(model, trees.tree_map(lambda leaf: leaf.float() if leaf.is_floating_point() else leaf, batch))
    first, _ = dsgld.langevin(cfg, model.size, 2, visit, likelihood, noise)
    mixed, _ = dsgld.langevin(cfg, model.size, 2, trees.rows(visit, order), likelihood, noise[order])
    assert_close(mixed, trees.rows(first, order))


def test_a_chain_takes_the_same_steps_to_the_bit_whatever_is_stacked_beside_it():
    """Of so many that every CPU works on some as vectors and on the rest one by one."""
    toy, t = Toy(2, 1, 0.1, decay=0.55), torch.arange(150.0).view(3, 50)
    visit = Visit(torch.zeros(3, 50, 2), t, torch.arange(50.0).expand(3, 50))
    noise = Stream(0, "noise").normal([3, 50, 2])

    def move(visit, noise):
        return dsgld.langevin(toy.cfg, 2, 3, visit, toy.likelihood(0), noise)

    alone = trees.stack([move(trees.row(visit, k), noise[k]) for k in range(3)])
    assert differing(torch.vmap(move)(visit, noise), alone) == []


def test_the_chains_of_a_client_that_failed_stay_where_they_are():
    plan = small_plan("dsgld", {"algorithm.particles": 8})
    model, server = plan.model, plan.initial_server()
    host, ids = block(plan), (0, 2, 3, 5)
    down = dsgld.broadcast(plan.context, server, ids)
    reply = host.train(1, ids, down)
    after = dsgld.aggregate(plan.context, server, ids[:3], trees.rows(reply.up, range(3)), None)
    lost = down.chain[3].long()
    there = [i for i in range(8) if i not in lost]
    before, x, t = server.x.flatten(0, 1), after.x.flatten(0, 1), after.t.flatten()
    assert torch.equal(x[lost], before[lost])
    assert torch.equal(t, torch.tensor([0.0 if i in lost else 5.0 for i in range(8)]))
    assert ((x[there] - before[there]).abs().amax(1) > 1e-3).all()
    assert torch.equal(x[down.chain[:3].long()], reply.up.x[:3])
    assert (x[:, model.size :] == 0).all()
    visit = dsgld.broadcast(plan.context, after, ids)  # and they take their own number of steps along
    assert torch.equal(visit.t, t[visit.chain.long()])
    assert torch.equal(visit.x, x[visit.chain.long()])


def test_the_same_round_deals_the_same_and_the_next_one_anew():
    plan = small_plan("dsgld")
    server = plan.initial_server()
    first, again = (dsgld.broadcast(plan.context, server, (0, 1, 4, 5)) for _ in range(2))
    assert differing(first, again) == []
    second, _, _ = play(plan, [block(plan)], rounds=((0, 1, 4, 5),))
    assert not torch.equal(dsgld.broadcast(plan.context, second, (0, 1, 4, 5)).chain, first.chain)
    other = small_plan("dsgld", {"seed": 1}).initial_server()
    assert not torch.equal(dsgld.broadcast(plan.context, other, (0, 1, 4, 5)).chain, first.chain)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm.particles": 10}, r"^particles 10: .*4 clients per round; use a multiple of 4"),
        ({"algorithm.a0": 0.0}, r"^a0 0.0"),
        ({"algorithm.decay": 2.0}, r"^decay 2.0"),
        ({"algorithm.prior": "gamma"}, r"^prior gamma: .*blr"),
        ({"train_all": True}, r"^train_all True: there are no chains for 2 clients more; leave it out"),
    ],
)
def test_what_cannot_run_is_refused(settings, message):
    with pytest.raises(FedRayError, match=message):
        start(small_plan("dsgld", settings))
