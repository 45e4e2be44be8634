"""pFedBayes: a round against two torch optimizers, its limiting cases, and what it keeps between rounds."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.bayesian import pfedbayes
from fedray.algorithms.bayesian.pfedbayes import Client, Local, PFedBayes
from fedray.arrays import trees
from fedray.arrays.optim import zero_moments
from fedray.arrays.rng import Stream
from fedray.bayes import variational
from fedray.bayes.gaussian import Gaussian, kl, sigma
from fedray.config import override
from fedray.federate.in_process import LocalFederation
from fedray.types import Facts
from tests.bayes.test_variational import MODEL, batch, between, gaussian, objective
from tests.helpers import aggregated, block, built, context, differing, examples, experiment, play, small_plan

SILENT = built("mclr", (2, 3), 1)  # one class: the likelihood is 1 whatever the weights
RULES = ("rho", "sigma", "moments")


def client(q):
    zero = zero_moments(q.mu)
    return Client(q, zero, zero, torch.zeros(()), zero, zero, torch.zeros(()))


def step(cfg, model, local, batch, eps):
    """A step that leaves its arguments alone."""
    return pfedbayes.step(context(cfg, model), trees.tree_map(torch.Tensor.clone, local), batch, eps)


def noise(cfg, model=MODEL, size=9):
    facts = Facts(1, 1, 1, 1, size, size)
    return Stream(0, "noise").normal(pfedbayes.noise_shape(context(cfg, model, facts))).double()


@pytest.mark.parametrize(("estimator", "kl"), [("weights", "qw"), ("local", "qw"), ("weights", "wq")])
def test_steps_are_those_of_two_torch_optimizers(estimator, kl):
    """q descends Ω with w fixed, personal_steps times on a batch; then w descends the divergence with q fixed."""
    cfg = PFedBayes(estimator=estimator, kl=kl, personal_steps=2, mc_samples=2, lr_personal=0.02, lr_global=0.05)
    q, w = (Gaussian(*(leaf.requires_grad_() for leaf in gaussian(seed))) for seed in (0, 1))
    local = Local(client(gaussian(0)), gaussian(1))
    q_adam, w_adam = torch.optim.Adam(q, lr=0.02), torch.optim.Adam(w, lr=0.05)
    for number in range(4):
        eps = noise(cfg).roll(number, -1)
        for e in eps:
            value, nll = objective(cfg, q, w, batch(), e)
            q.mu.grad, q.rho.grad = torch.autograd.grad(value, q)
            q_adam.step()
        divergence = between(cfg, q, w)
        w.mu.grad, w.rho.grad = torch.autograd.grad(divergence, w)
        w_adam.step()
        local, info = step(cfg, MODEL, local, batch(), eps)
        used = slice(0, MODEL.size)  # there is nothing to learn in the padding
        for ours, theirs in zip((*local.client.q, *local.w), (*q, *w), strict=True):
            assert_close(ours[used], theirs.detach()[used], rtol=1e-6, atol=1e-8)
        assert_close(info, pfedbayes.Info(nll.detach(), divergence.detach()), rtol=1e-6, atol=1e-8)
    assert (local.client.q_t, local.client.w_t) == (8, 4)


def test_without_kl_the_posterior_does_not_see_the_prior():
    cfg = PFedBayes(zeta=0.0)
    ends = [step(cfg, MODEL, Local(client(gaussian(0)), gaussian(seed)), batch(), noise(cfg))[0] for seed in (1, 2)]
    assert differing(ends[0].client.q, ends[1].client.q) == []
    assert differing(ends[0].w, ends[1].w) == ["mu", "rho"]


def test_without_a_step_the_upload_is_the_broadcast_and_the_posterior_stays():
    cfg, q, w, data = PFedBayes(), gaussian(0), gaussian(1), batch()
    ctx, known = context(cfg, MODEL), client(q)._replace(q_t=torch.ones(()))
    kept, up = pfedbayes.finish(ctx, pfedbayes.begin(ctx, known, w, data), data)
    assert differing(up, w) == []
    assert differing(kept._replace(q_t=torch.zeros(())), pfedbayes.client_init(ctx, q)) == []


def test_a_client_that_is_first_drawn_late_begins_with_the_global_distribution():
    """Its own start is a random network, to which its copy of w would be pulled; nor is it tested by that."""
    cfg, q, w, data = PFedBayes(), gaussian(0), gaussian(1), batch()
    ctx = context(cfg, MODEL)
    local = pfedbayes.begin(ctx, client(q), w, data)
    assert differing(local.client.q, w) == []
    _, info = step(cfg, MODEL, local, data, noise(cfg)[:0])
    assert info.kl == 0
    for steps, expected in ((0.0, w), (1.0, q)):
        known = client(q)._replace(q_t=torch.tensor(steps))
        tested = pfedbayes.personalize(ctx, known, w, data, torch.zeros(0))
        assert differing(tested.q, expected) == []


@pytest.mark.parametrize(("zeta", "kl"), [*itertools.product((1.0, 0.0), ("qw", "wq"))])
def test_without_data_small_steps_shrink_the_divergence(zeta, kl):
    """By q alone (lr_global tiny), or by w alone (ζ = 0, so that nothing moves q)."""
    cfg = PFedBayes(zeta=zeta, kl=kl, lr_global=1e-300 if zeta else 0.01, lr_personal=0.01)
    start = Local(client(gaussian(0, SILENT)), gaussian(1, SILENT))
    local, seen = start, [between(cfg, start.client.q, start.w)]
    for _ in range(40):
        local, _ = step(cfg, SILENT, local, batch(SILENT), noise(cfg, SILENT))
        seen.append(between(cfg, local.client.q, local.w))
    assert all(later < earlier for earlier, later in itertools.pairwise(seen))
    assert seen[-1] < 0.9 * seen[0]
    still, moved = (local.w, local.client.q) if zeta else (local.client.q, local.w)
    assert_close(still, start.w if zeta else start.client.q, rtol=0, atol=0)
    assert not torch.equal(moved.mu, (start.client.q if zeta else start.w).mu)


def test_a_conjugate_posterior_is_recovered(monkeypatch):
    """With nll = ½ Σ_p λ_p (θ_p - a_p)², q is N((nλa + ζμ_w/σ_w²)/h, ζ/h), h = nλ + ζ/σ_w²."""
    size, zeta, n = 64, 2.0, 6.0
    curvature, target = torch.logspace(-1, 1, size), torch.linspace(-1, 1, size)

    def quadratic(model, theta, x, y, weight):
        gap = theta - target
        return weight.sum() * (curvature * gap.square()).sum() / 2, weight.sum() * curvature * gap

    monkeypatch.setattr(variational, "nll_and_grad", quadratic)
    w = Gaussian(torch.full((size,), 0.5), torch.full((size,), -0.5))
    precision = sigma(w.rho) ** -2
    h = n * curvature + zeta * precision
    mean, sd = (n * curvature * target + zeta * precision * w.mu) / h, (zeta / h).sqrt()
    data = examples(3, total=n)._replace(weight=torch.tensor([1.0, 1.0, 0.0]))
    state, stream, tail = client(w), Stream(0, "noise"), []
    for t in range(900):
        cfg = PFedBayes(zeta=zeta, mc_samples=8, lr_personal=0.03 if t < 300 else 0.003)
        half = stream.normal([4, size])  # antithetic draws
        eps = torch.cat([half, -half])[None]
        state = step(cfg, MODEL, Local(state, w), data, eps)[0].client  # w stays
        tail += [state.q] if t >= 600 else []
    q = Gaussian(*(torch.stack(leaf).mean(0) for leaf in zip(*tail, strict=True)))
    assert ((q.mu - mean).abs() < 0.05 * sd).all()
    assert ((sigma(q.rho) / sd - 1).abs() < 0.05).all()
    assert kl(q, Gaussian(mean, torch.log(torch.expm1(sd)))) < 0.02


@pytest.mark.parametrize(("rule", "beta"), [*itertools.product(RULES, (1.0, 0.5))])
def test_any_rule_returns_equal_uploads(rule, beta):
    """At β < 1 where the server has them already."""
    cfg, w = PFedBayes(average=rule, beta=beta), trees.tree_map(torch.Tensor.float, gaussian(1))
    server = w if beta < 1 else trees.tree_map(torch.Tensor.float, gaussian(2))
    after = aggregated(
        pfedbayes.ALGORITHM, context(cfg, MODEL), server, range(4), trees.stack([w] * 4), torch.arange(1, 5)
    )
    assert_close(tuple(after), tuple(w), rtol=1e-6, atol=1e-6)


def test_rules_differ_in_the_deviation_only_and_are_ordered():
    w = trees.stack([gaussian(seed) for seed in range(5)])
    ordered = []
    for rule in RULES:
        cfg = PFedBayes(average=rule)
        after = aggregated(pfedbayes.ALGORITHM, context(cfg, MODEL), gaussian(9), range(5), w, torch.arange(1, 6))
        assert_close(after.mu, w.mu.mean(0))  # each client weighs the same, whatever its shard
        ordered.append(sigma(after.rho)[: MODEL.size])
        order = [3, 1, 4, 0, 2]
        again = aggregated(
            pfedbayes.ALGORITHM, context(cfg, MODEL), gaussian(9), order, trees.rows(w, order), torch.ones(5)
        )
        assert_close(tuple(again), tuple(after), rtol=1e-6, atol=1e-6)
    assert (ordered[0] < ordered[1]).all()
    assert (ordered[1] < ordered[2]).all()
    assert_close(ordered[1], sigma(w.rho).mean(0)[: MODEL.size])
    damped = aggregated(
        pfedbayes.ALGORITHM, context(PFedBayes(beta=0.25), MODEL), gaussian(9), range(5), w, torch.ones(5)
    )
    assert_close(damped.rho, 0.75 * gaussian(9).rho + 0.25 * w.rho.mean(0))


@pytest.mark.parametrize("rule", RULES)
def test_the_server_is_damped_in_what_it_averages(rule):
    """One upload at β = 1/4: the result is that of three uploads of the server's own distribution and this one."""
    w, up = gaussian(9), gaussian(1)._replace(rho=torch.full_like(gaussian(1).rho, -4.0))
    after, plain = (
        aggregated(pfedbayes.ALGORITHM, context(cfg, MODEL), w, range(len(ups)), trees.stack(ups), torch.ones(len(ups)))
        for cfg, ups in (
            (PFedBayes(average=rule, beta=0.25), [up]),
            (PFedBayes(average=rule), [w, w, w, up]),
        )
    )
    assert_close(tuple(after), tuple(plain))


def test_the_average_of_moments_minimizes_the_mean_divergence():
    """Lemma A.2: the Gaussian w closest to all q_k in mean_k KL(q_k‖w)."""
    ups = trees.stack([gaussian(seed) for seed in range(5)])
    rule = context(PFedBayes(average="moments"), MODEL)
    w = aggregated(pfedbayes.ALGORITHM, rule, gaussian(9), range(5), ups, torch.ones(5))

    def mean_kl(mu, sd):
        found = torch.distributions.Normal(mu, sd)
        clients = torch.distributions.Normal(ups.mu, sigma(ups.rho))
        return torch.distributions.kl_divergence(clients, found).sum(-1).mean()

    at = w.mu.clone().requires_grad_(), sigma(w.rho).requires_grad_()
    for grad in torch.autograd.grad(mean_kl(*at), at):
        assert grad.abs().max() < 1e-9


@pytest.mark.parametrize("keep", [True, False])
def test_the_moments_of_w_outlive_a_round_only_if_asked_to(keep):
    cfg, data = PFedBayes(keep_global_moments=keep), batch()
    local = step(cfg, MODEL, Local(client(gaussian(0)), gaussian(1)), data, noise(cfg))[0]
    kept, _ = pfedbayes.finish(context(cfg, MODEL), local, data)
    again = pfedbayes.begin(context(cfg, MODEL), kept, gaussian(2), data)
    assert differing(again.w, gaussian(2)) == []
    assert differing(again.client, kept) == ([] if keep else ["w_mu.m", "w_mu.v", "w_rho.m", "w_rho.v", "w_t"])
    assert (again.client.q_t, again.client.w_t) == (5, 1 if keep else 0)


def test_server_and_clients_start_alike():
    plan = small_plan("pfedbayes", {"algorithm.rho_init": -1.5, "model.hidden": (100,)})
    server, states = plan.initial_server(), block(plan).states
    assert all(differing(trees.row(states.q, k), server) == [] for k in range(6))
    assert (server.rho == -1.5).all()
    weights = server.mu[: plan.model.size]
    assert 0.095 < weights.std() < 0.105
    assert weights.mean().abs() < 0.005
    assert server.mu[plan.model.size :].count_nonzero() == 0


def test_initial_deviations_may_differ_while_the_means_stay():
    plans = [small_plan("pfedbayes", {"algorithm.rho_sd": sd, "model.hidden": (100,)}) for sd in (0.0, 0.1)]
    same, apart = (plan.initial_server() for plan in plans)
    used = slice(0, plans[0].model.size)
    assert torch.equal(same.mu, apart.mu)
    assert 0.095 < apart.rho[used].std() < 0.105
    assert (apart.rho[used].mean() + 2.5).abs() < 0.005
    assert torch.stack([apart.mu[used], apart.rho[used]]).corrcoef()[0, 1].abs() < 0.05


@pytest.mark.parametrize(
    "settings",
    [
        {"estimator": "local"},
        {"mc_samples": 2, "personal_steps": 2},
        {"keep_global_moments": True, "noise_sd": 0.1, "kl": "wq"},
    ],
)
def test_every_variant_is_bitwise_the_same_alone_and_stacked(settings):
    plan = small_plan("pfedbayes", {f"algorithm.{name}": value for name, value in settings.items()})
    loop, stack = (play(plan, [block(plan, backend=backend)], ((0, 1, 2, 4),)) for backend in ("loop", "vmap"))
    assert all(differing(a, b) == [] for a, b in zip(loop, stack, strict=True))


@pytest.mark.parametrize(("name", "likelihood", "kl"), [("a_parity", "batch", "qw"), ("h_parity", "mean", "wq")])
def test_parity_presets_are_published_code(name, likelihood, kl):
    preset = pfedbayes.ALGORITHM.presets[name]
    cfg = override(experiment("pfedbayes"), preset.overrides)
    own = cfg.algorithm
    assert (own.likelihood, own.kl, own.zeta) == (likelihood, kl, 0.5)
    assert (own.noise_sd, own.personal_steps, own.keep_global_moments) == (0.001, 5, True)
    assert (cfg.batch_size, cfg.local_steps, cfg.predict_samples, cfg.data.layout) == (100, 20, 1, "cluster")
    assert "not a posterior" in preset.warning


def test_predictions_draw_from_the_posterior_with_the_noise_of_training():
    x, eps = examples(3).x, Stream(0, "noise").normal([2, MODEL.padded]).double()
    q = gaussian(0)
    for cfg in (PFedBayes(), PFedBayes(noise_sd=0.5)):
        thetas = q.mu + cfg.noise_sd * sigma(q.rho) * eps
        expected = torch.stack([torch.log_softmax(MODEL.apply(theta, x), -1) for theta in thetas])
        assert_close(pfedbayes.predict_global(context(cfg, MODEL), q, x, eps), expected)
        assert_close(pfedbayes.predict_personal(context(cfg, MODEL), client(q), x, eps), expected)


@pytest.mark.parametrize(("rho", "zeta", "kl"), [(-1.0, 10.0, "qw"), (-2.2, 3.7, "qw"), (-3.0, 0.5, "wq")])
def test_the_padding_stays_where_it_was(rho, zeta, kl):
    settings = {"rho_init": rho, "zeta": zeta, "kl": kl, "rho_sd": 0.1}
    plan = small_plan("pfedbayes", {f"algorithm.{name}": value for name, value in settings.items()})
    server, states, *_ = play(plan, [block(plan)])
    for q in (server, states.q):
        assert (q.rho[..., plan.model.size :] == rho).all()
        assert (q.mu[..., plan.model.size :] == 0).all()


def test_a_newcomer_leaves_the_global_distribution_as_it_is():
    """Its posterior moves as in a step, whose last act alone is of w."""
    cfg = PFedBayes(personal_steps=2)
    start = Local(client(gaussian(0))._replace(q_t=torch.ones(())), gaussian(1))
    trained, info = step(cfg, MODEL, start, batch(), noise(cfg))
    copy = trees.tree_map(torch.Tensor.clone, start)
    adapted, same = pfedbayes.adapt(context(cfg, MODEL), copy, batch(), noise(cfg))
    assert differing(adapted.client.q, trained.client.q) == []
    assert differing(adapted.w, start.w) == []
    assert adapted.client.q_t == 3
    assert_close(same, info)


def test_a_newcomer_starts_from_the_global_distribution():
    """In its first step only; what it was before does not matter."""
    cfg = PFedBayes(personal_steps=2)
    w, ctx = gaussian(1), context(cfg, MODEL)
    ends = []
    for seed in (0, 1, 2):  # the second one starts where it should
        local = trees.tree_map(torch.Tensor.clone, Local(client(gaussian(seed)), w))
        for _ in range(2):
            local, _ = pfedbayes.adapt(ctx, local, batch(), noise(cfg))
        ends.append(local)
    assert differing(ends[0], ends[1]) == differing(ends[2], ends[1]) == []
    trained = Local(client(w), w)
    for _ in range(2):
        trained, _ = step(cfg, MODEL, trained, batch(), noise(cfg))
        trained = trained._replace(w=w)
    assert differing(ends[0].client.q, trained.client.q) == []
    assert differing(ends[0].w, w) == []


def test_the_text_of_the_paper_takes_one_step_of_each_on_every_client():
    plain, preset = experiment("pfedbayes"), pfedbayes.ALGORITHM.presets["paper_text"]
    cfg = override(plain, preset.overrides)
    assert noise(cfg.algorithm).shape[0] == 1
    assert override(cfg, {"algorithm.personal_steps": 5, "train_all": False}) == plain  # and nothing else
    states, before = play(plan := small_plan("pfedbayes", preset.overrides), [block(plan)])[1], block(plan).states
    assert (states.q_t[[2, 5]] == 10).all()  # two rounds of five minibatches, one step on each
    assert before.q_t.count_nonzero() == 0
    with LocalFederation(plan) as federation:
        assert [len(found.participants) for found in federation] == [4, 4]
        assert (federation.snapshot().clients.q_t == 10).all()


def test_without_deviations_draws_do_not_disagree():
    settings = {"rounds": 1, "predict_samples": 4}
    found = {sd: next(iter(LocalFederation(small_plan("pfedbayes", settings | {"algorithm.noise_sd": sd}))))
             for sd in (0.0, 1.0)}  # fmt: skip
    for kind in ("personal", "global_"):
        certain, torn = (getattr(found[sd], kind).mutual_information for sd in (0.0, 1.0))
        assert (certain < 1e-12).all()
        assert (torn > 1e-3).all()
