"""HeurFedAMP: its weights by hand and in their limits, and FedProx, which it is where all models weigh the same."""

import math

import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.mixtures import fedamp, heurfedamp
from fedray.algorithms.mixtures.fedamp import Server
from fedray.algorithms.mixtures.heurfedamp import HeurFedAMP
from fedray.arrays.rng import Stream
from fedray.types import Facts, FedRayError
from tests.helpers import block, context, play, small_plan

EVERYONE = tuple(range(6))


def of(clients, **settings):
    return context(HeurFedAMP(**settings), None, Facts(clients, clients, 1, 1, 9, 9))


def models(clients=5):
    return Server(Stream(0, "models").normal([clients, 64]).double())


def weights(ctx, server, ids):
    return heurfedamp.weights(ctx, fedamp.compared(server, ids)[1])


def test_three_directions_by_hand():
    """Cosines of the first to the others: 0 and 1/√2; lengths do not matter."""
    server = Server(torch.tensor([[2.0, 0.0], [0.0, 3.0], [5.0, 5.0]]).double())
    e = math.exp(4 / math.sqrt(2))
    expected = torch.tensor([[0.3, 0.7 / (1 + e), 0.7 * e / (1 + e)]]).double()
    ctx = of(3, xi_own=0.3, sigma=4.0)
    assert_close(weights(ctx, server, (0,)), expected, rtol=1e-6, atol=0)
    assert_close(heurfedamp.broadcast(ctx, server, (0,)).u, expected @ server.w, rtol=1e-6, atol=0)


def test_without_sharpness_all_others_weigh_the_same():
    xi = weights(of(5, xi_own=0.6, sigma=0.0), models(), range(5))
    assert_close(xi, torch.full((5, 5), 0.1).double() + 0.5 * torch.eye(5).double())


def test_the_own_weight_is_as_set_and_all_sum_to_one():
    xi = weights(of(5, xi_own=0.25, sigma=9.0), models(), (1, 4))
    assert_close(xi.sum(1), torch.ones(2).double())
    assert_close(xi[[0, 1], [1, 4]], torch.full((2,), 0.25).double())


@pytest.mark.parametrize(("clients", "own"), [(5, 1.0), (1, 0.5)])
def test_who_hears_nobody_else_gets_the_own_model(clients, own):
    server = models(clients)
    assert_close(heurfedamp.broadcast(of(clients, xi_own=own), server, range(clients)).u, server.w)


def test_the_length_of_a_model_does_not_matter_and_a_model_of_zeros_is_at_right_angles_to_all():
    server = models()
    longer = Server(server.w * torch.tensor([1, 7, 0.1, 1, 3]).double()[:, None])
    assert_close(weights(of(5), longer, range(5)), weights(of(5), server, range(5)))
    zero = Server(torch.zeros(3, 4).double())
    assert_close(weights(of(3), zero, (0,)), torch.tensor([[0.5, 0.25, 0.25]]).double())


def test_where_all_models_weigh_the_same_it_is_fedprox():
    """σ = 0, ξ_ii = 1/N, all clients take part and start from u, their mean."""
    common = {"clients_per_round": 6, "algorithm.mu": 0.5, "algorithm.lr": 0.05}
    ours = {"algorithm.sigma": 0.0, "algorithm.xi_own": 1 / 6, "algorithm.start": "u"}
    plan, prox = (
        small_plan("heurfedamp", common | ours),
        small_plan("fedprox", common | {"algorithm.weighting": "uniform"}),
    )
    (server, _, seen), (reference, _, expected) = (
        play(each, [block(each)], (EVERYONE, EVERYONE)) for each in (plan, prox)
    )
    for (ups, _), (theirs, _) in zip(seen, expected, strict=True):
        assert_close(ups.w, theirs.theta, rtol=1e-5, atol=1e-6)
    u = plan.algorithm.broadcast(plan.context, server, EVERYONE).u
    assert_close(u, reference.theta.expand_as(u), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_outside_of_its_range_is_refused(share):
    with pytest.raises(FedRayError, match="xi_own"):
        HeurFedAMP(xi_own=share)


def test_tested_by_u_it_is_fedavg_before_its_clients_train():
    """σ = 0, ξ_ii = 1/N, no pull: the u that clients keep is FedAvg's model of the round before."""
    common = {"clients_per_round": 6, "algorithm.lr": 0.05}
    ours = {"algorithm.sigma": 0.0, "algorithm.xi_own": 1 / 6, "algorithm.mu": 0.0, "algorithm.predict": "u"}
    plan = small_plan("heurfedamp", common | ours)
    average = small_plan("fedavg", common | {"algorithm.weighting": "uniform"})
    _, states, _ = play(plan, [block(plan)], (EVERYONE, EVERYONE))
    before, *_ = play(average, [block(average)], (EVERYONE,))
    after, *_ = play(average, [block(average)], (EVERYONE, EVERYONE))
    assert_close(states.w, before.theta.expand_as(states.w), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(states.w, after.theta.expand_as(states.w), rtol=1e-5, atol=1e-6)
