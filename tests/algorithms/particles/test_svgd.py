"""SVGD on all data: the same steps wherever the examples lie, and those of DSVGD with one client."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.particles import svgd
from fedray.algorithms.particles.svgd import SVGD, Server
from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.bayes.particles import network
from fedray.bayes.stein import Descent, descend
from fedray.federate.rounds import start
from fedray.types import Batch, Facts, FedRayError
from tests.helpers import aggregated, block, context, draws, play, small_plan

pytestmark = pytest.mark.usefixtures("one_thread")

EVERYONE = tuple(range(6))
WHOLE = {"batch_size": 1000, "algorithm.particles": 4}  # every minibatch is the client's shard


@pytest.mark.parametrize("rule", ["rmsprop", "adagrad", "plain"])
def test_its_rounds_are_steps_of_svgd_on_the_whole_posterior(rule):
    """Of clients with likelihoods N(m_k; θ, 1/a_k); the memory of the steps outlives the rounds."""
    stream = Stream(0, "toy")
    cfg = SVGD(lr=0.05, rule=rule, prior_precision=2.0)
    ctx = context(cfg, SimpleNamespace(size=3), Facts(4, 4, 30, 1, 9, 9))
    m, a = stream.normal([4, 3]).double(), (1 + stream.uniform([4, 3])).double()
    x = stream.normal([6, 3]).double()
    server = Server(x, torch.zeros_like(x), torch.ones(()))
    for _ in range(30):
        ups = []
        for k in range(4):
            local = svgd.begin(ctx, None, svgd.broadcast(ctx, server, range(4)), data(9.0))
            local, _ = svgd.estimate(local, lambda x, k=k: (torch.zeros(()), a[k] * (m[k] - x)), torch.tensor(9.0))
            ups.append(svgd.finish(ctx, local, None)[1])
        server = aggregated(svgd.ALGORITHM, ctx, server, range(4), trees.stack(ups), None)
    central = descend(Descent(0.05, rule=rule), x, lambda x: (a * m).sum(0) - (a.sum(0) + 2.0) * x, 30)
    assert_close(server.x, central, rtol=0, atol=1e-6)
    assert (server.x - x).abs().max() > 0.3


def data(total):
    return Batch(None, None, None, None, torch.tensor(total))


def test_with_one_client_it_is_dsvgd_within_a_round():
    """Five rounds of one step are the five steps of a visit, at whose end DSVGD forgets the size of its steps."""
    one = WHOLE | {"rounds": 5, "clients": 1, "clients_per_round": 1, "algorithm.lr": 0.01, "data.partition": "iid"}
    central, visit = (small_plan(name, one | {"local_steps": r}) for name, r in (("svgd", 1), ("dsvgd", 5)))
    assert torch.equal(central.initial_server().x, visit.initial_server().x)
    (first, *_), (second, *_) = play(central, [block(central)], ((0,),) * 5), play(visit, [block(visit)], ((0,),))
    assert_close(first.x, second.x, rtol=0, atol=2e-5)
    assert (first.x - central.initial_server().x).abs().max() > 0.03


def test_only_the_union_of_the_shards_counts():
    """The clients' scores add up to the score of their pooled examples."""
    plan = small_plan("svgd", WHOLE | {"local_steps": 1})
    host = block(plan)
    server = plan.initial_server()
    _, _, seen = play(plan, [host], rounds=(EVERYONE,))
    data = host.shards.padded(EVERYONE, plan.facts.shard)
    union = Batch(*(leaf.flatten(0, 1) for leaf in data[:-1]), data.total.sum())
    _, s = network(plan.model, union)(server.x)
    assert_close(seen[0][0].s.sum(0), s, rtol=1e-4, atol=1e-4 * float(s.abs().max()))


def test_local_steps_are_minibatches_of_one_estimate():
    """Five batches of 20 make the estimate that their hundred examples make; particles stay where they are."""
    settings = {"algorithm.particles": 4, "batch_size": 20, "clients": 4, "clients_per_round": 4}
    plan = small_plan("svgd", settings | {"local_steps": 3, "data.partition": "iid"})
    host, server = block(plan), plan.initial_server()
    batches = [trees.row(batch, 1) for batch, _ in draws(host, 1, [0, 1])]
    assert all(batch.weight.sum() == 20 for batch in batches)
    together = Batch(*(torch.cat(leaves) for leaves in zip(*(b[:-1] for b in batches), strict=True)), batches[0].total)
    down = svgd.broadcast(plan.context, server, range(4))
    reply = host.train(1, (0, 1), down)
    assert_close(reply.up.s[1], network(plan.model, together)(server.x)[1], rtol=1e-4, atol=1e-3)
    assert reply.info.nll[1].unique().numel() == 3


def test_a_pass_that_ends_in_a_short_minibatch_has_the_exact_score():
    """Each example counts as often as any other: 100 of 110 in the first batch, ten in the second."""
    scores = torch.arange(110.0)
    local = svgd.begin(None, None, svgd.Particles(torch.zeros(1, 1)), data(110.0))
    for part in scores.split(100):
        local, _ = svgd.estimate(
            local, lambda x, part=part: (x.sum(), 110 * part.mean()), torch.tensor(float(len(part)))
        )
    assert_close(svgd.finish(None, local, None)[1].s, scores.sum().expand(1, 1))


def test_those_who_answer_stand_for_those_who_failed():
    plan = small_plan("svgd", WHOLE | {"algorithm.rule": "plain", "algorithm.lr": 1.0})
    server = plan.initial_server()
    s = Stream(0, "scores").normal([2, *server.x.shape])
    all_of = aggregated(svgd.ALGORITHM, plan.context, server, EVERYONE, svgd.Up(s[[0, 1, 0, 1, 0, 1]]), None)
    two = aggregated(svgd.ALGORITHM, plan.context, server, (2, 5), svgd.Up(s), None)
    assert_close(two.x, all_of.x)


def test_one_client_too_few_is_refused():
    with pytest.raises(FedRayError, match=r"^clients_per_round 5: .*every client.*use 6"):
        start(small_plan("svgd", {"clients_per_round": 5}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm.lr": 0.0}, r"^lr 0.0"),
        ({"algorithm.temperature": -1.0}, r"^temperature -1.0"),
        ({"algorithm.prior": "gamma"}, r"^prior gamma: .*blr"),
    ],
)
def test_what_cannot_run_is_refused(settings, message):
    with pytest.raises(FedRayError, match=message):
        start(small_plan("svgd", settings))
