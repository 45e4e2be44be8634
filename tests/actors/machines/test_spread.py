"""Who hosts whom on machines that come and go: arithmetic only, no Ray."""

import math

import pytest

from actors.machines.placement import Node, arrange, seats_in
from actors.machines.spread import MARGIN, deal, even, load, spread


@pytest.mark.parametrize(("clients", "actors"), [(10, 1), (10, 3), (10, 10), (1000, 7)])
def test_blocks_are_consecutive_and_even(clients, actors):
    blocks = even(clients, actors)
    assert [i for block in blocks for i in block] == list(range(clients))
    sizes = [len(block) for block in blocks]
    assert len(sizes) == actors
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_actors_are_dealt_in_proportion_to_seats_and_never_beyond_them():
    assert deal(6, {"a": 2, "b": 2, "c": 2}) == {"a": 2, "b": 2, "c": 2}
    assert deal(4, {"a": 4, "b": 12}) == {"a": 1, "b": 3}
    assert deal(9, {"a": 1, "b": 3}) == {"a": 1, "b": 3}
    assert deal(3, {"a": 0, "b": 2}) == {"a": 0, "b": 2}
    assert deal(1, {}) == {}


def test_a_small_machine_that_is_named_first_gets_no_more_than_its_part():
    assert deal(1, {"a": 1, "b": 3}) == {"a": 0, "b": 1}


def test_most_actors_stay_where_they_are_whatever_the_machines_are_called():
    found = spread({0: "b", 1: "b", 2: "b"}, even(3, 3), {"a": 3, "b": 3}, 3, 0.34)
    assert found is not None
    assert (found.kept, found.begin) == ((0, 1), {"a": 1})


def test_a_round_takes_as_long_as_the_busiest_cpu():
    ten = range(10)
    assert load([("a", ten)], {"a": 1}, 1.0) == 10
    assert load([("a", ten[:5]), ("a", ten[5:])], {"a": 2}, 1.0) == 5
    assert load([("a", ten[:5]), ("a", ten[5:])], {"a": 4}, 1.0) == 5  # an actor uses one CPU, whatever is free
    assert load([("a", ten[:5]), ("b", ten[5:])], {"a": 2, "b": 1}, 0.5) == 10  # of half a CPU each
    assert load([("a", [0]), ("b", ten[1:])], {"a": 1, "b": 1}, 1.0) == 9


def test_one_machine_becomes_three():
    blocks = even(10, 2)
    found = spread({0: "a", 1: "a"}, blocks, {"a": 2, "b": 2, "c": 2}, 10, 1.0)
    assert found is not None
    assert (found.kept, found.begin) == ((0, 1), {"b": 2, "c": 2})
    assert found.blocks == even(10, 6)


def test_clients_that_have_an_actor_each_move_with_their_number_unchanged():
    found = spread(dict.fromkeys(range(4), "a"), even(4, 4), {"a": 4, "b": 4, "c": 4, "d": 4}, 4, 0.25)
    assert found is not None
    assert (found.kept, found.begin) == ((0,), {"b": 1, "c": 1, "d": 1})


@pytest.mark.parametrize(
    ("clients", "actors", "seats", "most", "share"),
    [
        (4, 4, {"a": 4, "b": 4}, 4, 1.0),  # every client has a CPU already
        (4, 2, {"a": 2, "b": 4}, 2, 1.0),  # so many to an actor were asked for
        (10, 5, {"a": 5}, 10, 0.4),  # nobody joined
        (10, 2, {"a": 2, "b": 0}, 10, 1.0),  # who joined has no room
        (10, 5, {"a": 5, "b": 4}, 10, 1.0),  # some would still share an actor by two
        (100, 9, {"a": 9, "b": 1}, 100, 1.0),  # 10 instead of 12: less than MARGIN
    ],
)
def test_nobody_moves_for_little(clients, actors, seats, most, share):
    assert MARGIN < 10 / 12
    assert spread(dict.fromkeys(range(actors), "a"), even(clients, actors), seats, most, share) is None


def test_a_round_that_becomes_just_as_much_shorter_as_it_has_to_is_worth_a_move():
    found = spread(dict.fromkeys(range(4), "a"), even(20, 4), {"a": 4, "b": 1}, 20, 1.0)  # 4 clients each instead of 5
    assert MARGIN == 4 / 5
    assert found is not None
    assert found.begin == {"b": 1}


def test_where_nobody_can_stay_any_seat_will_do():
    found = spread({}, even(6, 3), {"b": 1}, 6, 1.0)
    assert found is not None
    assert (found.kept, found.begin, found.blocks) == ((), {"b": 1}, (tuple(range(6)),))
    assert spread({}, even(6, 3), {"b": 0}, 6, 1.0) is None


def test_after_a_spread_there_is_no_better_one():
    """Or the clients would move before every round."""
    for clients in (1, 2, 3, 5, 10, 33):
        for seats in ({"a": 1, "b": 1}, {"a": 3, "b": 5, "c": 1}, {"a": 8, "b": 16}, {"a": 2, "b": 2, "c": 2}):
            for share in (1.0, 0.5, 0.25):
                first = min(clients, seats["a"])
                found = spread(dict.fromkeys(range(first), "a"), even(clients, first), seats, clients, share)
                if found is None:
                    continue
                order = ["a"] * len(found.kept) + [m for m, n in found.begin.items() for _ in range(n)]
                assert spread(dict(enumerate(order)), found.blocks, seats, clients, share) is None


def test_the_seats_of_a_free_machine_are_those_that_ray_can_place():
    on_cpus, on_gpus = arrange(10, [Node(2, 0)]), arrange(10, [Node(8, 2)])
    assert seats_in(on_cpus, Node(4, 0)) == math.floor(4 / on_cpus.cpus)
    assert seats_in(on_cpus, Node(0.5, 0)) == 0
    assert seats_in(on_gpus, Node(8, 0)) == 0  # who trains on GPUs goes on on GPUs
    assert seats_in(on_gpus, Node(100, 2)) == 2 * math.floor(1 / on_gpus.gpus)
