"""pFedMe in its limits: FedAvg, a mere copy of the personal model, and no global step at all."""

import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.proximal import pfedme
from fedray.algorithms.proximal.pfedbred import Local
from fedray.algorithms.proximal.pfedme import PFedMe
from fedray.arrays import trees
from fedray.arrays.optim import initial_state
from fedray.arrays.rng import Stream
from tests.helpers import NETS, block, context, differing, examples, play, small_plan

MODEL, NO_NOISE = NETS["mlp"], torch.zeros(0)
W = MODEL.init(Stream(0, "server")).double()


def steps(cfg, count=4, w=W):
    """The client after each of some steps, on batches that differ."""
    local, seen = Local(w, w, w[:0], torch.zeros(())), []
    for k in range(count):
        local, info = pfedme.step(context(cfg, MODEL), local, examples(9)._replace(x=examples(9).x + k), NO_NOISE)
        seen.append((local, info))
    return seen


def test_one_proximal_step_from_w_is_fedavg_with_the_product_of_the_rates():
    cfg, theta = PFedMe(alpha=0.2, alpha_m=0.3, lam=4.0, inner_steps=1), W
    for k, (local, info) in enumerate(steps(cfg)):
        batch = examples(9)._replace(x=examples(9).x + k)
        plain, expected = fedavg.step(
            context(FedAvg(lr=0.2 * 0.3 * 4.0), MODEL), fedavg.Local(theta, W, initial_state("sgd", W)), batch, NO_NOISE
        )
        assert_close(local.w, plain.theta)
        assert_close(info.nll, expected.nll)
        theta = plain.theta


def test_one_proximal_step_is_fedavg_also_as_a_federation():
    a = small_plan("pfedme", {"algorithm.inner_steps": 1, "algorithm.alpha": 0.5, "algorithm.alpha_m": 0.04})
    b = small_plan("fedavg", {"algorithm.lr": 0.5 * 0.04 * 15})
    (mine, _, _), (other, _, _) = (play(plan, [block(plan)]) for plan in (a, b))
    assert_close(mine.theta, other.theta, rtol=1e-5, atol=1e-6)


def test_where_the_outer_step_is_whole_the_global_copy_becomes_the_personal_model():
    for local, _ in steps(PFedMe(alpha=0.2, alpha_m=0.25, lam=4.0)):
        assert_close(local.w, local.theta)
    assert not torch.allclose(local.w, W)


@pytest.mark.parametrize("setting", ["alpha_m", "lam"])
def test_without_an_outer_step_or_a_prior_the_global_copy_stays_and_the_personal_model_moves(setting):
    seen = steps(PFedMe(alpha=0.2, **{setting: 0.0}))
    for local, _ in seen:
        assert torch.equal(local.w, W)
        assert not torch.allclose(local.theta, W)
    assert not torch.allclose(seen[0][0].theta, seen[1][0].theta)


def test_without_a_prior_the_personal_model_is_plain_gradient_descent():
    ((local, _),) = steps(PFedMe(alpha=0.2, lam=0.0, inner_steps=3), 1)
    theta = W
    for _ in range(3):
        theta = theta - 0.2 * fedavg.gradient(MODEL, theta, examples(9))[1]
    assert_close(local.theta, theta)


def test_nothing_is_added_to_the_gradient():
    """Weights of inputs that are zero have no gradient, and stay; a hidden L2 term would shrink them."""
    silent = examples(9)._replace(x=torch.zeros(9, 2, 3).double())
    ctx = context(PFedMe(alpha=0.2, lam=0.5), MODEL)
    after, _ = pfedme.step(ctx, Local(W, W, W[:0], torch.zeros(())), silent, NO_NOISE)
    inputs = slice(0, 6 * 5)
    assert torch.equal(after.theta[inputs], W[inputs])
    assert torch.equal(after.w[inputs], W[inputs])
    assert not torch.allclose(after.w, W)


def test_clients_remember_no_global_copy():
    plan = small_plan("pfedme")
    states = block(plan).states
    assert dict(trees.named_leaves(states))["w_mem"].numel() == 0
    server, after, _ = play(plan, [block(plan)])
    assert after.w_mem.shape == (6, 0)
    assert differing(after.theta[:1], states.theta[:1])
    assert server.theta.shape == plan.initial_server().theta.shape
