"""BNFed: what its server makes of networks that are alike, alone, or rearranged, and what clients restart from."""

import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.bayesian import bnfed
from fedray.arrays.rng import Stream
from fedray.types import FedRayError
from tests.helpers import block, built, context, differing, shard, small_plan

HIDDEN, IDS = 8, (0, 1, 2)


def plan(**settings):
    return small_plan("bnfed", {f"algorithm.{name}": value for name, value in settings.items()})


def trained(of, clients=3, name="net"):
    """Networks [K, P] with weights of the size that training gives."""
    return torch.stack([3 * of.model.init(Stream(0, name, i)) for i in range(clients)])


def merged(of, thetas, classes=None):
    """The server after a round of these clients."""
    n = torch.full([len(thetas)], 50)
    classes = torch.full([len(thetas), 10], 5.0) if classes is None else classes
    return bnfed.aggregate(of.context, of.initial_server(), range(len(thetas)), bnfed.Up(thetas, classes), n)


def rearranged(of, theta, order):
    """The same function with its hidden neurons in another order."""
    neurons, bias = bnfed.neurons_of(of.model, theta)
    return bnfed.network_of(of.model, neurons[order], bias)


def predictions(of, server, x):
    return bnfed.predict_global(of.context, bnfed.publish(of.context, server), x, torch.zeros(0))


def test_copies_with_permuted_neurons_become_one_of_them_shrunk():
    """Width H; at unit variances hidden weights times J/(1+J), outgoing ones times ½: their shares add up to 1."""
    of, clients = plan(prior_variance=1.0), 3
    theta = trained(of, 1)[0]
    orders = [Stream(0, "order", j).permutation(HIDDEN) for j in range(clients)]
    server = merged(of, torch.stack([rearranged(of, theta, order) for order in orders]))
    assert server.width == HIDDEN
    (neurons, bias), factor = bnfed.neurons_of(of.model, theta), clients / (1 + clients)
    for i, order in enumerate(orders):
        found = server.neurons[server.places[i].long()]
        assert_close(found[:, :64], factor * neurons[order, :64])
        assert_close(found[:, 64], (clients * neurons[order, 64] + bnfed.BIAS) / (1 + clients))
        assert_close(found[:, 65:], neurons[order, 65:] / 2)
    assert_close(server.bias, (bias + bnfed.BIAS) / 2)


def test_one_client_gets_its_own_network_back_shrunk():
    of = plan(prior_variance=1e8)  # a flat prior does not shrink
    theta = trained(of, 1)
    server = merged(of, theta)
    back = bnfed.broadcast(of.context, server, (0,)).theta
    assert_close(back[0, : of.model.size], theta[0, : of.model.size], rtol=1e-4, atol=1e-4)
    assert server.width == HIDDEN


def test_the_order_of_a_clients_neurons_changes_no_prediction():
    of, x = plan(), Stream(0, "x").normal([9, 64])
    thetas = trained(of)
    other = torch.stack(
        [rearranged(of, theta, Stream(1, "order", i).permutation(HIDDEN)) for i, theta in enumerate(thetas)]
    )
    assert_close(predictions(of, merged(of, thetas), x), predictions(of, merged(of, other), x), rtol=1e-4, atol=1e-5)


def test_the_global_network_is_wider_than_the_clients_and_each_restarts_from_its_own_neurons():
    of = plan(variance=0.1)
    thetas = trained(of)
    server = merged(of, thetas)
    assert server.width > HIDDEN
    restart = bnfed.broadcast(of.context, server, IDS).theta
    for theta, back in zip(thetas, restart, strict=True):
        (w, _), (own, bias) = bnfed.neurons_of(of.model, theta), bnfed.neurons_of(of.model, back)
        assert torch.equal(bias, server.bias)
        nearest = torch.cdist(own[:, :65], w[:, :65]).argmin(1)
        assert torch.equal(nearest, torch.arange(HIDDEN))  # in the places of the client's own


def test_the_state_keeps_its_size_and_the_published_network_has_its_width():
    of = plan(variance=0.1, max_width=40)
    server = merged(of, trained(of))
    assert server.neurons.shape == (40, 64 + 1 + 10)
    published = bnfed.publish(of.context, server).neurons
    assert torch.equal(published, server.neurons[: len(published)])
    assert len(published) == server.width < 40
    assert not server.neurons[len(published) :].any()


def test_the_wide_network_predicts_as_a_network_of_its_width_would():
    of, x = plan(variance=0.1, max_width=40), Stream(0, "x").normal([9, 64])
    server = merged(of, trained(of))
    model = built("mlp", (64,), 10, hidden=(40,))
    theta = bnfed.network_of(model, server.neurons, server.bias)
    assert_close(predictions(of, server, x)[0], torch.log_softmax(model.apply(theta, x), -1))


def test_who_has_a_class_decides_its_output():
    """A client without examples of a class has no say in the weights to it."""
    of = plan(prior_variance=1e8)
    thetas, counts = trained(of, 2), torch.full([2, 10], 5.0)
    counts[0, 3], counts[1, 4], counts[:, 5] = 0, 0, 0
    server = merged(of, thetas, counts)
    biases = [bnfed.neurons_of(of.model, theta)[1] for theta in thetas]
    assert_close(server.bias[3], biases[1][3], rtol=1e-4, atol=1e-5)
    assert_close(server.bias[4], biases[0][4], rtol=1e-4, atol=1e-5)
    assert_close(server.bias[6], (biases[0][6] + biases[1][6]) / 2, rtol=1e-4, atol=1e-5)
    # Nobody of this round has it: what the clients got of it stays.
    assert_close(server.bias[5], (biases[0][5] + biases[1][5]) / 2, rtol=1e-4, atol=1e-5)
    assert server.neurons[:, 64 + 1 + 5].abs().max() > 0.1 * server.neurons[:, 64 + 1 + 6].abs().max()


def test_clients_start_apart_or_together():
    own, common = plan(), plan(start="common")
    for of, different in ((own, True), (common, False)):
        theta = bnfed.broadcast(of.context, of.initial_server(), IDS).theta
        assert bool((theta[0] != theta[1]).any()) == different
        again = bnfed.broadcast(of.context, of.initial_server(), (2,)).theta
        assert torch.equal(again[0], theta[2])  # whoever else is asked


def test_class_counts_are_of_the_shard():
    of = plan()
    host = block(of, [4])
    data = shard(host, 0)
    local = bnfed.ALGORITHM.begin(of.context, bnfed.Nothing(), bnfed.Point(trained(of, 1)[0]), data)
    _, up = bnfed.finish(of.context, local, data)
    assert torch.equal(up.classes, torch.bincount(data.y[data.weight > 0], minlength=10).float())


def test_a_client_that_was_not_heard_goes_on_from_the_most_popular_neurons():
    of = plan(variance=0.1)
    first, *others = trained(of, 3)
    server = merged(of, torch.stack([first, first, *others[:1]]))  # two of one kind, one of another
    counts = torch.bincount(server.places[:3].flatten().long())
    assert len(counts) > HIDDEN
    for other in server.places[3:].long():
        assert (counts[other] == 2).all()


def test_how_many_clients_there_are_beside_those_of_a_round_changes_nothing_of_their_match():
    settings = {"clients_per_round": 3, "algorithm.variance": 0.1}
    few, many = (small_plan("bnfed", settings | {"clients": clients}) for clients in (3, 6))
    thetas = trained(few)
    ours, theirs = merged(few, thetas), merged(many, thetas)
    assert ours.width == theirs.width
    assert torch.equal(ours.neurons, theirs.neurons)
    assert torch.equal(ours.places, theirs.places[:3])


def test_the_public_preset_halves_the_popularity():
    (preset,) = bnfed.ALGORITHM.presets.values()
    assert preset.overrides["algorithm.popularity"] == 1
    a, b = plan(), plan(popularity=1.0)
    thetas = trained(a, 4)
    assert differing(merged(a, thetas), merged(b, thetas))


def test_what_cannot_run_is_refused():
    for model in (built("mclr", (64,), 10), built("mlp", (64,), 10, hidden=(8, 8)), built("cnn", (3, 32, 32), 10)):
        with pytest.raises(FedRayError, match="single hidden layer"):
            bnfed.server_init(context(bnfed.BNFed(), model), Stream(0, "server"))
    with pytest.raises(FedRayError, match=r"max_width 7.*8 hidden"):
        plan(max_width=7)
    with pytest.raises(FedRayError, match="gamma"):
        bnfed.BNFed(gamma=0)
