"""Per-FedAvg: its meta-gradient against automatic differentiation and closed forms, and FedAvg as its limit."""

from functools import partial

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from fedray.algorithms.averaging import fedavg, per_fedavg
from fedray.algorithms.averaging.fedavg import FedAvg, Local, Nothing, Point
from fedray.algorithms.averaging.per_fedavg import PerFedAvg
from fedray.arrays import trees
from fedray.arrays.minibatches import fine_tune
from fedray.arrays.optim import initial_state
from fedray.arrays.rng import Stream
from fedray.federate import report
from fedray.federate.in_process import LocalFederation
from fedray.types import Facts
from tests.helpers import NETS, block, context, differing, examples, joined, play, small_plan

MODEL, NO_NOISE = NETS["mlp"], torch.zeros(0)
W = MODEL.init(Stream(0, "server")).double()
A = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, 0.2], [0.0, 0.2, 0.5]], dtype=torch.float64)
EYE = torch.eye(3, dtype=torch.float64)
network = partial(fedavg.gradient, MODEL)


def vector(name):
    return Stream(0, name).normal([3]).double()


def quadratic(theta, target):
    return (theta - target) @ A @ (theta - target) / 2, A @ (theta - target)


def batch(k):
    return examples(9)._replace(x=examples(9).x + 0.3 * k)


@pytest.mark.parametrize("order", ["fo", "hf"])
def test_without_adaptation_it_is_fedavg_on_the_second_minibatch(order):
    cfg, parts = PerFedAvg(alpha=0.0, alpha_m=0.3, order=order), [batch(k) for k in range(3)]
    stream = joined(*parts[: per_fedavg.minibatches(cfg)])
    after, info = per_fedavg.step(context(cfg, MODEL), Local(W, W, initial_state("sgd", W)), stream, NO_NOISE)
    expected, _ = fedavg.step(context(FedAvg(lr=0.3), MODEL), Local(W, W, initial_state("sgd", W)), parts[1], NO_NOISE)
    assert differing(after, expected) == []
    assert_close(info.nll, network(W, parts[0])[0])


@pytest.mark.parametrize("delta", [1e-3, 0.1, 10.0])
def test_the_hessian_free_gradient_of_a_quadratic_is_exact_at_any_distance(delta):
    w, first, second, third = map(vector, ("w", "b1", "b2", "b3"))
    v = A @ (w - 0.3 * A @ (w - first) - second)
    for order, expected in (("fo", v), ("hf", (EYE - 0.3 * A) @ v)):
        cfg = PerFedAvg(alpha=0.3, order=order, delta=delta)
        nll, found = per_fedavg.meta_gradient(cfg, quadratic, w, (first, second, third))
        assert_close(found, expected, rtol=1e-9, atol=1e-10)
        assert_close(nll, quadratic(w, first)[0])


def smooth(theta, target):
    """Σ log cosh(θ - b) + ½ (θ-b)ᵀ A (θ-b), which is no quadratic."""
    value, grad = quadratic(theta, target)
    return value + (theta - target).cosh().log().sum(), grad + (theta - target).tanh()


def test_the_hessian_free_gradient_converges_to_that_of_the_objective():
    """On one minibatch, to d/dw f(w - α ∇f(w)), with an error that falls with δ²; the first order stays apart."""
    target, w = vector("b1"), vector("w").requires_grad_()
    exact = torch.autograd.grad(smooth(w - 0.3 * smooth(w, target)[1], target)[0], w)[0]
    found = [per_fedavg.meta_gradient(PerFedAvg(alpha=0.3, order="hf", delta=delta), smooth, w.detach(), (target,) * 3)
             for delta in (0.2, 0.1, 0.05)]  # fmt: skip
    errors = [float((grad - exact).norm()) for _, grad in found]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.15)
    _, first = per_fedavg.meta_gradient(PerFedAvg(alpha=0.3), smooth, w.detach(), (target,) * 2)
    assert float((first - exact).norm()) > 10 * errors[0]


def test_on_a_network_too_it_is_the_gradient_of_the_objective():
    w = W.clone().requires_grad_()

    def loss(at):
        return functional.cross_entropy(MODEL.apply(at, batch(0).x), batch(0).y)

    (inner,) = torch.autograd.grad(loss(w), w, create_graph=True)
    (exact,) = torch.autograd.grad(loss(w - 0.3 * inner), w)
    cfg = PerFedAvg(alpha=0.3, alpha_m=0.7, order="hf", delta=1e-4)
    after, _ = per_fedavg.step(
        context(cfg, MODEL), Local(W, W, initial_state("sgd", W)), joined(*[batch(0)] * 3), NO_NOISE
    )
    assert_close((W - after.theta) / 0.7, exact, rtol=1e-5, atol=1e-7)
    assert not torch.allclose((W - after.theta) / 0.7, network(W, batch(0))[1], rtol=1e-2, atol=1e-4)


def test_under_a_linear_loss_both_orders_are_fedavg():
    c = vector("c")
    for order in ("fo", "hf"):
        found = per_fedavg.meta_gradient(PerFedAvg(order=order, alpha=0.7), lambda at, b: (at @ c, c), c, (0, 0, 0))[1]
        assert_close(found, c)


@pytest.mark.parametrize("order", ["fo", "hf"])
def test_both_orders_are_bitwise_the_same_in_a_loop_and_stacked(order):
    plan = small_plan("per_fedavg", {"algorithm.order": order})
    loop, stack = (play(plan, [block(plan, backend=backend)]) for backend in ("loop", "vmap"))
    assert all(differing(a, b) == [] for a, b in zip(loop, stack, strict=True))


def test_without_steps_before_the_test_personal_models_are_the_global_one():
    plan = small_plan("per_fedavg", {"algorithm.adapt_steps": 0, "rounds": 1})
    (found,) = LocalFederation(plan)
    assert differing(found.personal, found.global_) == []
    adapted = small_plan("per_fedavg", {"rounds": 1})
    (other,) = LocalFederation(adapted)
    assert differing(other.global_, found.global_) == []
    assert (other.personal.nll < other.global_.nll).all()
    words = [report.protocol(p, [1])["personal"].removesuffix(", on its own test shard") for p in (plan, adapted)]
    assert words[0] == "each client's copy of the global model"
    assert words[1] == f"{words[0]}, fine-tuned by 1 SGD step on its training data"


@pytest.mark.parametrize(("settings", "rates"), [
    ({}, [0.2]), ({"adapt_steps": 2}, [0.05, 0.2]), ({"adapt_steps": 2, "ft": 1}, [0.05, 0.2, 0.2]),
    ({"adapt_steps": 0, "ft": 1}, [0.2]), ({"adapt_steps": 0}, []),
])  # fmt: skip
def test_the_personal_model_is_the_new_global_one_after_steps_of_both_rates(settings, rates):
    cfg, data = PerFedAvg(alpha=0.2, alpha_m=0.05, **settings), examples(9)
    shape = per_fedavg.personal_noise(context(cfg, MODEL, Facts(1, 1, 1, 1, 4, 9)))
    eps = Stream(0, "noise").normal(shape)
    found = per_fedavg.personalize(context(cfg, MODEL), Nothing(), Point(W), data, eps).theta
    assert torch.equal(found, fine_tune(network, W, data, rates, eps))
    assert len(eps) == len(rates)


def test_its_clients_keep_nothing():
    assert trees.leaves(block(small_plan("per_fedavg")).states) == []
