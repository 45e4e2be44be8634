"""pFedBreD: its strategies against each other and pFedMe, quadratics and constant gradients in closed form."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedray import registry
from fedray.algorithms.averaging import fedavg
from fedray.algorithms.proximal import pfedbred
from fedray.algorithms.proximal.pfedbred import Client, Local, PFedBreD
from fedray.algorithms.proximal.pfedme import PFedMe
from fedray.arrays import trees
from fedray.arrays.minibatches import fine_tune
from fedray.arrays.rng import Stream
from fedray.bayes.bregman import SPHERICAL
from fedray.config import override
from fedray.federate import report
from fedray.federate.in_process import LocalFederation
from fedray.nets.network import given
from fedray.types import Facts, FedRayError, client_itself
from tests.helpers import NETS, block, built, context, differing, examples, experiment, joined, play, shard, small_plan

MODEL, NO_NOISE = NETS["mlp"], torch.zeros(0)
STRATEGIES = ("fo", "mfo", "mg", "mg_c4", "mh")
STARTS = ("reset", "warm_round", "warm_all")
A = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, 0.2], [0.0, 0.2, 0.5]], dtype=torch.float64)
EYE = torch.eye(3, dtype=torch.float64)


def vector(name, size=3):
    return Stream(0, name).normal([size]).double()


def quadratic(theta, target):
    """½ (θ-b)ᵀ A (θ-b) and its gradient; the target b plays the minibatch."""
    return (theta - target) @ A @ (theta - target) / 2, A @ (theta - target)


def weights(name):
    return MODEL.pad(0.3 * vector(name, MODEL.padded))


def batches(count):
    """Minibatches of nine random examples each, all different."""
    return [examples(9)._replace(x=examples(9).x + k) for k in range(count)]


def fresh(w):
    """A client at the start of round 1, when memory and personal model are the global one."""
    return Local(w, w, w, torch.zeros(()))


def kept(empty=False):
    """A client at the start of a later round."""
    w_mem = weights("w_mem")
    return Local(weights("w"), weights("theta"), w_mem[:0] if empty else w_mem, torch.zeros(()))


def run(cfg, local, stream):
    """Steps of the algorithm on minibatches; those who take two get each of the stream behind another one."""
    record, seen = registry.algorithm_of(cfg), []
    for number, batch in enumerate(stream):
        if record.minibatches(cfg) == 2:
            batch = joined(batches(len(stream) + 1)[number + 1], batch)
        local, info = record.step(context(cfg, MODEL), local, batch, NO_NOISE)
        seen.append((local.w, local.theta, info.nll))
    return seen


def iteration(cfg, gradient, local, *minibatches):
    """(μ and what goes with it, the client afterwards) for a gradient of one's own."""
    proposal = pfedbred.choose_prior(cfg, gradient, local, minibatches)
    after, _ = pfedbred.iterate(cfg, gradient, SPHERICAL, local, proposal, minibatches[-1])
    return proposal, after


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_its_steps_every_strategy_is_pfedme_step_for_step(strategy, start):
    shared = {"alpha": 0.2, "alpha_m": 0.03, "lam": 4.0, "start": start}
    ours = PFedBreD(strategy=strategy, eta=0.0, eta_a=0.0, eta_tilde=0.4, **shared)
    assert differing(run(ours, kept(), batches(5)), run(PFedMe(**shared), kept(empty=True), batches(5))) == []


def test_with_its_steps_every_strategy_is_another_method():
    found = [run(PFedBreD(strategy=strategy), kept(), batches(2))[-1][0] for strategy in STRATEGIES]
    found.append(run(PFedMe(), kept(), batches(2))[-1][0])
    for i, a in enumerate(found):
        assert not any(torch.allclose(a, b, rtol=0, atol=1e-6) for b in found[i + 1 :])


def test_mg_is_fo_without_memory_and_mfo_without_a_gradient():
    for settings, limit in (({"eta": 0.0}, "fo"), ({"eta_a": 0.0}, "mfo")):
        for start in STARTS:
            a, b = (PFedBreD(strategy=name, start=start, **settings) for name in ("mg", limit))
            assert differing(run(a, kept(), batches(4)), run(b, kept(), batches(4))) == []


def test_c4_that_looks_nowhere_ahead_is_mg_on_its_second_minibatch():
    stream = batches(4)
    a, b = PFedBreD(strategy="mg_c4", eta_tilde=0.0), PFedBreD(strategy="mg")
    assert differing(run(a, kept(), stream), run(b, kept(), stream)) == []
    again = PFedBreD(strategy="mg_c4", eta_tilde=0.0, same_batch=True)
    assert differing(run(again, kept(), stream), run(b, kept(), stream)) == []


def test_one_minibatch_for_both_gradients_is_two_that_are_the_same():
    batch = examples(9)
    for strategy in ("mg_c4", "mh"):
        one, two = (PFedBreD(strategy=strategy, same_batch=same) for same in (True, False))
        assert (pfedbred.minibatches(one), pfedbred.minibatches(two)) == (1, 2)
        a = pfedbred.step(context(one, MODEL), kept(), batch, NO_NOISE)
        assert differing(a, pfedbred.step(context(two, MODEL), kept(), joined(batch, batch), NO_NOISE)) == []
        assert differing(a, pfedbred.step(context(two, MODEL), kept(), joined(batches(2)[1], batch), NO_NOISE))


def test_by_default_c4_looks_ahead_by_the_step_of_the_gradient():
    for strategy in ("mg_c4", "mh"):
        a, b = (PFedBreD(strategy=strategy, eta_a=0.3, eta_tilde=tilde) for tilde in (None, 0.3))
        assert differing(run(a, kept(), batches(3)), run(b, kept(), batches(3))) == []


def test_mh_differs_from_c4_by_the_meta_step_of_w():
    first, second, local = vector("b"), vector("b2"), Local(*map(vector, ("w", "theta", "w_mem")), torch.zeros(()))
    (c4, after), (mh, moved) = (iteration(PFedBreD(strategy=s, eta_a=0.3), quadratic, local, first, second)
                                for s in ("mg_c4", "mh"))  # fmt: skip
    assert torch.equal(c4.mu, mh.mu)
    assert torch.equal(after.theta, moved.theta)
    meta = 0.3 * A @ (local.w - 0.3 * A @ (local.w - first) - second)
    assert_close(after.w - moved.w, meta)
    assert_close(mh.w, local.w - meta)
    assert torch.equal(c4.w, local.w)


def test_the_means_are_those_of_the_paper():
    """Eq. 17 and C.4, in which the proximal map works on the second minibatch."""
    w, theta, w_mem, first, second = map(vector, ("w", "theta", "w_mem", "b", "b2"))
    step, memory = 0.3 * A @ (w - second), 0.7 * (w_mem - theta)
    ahead = 0.3 * A @ (w - 0.2 * A @ (w - first) - second)
    means = {"fo": w - step, "mfo": w - memory, "mg": w - step - memory, "mg_c4": w - ahead - memory,
             "mh": w - ahead - memory}  # fmt: skip
    for strategy, mu in means.items():
        cfg = PFedBreD(strategy=strategy, eta=0.7, eta_a=0.3, eta_tilde=0.2, inner_steps=1, alpha=0.1)
        proposal, after = iteration(cfg, quadratic, Local(w, theta, w_mem, torch.zeros(())), first, second)
        assert_close(proposal.mu, mu)
        start = {"fo": mu, "mfo": w, "mg": w - step}.get(strategy, w - ahead)
        assert_close(after.theta, start - 0.1 * (A @ (start - second) + cfg.lam * (start - mu)))


def test_at_first_the_memory_is_empty():
    w, stream = weights("w"), batches(2)
    mfo, me = (run(cfg, fresh(w), stream) for cfg in (PFedBreD(strategy="mfo"), PFedMe()))
    assert differing(mfo[0], me[0]) == []
    assert not torch.equal(mfo[1][1], me[1][1])


def test_the_starts_of_the_proximal_steps():
    cfg, seen = PFedBreD(strategy="fo", inner_steps=2), []

    def watching(theta, target):
        seen.append(theta)
        return quadratic(theta, target)

    for start in STARTS:
        local = Local(*map(vector, ("w", "theta", "w_mem")), torch.zeros(()))
        for target in ("b", "b2"):
            old, seen[:] = local.theta, []
            proposal, local = iteration(override(cfg, {"start": start}), watching, local, vector(target))
            begun = seen[1]  # the first gradient is that of μ
            reset = start == "reset" or (start == "warm_round" and target == "b")
            assert torch.equal(begun, proposal.start if reset else old)


def test_the_outer_step_follows_the_envelope_or_the_letter_of_the_paper():
    w, theta, w_mem, target = map(vector, ("w", "theta", "w_mem", "b"))
    for residual in ("mu", "w"):
        cfg = PFedBreD(strategy="mg", residual=residual, alpha_m=0.03, lam=4.0)
        proposal, after = iteration(cfg, quadratic, Local(w, theta, w_mem, torch.zeros(())), target)
        assert_close(after.w, w - 0.03 * 4.0 * ((proposal.mu if residual == "mu" else w) - after.theta))


def test_the_outer_step_of_fo_is_the_gradient_of_its_objective_but_for_the_jacobian():
    """F(w) = min_θ f(θ) + (λ/2)‖θ - μ(w)‖², μ = w - η_α ∇f(w): ∇F = J ∇env(μ), where J = I - η_α A is taken as I."""
    lam, h, w, target = 2.0, 1e-5, vector("w"), vector("b")

    def objective(at):
        mu = at - 0.3 * A @ (at - target)
        prox = torch.linalg.solve(A + lam * EYE, A @ target + lam * mu)
        return quadratic(prox, target)[0] + lam / 2 * (prox - mu).square().sum()

    cfg = PFedBreD(strategy="fo", eta_a=0.3, lam=lam, alpha=0.1, inner_steps=500, alpha_m=0.01)
    _, after = iteration(cfg, quadratic, Local(w, w, w, torch.zeros(())), target)
    differences = torch.stack([(objective(w + h * e) - objective(w - h * e)) / (2 * h) for e in EYE])
    assert_close((EYE - 0.3 * A) @ (w - after.w) / 0.01, differences, rtol=1e-7, atol=1e-8)


def test_under_a_constant_gradient_every_method_moves_as_the_formula_says():
    """θ = μ + ρ (θ_start - μ) - ((1-ρ)/λ) c with ρ = (1-αλ)^K, and the moves of w in units of c that follow."""
    c, w = vector("c"), vector("w")
    theta, w_mem, rho = vector("theta"), vector("w_mem"), (1 - 0.15) ** 5
    assert rho == pytest.approx(0.4437, abs=1e-4)

    def move(memory=False, **settings):
        local = Local(w, theta if memory else w, w_mem if memory else w, torch.zeros(()))
        cfg = PFedBreD(**settings)
        proposal, after = iteration(cfg, lambda at, batch: (at @ c, c), local, None, None)
        begun = local.theta if cfg.start == "warm_all" else proposal.start
        assert_close(after.theta, proposal.mu + rho * (begun - proposal.mu) - (1 - rho) / 15 * c)
        return local.w - after.w

    assert_close(move(strategy="mfo"), 0.01 * (1 - rho) * c)  # = pFedMe
    assert 0.01 * (1 - rho) == pytest.approx(0.00556, abs=5e-6)
    assert_close(move(strategy="fo"), 0.01 * (1 - rho) * c)  # the shift cancels
    assert_close(move(strategy="mh"), (0.01 + 0.01 * (1 - rho)) * c)
    written = move(strategy="fo", residual="w")
    assert_close(written, (0.15 * 0.01 + 0.01 * (1 - rho)) * c)
    assert 0.15 * 0.01 + 0.01 * (1 - rho) == pytest.approx(0.00706, abs=5e-6)
    weight = 0.15 * rho * 0.05
    assert weight == pytest.approx(0.0033, abs=5e-5)
    assert_close(move(True, strategy="mfo"), 0.01 * (1 - rho) * c - weight * (w_mem - theta))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_client_keeps_its_last_personal_model_and_its_last_upload(strategy):
    plan = small_plan("pfedbred", {"algorithm.strategy": strategy})
    _, states, seen = play(plan, [block(plan)])
    (first, _), (second, _) = seen
    assert [name for name, _ in trees.named_leaves(first)] == ["theta"]  # one weight vector is all that leaves
    assert first.theta.shape == (4, plan.model.padded)
    memory = {0: first.theta[0], 3: first.theta[2], 1: second.theta[0], 4: second.theta[2]}
    for client, upload in memory.items():
        expected = upload[:0] if strategy == "fo" else upload
        assert torch.equal(states.w_mem[client], expected)
        assert not torch.equal(states.theta[client], upload)
    begun = plan.initial_server().theta
    fresh = pfedbred.client_init(plan.context, plan.initial_server())
    assert differing(fresh, Client(begun, begun[:0] if strategy == "fo" else begun)) == []


@pytest.mark.parametrize("cfg", [*(PFedBreD(strategy=name, same_batch=True) for name in STRATEGIES), PFedMe()], ids=str)
def test_a_newcomer_learns_from_all_its_minibatches_and_not_from_the_last_alone(cfg):
    """Its copy of w moves, so that θ after two minibatches is another than after the second alone."""
    record, first, last = registry.algorithm_of(cfg), examples(9), examples(7)

    def adapted(*batches):
        local = kept()
        for batch in batches:
            local, _ = record.adapt(context(cfg, MODEL), local, batch, NO_NOISE)
        return local

    assert not torch.equal(adapted(first, last).theta, adapted(last).theta)
    assert not torch.equal(adapted(last).w, weights("w"))


VARIANTS = [{"strategy": name} for name in STRATEGIES] + [
    {"same_batch": True},
    {"residual": "w", "start": "warm_all", "strategy": "mg"},
    {"start": "warm_round"},
    {"prior": "gaussian", "variance": (0.5,)},
    {"prior": "gaussian", "variance": (0.5, 2.0), "coordinates": "dual"},
]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_every_variant_is_bitwise_the_same_in_a_loop_and_stacked(settings):
    plan = small_plan("pfedbred", {f"algorithm.{name}": value for name, value in settings.items()})
    loop, stack = (play(plan, [block(plan, backend=backend)]) for backend in ("loop", "vmap"))
    assert all(differing(a, b) == [] for a, b in zip(loop, stack, strict=True))


def test_a_gaussian_of_unit_variance_is_spherical_bit_for_bit_also_on_networks():
    for variance in ((1.0,), (1.0, 1.0)):
        a, b = (PFedBreD(prior=prior, **more) for prior, more in
                (("gaussian", {"variance": variance}), ("spherical", {})))  # fmt: skip
        assert differing(run(a, kept(), batches(3)), run(b, kept(), batches(3))) == []


def test_dual_steps_multiply_the_gradient_by_the_variances():
    cfg = PFedMe(prior="gaussian", variance=(0.25,), coordinates="dual", inner_steps=1, alpha=0.2)
    ((_, theta, _),) = run(cfg, fresh(weights("w")), batches(1))
    ((_, plain, _),) = run(PFedMe(inner_steps=1, alpha=0.2 * 0.25), fresh(weights("w")), batches(1))
    assert_close(theta, plain)
    assert not torch.allclose(theta, weights("w"))


@pytest.mark.parametrize(
    ("model", "layers"), [(MODEL, 2), (built("lstm", (5, 3), 2, lstm_hidden=2), 4)], ids=["mlp", "lstm"]
)
def test_variances_belong_to_layers(model, layers):
    """However many tensors a layer has."""
    variance = (0.5, 4.0, 2.0, 8.0)[:layers]
    cfg, facts = PFedBreD(prior="gaussian", variance=variance), Facts(1, 1, 1, 1, 4, 9)
    pfedbred.server_init(context(cfg, model, facts), Stream(0, "server"))
    found = pfedbred.family(context(cfg, model), torch.device("cpu")).hessian(
        torch.zeros(model.padded), torch.ones(model.padded)
    )
    for number, value in enumerate(variance, 1):
        assert (found[model.slices[f"layer{number}"]] == 1 / value).all()
    assert (found[model.size :] == 1).all()
    with pytest.raises(FedRayError, match=rf"the network has {layers} layers"):
        pfedbred.server_init(context(override(cfg, {"variance": (1.0,) * 6}), model, facts), Stream(0, "server"))


def test_variances_lie_where_the_weights_do():
    """An operation on a tensor elsewhere and one of the processor's fails; the device meta has no numbers."""
    meta = torch.device("meta")
    prior = pfedbred.family(context(PFedBreD(prior="gaussian", variance=(0.5, 2.0)), MODEL), meta)
    assert prior.dual(torch.ones(MODEL.padded, device=meta)).device == meta


class Blocks(nn.Module):
    """Parts whose names are those that FedRay gives to the layers of a chain."""

    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x):
        return self.layer2(self.layer1(x.flatten(1)).tanh())


def test_a_module_of_ones_own_has_one_variance():
    cfg, facts = PFedBreD(prior="gaussian", variance=(0.5, 2.0)), Facts(1, 1, 1, 1, 4, 9)
    with pytest.raises(FedRayError, match="the network has 1 layers"):
        pfedbred.server_init(context(cfg, given(Blocks(), (2, 3), 4), facts), Stream(0, "server"))


def test_priors_that_do_not_fit_are_refused():
    with pytest.raises(FedRayError, match=r"prior poisson: .*choose spherical or gaussian"):
        small_plan("pfedbred", {"algorithm.prior": "poisson"})
    with pytest.raises(FedRayError, match=r"^variance \(1.0, 1.0, 1.0\): the network has 2 layers; give one"):
        small_plan("pfedme", {"algorithm.prior": "gaussian", "algorithm.variance": (1.0, 1.0, 1.0)})


def test_the_personal_model_is_that_of_the_last_round_trained_fine_tuned_or_not():
    for ft, words in ((0, "that it trained"), (1, "that it trained, fine-tuned by 1 SGD step on its training data")):
        plan = small_plan("pfedbred", {"algorithm.ft": ft, "algorithm.alpha": 0.05, "rounds": 1})
        running = LocalFederation(plan, "loop")
        (found,) = running
        states, total = running.snapshot().clients, 0.0
        for k in range(6):
            data, theta = shard(running.cohort.block, k), states.theta[k]
            eps = plan.stream("personalize", k, 1).normal(plan.algorithm.personal_noise(plan.context))
            expected = fine_tune(partial(fedavg.gradient, plan.model), theta, data, [0.05] * ft, eps)
            x, y = running.cohort.block.shards.test(k)
            log_p = torch.log_softmax(plan.model.apply(expected, x), -1)
            assert float(found.personal.nll[k]) == pytest.approx(-float(log_p[range(len(y)), y].sum()), rel=1e-5)
            total += float((expected - theta).norm())
        assert (total > 0) == bool(ft)
        assert report.protocol(plan, [1])["personal"].startswith(
            f"each client's own model, θ of the last round {words}"
        )


def test_only_fine_tuning_needs_the_data_again():
    for name in ("pfedbred", "pfedme"):
        record = registry.algorithms()[name]
        plain, tuned = (record.configure(record, record.config(ft=ft)) for ft in (0, 1))
        assert plain.personalize is client_itself
        assert tuned.personalize is pfedbred.personalize


def test_the_presets_are_the_released_code_and_the_papers_text():
    record = registry.algorithms()["pfedbred"]
    tables, text = (override(experiment("pfedbred"), record.presets[name].overrides)
                    for name in ("paper_tables", "paper_text"))  # fmt: skip
    assert tables.algorithm == PFedBreD()
    assert text.algorithm == PFedBreD(strategy="mg", residual="w", start="warm_all", weighting="uniform")
    for cfg in (tables, text):
        assert (cfg.train_all, cfg.batch_size, cfg.local_steps) == (True, 20, 20)
