"""A block of clients: packing and company change nothing, and every client gets what is its own."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.averaging import fedavg
from fedray.arrays import trees
from fedray.arrays.rng import Passes
from fedray.data import loading
from fedray.data.shards import Shards
from fedray.federate import evaluation, local_rounds
from fedray.federate.device.cpu import numerics
from fedray.federate.in_process import LocalFederation
from fedray.federate.measures import metrics
from fedray.federate.planning import make_plan
from tests.helpers import block, differing, each_of, experiment, play, small_plan

BACKENDS = pytest.mark.parametrize("backend", ["loop", "vmap"])


def recorder(plan, seen):
    """The plan with an algorithm that learns nothing and notes every batch and its noise."""

    def step(ctx, point, batch, noise):
        seen.append((batch, noise))
        return point, fedavg.Info(torch.zeros(()))

    return plan._replace(algorithm=plan.algorithm._replace(step=step, noise_shape=lambda *_: (2, 3)))


@pytest.mark.parametrize("name", ["fedavg", "pfedbayes"])
@pytest.mark.parametrize(("backend", "chunk"), [("loop", 32), ("vmap", 32), ("vmap", 2), ("auto", 3)])
def test_packing_does_not_matter(name, backend, chunk, monkeypatch):
    """Two blocks, or stacks of two, give bitwise what one block gives in a loop."""
    monkeypatch.setattr(local_rounds, "CHUNK", chunk)
    plan = small_plan(name)
    whole = play(plan, [block(plan)])
    parts = play(plan, [block(plan, ids, backend) for ids in ((0, 1, 2), (3, 4, 5))])
    assert all(differing(a, b) == [] for a, b in zip(whole, parts, strict=True))


def test_who_is_alone_with_products_of_its_own_is_a_stack_of_one():
    """Small products of pFedGP's trees round otherwise outside of a stack."""
    plan = small_plan("pfedgp", {"batch_size": 10, "model.hidden": (100,)})
    whole = play(plan, [block(plan, backend="auto")], (range(6), range(6)))
    alone = play(plan, [block(plan, (i,), "auto") for i in range(6)], (range(6), range(6)))
    assert all(differing(a, b) == [] for a, b in zip(whole, alone, strict=True))


def test_every_client_predicts_with_draws_of_its_own_and_the_global_model_with_one_for_all():
    """In every round and for every client other numbers, from the stream of its name."""
    plan, seen = small_plan("pfedbayes"), []

    def note(ctx, model, x, noise):
        seen.append(noise)
        return torch.zeros(1, len(x), 10).log_softmax(-1)

    plan = plan._replace(algorithm=plan.algorithm._replace(predict_personal=note, predict_global=note))
    host = block(plan, (1, 2, 5))
    for number in (1, 2):
        seen.clear()
        evaluation.evaluate(host, number, plan.initial_server(), False)
        shape = (3, plan.model.padded)
        everyone = plan.stream("predict-global", 0, number).normal(shape)
        own = [plan.stream("predict", i, number).normal(shape) for i in host.ids]
        assert all(torch.equal(a, b) for a, b in zip(seen[1::2], [everyone] * 3, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(seen[::2], own, strict=True))
        assert not torch.equal(own[0], own[1])


@BACKENDS
def test_only_the_selected_clients_train_and_each_answers_once(backend):
    plan = small_plan("pfedbayes")
    host = block(plan, (1, 2, 4, 5), backend)
    before = host.states
    reply = host.train(3, (2, 5), plan.initial_server())
    assert (reply.round, reply.ids) == (3, (2, 5))
    assert reply.examples.tolist() == [len(plan.partition.train[i]) for i in (2, 5)]
    for row, id_ in enumerate(host.ids):
        changed = differing(trees.row(before, row), trees.row(host.states, row))
        assert bool(changed) == (id_ in (2, 5))


@pytest.mark.parametrize("backend", ["loop", "vmap", "auto"])
def test_company_does_not_matter(backend):
    plan, server = small_plan("pfedbayes"), small_plan("pfedbayes").initial_server()
    together, alone = block(plan, backend=backend), block(plan, (3,), backend)
    reply, single = together.train(1, (0, 3, 5), server), alone.train(1, (3,), server)
    assert differing(trees.row(reply.up, 1), trees.row(single.up, 0)) == []
    assert differing(trees.row(together.states, 3), trees.row(alone.states, 0)) == []


def test_a_client_works_through_its_shard_across_rounds():
    """Every pass covers the shard once, goes on where the last round stopped, and carries the right examples."""
    seen, plan = [], small_plan()
    host, server = block(recorder(plan, seen), (4,)), plan.initial_server()
    for number in range(1, 5):
        host.train(number, (4,), server)
    (shard,) = each_of(Shards(loading.load(plan.cfg.data), plan.partition, (4,)))
    n, size = len(shard.train_y), plan.cfg.batch_size
    per_pass, places, passes = -(-n // size), [], Passes(plan.cfg.seed, 4, n, size)
    for position, (batch, _) in enumerate(seen):
        real = batch.weight > 0
        place = batch.place[real]
        assert np.array_equal(place, passes[position])
        assert torch.equal(batch.x[real], shard.train_x[place])
        assert torch.equal(batch.y[real], shard.train_y[place])
        assert batch.weight.unique().tolist() in ([1], [0, 1])
        assert (batch.total, len(batch.weight)) == (n, size)
        places.append(place)
    for number in range(len(seen) // per_pass):
        covered = torch.cat(places[number * per_pass : (number + 1) * per_pass])
        assert covered.sort().values.tolist() == list(range(n))


def test_noise_is_fresh_in_every_step_round_and_client():
    seen, plan = [], small_plan()
    host = block(recorder(plan, seen))
    for number in (1, 2):
        host.train(number, (0, 1), plan.initial_server())
    draws = torch.stack([noise.flatten() for _, noise in seen])
    assert draws.shape == (20, 6)
    assert len(draws.unique()) == draws.numel()


def test_a_step_may_take_several_minibatches():
    seen, plan = [], small_plan()
    plan = plan._replace(algorithm=plan.algorithm._replace(minibatches=lambda cfg: 2))
    block(recorder(plan, seen), (4,)).train(2, (4,), plan.initial_server())
    size = plan.cfg.batch_size
    passes = Passes(plan.cfg.seed, 4, len(plan.partition.train[4]), size)
    for step, (batch, _) in enumerate(seen):
        for j, part in enumerate(trees.tree_map(lambda leaf: leaf.view(2, size), (batch.place, batch.weight))[0]):
            chosen = passes[(5 + step) * 2 + j]
            assert np.array_equal(part[: len(chosen)], chosen)
            assert batch.weight.view(2, size)[j].sum() == len(chosen)


@BACKENDS
@pytest.mark.parametrize("chunk", [32, 2])
@pytest.mark.parametrize("ids", [range(6), (0, 3, 5), (1, 2, 3, 4, 5)])
def test_each_client_gets_its_own_row_of_a_broadcast(backend, chunk, ids, monkeypatch):
    monkeypatch.setattr(local_rounds, "CHUNK", chunk)

    def broadcast(ctx, server, ids):
        return fedavg.Point(server.theta + torch.tensor(list(ids))[:, None])

    def step(ctx, point, batch, noise):
        return point, fedavg.Info(point.theta.mean())

    plan = small_plan()
    plan = plan._replace(
        algorithm=plan.algorithm._replace(
            server_init=lambda *_: fedavg.Point(torch.zeros(640)),
            broadcast=broadcast,
            step=step,
            down_per_client=True,
        )
    )
    server, _, ((up, info), _) = play(plan, [block(plan, backend=backend)], (ids, (2,)))
    assert torch.equal(up.theta, torch.tensor(list(ids)).float()[:, None].expand(-1, 640))
    assert torch.equal(info.nll, up.theta[:, :5])
    first = np.average(ids, weights=[len(plan.partition.train[i]) for i in ids])
    assert_close(server.theta, torch.full((640,), first + 2).float())


@pytest.mark.parametrize("name", ["fedavg", "pfedbayes"])
def test_evaluation_covers_every_test_example_however_it_is_cut(name, monkeypatch):
    plan = small_plan(name)
    host, view = block(plan), plan.view(plan.initial_server())
    whole = evaluation.evaluate(host, 1, view, False)
    monkeypatch.setattr(evaluation, "ROWS", 7)
    for one, other in zip(whole[2:4], evaluation.evaluate(host, 1, view, False)[2:4], strict=True):
        if one is None:
            assert (name, other) == ("fedavg", None)
            continue
        assert one.examples.tolist() == [len(shard) for shard in plan.partition.test]
        assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert whole.spotlight is None
    look = evaluation.evaluate(host, 1, view, True).spotlight
    if name == "pfedbayes":
        assert look.probs.shape == (6, evaluation.SPOTLIGHT_DRAWS, 10)
        assert_close(look.probs.sum(-1), torch.ones(6, evaluation.SPOTLIGHT_DRAWS))
        assert look.label.tolist() == [int(host.shards.test(k)[1][0]) for k in range(6)]
    else:
        assert look is None


def test_evaluation_does_not_depend_on_packing_and_no_draws_means_the_mean_weights():
    plan = small_plan("pfedbayes", {"predict_samples": 0})
    view, host = plan.view(plan.initial_server()), block(plan)
    whole = evaluation.evaluate(host, 1, view, False)
    parts = [evaluation.evaluate(block(plan, ids), 1, view, False) for ids in ((0, 1), (2, 3, 4, 5))]
    for kind in ("personal", "global_"):
        assert differing(getattr(whole, kind), trees.concatenate([getattr(p, kind) for p in parts])) == []
    x, y = host.shards.test(2)
    at_mean = torch.log_softmax(plan.model.apply(view.mu, x), -1)[None]
    assert_close(trees.row(whole.personal, 2), metrics.evaluate(at_mean, y))


def test_numerics_is_one_thread_without_denormals_and_ends_even_in_an_error():
    tiny, threads = torch.tensor(1e-40), torch.get_num_threads()

    def fail():
        with numerics():
            assert torch.get_num_threads() == 1
            assert tiny * 1 == 0
            raise KeyError

    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError):
            fail()
        assert torch.get_num_threads() == 2
        assert tiny * 1 != 0
    finally:
        torch.set_num_threads(threads)


def test_auto_stacks_small_networks_and_loops_over_large_ones(monkeypatch):
    plan, particles = small_plan(), small_plan("dsvgd")
    assert plan.model.padded == particles.model.padded == 640
    assert block(plan, backend="auto").rounds.backend == "vmap"
    monkeypatch.setattr(local_rounds, "SMALL", 640)
    assert block(plan, backend="auto").rounds.backend == "vmap"
    assert block(particles, backend="auto").rounds.backend == "loop"  # several times as many numbers
    monkeypatch.setattr(local_rounds, "SMALL", 639)
    assert block(plan, backend="auto").rounds.backend == "loop"


def test_fewer_clients_of_larger_networks_are_stacked(monkeypatch):
    plan = small_plan()
    assert block(plan, backend="vmap").rounds.stack.size == local_rounds.CHUNK
    monkeypatch.setattr(local_rounds, "STACK", 2 * 640)
    assert block(plan, backend="vmap").rounds.stack.size == 2
    monkeypatch.setattr(local_rounds, "STACK", 1)
    assert block(plan, backend="vmap").rounds.stack.size == 1
    assert block(plan, backend="loop").rounds.stack.size == 1


@pytest.mark.parametrize(("batch_size", "stacked"), [(1, 1), (8, 0)])
def test_auto_plays_a_client_alone_by_itself_where_the_result_is_the_same(batch_size, stacked, monkeypatch):
    stacks, build = [], local_rounds._stacked
    monkeypatch.setattr(local_rounds, "_stacked", lambda *args: stacks.append(1) or build(*args))
    plan = small_plan("pfedbayes", {"batch_size": batch_size})
    play(plan, [block(plan, (3,), "auto")], ((3,),))
    assert len(stacks) == stacked
    play(plan, [block(plan, (3, 4), "auto")], ((3, 4),))
    assert len(stacks) == stacked + 1


@pytest.mark.parametrize("name", ["fedavg", "pfedbayes"])
def test_convolutions_agree_alone_and_stacked_to_rounding(name, tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((24, 3, 32, 32), np.float32), np.arange(24) % 2
    np.savez(tmp_path / "images.npz", x=x, y=y)
    cfg = experiment(name, {"data.name": str(tmp_path / "images.npz"), "data.partition": "iid", "model.name": "vgg",
                            "clients": 2, "clients_per_round": 2, "local_steps": 2, "batch_size": 4})  # fmt: skip
    plan = make_plan(cfg)
    assert plan.model.size == 245_282
    loop, stack = (play(plan, [block(plan, backend=backend)], ((0, 1),)) for backend in ("loop", "vmap"))
    for one, other in zip(trees.leaves(loop), trees.leaves(stack), strict=True):
        # In norm: where a gradient is almost zero its sign is rounding, and Adam makes whole steps of signs.
        assert (one - other).norm() <= (1e-5 if name == "fedavg" else 1e-3) * max(other.norm(), 1)


@pytest.mark.parametrize("name", ["fedavg", "per_fedavg", "pvi", "pfedbayes"])
def test_a_batch_far_larger_than_every_shard_is_the_shard(name):
    """As far as no noise is drawn by row, which would be another one."""
    own = {"algorithm.ft": 1} if name == "fedavg" else {"algorithm.estimator": "weights"} if name == "pfedbayes" else {}

    def played(batch_size):
        federation = LocalFederation(small_plan(name, {"batch_size": batch_size, **own}))
        for _ in federation:
            pass
        return federation

    padded, huge = played(1000), played(10**9)
    assert padded.plan.facts.batch_size == 1000
    assert huge.plan.facts.batch_size == huge.plan.facts.shard < 500
    for one, other in zip(trees.leaves(padded.state.server), trees.leaves(huge.state.server), strict=True):
        assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_batch_whose_rows_have_noise_is_as_wide_as_asked():
    assert small_plan("pfedbayes", {"batch_size": 5000, "algorithm.estimator": "local"}).facts.batch_size == 5000


def test_a_client_whose_terms_are_infinite_is_found_beside_one_whose_upload_is():
    """Its upload is finite; as an integer of the sum its infinite term would be any number."""
    plan = small_plan("fedavg")
    grown = plan.algorithm.aggregate._replace(terms=lambda ctx, up: fedavg.Point(up.theta * 1e30))
    hosts = block(plan._replace(algorithm=plan.algorithm._replace(aggregate=grown)), gather=False)
    theta = torch.ones(3, hosts.context.model.padded)
    theta[0], theta[1] = math.nan, 1e20
    ups, index = fedavg.Point(theta), (0, 1, 2)
    result = fedavg.Nothing(), hosts._sent(1, index, ups), fedavg.Info(torch.zeros(3))
    part = hosts._sorted_out(1, index, ups, result)
    assert [failure.who for failure in part.failures] == ["client 0", "client 1"]
