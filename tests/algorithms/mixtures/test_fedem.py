"""FedEM: its E-step and M-step by hand and by autograd, its limits, and two populations that it tells apart."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.mixtures import fedem
from fedray.algorithms.mixtures.fedem import Client, Components, FedEM, Local
from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.data import loading
from fedray.federate import evaluation
from fedray.federate.evaluation import personal_model
from fedray.federate.in_process import LocalFederation
from fedray.nets.likelihood import predictive
from fedray.running.predictor import Predictor
from fedray.types import Batch
from tests.helpers import NETS, block, built, context, differing, examples, play, shard, small_plan

MODEL, NO_NOISE = NETS["mlp"], torch.zeros(0)
DATA = examples(40)
PI = torch.tensor([0.2, 0.5, 0.3]).double()


def components(count=3, model=MODEL):
    return torch.stack([3 * model.init(Stream(k, "server")) for k in range(count)]).double()


def shards_of(*sizes, length):
    """Padded shards of so many examples, stacked."""
    data = examples(length)
    rows = [(torch.arange(length) < n).float() for n in sizes]
    return trees.stack([Batch(data.x.float(), data.y, w, data.place, w.sum()) for w in rows])


def likelihoods(theta, data=DATA):
    """p(y_j | x_j; θ_m) [M, n]."""
    rows = [torch.log_softmax(MODEL.apply(each, data.x), -1).exp() for each in theta]
    return torch.stack([p[torch.arange(len(data.y)), data.y] for p in rows])


def test_the_responsibilities_are_bayes_rule_and_the_weights_their_means():
    theta = components()
    q, pi = fedem.expect(context(FedEM(), MODEL), theta, PI, DATA)
    joint = PI[:, None] * likelihoods(theta)
    assert_close(q, joint / joint.sum(0))
    assert_close(pi, q.mean(1))
    assert_close(q.sum(0), torch.ones(40).double())


def test_the_pieces_of_a_shard_do_not_matter(monkeypatch):
    ctx, theta = context(FedEM(), MODEL), components()
    whole = fedem.expect(ctx, theta, PI, DATA)
    monkeypatch.setattr(fedem, "ROWS", 7)
    assert_close(fedem.expect(ctx, theta, PI, DATA), whole)


def test_padding_has_no_influence_on_the_weights():
    ctx, theta = context(FedEM(), MODEL), components()
    longer = Batch(torch.cat([DATA.x, 9 * DATA.x]), DATA.y.repeat(2), (torch.arange(80) < 40).double(), *DATA[3:])
    assert_close(fedem.expect(ctx, theta, PI, longer)[1], fedem.expect(ctx, theta, PI, DATA)[1])


def test_a_client_alone_computes_no_piece_of_padding_and_has_the_bits_that_it_has_in_a_stack(monkeypatch):
    monkeypatch.setattr(fedem, "ROWS", 16)
    ctx, theta = context(FedEM(), MODEL), components().float()
    padded = shards_of(40, 7, length=80)
    alone = [fedem.expect(ctx, theta, PI.float(), trees.row(padded, k)) for k in range(2)]
    stacked = torch.vmap(lambda data: fedem.expect(ctx, theta, PI.float(), data))(padded)
    for k, rows in enumerate((48, 16)):
        assert torch.equal(alone[k][1], stacked[1][k])
        assert torch.equal(alone[k][0][:, :rows], stacked[0][k, :, :rows])
        assert alone[k][0].shape == (3, 80)
        assert not alone[k][0][:, rows:].any()
    seen = []
    compute = fedem.log_likelihood
    monkeypatch.setattr(fedem, "log_likelihood", lambda *args: seen.append(len(args[-1])) or compute(*args))
    fedem.expect(ctx, theta, PI.float(), trees.row(padded, 1))
    assert seen == [16]


def test_repeated_e_steps_never_lower_the_likelihood():
    ctx, theta, pi = context(FedEM(), MODEL), components(), PI
    p = likelihoods(theta)
    seen = []
    for _ in range(30):
        seen.append(float((pi @ p).log().sum()))
        pi = fedem.expect(ctx, theta, pi, DATA)[1]
    assert all(after >= before - 1e-12 for before, after in itertools.pairwise(seen))
    assert seen[-1] > seen[0] + 0.01


def test_a_component_that_explains_all_examples_better_takes_all_the_weight():
    data = DATA._replace(y=torch.zeros_like(DATA.y))
    theta = torch.zeros(3, MODEL.padded).double()
    theta[1, MODEL.tensors["head.bias"]] = torch.tensor([40.0, 0, 0, 0]).double()
    pi = PI
    for _ in range(40):
        _, pi = fedem.expect(context(FedEM(), MODEL), theta, pi, data)
    assert_close(pi, torch.tensor([0, 1, 0]).double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_a_step_descends_every_components_share_of_the_loss(name):
    model = NETS[name]
    ctx, theta = context(FedEM(lr=0.3), model), components(model=model)
    batch = examples(9)._replace(weight=(torch.arange(9) < 7).double(), place=torch.arange(9) + 20)
    if name == "conv":
        batch = batch._replace(x=Stream(0, "images").normal([9, 2, 8, 8]).double())
    q = Stream(1, "q").normal([3, 40]).double().softmax(0)

    def loss(theta):
        nll = -predictive(model, theta, batch.x)[:, torch.arange(9), batch.y]
        return (q[:, 20:29] * nll)[:, :7].sum() / 7

    local, info = fedem.step(ctx, Local(theta, q, PI), batch, NO_NOISE)
    assert_close(local.theta, theta - 0.3 * torch.func.grad(loss)(theta))
    assert_close(info.nll, loss(theta))
    assert differing(local._replace(theta=theta), Local(theta, q, PI)) == []


def test_one_component_is_fedavg():
    plan = small_plan("fedem", {"algorithm.components": 1, "algorithm.lr": 0.05})
    reference = small_plan("fedavg", {"algorithm.lr": 0.05})
    (server, states, _), (expected, _, _) = (play(each, [block(each)]) for each in (plan, reference))
    assert_close(server.theta[0], expected.theta, rtol=1e-6, atol=1e-7)
    assert torch.equal(states.pi, torch.ones(6, 1))


def test_equal_components_stay_equal_and_weights_stay_as_they_are():
    ctx, theta = context(FedEM(), MODEL), components(1).expand(3, -1)
    local = fedem.begin(ctx, Client(PI), Components(theta), DATA)
    assert_close(local.pi, PI)
    for _ in range(3):
        local, _ = fedem.step(ctx, local._replace(q=local.q[:1].expand(3, -1)), DATA, NO_NOISE)
    assert_close(local.theta, local.theta[:1].expand(3, -1))


def test_components_start_apart():
    theta = small_plan("fedem").initial_server().theta
    assert all(not torch.allclose(theta[a], theta[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_the_order_of_components_changes_no_prediction():
    plan = small_plan("fedem")
    server, _, _ = play(plan, [block(plan)])
    host, order = block(plan), [2, 0, 1]
    host.private.replace(1, host.ids, host.states._replace(pi=torch.tensor([0.5, 0.2, 0.3]).repeat(6, 1)))
    first = evaluation.evaluate(host, 2, server, False).personal
    host.private.replace(1, host.ids, host.states._replace(pi=host.states.pi[:, order]))
    second = evaluation.evaluate(host, 2, Components(server.theta[order]), False).personal
    assert_close(first, second, rtol=1e-4, atol=1e-4)


def test_what_is_not_known_is_which_component_it_is():
    """p̄ = Σ_m π_m p_m, MI = H[p̄] - Σ_m π_m H[p_m]; the loaded predictor says the same."""
    plan = small_plan("fedem", {"algorithm.lr": 0.5})
    with LocalFederation(plan) as federation:
        (*_, last) = federation
        snapshot, host = federation.snapshot(), federation.cohort.block
        mixture = personal_model(host, 1, last.round, snapshot.server)
    x, y = host.shards.test(1)
    p = predictive(plan.model, mixture.theta, x).double().exp()
    average = torch.einsum("m,mbc->bc", mixture.pi.double(), p)
    entropy, each = (-torch.special.xlogy(q, q).sum(-1) for q in (average, p))
    information = entropy - mixture.pi.double() @ each
    stats = trees.row(last.personal, 1)
    assert_close(stats.nll, -average[torch.arange(len(y)), y].log().sum())
    assert_close(stats.mutual_information, information.sum())
    assert stats.mutual_information / stats.examples > 1e-3
    raw = loading.load(plan.cfg.data).x[plan.partition.test[1]]
    prediction = Predictor(plan, snapshot).predict(raw, client=1)
    assert_close(prediction.probs.double(), average, rtol=1e-4, atol=1e-5)
    assert_close(prediction.mutual_information.double(), information, rtol=1e-3, atol=1e-5)
    assert torch.equal(prediction.shares, mixture.pi)


def test_the_uncertainty_figure_shows_components_as_often_as_they_weigh():
    plan = small_plan("fedem")
    host, server = block(plan), plan.initial_server()
    look = evaluation.evaluate(host, 1, server, True).spotlight
    mixture = personal_model(host, 2, 1, server)
    assert look.probs.shape == (6, 100, 10)
    rows = predictive(plan.model, mixture.theta, host.shards.test(2)[0][:1])[:, 0].exp()
    counts = [int((look.probs[2] == row).all(1).sum()) for row in rows]
    assert sum(counts) == 100
    assert all(abs(count - 100 * float(share)) <= 1 for count, share in zip(counts, mixture.pi, strict=True))


def test_a_newcomer_finds_weights_and_leaves_the_components_alone():
    plan = small_plan("fedem", {"novel_clients": 2, "clients_per_round": 4, "adapt_rounds": 2})
    with LocalFederation(plan) as federation:
        rounds = list(federation)
        server, states = federation.snapshot()
    assert rounds[-1].novel is not None
    pi = torch.full((3,), 1 / 3)
    ctx = federation.plan.context
    for _ in range(2):
        pi = fedem.expect(ctx, server.theta, pi, shard(federation.cohort.block, 5))[1]
    assert_close(states.pi[5], pi)


def test_a_step_of_adaptation_changes_nothing_and_reports_the_mixture():
    theta = components()
    local = fedem.begin(context(FedEM(), MODEL), Client(PI), Components(theta), DATA)
    batch = DATA._replace(weight=(torch.arange(40) < 30).double())
    after, info = fedem.adapt(context(FedEM(), MODEL), local, batch, NO_NOISE)
    assert differing(after, local) == []
    assert_close(info.nll, -(local.pi @ likelihoods(theta))[:30].log().mean())


def test_a_personal_model_is_of_the_new_components_under_weights_that_fit_them():
    plan = small_plan("fedem", {"algorithm.lr": 0.5})
    host = block(plan)
    server, states, _ = play(plan, [host])
    mixture = personal_model(host, 1, 2, server)
    expected = fedem.expect(plan.context, server.theta, states.pi[1], shard(host, 1))[1]
    assert torch.equal(mixture.theta, server.theta)
    assert_close(mixture.pi, expected)
    assert not torch.allclose(expected, states.pi[1], rtol=1e-3)


def test_two_populations_with_opposite_labels_get_components_of_their_own():
    """No single model can serve both: FedEM's weights become one-hot, and right for every client's population."""
    model = built("mclr", (2,), 2)
    ctx = context(FedEM(components=2, lr=1.0), model)
    shards = []
    for client in range(6):
        x = Stream(client, "x").normal([60, 2])
        y = ((x[:, 0] > 0) ^ (client % 2 == 1)).long()
        shards.append(Batch(x, y, torch.ones(60), torch.arange(60), torch.tensor(60.0)))
    server = fedem.server_init(ctx, Stream(3, "server"))
    clients = [fedem.client_init(ctx, server)] * 6
    for _ in range(15):
        ups = []
        for i, data in enumerate(shards):
            local = fedem.begin(ctx, clients[i], server, data)
            for _ in range(5):
                local, _ = fedem.step(ctx, local, data, NO_NOISE)
            clients[i], up = fedem.finish(ctx, local, data)
            ups.append(up.theta)
        server = Components(torch.stack(ups).mean(0))
    winners = [int(client.pi.argmax()) for client in clients]
    assert winners in ([0, 1] * 3, [1, 0] * 3)
    assert all(float(client.pi.max()) > 0.95 for client in clients)
