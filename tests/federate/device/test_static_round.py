"""Steps on static buffers, which a graph could replay, give what the steps of a stack give."""

import functools

import pytest
import torch

from fedray.arrays import trees
from fedray.federate.device import static_round
from tests.helpers import ALGORITHMS, block, differing, federated_plan, play

plan_of = functools.cache(lambda name, generator: federated_plan(name, {"noise_generator": generator}))
SLOW = {"pfedgp"}
every_algorithm = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in ALGORITHMS]
)


@every_algorithm
def test_static_buffers_and_a_plain_stack_are_bitwise_the_same(name):
    """Over two rounds of other clients, in stacks of two sizes, with the noise drawn inside of the step."""
    plan = plan_of(name, "philox")
    plain, static = (
        play(plan, [block(plan, backend=backend)], ((0, 2, 3, 5), (1, 2, 4))) for backend in ("vmap", "graph")
    )
    assert differing(plain, static) == []


def test_static_buffers_take_the_noise_of_the_host_too():
    plan = plan_of("pfedbayes", "sfc64")
    plain, static = (play(plan, [block(plan, backend=backend)]) for backend in ("vmap", "graph"))
    assert differing(plain, static) == []


def test_philox_draws_the_same_for_a_client_alone_and_in_any_stack():
    plan = plan_of("pfedbayes", "philox")
    whole = play(plan, [block(plan, backend="vmap")])
    for hosts in ([block(plan)], [block(plan, (0, 1, 2), "graph"), block(plan, (3, 4, 5), "vmap")]):
        assert differing(play(plan, hosts), whole) == []
    other = plan_of("pfedbayes", "sfc64")
    assert differing(play(other, [block(other)]), whole) != []


def test_values_that_lie_in_one_anothers_buffers_are_not_overwritten_before_they_are_read():
    buffers = [torch.arange(3.0), torch.arange(3.0) + 10]
    static_round._write(buffers, [buffers[1], buffers[0]])
    assert [leaf.tolist() for leaf in buffers] == [[10, 11, 12], [0, 1, 2]]
    buffers[0] += 1
    static_round._write(buffers, [buffers[0], buffers[0].flip(0)])
    assert [leaf.tolist() for leaf in buffers] == [[11, 12, 13], [13, 12, 11]]


def test_the_result_of_a_round_survives_the_next_one():
    plan = plan_of("pfedbayes", "philox")
    host, server = block(plan, backend="graph"), plan.initial_server()
    down = plan.algorithm.broadcast(plan.context, server, (0, 1))
    first = host.train(1, (0, 1), down)
    kept = trees.tree_map(torch.clone, (first.up, first.info))
    host.train(2, (0, 1), down)
    assert differing((first.up, first.info), kept) == []


def test_buffers_are_kept_for_the_last_two_sizes():
    plan = federated_plan("fedavg", {"rounds": 5})
    host = block(plan, backend="graph")
    down = plan.algorithm.broadcast(plan.context, plan.initial_server(), (0,))
    for number, ids in enumerate(((0,), (0, 1), (0, 1, 2), (2, 3), (1,)), 1):
        host.train(number, ids, down)
    assert [size for size, _ in host.rounds._rounds] == [2, 1]  # 1 and 2 went when 3 came, and 3 when 1 came again
