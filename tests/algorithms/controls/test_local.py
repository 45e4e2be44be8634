"""Clients that train alone: a round against torch's optimizers, what outlives it, and the methods it is a limit of."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn import functional
from torch.testing import assert_close

from fedray.algorithms.controls import local
from fedray.algorithms.controls.local import LocalTraining
from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.bayes import variational
from fedray.bayes.gaussian import Gaussian, kl, sigma
from fedray.federate.in_process import LocalFederation
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.types import FedRayError
from tests.bayes.test_variational import batch
from tests.helpers import NETS, block, context, differing, examples, play, small_plan, whole_and_resumed

MODEL = NETS["mlp"]
POSTERIORS = ("point", "gaussian")
VARIANTS = ({"posterior": "point"}, {"posterior": "point", "optimizer": "adam"}, {"posterior": "gaussian"})
every_posterior = pytest.mark.parametrize("posterior", POSTERIORS)
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(variant.values()))


def plan_of(variant, **settings):
    return small_plan("local", {f"algorithm.{name}": value for name, value in variant.items()} | settings)


def start(cfg, model=MODEL):
    """A client before its first step, in double precision."""
    ctx = context(cfg, model)
    record = local.configure(local.ALGORITHM, cfg)
    server = record.server_init(ctx, Stream(0, "server"))
    return trees.tree_map(torch.Tensor.double, record.client_init(ctx, server))


def noise(model=MODEL):
    return Stream(0, "noise").normal([1, model.padded]).double()


@every_variant
def test_nothing_is_sent_and_who_else_takes_part_changes_nothing(variant):
    plan = plan_of(variant)
    server, together, _ = play(plan, [block(plan)])
    _, alone, _ = play(plan, [block(plan)], rounds=((2,), (2,)))
    assert differing(trees.row(together, 2), trees.row(alone, 2)) == []
    assert differing(server, plan.initial_server()) == []
    with LocalFederation(plan) as federation:
        assert {(metrics.bytes_up, metrics.bytes_down) for metrics in federation} == {(0, 0)}


@every_variant
def test_a_round_ends_nothing(variant):
    """Ten steps of one round are five steps of two: also what the optimizer remembers lasts."""
    once, twice = plan_of(variant, local_steps=10, rounds=1), plan_of(variant, local_steps=5, rounds=2)
    if variant["posterior"] == "gaussian":  # its noise is drawn by round
        once, twice = (_silent(plan) for plan in (once, twice))
    (_, whole, _), (_, halves, _) = (
        play(once, [block(once)], rounds=((0,),)),
        play(twice, [block(twice)], rounds=((0,), (0,))),
    )
    assert differing(trees.row(whole, 0), trees.row(halves, 0)) == []


def _silent(plan):
    def step(ctx, state, batch, noise):
        return local.gaussian_step(ctx, state, batch, torch.zeros_like(noise))

    return plan._replace(algorithm=plan.algorithm._replace(step=step))


@every_variant
def test_it_is_bitwise_the_same_alone_and_stacked(variant):
    plan = plan_of(variant)
    loop, stack = (play(plan, [block(plan, backend=backend)]) for backend in ("loop", "vmap"))
    assert all(differing(a, b) == [] for a, b in zip(loop, stack, strict=True))


@every_variant
def test_a_posterior_goes_on_bitwise_from_a_checkpoint(variant, tmp_path):
    plan, store = plan_of(variant, rounds=3), CheckpointStore(str(tmp_path))
    assert differing(*whole_and_resumed(plan, store)) == []


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_weight_vector_trains_as_fedper_does_with_every_layer_personal(optimizer):
    """In the first round; in later ones FedPer's Adam starts anew."""
    settings = {"algorithm.optimizer": optimizer, "algorithm.lr": 0.05}
    mine = small_plan("local", settings)
    other = small_plan("fedper", settings | {"algorithm.personal": ("body", "head")})
    rounds = ((0, 2, 3, 5),) * (2 if optimizer == "sgd" else 1)
    (_, ours, _), (_, theirs, _) = (play(plan, [block(plan)], rounds) for plan in (mine, other))
    assert torch.equal(ours.theta[:, : mine.model.size], theirs.theta)


@pytest.mark.parametrize("net", NETS)
def test_the_steps_of_a_posterior_are_those_of_torch(net):
    """Of Adam on the negative evidence lower bound, by autograd; convolutions included."""
    model, cfg = NETS[net], LocalTraining(posterior="gaussian", lr_posterior=0.02, prior_sd=0.3, zeta=0.7)
    state, data = start(cfg, model), examples(7, total=50)
    data = data._replace(x=Stream(0, "x").normal([7, *model.input_shape]).double())
    q = Gaussian(*(leaf.clone().requires_grad_() for leaf in state.q))
    optimizer = torch.optim.Adam(q, lr=0.02)
    used = slice(0, model.size)
    for number in range(3):
        eps = noise(model).roll(number, -1)
        nll = functional.cross_entropy(model.apply(q.mu + sigma(q.rho) * eps[0], data.x), data.y)
        divergence = kl_divergence(Normal(q.mu[used], sigma(q.rho)[used]), Normal(0.0, 0.3)).sum()
        q.mu.grad, q.rho.grad = torch.autograd.grad(50 * nll + 0.7 * divergence, q)
        optimizer.step()
        state, info = local.gaussian_step(context(cfg, model), state, data, eps)
        assert_close(info, type(info)(nll.detach(), divergence.detach()))
        for ours, theirs in zip(state.q, q, strict=True):
            assert_close(ours[used], theirs.detach()[used], rtol=1e-6, atol=1e-8)
    assert state.t == 3


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_steps_of_a_weight_vector_are_those_of_torch(optimizer):
    model, cfg = NETS["conv"], LocalTraining(optimizer=optimizer, lr=0.02)
    state, data = start(cfg, model), examples(7)
    data = data._replace(x=Stream(0, "x").normal([7, *model.input_shape]).double())
    theta = state.theta.clone().requires_grad_()
    theirs = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]([theta], lr=0.02)
    for _ in range(3):
        (theta.grad,) = torch.autograd.grad(functional.cross_entropy(model.apply(theta, data.x), data.y), theta)
        theirs.step()
        state, _ = local.step(context(cfg, model), state, data, torch.zeros(0))
    assert_close(state.theta, theta.detach(), rtol=1e-6, atol=1e-8)


def test_a_conjugate_posterior_is_recovered(monkeypatch):
    """With nll = ½ Σ_p λ_p (θ_p - a_p)², q is N(nλa/h, ζ/h), h = nλ + ζ/s²."""
    size, zeta, n, s = 64, 2.0, 6.0, 0.5
    curvature, target = torch.logspace(-1, 1, size), torch.linspace(-1, 1, size)

    def quadratic(model, theta, x, y, weight):
        gap = theta - target
        return weight.sum() * (curvature * gap.square()).sum() / 2, weight.sum() * curvature * gap

    monkeypatch.setattr(variational, "nll_and_grad", quadratic)
    monkeypatch.setattr(local, "prior", lambda cfg, model, like: Gaussian(torch.zeros(64), _rho(s).expand(64)))
    h = n * curvature + zeta / s**2
    mean, sd = n * curvature * target / h, (zeta / h).sqrt()
    data = examples(3, total=n)._replace(weight=torch.tensor([1.0, 1.0, 0.0]))
    stream, tail = Stream(0, "noise"), []
    state = trees.tree_map(torch.Tensor.float, start(LocalTraining(posterior="gaussian")))
    for t in range(3000):
        cfg = LocalTraining(posterior="gaussian", zeta=zeta, lr_posterior=0.03 if t < 400 else 0.002)
        eps = stream.normal([1, size])
        state, _ = local.gaussian_step(context(cfg, MODEL), state, data, eps)
        tail += [trees.tree_map(torch.clone, state.q)] if t >= 1000 else []
    q = Gaussian(*(torch.stack(leaf).mean(0) for leaf in zip(*tail, strict=True)))
    assert ((q.mu - mean).abs() < 0.1 * sd).all()
    assert ((sigma(q.rho) / sd - 1).abs() < 0.1).all()
    assert kl(q, Gaussian(mean, _rho(sd))) < 0.1


def _rho(sd):
    return torch.log(torch.expm1(torch.as_tensor(sd)))


@pytest.mark.parametrize("sd", [0.05, 1.0, 40.0])
def test_the_prior_has_its_deviation_and_the_padding_stays_where_it_was(sd):
    plan = plan_of({"posterior": "gaussian"}, **{"algorithm.prior_sd": sd, "algorithm.rho_init": -2.2})
    size = plan.model.size
    held = local.prior(plan.cfg.algorithm, plan.model, torch.zeros(plan.model.padded))
    assert_close(sigma(held.rho)[:size], torch.full((size,), sd))
    _, states, _ = play(plan, [block(plan)])
    assert (states.q.rho[..., size:] == torch.tensor(-2.2)).all()
    assert (states.q.mu[..., size:] == 0).all()


@every_posterior
def test_a_prediction_is_of_the_own_model(posterior):
    cfg = LocalTraining(posterior=posterior)
    state, x = start(cfg), batch().x
    record = local.configure(local.ALGORITHM, cfg)
    eps = Stream(0, "noise").normal(record.predict_noise(context(cfg, MODEL), 2)).double()
    thetas = [state.theta] if posterior == "point" else state.q.mu + sigma(state.q.rho) * eps
    expected = torch.stack([torch.log_softmax(MODEL.apply(theta, x), -1) for theta in thetas])
    assert_close(record.predict_personal(context(cfg, MODEL), state, x, eps), expected)


@pytest.mark.parametrize("name", ["lr", "lr_posterior", "prior_sd"])
def test_settings_that_cannot_be_are_refused(name):
    with pytest.raises(FedRayError, match=rf"{name} 0\.0: it is positive; try"):
        LocalTraining(**{name: 0.0})
