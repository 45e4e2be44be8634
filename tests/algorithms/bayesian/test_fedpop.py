"""FedPop: its chain against conjugate posteriors, Fisher's identity against the exact marginal, and its limits."""

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.bayesian import fedpop, fedsoul
from fedray.algorithms.bayesian.fedpop import FedPop, HeadPrior
from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.types import FedRayError
from tests.helpers import aggregated, block, differing, play, shard, small_plan

# The closed case: k problems of the same kind side by side. Examples y_j ~ N(φ + z, sd²), and z ~ N(mu, s²).
Y, SD, PHI, MU, S = torch.tensor([0.9, 1.7, -0.4, 1.1]), 0.8, 0.3, -0.5, 0.6
K, EXAMPLES = 4000, torch.tensor(4.0)


def likelihood(theta):
    """∇ log p(y|φ, z) [2 K] in z [K] and φ [K]."""
    z, phi = theta[:K], theta[K:]
    slope = (Y[:, None] - z - phi).sum(0) / SD**2
    return torch.cat([slope, slope])


def silence(theta):
    """The gradient of no data."""
    return torch.zeros_like(theta)


def chain(score, steps, cfg, z=None, gain=1.0):
    """(local, states [steps, K]) of the closed case after so many steps; noise times ``gain``."""
    beta = HeadPrior(torch.full([K], MU), torch.full([K], S**2))
    phi = torch.full([K], PHI)
    z = beta.mu if z is None else z
    client = fedpop.Client(z, z[None], torch.zeros(()))
    nothing = HeadPrior(torch.zeros(K), torch.zeros(K))
    theta = torch.cat([z, phi])
    down, sum_j = fedpop.Down(phi, beta), torch.zeros(2 * K)
    local = fedpop.Local(theta, torch.arange(K), client, down, nothing, sum_j, torch.zeros(()), None)
    states = []
    for r in range(steps):
        noise = gain * Stream(0, "chain", 0, r).normal([K])
        local = fedpop.advance(cfg, local, score(local.theta), EXAMPLES, noise)
        states.append(local.theta[:K].clone())
    return local, torch.stack(states)


def posterior():
    """Mean and variance of z given the examples, by conjugacy."""
    precision = len(Y) / SD**2 + 1 / S**2
    return ((Y - PHI).sum().item() / SD**2 + MU / S**2) / precision, 1 / precision


@pytest.mark.parametrize("gamma", [0.02, 0.1])
def test_the_chain_has_the_conjugate_posterior_up_to_its_known_bias(gamma):
    """Of a Gaussian with variance v, Langevin steps γ have the mean exactly and the variance v / (1 - γ/(2v)); those
    whose noise is right for the prior's variance s² have v (1 - γ/(2s²)) / (1 - γ/(2v))."""
    cfg = FedPop(step_size=gamma * EXAMPLES.item())
    _, states = chain(likelihood, round(20 / gamma), cfg)
    late = states[len(states) // 4 :]
    mean, variance = posterior()
    assert_close(late.mean().item(), mean, rtol=0, atol=5e-3)
    assert_close(
        late.var().item(), variance * (1 - gamma / (2 * S**2)) / (1 - gamma / (2 * variance)), rtol=0.02, atol=0
    )


def test_a_smaller_step_is_nearer_to_the_posterior():
    _, variance = posterior()
    biases = []
    for gamma in (0.12, 0.06, 0.03):
        _, states = chain(likelihood, round(20 / gamma), FedPop(step_size=gamma * EXAMPLES.item()))
        biases.append(states[len(states) // 4 :].var().item() - variance)
    assert biases[0] > 1.7 * biases[1] > 0
    assert biases[1] > 1.5 * biases[2] > 0


def test_without_data_the_chain_targets_the_prior():
    _, states = chain(silence, 1500, FedPop(step_size=0.02 * EXAMPLES.item()), z=torch.full([K], 2.0))
    late = states[500:]
    assert_close(late.mean().item(), MU, rtol=0, atol=0.01)
    assert_close(late.std().item(), S, rtol=0.03, atol=0)


@pytest.mark.parametrize("gamma", [1.0, 10.0, 1e4])
def test_whatever_the_step_size_a_chain_without_data_keeps_the_spread_of_the_prior(gamma):
    """Few examples have steps γ/n far above 2 v, by which a plain chain runs away; with the plain noise, steps of v/2
    would have 4/3 of v."""
    _, states = chain(silence, 400, FedPop(step_size=gamma * EXAMPLES.item()), z=torch.full([K], 2.0))
    late = states[100:]
    assert_close(late.mean().item(), MU, rtol=0, atol=0.02)
    assert_close(late.var().item(), S**2, rtol=0.05, atol=0)


def log_marginal(phi, mu, var):
    """log ∫ p(y|φ, z) p(z|β) dz: y is jointly normal."""
    n = len(Y)
    covariance = SD**2 * torch.eye(n).double() + var * torch.ones(n, n).double()
    return MultivariateNormal(torch.full([n], phi + mu).double(), covariance).log_prob(Y.double()).item()


def test_the_means_over_the_chain_are_the_gradient_of_the_exact_marginal():
    """Fisher's identity, against central differences; what is uploaded is a mean, not a sum."""
    steps, burn_in = 1200, 200
    cfg = FedPop(step_size=0.01 * EXAMPLES.item(), burn_in=burn_in)
    local, _ = chain(likelihood, steps, cfg)
    used = steps - burn_in
    at, h = {"phi": PHI, "mu": MU, "var": S**2}, 1e-4
    found = {"phi": local.j[K:] / used, "mu": local.i.mu / used, "var": local.i.var / used}
    for name, value in at.items():
        up, down = (log_marginal(**(at | {name: value + sign * h})) for sign in (1, -1))
        assert_close(found[name].mean().item(), (up - down) / (2 * h), rtol=0.03, atol=0.03)


def test_finish_uploads_means_over_the_states_after_the_burn_in():
    plan = small_plan("fedpop", {"algorithm.burn_in": 2, "local_steps": 5})
    host = block(plan, [1])
    down = fedpop.broadcast(plan.context, plan.initial_server(), [1])
    data = shard(host, 0)
    local = fedpop.begin(plan.context, trees.row(host.states, 0), down, data)
    batch = trees.tree_map(lambda leaf: leaf[:48] if leaf.ndim else leaf, data)
    terms = []
    for r in range(5):
        before = local.j.clone()
        noise = Stream(0, "chain", 0, r).normal(fedpop.noise_shape(plan.context))
        local, _ = fedpop.step(plan.context, local, batch, noise)
        terms.append(local.j - before)
    assert [bool(term.any()) for term in terms] == [False, False, True, True, True]
    _, up = fedpop.finish(plan.context, local, data)
    assert_close(up.j, torch.stack(terms[2:]).mean(0)[plan.model.rest(("head",))], rtol=1e-5, atol=1e-4)


def log_joint(plan, down, theta, data):
    """log p(D|φ, z) + log p(z|β) up to a constant, from the network's own forward pass."""
    model = plan.model
    log_p = torch.log_softmax(model.apply(theta, data.x), -1).gather(-1, data.y[:, None]).squeeze(-1)
    z = theta[model.part(("head",))]
    prior = -((z - down.beta.mu).square() / (2 * down.beta.var)).sum()
    return (log_p * data.weight).sum() + prior


@pytest.mark.parametrize(("sampler", "prior"), [("map", "fixed"), ("ula", "learned")])
def test_without_noise_a_step_is_gradient_ascent_on_the_log_posterior(sampler, prior):
    settings = {"algorithm.prior": prior, "algorithm.sampler": sampler, "algorithm.prior_sd": 0.3}
    plan = small_plan("fedpop", settings)
    host = block(plan, [1])
    data, own = shard(host, 0), plan.model.part(("head",))
    down = fedpop.broadcast(plan.context, plan.initial_server(), [1])
    client = trees.row(host.states, 0)._replace(z=Stream(0, "z").normal([len(own)]), rounds=torch.ones(()))
    local = fedpop.begin(plan.context, client, down, data)
    noise = torch.zeros(fedpop.noise_shape(plan.context))
    after, _ = fedpop.step(plan.context, trees.tree_map(torch.clone, local), data, noise)
    theta = local.theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(log_joint(plan, down, theta, data), theta)
    expected = local.theta.index_add(0, own, plan.cfg.algorithm.step_size / data.total * gradient[own])
    assert_close(after.theta, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(after.theta[plan.model.rest(("head",))], down.phi)  # φ stays during a round


def test_ula_takes_the_whole_shard_whatever_the_minibatch():
    plan = small_plan("fedpop", {"algorithm.sampler": "ula"})
    host = block(plan, [1])
    data = shard(host, 0)
    down = fedpop.broadcast(plan.context, plan.initial_server(), [1])
    local = fedpop.begin(plan.context, trees.row(host.states, 0), down, data)
    noise = Stream(0, "chain").normal(fedpop.noise_shape(plan.context))
    few = trees.tree_map(lambda leaf: leaf[:7] if leaf.ndim else leaf, data)
    seen = [fedpop.step(plan.context, trees.tree_map(torch.clone, local), batch, noise) for batch in (few, data)]
    assert differing(*seen) == []


def test_without_random_layers_it_is_one_gradient_step_on_all_data():
    """No heads: φ moves along the mean gradient at the broadcast point, whatever the local steps."""
    settings = {"algorithm.personal": (), "algorithm.sampler": "ula", "algorithm.optimizer": "sgd", "algorithm.lr": 0.5}
    plan = small_plan("fedpop", settings)
    host = block(plan)
    everyone = tuple(range(6))
    start = plan.initial_server().phi
    server, _, _ = play(plan, [host], rounds=(everyone,))
    theta = torch.zeros(plan.model.padded).index_copy(0, plan.model.rest(()), start)
    total = sum(len(shard) for shard in plan.partition.train)
    gradient = sum(fedavg.gradient(plan.model, theta, shard(host, i))[1] * host.n[i] / total for i in everyone)
    assert_close(server.phi, start - 0.5 * gradient[: plan.model.size], rtol=1e-5, atol=1e-6)


def test_the_server_climbs_the_mean_log_likelihood():
    plan = small_plan("fedpop", {"algorithm.optimizer": "sgd"})
    server, n = plan.initial_server(), torch.tensor([10, 30, 20])
    j = Stream(0, "j").normal([3, len(server.phi)])
    still = trees.tree_map(lambda leaf: torch.zeros(3, len(leaf)), server.beta)
    after = aggregated(plan.algorithm, plan.context, server, (0, 1, 2), fedpop.Up(still, j), n)
    assert_close(after.phi, server.phi + plan.cfg.algorithm.lr * j.sum(0) / 60)
    assert differing(after.beta, server.beta) == []


def moved_prior(z, rate, mu=0.0, sd=0.05):
    """β after one round at the learning rate ``rate``, from N(mu, sd²) and heads [N, k], with I_i by autograd."""
    plan = small_plan("fedpop", {"algorithm.lr_prior": rate})
    server = plan.initial_server()
    start = HeadPrior(torch.full_like(server.beta.mu, mu), torch.full_like(server.beta.var, sd**2))
    at = tuple(leaf.expand_as(z).clone().requires_grad_() for leaf in start)
    torch.distributions.Normal(at[0], at[1].sqrt()).log_prob(z).sum().backward()
    ups = fedpop.Up(HeadPrior(*(leaf.grad for leaf in at)), torch.zeros(len(z), len(server.phi)))
    after = aggregated(
        plan.algorithm, plan.context, server._replace(beta=start), range(len(z)), ups, torch.arange(1, len(z) + 1)
    )
    return after.beta


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_the_prior_moves_to_the_moments_of_the_heads(rate):
    """At rate 1 an EM step, whose variance is about the heads' own mean; else a part of the way in E z and E z²."""
    z = 0.4 + 1.5 * Stream(0, "z").normal([3, 90])
    mu, var = moved_prior(z, rate, mu=-0.3)
    assert_close(mu, torch.lerp(torch.full([90], -0.3), z.mean(0), rate))
    second = torch.lerp(torch.full([90], 0.3**2 + 0.05**2), z.square().mean(0), rate)
    assert_close(var, second - mu.square(), rtol=1e-4, atol=1e-5)


def test_a_prior_that_must_go_far_keeps_the_spread_of_the_heads():
    z = torch.tensor([5.0, 5.2, 4.8])[:, None].expand(3, 90)
    assert_close(moved_prior(z, 1.0, sd=1.0).var, torch.full([90], 0.08 / 3), rtol=1e-3, atol=0)


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_heads_that_agree_leave_a_variance_whatever_the_rounding(rate):
    z = torch.linspace(-40, 40, 90).expand(3, 90)
    assert (moved_prior(z, rate, sd=0.1).var > 0).all()


def test_a_fixed_prior_stays():
    plan = small_plan("fedsoul")
    server, _, _ = play(plan, [block(plan)])
    assert differing(server.beta, plan.initial_server().beta) == []
    assert differing(server.phi, plan.initial_server().phi)


def test_fedsoul_is_fedpop_with_a_fixed_prior():
    a, b = small_plan("fedpop", {"algorithm.prior": "fixed"}), small_plan("fedsoul")
    assert fedsoul.ALGORITHM._replace(summary="", config=None) == fedpop.ALGORITHM._replace(summary="", config=None)
    assert differing(play(a, [block(a)]), play(b, [block(b)])) == []


def test_a_client_keeps_the_states_at_the_ends_of_its_last_rounds():
    client = fedpop.Client(torch.zeros(1), torch.full([3, 1], -1.0), torch.zeros(()))
    for number in range(8):
        client = fedpop.keep(client, torch.full([1], float(number)))
        last = [float(max(0, number - back)) for back in range(3)]  # the first state fills all places
        assert sorted(client.kept.flatten().tolist()) == sorted(last)
        assert client.z == number


def test_a_prediction_averages_the_kept_heads_on_the_published_body():
    plan = small_plan("fedpop", {"algorithm.particles": 2})
    host = block(plan)
    server, states, _ = play(plan, [host])
    view, data = plan.view(server), shard(host, 2)
    client = trees.row(states, 2)
    personal = fedpop.personalize(plan.context, client, view, data, torch.zeros(0))
    log_p = fedpop.predict_personal(plan.context, personal, data.x[:5], torch.zeros(0))
    w, b = view.phi[: 64 * 8].view(64, 8), view.phi[64 * 8 :]
    hidden = (data.x[:5].flatten(1) @ w + b).relu()
    for row, z in zip(log_p, client.kept, strict=True):
        assert_close(row, torch.log_softmax(hidden @ z[:80].view(8, 10) + z[80:], -1), rtol=1e-4, atol=1e-5)
    assert len(torch.unique(client.kept, dim=0)) == 2


@pytest.mark.parametrize(
    ("visits", "expected"), [(1, [0, 0, 0, 0]), (2, [0, 0, 1, 1]), (4, [0, 1, 2, 3]), (6, [2, 3, 4, 5])]
)
def test_after_few_rounds_no_state_counts_more_than_once_more_than_another(visits, expected):
    """The first fills all places, and is the furthest from the posterior: after two of four it would be 75 %."""
    plan = small_plan("fedpop", {"algorithm.particles": 4})
    client, own = fedpop.client_init(plan.context, plan.initial_server()), plan.model.part(("head",))
    for number in range(visits):
        client = fedpop.keep(client, torch.full([len(own)], float(number)))
    view = plan.view(plan.initial_server())
    personal = fedpop.personalize(plan.context, client, view, shard(block(plan), 2), torch.zeros(0))
    assert sorted(personal.thetas[:, own[0]].tolist()) == expected


def test_a_client_that_was_never_asked_predicts_with_the_learned_mean():
    plan = small_plan("fedpop", {"algorithm.particles": 2})
    beta = HeadPrior(*(leaf + 0.5 for leaf in plan.initial_server().beta))
    view = plan.view(plan.initial_server())._replace(beta=beta)
    host = block(plan)
    personal = fedpop.personalize(plan.context, trees.row(host.states, 2), view, shard(host, 2), torch.zeros(0))
    own = personal.thetas[:, plan.model.part(("head",))]
    assert torch.equal(own, beta.mu.expand(2, -1))


def test_a_newcomer_starts_at_the_learned_mean_and_moves_its_head_alone():
    plan = small_plan("fedpop")
    server, _, _ = play(plan, [block(plan)])
    assert server.beta.mu.any()
    host = block(plan, [1])
    local = fedpop.begin(plan.context, trees.row(host.states, 0), plan.view(server), shard(host, 0))
    assert torch.equal(local.theta[plan.model.part(("head",))], server.beta.mu)
    assert fedpop.ALGORITHM.adapt is fedpop.step  # which leaves φ and β as they were: see above


def test_no_state_of_a_chain_is_uploaded():
    assert set(fedpop.Up._fields) == {"i", "j"}
    plan = small_plan("fedpop")
    shapes = trees.tree_map(lambda leaf: len(leaf), fedpop.Up(plan.initial_server().beta, plan.initial_server().phi))
    k = len(plan.model.part(("head",)))
    assert shapes == fedpop.Up(HeadPrior(k, k), plan.model.size - k)


def test_what_cannot_run_is_refused():
    with pytest.raises(FedRayError, match=r"prior learned.*spread"):
        FedPop(sampler="map")
    with pytest.raises(FedRayError, match="step_size"):
        FedPop(step_size=0)
    with pytest.raises(FedRayError, match="lr_prior"):
        FedPop(lr_prior=1.5)
    with pytest.raises(FedRayError, match=r"burn_in 5.*no state"):
        small_plan("fedpop", {"algorithm.burn_in": 5, "local_steps": 5})
