"""DSVGD: its sites, its limits and analytic posteriors."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.particles import dsvgd
from fedray.algorithms.particles.dsvgd import DSVGD, Server
from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.bayes.kde import code_gradient, kde_gradient
from fedray.bayes.sites import BACKENDS, Nothing, Ratio, regression
from fedray.bayes.stein import Descent, descend, rbf, stein_matrix, v_statistic
from fedray.config import override
from fedray.types import Facts
from tests.helpers import aggregated, block, context, differing, draws, fixed_kernel, shard, small_plan

pytestmark = pytest.mark.usefixtures("one_thread")

PRIOR = 1.0


class Toy:
    """Clients with likelihoods N(m_k; θ, v_k): every function of DSVGD but the network's."""

    def __init__(self, clients, d, particles, seed=0, **settings):
        stream = Stream(seed, "toy")
        self.m = 2 * stream.normal([clients, d]).double()
        self.precision = (0.3 + 1.4 * stream.uniform([clients, d])).double()
        self.x = stream.normal([particles, d]).double()
        self.d, self.settings = d, {"prior_precision": PRIOR, "particles": particles, "mode": "serial", **settings}
        self.sites = settings.get("sites", "site")

    def __call__(self, k):
        return lambda x: (torch.zeros(()).double(), self.precision[k] * (self.m[k] - x))

    def posterior(self):
        """Mean and variance of p0 Π_k p_k [d]."""
        precision = PRIOR + self.precision.sum(0)
        return (self.precision * self.m).sum(0) / precision, 1 / precision

    def play(self, rounds, steps, together=1, **settings):
        """The server and the clients after rounds in which the clients take turns, ``together`` at a time."""
        cfg = DSVGD(**(self.settings | settings))
        ctx = context(cfg, SimpleNamespace(size=self.d))
        backend, settings = BACKENDS[self.sites], cfg.site_settings(self.d)
        self.server = getattr(self, "server", None) or Server(self.x, backend.shared(settings, self.x))
        fresh = dsvgd.Client(self.x, backend.own(settings, self.x), torch.zeros(()).double())
        self.clients = getattr(self, "clients", None) or [fresh] * len(self.m)
        for number in range(rounds):
            ids = sorted({(number * together + j) % len(self.m) for j in range(together)})
            ups = []
            for k in ids:
                local = dsvgd.begin(ctx, self.clients[k], self.server, None)
                for _ in range(steps):
                    local, _ = dsvgd.svgd_step(cfg, self.d, local, self(k))
                _, s = self(k)(local.x)
                self.clients[k], up = dsvgd.renew_site(cfg, self.d, local, s, regression(local.x, s))
                ups.append(up)
            self.server = aggregated(dsvgd.ALGORITHM, ctx, self.server, ids, trees.stack(ups), torch.ones(len(ids)))
        return self.server, self.clients

    def central(self, *stages):
        """SVGD on the whole posterior: (steps, learning rate), one stage after the other."""
        x = self.x
        for steps, lr in stages:
            score = lambda x: sum(self(k)(x)[1] for k in range(len(self.m))) - PRIOR * x  # noqa: E731
            x = descend(Descent(lr), x, score, steps)
        return x

    def misfit(self, x):
        """(largest error of the mean in posterior sds, mean ratio of the variances)."""
        mean, variance = self.posterior()
        error = ((x.mean(0) - mean) / variance.sqrt()).abs().max()
        return float(error), float((x.var(0, correction=0) / variance).mean())


@pytest.mark.parametrize(
    ("sites", "rounds"), [("site", 3), ("particle", 3), ("history", 3), ("none", 3), ("kde_distill", 1),
                          ("kde_shared", 1), ("kde_code", 1)]
)  # fmt: skip
def test_with_one_client_it_is_svgd(sites, rounds):
    toy = Toy(1, 3, 8, sites=sites, lr=0.05)
    server, _ = toy.play(rounds, 6)
    assert_close(server.x, toy.central(*[(6, 0.05)] * rounds), rtol=0, atol=1e-7)


@pytest.mark.parametrize("sites", BACKENDS)
def test_the_first_visit_targets_the_prior_times_the_clients_likelihood(sites):
    toy = Toy(3, 2, 6, sites=sites, lr=0.05)
    server, _ = toy.play(1, 5)
    x = descend(Descent(0.05), toy.x, lambda x: toy(0)(x)[1] - PRIOR * x, 5)
    assert_close(server.x, x, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sites", ["site", "particle"])
@pytest.mark.parametrize("beta", [1.0, 0.25])
def test_sites_are_exact_for_gaussian_likelihoods_up_to_their_damping(beta, sites):
    toy = Toy(3, 4, 9, lr=0.05, beta=beta, sites=sites)
    _, clients = toy.play(3, 5)
    for k, client in enumerate(clients):
        lam, eta = beta * toy.precision[k], beta * toy.precision[k] * toy.m[k]
        assert_close(client.site.lam, lam.expand_as(client.site.lam), rtol=1e-6, atol=0)
        assert_close(client.site.eta, eta.expand_as(client.site.eta), rtol=1e-6, atol=1e-6)
    sums = trees.tree_map(lambda *parts: sum(parts), *[client.site for client in clients])
    assert_close(tuple(toy.server.sums), tuple(sums))


def test_changing_a_site_and_the_sums_with_it_leaves_the_clients_target_alone():
    toy = Toy(3, 4, 9, lr=0.05)
    server, (client, *_) = toy.play(5, 5)
    cfg, model, (_, s) = DSVGD(**toy.settings), SimpleNamespace(size=4), toy(0)(server.x)
    found = []
    for shift in (0.0, 7.0):
        site = trees.tree_map(lambda leaf, shift=shift: leaf + shift, client.site)
        sums = trees.tree_map(lambda leaf, shift=shift: leaf + shift, server.sums)
        changed = client._replace(site=site), server._replace(sums=sums)
        found.append(dsvgd.tilted(cfg, 4, dsvgd.begin(context(cfg, model), *changed, None).cavity, server.x, s))
    assert_close(found[0], found[1])
    others = sum(toy(k)(server.x)[1] for k in range(3))
    assert_close(found[0], others - PRIOR * server.x, rtol=1e-6, atol=1e-6)  # every client has been visited


@pytest.mark.parametrize(("mode", "together"), [
    ({}, 1), ({"sites": "particle"}, 1), ({"mode": "parallel", "beta": 0.5}, 3),
    ({"mode": "parallel", "beta": 0.5, "merge": "svgd"}, 3), ({"mode": "parallel", "beta": 1.0, "merge": "svgd"}, 1),
    ({"mode": "parallel", "beta": 0.5, "merge": "svgd", "sites": "particle"}, 3),
])  # fmt: skip
def test_it_recovers_the_analytic_posterior_in_one_dimension(mode, together):
    toy = Toy(3, 1, 50, **mode)
    toy.play(40, 50, together, lr=0.05)
    server, clients = toy.play(20, 50, together, lr=0.005)
    for x in (server.x, clients[0].x):  # every client's tilted posterior is the posterior
        error, ratio = toy.misfit(x)
        assert error < 0.02
        assert 0.90 < ratio < 1.02


@pytest.mark.parametrize("answers", [3, 2])
def test_the_parallel_merge_multiplies_density_estimates_of_the_local_particles(answers):
    """r_k = p0 t_k as 200 quantiles of a normal: the estimate is N(m_k, v_k + λ²). Two answers stand for three."""
    means, variances, width = torch.tensor([-0.6, 0.2, 0.7]).double(), torch.tensor([0.3, 0.5, 0.4]).double(), 0.55
    quantiles = torch.special.ndtri((torch.arange(200).double() + 0.5) / 200)[:, None]
    local = means[:, None, None] + variances.sqrt()[:, None, None] * quantiles
    settings = {"sites": "kde_distill", "merge": "kde", "prior_precision": PRIOR, "kde_width": width}
    x, who = Stream(0, "start").normal([50, 1]).double(), [0, 1, 2][:answers]
    for steps, lr in ((600, 0.05), (600, 0.005)):
        ctx = context(DSVGD(**settings, server_steps=steps, lr=lr), SimpleNamespace(size=1), Facts(3, 3, 9, 1, 9, 9))
        x = dsvgd.merge_densities(ctx, Server(x, Nothing()), who, dsvgd.Up(local[who], Nothing()), None).x
    smeared = variances[who] + width**2
    precision = PRIOR + 3 * (1 / smeared - PRIOR).mean()  # of p0 Π_k r_k/p0, the mean factor standing for a missing one
    mean = 3 * (means[who] / smeared).mean() / precision
    assert abs(x.mean() - mean) < 0.03 * precision**-0.5
    assert 0.9 < x.var(correction=0) * precision < 1.03


def test_one_client_at_a_time_is_serial_whatever_the_mode():
    ends = [Toy(3, 4, 9, mode=mode, beta=1.0, lr=0.05).play(5, 6) for mode in ("serial", "parallel")]
    assert differing(*ends) == []


def test_a_site_damped_to_a_standstill_stays():
    """β = 0, which a setting cannot say: nothing is learnt of the client, and the sums hear of nothing."""
    toy = Toy(3, 4, 9, lr=0.05)
    _, (client, *_) = toy.play(3, 5)
    site, settings = BACKENDS["site"], DSVGD(**toy.settings).site_settings(4)._replace(damping=0.0)
    own = site.renew(settings, client.site, None, client.x, toy(1)(client.x)[1], torch.ones(4).double())
    assert differing(own, client.site) == []
    assert not any(leaf.any() for leaf in site.share(client.site, own))


def test_a_site_is_damped_as_its_mode_asks_or_as_told():
    assert [DSVGD(mode=mode).site_settings(3).damping for mode in ("serial", "parallel")] == [1.0, 0.1]
    assert [DSVGD(mode=mode, beta=0.3).site_settings(3).damping for mode in ("serial", "parallel")] == [0.3, 0.3]


@pytest.mark.parametrize(("sites", "gradient"), [("kde_distill", kde_gradient), ("kde_code", code_gradient)])
def test_local_particles_are_distilled_towards_equation_7(sites, gradient):
    """One plain step of theirs on q_new/q_old r_k, whose first two are those of the visit."""
    settings = DSVGD(sites=sites, rule="plain", lr=0.3, distil_steps=1).site_settings(2)
    new, old, own = (Stream(0, name).normal([7, 2]).double() for name in ("new", "old", "own"))
    found = BACKENDS[sites].renew(settings, None, Ratio(old, own), new, None, None)
    parts = [gradient(own, centres, 0.55, 2) for centres in (new, old, own)]
    assert_close(found.x, own + 0.3 * dsvgd.direction(own, parts[0] - parts[1] + parts[2], rbf(own)))


@pytest.mark.parametrize("curvature", ["ggn", "regression"])
def test_twice_the_examples_at_twice_the_temperature_are_the_same_likelihood(curvature):
    """exp(-L/α): in the steps, in the site that follows, and in the scores of selection."""
    settings = {"algorithm.particles": 4, "algorithm.lr": 0.01, "algorithm.curvature": curvature}
    plan = small_plan("dsvgd", settings)
    host, server, ends = block(plan, [1]), plan.initial_server(), []
    client, data, batch = trees.row(host.states, 0), shard(host, 0), trees.row(next(draws(host, 1, [0]))[0], 0)
    for factor in (1.0, 2.0):
        cfg = override(plan.cfg.algorithm, {"temperature": factor})
        whole, part = (b._replace(total=factor * b.total) for b in (data, batch))
        ctx = context(cfg, plan.model, plan.facts)
        local, _ = dsvgd.step(ctx, dsvgd.begin(ctx, client, server, whole), part, None)
        ends.append((local.x, dsvgd.finish(ctx, local, whole), dsvgd.scores(ctx, client, server, whole)))
    assert_close(*ends, rtol=1e-5, atol=1e-5)
    assert ends[0][1][0].site.lam.max() > 1


@pytest.mark.parametrize("sites", ["kde_distill", "kde_shared", "kde_code"])
def test_where_local_and_global_particles_are_the_same_they_pull_nowhere(sites):
    """q/r_k = 1: exactly, wherever the particles have moved, as both estimates have one width."""
    toy = Toy(2, 2, 9, sites=sites, lr=0.05)
    settings, kept = DSVGD(**toy.settings).site_settings(2), BACKENDS[sites]
    cavity = kept.cavity(settings, kept.shared(settings, toy.x), kept.own(settings, toy.x), toy.x)
    assert not kept.pull(settings, cavity, toy.x + 0.3).any()
    apart = kept.cavity(settings, kept.shared(settings, toy.x), kept.own(settings, toy.x + 0.1), toy.x)
    assert kept.pull(settings, apart, toy.x + 0.3).all()


def test_it_recovers_the_posterior_under_a_gamma_precision():
    """[w, g] with Gaussian likelihoods of w alone: moments against those of the density on a grid."""
    toy = Toy(3, 2, 50, prior="gamma", prior_shape=2.0, prior_rate=3.0)
    toy.precision[:, 1] = 0  # no client knows of g
    toy.play(30, 40, lr=0.05)
    server, _ = toy.play(15, 40, lr=0.005)
    w, g = torch.meshgrid(torch.linspace(-6, 6, 601), torch.linspace(-8, 5, 601), indexing="ij")
    log_p = 2.5 * g - g.exp() * (3 + w.square() / 2)
    log_p = log_p - sum(p[0] / 2 * (w - m[0]).square() for p, m in zip(toy.precision, toy.m, strict=True))
    p = torch.softmax(log_p.flatten().double(), 0)
    for found, axis in zip(server.x.t(), (w.flatten().double(), g.flatten().double()), strict=True):
        mean = (p * axis).sum()
        variance = (p * (axis - mean).square()).sum()
        assert abs(found.mean() - mean) < 0.1 * variance.sqrt()
        assert 0.75 < found.var(correction=0) / variance < 1.1


@pytest.mark.parametrize("d", [1, 5, 10, 50])
def test_gaussian_sites_do_what_central_svgd_does(d):
    toy = Toy(2, d, 20 if d == 50 else 50)
    toy.play(12, 60, lr=0.05)
    server, _ = toy.play(4, 60, lr=0.005)
    error, ratio = toy.misfit(server.x)
    theirs, central = toy.misfit(toy.central((720, 0.05), (240, 0.005)))
    assert max(error, theirs) < 0.01
    assert ratio == pytest.approx(central, abs=0.015)
    assert d > 1 or ratio > 0.9
    assert d < 50 or ratio < 0.2  # so few particles cannot stand for the variance, there or here


class Skewed(Toy):
    """Log-likelihoods -e^(m_k - θ) - θ/2: no Gaussian has their curvature everywhere."""

    def __call__(self, k):
        return lambda x: (torch.zeros(()).double(), self.precision[k] * ((self.m[k] - x).exp() - 0.5))


def test_at_rest_sites_of_particles_have_the_score_of_all_data_whatever_the_curvature():
    """A regression's slope, one for all particles, is wrong at each; a single Gaussian's rest is elsewhere."""
    left = {}
    for sites in ("particle", "site"):
        toy = Skewed(3, 1, 12, sites=sites, rule="plain")
        x = toy.play(100, 30, lr=0.3)[0].x
        s = sum(toy(k)(x)[1] for k in range(3)) - PRIOR * x
        left[sites] = float(dsvgd.direction(x, s, rbf(x)).abs().max())
    assert left["particle"] < 1e-4  # and by a tenth of it after as many rounds again
    assert left["site"] > 2e-3  # and no less after any


@pytest.mark.parametrize(
    ("sites", "scale", "error", "low", "high"),
    [("kde_distill", 0.25, 0.2, 0.75, 1.1), ("kde_shared", 0.25, 0.2, 0.5, 0.95), ("history", 1.0, 0.02, 1.1, 1.4)],
)
def test_sites_of_particles_are_about_right_in_one_dimension(sites, scale, error, low, high):
    """Distilled ones for clients that nearly agree, with too little variance; a history's, with too much."""
    toy = Toy(2, 1, 50, sites=sites, distil_steps=100, lr=0.02)
    toy.m *= scale
    server, _ = toy.play(16, 100)
    found, ratio = toy.misfit(server.x)
    assert found < error
    assert low < ratio < high


def test_the_public_codes_sites_do_nothing_in_many_dimensions_and_something_in_one():
    """Nor does anything else hold the particles: they end at one client's posterior, far from that of both."""
    for d, inert in ((54, True), (1, False)):
        inertia = [Toy(2, d, 20, sites=sites, lr=0.05).play(6, 20)[0].x for sites in ("kde_code", "none")]
        assert (float((inertia[0] - inertia[1]).abs().max()) < 1e-12) is inert
    good, bad = (Toy(2, 54, 20, sites=sites) for sites in ("site", "kde_code"))
    good.play(8, 60, lr=0.05)
    bad.play(8, 60, lr=0.05)
    assert bad.misfit(bad.server.x)[0] > 10 * good.misfit(good.server.x)[0]


def test_the_first_order_form_is_the_decrease_of_the_free_energy():
    """q = N(μ, I) carried by x + ε φ~_k against a Gaussian posterior: -dF/dε = E_q[(s_post - s_q)·φ~_k]."""
    toy = Toy(2, 2, 400, lr=0.05)
    toy.x = toy.x - toy.x.mean(0)
    kernel, x = fixed_kernel(toy.x, 4.0), toy.x
    s = [toy(k)(x)[1] for k in range(2)]
    posterior, tilted = s[0] + s[1] - PRIOR * x, s[0] - PRIOR * x
    phi = dsvgd.direction(x, tilted, kernel)
    decrease = ((posterior + x) * phi).sum(1).mean()  # by parts, with the score -x of q = N(0, I)
    found = v_statistic(stein_matrix(x, tilted, posterior, kernel, 2))
    assert_close(found, decrease, rtol=0.05, atol=0)
