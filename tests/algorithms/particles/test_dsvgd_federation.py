"""DSVGD of a network in a federation: who is trained, what is merged, and what is refused."""

import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.particles import dsvgd
from fedray.arrays import trees
from fedray.bayes.sites import BACKENDS
from fedray.federate.in_process import LocalFederation
from fedray.federate.rounds import start
from fedray.types import FedRayError
from tests.helpers import aggregated, block, differing, play, small_plan

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("sites", BACKENDS)
def test_clients_taking_turns_are_the_same_alone_and_stacked_and_leave_the_others_alone(sites):
    settings = {"clients_per_round": 1, "algorithm.mode": "serial", "algorithm.sites": sites,
                "algorithm.particles": 4, "algorithm.lr": 0.01, "rounds": 4}  # fmt: skip
    plan = small_plan("dsvgd", settings)
    turns = ((2,), (4,), (2,), (0,))
    loop, stack = (play(plan, [block(plan, backend=backend)], turns) for backend in ("loop", "vmap"))
    assert all(differing(a, b) == [] for a, b in zip(loop, stack, strict=True))
    server, states, seen = loop
    assert_close(server.x, seen[-1][0].x[0])
    for k in (1, 3, 5):
        assert differing(trees.row(states, k), trees.row(block(plan).states, k)) == []
    assert states.visited.tolist() == [1, 0, 1, 0, 1, 0]
    if BACKENDS[sites].gaussian:
        assert (states.site.lam >= 0).all()
        assert (states.site.lam[[0, 2, 4]] > 0).flatten(1).any(1).all()
        for name, total in server.sums._asdict().items():
            assert_close(total, getattr(states.site, name).sum(0), rtol=1e-5, atol=1e-3)


def test_the_merged_particles_are_the_means_of_those_of_one_origin():
    plan = small_plan("dsvgd", {"algorithm.particles": 4})
    server, _, seen = play(plan, [block(plan)])
    assert_close(server.x, seen[-1][0].x.mean(0))


@pytest.mark.parametrize("merge", [{}, {"merge": "svgd"}, {"merge": "kde", "sites": "kde_shared"}])
def test_the_order_of_arrival_does_not_change_a_bit(merge):
    """Not even where the server takes steps whose first has the size ε whatever the direction."""
    settings = {f"algorithm.{name}": value for name, value in ({"particles": 4} | merge).items()}
    plan = small_plan("dsvgd", settings | {"clients_per_round": 6})
    host = block(plan)
    server, _, seen = play(plan, [host], rounds=(tuple(range(6)),))
    ups, ids, order = trees.rows(seen[-1][0], range(4)), (1, 2, 4, 5), [2, 0, 3, 1]
    large = torch.tensor([1e17, 1.0, -1e17, 1.0])[:, None]  # whose sum depends on the order even in float64
    ups = ups._replace(sums=trees.tree_map(lambda leaf: leaf + large, ups.sums))
    shuffled = [ids[k] for k in order], trees.rows(ups, order)
    first, mixed = (aggregated(plan.algorithm, plan.context, server, *a, None) for a in ((ids, ups), shuffled))
    assert differing(first, mixed) == []
    assert (seen[-1][0].x.shape[1] == 0) is ("svgd" in merge.values())


def test_for_the_parallel_merge_clients_upload_their_local_particles_and_nothing_else():
    settings = {"algorithm.particles": 4, "algorithm.merge": "kde", "algorithm.sites": "kde_distill"}
    plan = small_plan("dsvgd", settings | {"clients_per_round": 6})
    server, states, seen = play(plan, [block(plan)], rounds=(tuple(range(6)),))
    up = seen[-1][0]
    assert torch.equal(up.x, states.site.x)
    assert not torch.equal(up.x, states.x)
    assert trees.leaves(up.sums) == []
    assert (server.x - plan.initial_server().x).abs().max() > 0


def test_without_sites_clients_may_train_unheard():
    plan = small_plan("dsvgd", {"train_all": True, "algorithm.sites": "none", "algorithm.particles": 4})
    assert plan.facts.unheard == 2
    running = LocalFederation(plan, "loop")
    list(running)
    assert running.snapshot().clients.visited.tolist() == [1.0] * 6


def test_a_client_that_was_never_visited_predicts_with_the_global_particles():
    plan = small_plan("dsvgd", {"algorithm.particles": 4})
    server, states, _ = play(plan, [block(plan)], rounds=((1, 2),))
    for k, x in ((0, server.x), (2, states.x[2])):
        personal = dsvgd.personalize(plan.context, trees.row(states, k), server, None, None)
        assert torch.equal(personal.x, x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm.mode": "serial"}, r"^clients_per_round 4: .*one client at a time; use 1, or `mode=parallel`"),
        ({"algorithm.merge": "svgd", "algorithm.sites": "none"}, r"^sites none: .*use site, or `merge=average`"),
        ({"algorithm.merge": "kde"}, r"^sites site: .*local particles; use kde_distill"),
        ({"algorithm.merge": "kde", "algorithm.sites": "kde_code"}, r"^clients_per_round 4: .*of all clients; use 6"),
        ({"algorithm.sites": "history", "algorithm.slots": 1}, r"^slots 1: .*each of 2 rounds"),
        ({"algorithm.particles": 0}, r"^particles 0"),
        ({"algorithm.beta": 1.5}, r"^beta 1.5"),
        ({"algorithm.beta": 0.5, "algorithm.sites": "kde_code"}, r"^beta 0.5: .*never damped"),
        ({"algorithm.beta": 0.5, "algorithm.sites": "history"}, r"^beta 0.5: .*never damped"),
        ({"algorithm.mode": "serial", "clients_per_round": 1, "algorithm.merge": "svgd"}, r"^merge svgd: .*serial"),
        ({"algorithm.score_examples": -1}, r"^score_examples -1"),
        ({"algorithm.ksd": "u", "algorithm.particles": 1}, r"^ksd u: it is a mean over pairs"),
        ({"algorithm.sites": "kde"}, r"^sites kde: .*kde_distill"),
        ({"model.name": "dnn"}, r"^curvature ggn: .*ReLUs only; choose regression, or `model.name=mlp`"),
        ({"train_all": True}, r"^train_all True: .*2 clients would renew sites .*; leave it out"),
        ({"train_all": True, "algorithm.sites": "kde_code"}, r"^train_all True: .*2 clients"),
    ],
)
def test_what_cannot_run_is_refused(settings, message):
    with pytest.raises(FedRayError, match=message):
        start(small_plan("dsvgd", settings))
