"""PVI: exact where it must be, variational inference with one client, and precisions that stay positive."""

import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.bayesian import pvi
from fedray.algorithms.bayesian.pvi import PVI, Server
from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.bayes.gaussian import Gaussian, draw, inverse_sigma, sigma
from fedray.bayes.sites import Natural
from fedray.federate.in_process import LocalFederation
from fedray.federate.rounds import start
from fedray.types import Facts, FedRayError
from tests.helpers import aggregated, block, context, differing, play, small_plan

pytestmark = pytest.mark.usefixtures("one_thread")

PRIOR = 2.0


class Toy:
    """Clients with log p_k = -½ (θ - m_k)ᵀ A_k (θ - m_k): every function of PVI but the network's."""

    def __init__(self, clients, d, correlated=False, **settings):
        stream = Stream(0, "toy")
        self.m = 2 * stream.normal([clients, d])
        factors = stream.normal([clients, d, 2 * d])
        self.a = factors @ factors.transpose(1, 2) / d if correlated else torch.diag_embed(factors.square().mean(2))
        self.cfg = PVI(prior_precision=PRIOR, **settings)
        self.ctx = context(self.cfg)
        zero = torch.zeros(d)
        first = Gaussian(stream.normal([d]), inverse_sigma(torch.full((d,), 0.05)))
        self.server = Server(Natural(zero + PRIOR, zero), torch.ones(()), first)
        self.clients = [pvi.client_init(self.ctx, self.server)] * clients

    def likelihood(self, k):
        return lambda x: (torch.zeros(()), (self.m[k] - x) @ self.a[k])

    def exact(self):
        """Mean of the posterior and the precision of its mean-field approximation, the diagonal of its own, [d]."""
        precision = self.a.sum(0) + PRIOR * torch.eye(len(self.m[0]))
        mean = torch.linalg.solve(precision, torch.einsum("kij,kj->i", self.a, self.m))
        return mean, precision.diagonal()

    def visit(self, k, rates=((0.1, 100), (0.02, 100), (0.002, 150))):
        """What client k makes of the server's q at falling learning rates."""
        down = pvi.broadcast(self.ctx, self.server, (k,))
        local = trees.tree_map(torch.clone, pvi.begin(self.ctx, self.clients[k], down, None))
        axes = len(self.m[0]) ** 0.5 * torch.eye(len(self.m[0]))
        noise = torch.cat([axes, -axes])  # its mean is 0 and its covariance I: exact where scores are linear
        for lr, steps in rates:
            cfg = PVI(prior_precision=PRIOR, lr=lr)
            for _ in range(steps):
                local, _ = pvi.free_energy_step(cfg, local, self.likelihood(k), noise)
        self.clients[k], up = pvi.finish(self.ctx, local, None)
        return up

    def play(self, *rounds):
        for ids in rounds:
            ups = trees.stack([self.visit(k) for k in ids])
            self.server = aggregated(pvi.ALGORITHM, self.ctx, self.server, ids, ups, None)
        return self.server.q


@pytest.mark.parametrize("rounds", [((0,), (1,), (2,)), ((0, 1, 2),), ((1,), (0, 2), (1, 2))])
def test_one_visit_to_each_client_is_enough_for_the_analytic_posterior(rounds):
    """Sequentially, at the same time, and mixed: sites of independent Gaussian likelihoods are exact at once."""
    toy = Toy(3, 4)
    q = toy.play(*rounds)
    mean, precision = toy.exact()
    assert_close(q.lam, precision, rtol=1e-3, atol=0)
    assert_close(q.eta / q.lam, mean, rtol=0, atol=1e-3)
    for k, client in enumerate(toy.clients):
        assert_close(client.site.lam, toy.a[k].diagonal(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("damping", "turns"), [(1.0, [(0,), (1,), (2,)] * 8), (1 / 3, [(0, 1, 2)] * 30)])
def test_its_fixed_point_is_that_of_variational_inference_on_all_data(damping, turns):
    """Of correlated likelihoods: the exact mean, and the precision that mean-field inference finds."""
    toy = Toy(3, 3, correlated=True, damping=damping)
    q = toy.play(*turns)
    mean, precision = toy.exact()
    assert_close(q.eta / q.lam, mean, rtol=0, atol=5e-3)
    assert_close(q.lam, precision, rtol=5e-3, atol=0)
    for client in toy.clients:  # where every client agrees with the rest, its own minimizer is q
        assert_close(sigma(client.q.rho), precision.rsqrt(), rtol=5e-3, atol=0)


def test_damping_goes_that_part_of_the_way():
    toy = Toy(2, 3, damping=0.25)
    for number in range(1, 4):
        toy.play((0, 1))
        for k, client in enumerate(toy.clients):
            expected = (1 - 0.75**number) * toy.a[k].diagonal()
            assert_close(client.site.lam, expected, rtol=2e-3, atol=2e-3)


def test_without_a_damping_of_ones_own_the_clients_of_a_round_share_one_step():
    """Six clients, of whom two train in a round: each goes half of its way."""
    toy = Toy(2, 3)
    toy.ctx = context(toy.cfg, facts=Facts(clients=6, per_round=2, rounds=1, local_steps=1, batch_size=9, shard=9))
    toy.play((0, 1))
    for k, client in enumerate(toy.clients):
        assert_close(client.site.lam, toy.a[k].diagonal() / 2, rtol=2e-3, atol=2e-3)


def test_with_one_client_its_steps_are_those_of_variational_inference():
    """Adam on the negative ELBO, differentiated by PyTorch, with the same draws; in the second round, too."""
    toy = Toy(1, 4, correlated=True)
    noise = Stream(0, "noise").normal([2, 20, 3, 4])
    theta = [leaf.clone().requires_grad_() for leaf in toy.server.start]
    for eps in noise:
        down = pvi.broadcast(toy.ctx, toy.server, (0,))
        local = trees.tree_map(torch.clone, pvi.begin(toy.ctx, toy.clients[0], down, None))
        adam = torch.optim.Adam(theta, lr=toy.cfg.lr)
        prior = torch.distributions.Normal(0, PRIOR**-0.5)
        for e in eps:
            local, _ = pvi.free_energy_step(toy.cfg, local, toy.likelihood(0), e)
            gap = draw(Gaussian(*theta), e) - toy.m[0]
            q = torch.distributions.Normal(theta[0], sigma(theta[1]))
            loss = 0.5 * torch.einsum("ki,ij,kj->", gap, toy.a[0], gap) / len(e)
            loss = loss + torch.distributions.kl_divergence(q, prior).sum()
            adam.zero_grad()
            loss.backward()
            adam.step()
        assert_close(tuple(local.q), tuple(t.detach() for t in theta), rtol=1e-4, atol=1e-5)
        toy.clients[0], up = pvi.finish(toy.ctx, local, None)
        toy.server = aggregated(pvi.ALGORITHM, toy.ctx, toy.server, (0,), trees.stack([up]), None)
        assert_close(tuple(pvi.standard(toy.server.q)), tuple(local.q), rtol=1e-3, atol=1e-4)


def test_a_likelihood_that_widens_leaves_precisions_positive_and_the_mean_where_it_was_found():
    toy = Toy(2, 3)
    toy.a[0] = -torch.eye(3)  # log p_0 grows away from m_0, by less than the prior falls
    q = toy.play((0,))
    client = toy.clients[0]
    assert (client.site.lam == 0).all()
    assert (sigma(client.q.rho) > PRIOR**-0.5).all()
    assert torch.equal(q.lam, torch.full((3,), PRIOR))
    assert_close(q.eta / q.lam, client.q.mu)
    assert_close(client.q.mu, -toy.m[0] / (PRIOR - 1), rtol=0, atol=5e-3)


def test_a_cavity_has_the_priors_precision_where_float32_has_no_room_for_it_beside_a_site():
    toy = Toy(1, 3)
    site = Natural(torch.full((3,), 1e8), torch.zeros(3))
    assert torch.equal(site.lam + PRIOR, site.lam)
    local = pvi.begin(toy.ctx, toy.clients[0]._replace(site=site), pvi.Down(site, torch.zeros(())), None)
    assert torch.equal(local.cavity.lam, torch.full((3,), PRIOR))


def test_the_servers_posterior_is_the_prior_times_all_sites():
    plan = small_plan("pvi", {"rounds": 3})
    server, states, _ = play(plan, [block(plan)], rounds=((0, 2, 3, 5), (1, 2, 4, 5), (0, 1, 4, 5)))
    assert_close(server.q.lam, 1 + states.site.lam.sum(0), rtol=1e-5, atol=1e-5)
    assert_close(server.q.eta, states.site.eta.sum(0), rtol=1e-4, atol=1e-3)
    assert (states.site.lam >= 0).all()
    assert (server.q.lam >= 1 - 1e-5).all()


def test_where_all_are_averaged_all_may_train():
    plan = small_plan("pvi", {"train_all": True, "clients_per_round": 6})
    assert plan.facts.unheard == 0
    running = LocalFederation(plan, "loop")
    assert len(list(running)) == 2
    found = running.snapshot()
    assert_close(found.server.q.lam, 1 + found.clients.site.lam.sum(0), rtol=1e-5, atol=1e-5)


def test_a_client_starts_at_q_and_in_the_first_round_at_the_common_start():
    plan = small_plan("pvi")
    host = block(plan)
    server, states, _ = play(plan, [host], rounds=((1, 2),))
    new = plan.initial_server()
    for k, place, q in ((3, new, new.start), (3, server, pvi.standard(server.q)), (1, server, pvi.standard(server.q))):
        local = pvi.begin(plan.context, trees.row(states, k), pvi.broadcast(plan.context, place, (k,)), None)
        assert differing(local.q, q) == []
    for k, q in ((0, pvi.standard(server.q)), (2, trees.row(states.q, 2))):  # never visited, and visited
        assert differing(pvi.personalize(plan.context, trees.row(states, k), plan.view(server), None, None), q) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm.damping": 1.5}, r"^damping 1.5: .*use 0"),
        ({"algorithm.prior_precision": 0.0}, r"^prior_precision 0.0"),
        ({"algorithm.mc_samples": 0}, r"^mc_samples 0"),
        ({"train_all": True}, r"^train_all True: 2 clients a round would renew sites .*; leave it out"),
    ],
)
def test_what_cannot_run_is_refused(settings, message):
    with pytest.raises(FedRayError, match=message):
        start(small_plan("pvi", settings))
