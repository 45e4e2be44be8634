"""FedProx: its objective, and FedAvg as its limit."""

import torch
from torch.nn import functional
from torch.testing import assert_close

from fedray.algorithms.averaging import fedprox
from fedray.algorithms.averaging.fedavg import Local
from fedray.algorithms.averaging.fedprox import FedProx
from fedray.arrays.optim import initial_state
from fedray.arrays.rng import Stream
from tests.helpers import NETS, block, context, differing, examples, play, small_plan


def outcome(name, **settings):
    plan = small_plan(name, {f"algorithm.{field}": value for field, value in settings.items()})
    return plan.initial_server(), play(plan, [block(plan)])


def test_without_the_proximal_term_it_is_fedavg_bit_for_bit():
    _, fedavg = outcome("fedavg", lr=0.3)
    _, fedprox = outcome("fedprox", lr=0.3, mu=0.0)
    assert all(differing(a, b) == [] for a, b in zip(fedavg, fedprox, strict=True))


def test_the_proximal_term_keeps_the_server_near_its_start():
    moves = []
    for mu in (0.0, 0.1, 3.0):
        start, (server, _, _) = outcome("fedprox", lr=0.1, mu=mu)
        moves.append(float((server.theta - start.theta).norm()))
    assert moves[0] > moves[1] > moves[2] > 0


def test_a_step_descends_the_gradient_of_the_whole_objective():
    """At w^t the proximal term has no gradient; away from it, all of (μ/2)‖w - w^t‖² counts."""
    model, batch = NETS["mlp"], examples(9)
    ctx = context(FedProx(lr=0.3, mu=0.7), model)
    start, shift = (Stream(0, name).normal([model.padded]).double() for name in ("start", "shift"))
    for theta in (start, start + model.pad(shift)):
        w = theta.clone().requires_grad_()
        loss = functional.cross_entropy(model.apply(w, batch.x), batch.y)
        (loss + 0.35 * (w - start).square().sum()).backward()
        after, info = fedprox.step(ctx, Local(theta, start, initial_state("sgd", theta)), batch, torch.zeros(0))
        assert_close(after.theta, theta - 0.3 * w.grad)
        assert_close(info.nll, loss.detach())
        assert torch.equal(after.start, start)
