"""FedAMP: the weights by hand, the server's step as a gradient, the clients' pull, and the limits."""

import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.averaging import fedavg
from fedray.algorithms.mixtures import fedamp
from fedray.algorithms.mixtures.fedamp import Anchor, FedAMP, Local, Own, Server
from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.federate.in_process import LocalFederation
from fedray.federate.uploads import payload_bytes
from fedray.types import Facts, FedRayError
from tests.helpers import NETS, block, context, differing, examples, play, small_plan

MODEL, NO_NOISE = NETS["mlp"], torch.zeros(0)


def of(clients, **settings):
    """What FedAMP's functions are given first in a federation of so many clients."""
    return context(FedAMP(**settings), MODEL, Facts(clients, clients, 2, 4, 9, 9))


def models(clients=5, size=64):
    return Server(Stream(0, "models").normal([clients, size]).double())


def weights(ctx, server, ids):
    return fedamp.weights(ctx, fedamp.compared(server, ids)[1])


def test_three_models_on_a_line_by_hand():
    """At 0, 1 and 3, with α = 0.5 and σ = 2: ξ_ij = 0.25 e^(-d²/2)."""
    a, b, c = (0.25 * torch.tensor(-d * d / 2).double().exp() for d in (1, 3, 2))
    expected = torch.stack(
        [torch.stack(row) for row in ((1 - a - b, a, b), (a, 1 - a - c, c), (b, c, 1 - b - c))]
    )  # fmt: skip
    server = Server(torch.tensor([[0.0, 5.0], [1.0, 5.0], [3.0, 5.0]]).double())
    ctx = of(3, alpha=0.5, sigma=2.0)
    assert_close(weights(ctx, server, (0, 1, 2)), expected)
    assert_close(fedamp.broadcast(ctx, server, (2,)).u, expected[[2]] @ server.w)


@pytest.mark.parametrize("ids", [(0, 1, 2, 3, 4), (3,), (1, 4)])
def test_each_client_asked_gets_an_average_of_all_models(ids):
    server = models()
    xi = weights(of(5, sigma=100.0), server, ids)
    assert_close(xi.sum(1), torch.ones(len(ids)).double())
    assert (xi > 0).all()
    whole = fedamp.broadcast(of(5, sigma=100.0), server, range(5)).u
    assert_close(fedamp.broadcast(of(5, sigma=100.0), server, ids).u, whole[list(ids)])


def test_the_server_takes_a_gradient_step_on_the_attraction_between_models():
    """u_i = w_i - (α/2) ∂/∂w_i of Σ_{i<j} A(‖w_i - w_j‖²), up to the factor that the paper puts into α."""
    server, sigma, alpha = models(), 90.0, 15.0

    def attraction(w):
        squares = (w[:, None] - w).square().sum(-1)
        return (1 - (-squares / sigma).exp()).sum() / 2

    expected = server.w - alpha / 2 * torch.func.grad(attraction)(server.w)
    assert_close(fedamp.broadcast(of(5, alpha=alpha, sigma=sigma), server, range(5)).u, expected)


def test_the_more_distant_model_weighs_less():
    server = Server(torch.tensor([[0.0], [1.0], [-2.0], [3.0]]).double())
    near, far, farthest = weights(of(4, sigma=5.0), server, (0,))[0, 1:]
    assert near > far > farthest > 0


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_equal_models_stay_what_they_are(clients):
    w = MODEL.init(Stream(0, "server"))
    u = fedamp.broadcast(of(clients), Server(w.expand(clients, -1)), range(clients)).u
    assert torch.equal(u, w.expand(clients, -1))


def test_by_default_equal_models_weigh_the_same():
    assert_close(weights(of(4), Server(torch.ones(4, 8).double()), range(4)), torch.full((4, 4), 0.25).double())


def test_an_alpha_with_which_the_own_weight_would_be_negative_is_refused_with_one_that_would_do():
    with pytest.raises(FedRayError, match=r"alpha 2\.1: .*negative.*at most `sigma`/\(N-1\) = 2\.0 will do"):
        fedamp.server_init(of(5, sigma=8.0, alpha=2.1), Stream(0, "server"))
    ctx = of(5, sigma=8.0, alpha=2.0)
    assert_close(
        weights(ctx, fedamp.server_init(ctx, Stream(0, "server")), range(5)).diagonal(), torch.zeros(5).double()
    )
    fedamp.server_init(of(1, sigma=8.0, alpha=100.0), Stream(0, "server"))  # nobody else


def test_a_pull_beyond_stability_is_refused():
    with pytest.raises(FedRayError, match=r"mu 20\.0: .*below 2/lr = 20"):
        FedAMP(lr=0.1, mu=20.0)


def test_a_step_descends_the_loss_and_half_the_squared_distance_to_u():
    """The pull is (λ/α)(w - u), not a constant of it: public codes lost it."""
    w, u = (MODEL.init(Stream(k, "server")).double() for k in range(2))
    batch, lr, mu = examples(9), 0.3, 2.5

    def objective(w):
        return torch.nn.functional.cross_entropy(MODEL.apply(w, batch.x), batch.y) + mu / 2 * (w - u).square().sum()

    local, info = fedamp.step(of(3, lr=lr, mu=mu), Local(w, u), batch, NO_NOISE)
    assert_close(local.w, w - lr * torch.func.grad(objective)(w))
    assert torch.equal(local.u, u)
    assert_close(info.nll, fedavg.gradient(MODEL, w, batch)[0])


def test_training_starts_at_the_own_model_or_at_u():
    own, down = Own(torch.ones(64)), Anchor(torch.zeros(64))
    for start, expected in (("own", own.w), ("u", down.u)):
        assert torch.equal(fedamp.begin(of(3, start=start), own, down, examples(3)).w, expected)


def test_a_client_predicts_with_its_own_model_or_with_the_u_that_it_was_sent():
    local = Local(torch.ones(64), torch.zeros(64))
    for predict, expected in (("own", local.w), ("u", local.u)):
        kept, sent = fedamp.finish(of(3, predict=predict), local, examples(3))
        assert torch.equal(kept.w, expected)
        assert torch.equal(sent.w, local.w)


def test_who_keeps_no_own_model_cannot_start_from_it():
    with pytest.raises(FedRayError, match=r"predict.*no model of its own.*start to u"):
        FedAMP(predict="u", start="own")


def test_without_a_pull_every_client_is_alone():
    plan = small_plan("fedamp", {"algorithm.mu": 0.0, "algorithm.start": "own"})
    alone = small_plan("fedper", {"algorithm.personal": ("body", "head")})
    (_, states, _), (_, expected, _) = (play(each, [block(each)]) for each in (plan, alone))
    assert_close(states.w[:, : plan.model.size], expected.theta[:, : plan.model.size], rtol=1e-6, atol=1e-7)


def test_the_server_keeps_the_last_model_of_every_client():
    plan = small_plan("fedamp")
    before = plan.initial_server()
    server, states, _ = play(plan, [block(plan)], rounds=((1, 4), (1, 2)))
    for client in range(6):
        assert torch.equal(server.w[client], states.w[client])
        assert torch.equal(server.w[client], before.w[client]) == (client not in (1, 2, 4))


def test_a_round_sends_one_model_each_way_and_evaluation_sends_none():
    plan = small_plan("fedamp")
    with LocalFederation(plan) as federation:
        for metrics in federation:
            assert metrics.bytes_down == metrics.bytes_up == 4 * plan.model.size * plan.cfg.clients_per_round
            assert metrics.global_ is None
        assert payload_bytes(plan.view(federation.state.server), plan) == 0


def test_before_the_first_round_all_models_take_the_memory_of_one():
    """Every process computes the initial server."""
    plan = small_plan("fedamp")
    assert plan.initial_server().w.untyped_storage().nbytes() == 4 * plan.model.padded


def test_a_convolutional_network_plays():
    """Its weights are a vector like any other's."""
    plan = small_plan("fedamp")._replace(model=NETS["conv"])
    ctx = plan.context
    server = plan.algorithm.server_init(ctx, Stream(0, "server"))
    assert fedamp.broadcast(ctx, server, (0, 3)).u.shape == (2, NETS["conv"].padded)
    assert differing(trees.row(fedamp.broadcast(ctx, server, (0,)), 0), Anchor(server.w[0])) == []
