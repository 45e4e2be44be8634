"""How a federation fits a cluster: arithmetic only, no Ray."""

from __future__ import annotations

import math

import pytest

from actors.machines.placement import ACTORS_PER_GPU, SERVER_CPUS, Node, Wish, arrange, arrange_trials
from fedray.types import FedRayError

LAPTOP = [Node(2, 0)]


@pytest.mark.parametrize("clients", [1, 2, 5, 10, 100])
@pytest.mark.parametrize("nodes", [LAPTOP, [Node(8, 2)], [Node(16, 1), Node(16, 3)]])
def test_every_client_has_one_actor_and_all_fit(clients: int, nodes: list[Node]) -> None:
    layout = arrange(clients, nodes)
    assert [i for block in layout.blocks for i in block] == list(range(clients))
    cpus, gpus = sum(n.cpus for n in nodes), sum(n.gpus for n in nodes)
    assert sum(bundle["CPU"] for bundle in layout.bundles) <= cpus
    assert len(layout.blocks) <= max(1, cpus)
    if gpus:
        assert 0 < layout.gpus <= 1
        # As many actors as share a GPU, GPU by GPU: what Ray can really place.
        assert len(layout.blocks) <= sum(math.floor(n.gpus) * math.floor(1 / layout.gpus) for n in nodes)
        assert 1 / layout.gpus < ACTORS_PER_GPU + 1


@pytest.mark.parametrize(
    ("clients", "gpus", "share"), [(5, 2, 0.3333), (7, 2, 0.25), (4, 2, 0.5), (2, 2, 1), (1, 4, 1)]
)
def test_shares_divide_where_clients_over_gpus_would_deadlock(clients: int, gpus: int, share: float) -> None:
    assert arrange(clients, [Node(16, gpus)]).gpus == share


def test_one_client_per_actor_while_there_is_room() -> None:
    assert len(arrange(10, [Node(16, 0)]).blocks) == 10
    assert arrange(10, LAPTOP).blocks == (tuple(range(5)), tuple(range(5, 10)))


@pytest.mark.parametrize("cpus", [[2, 2], [2, 2, 2], [1, 3], [4, 1, 1], [2.5, 2.5], [1, 1, 1, 1, 16]])
@pytest.mark.parametrize("actors", [1, 2, 3, 4, 5, 7, 20])
def test_actors_and_server_fit_machine_by_machine(cpus: list[float], actors: int) -> None:
    """By the sum, 4 actors of 0.9975 and the server fit two machines of 2 CPUs; one by one they do not."""
    nodes = [Node(n, 0) for n in cpus]
    layout = arrange(actors, nodes, Wish(clients_per_actor=1))
    for home in nodes:
        room = [math.floor((node.cpus - SERVER_CPUS * (node is home)) / layout.cpus + 1e-9) for node in nodes]
        assert sum(room) >= actors
    more = layout.cpus + 0.001  # no share is wasted: a little more would not fit, or is a whole CPU
    assert more > 1 or sum(math.floor((n - SERVER_CPUS) / more) for n in cpus) < actors


def test_actors_with_gpus_get_the_cpus_of_the_machines_that_have_gpus() -> None:
    layout = arrange(8, [Node(64, 0), Node(2, 1)])
    assert (len(layout.blocks), layout.gpus) == (8, 0.125)
    assert 8 * layout.cpus + SERVER_CPUS <= 2


def test_one_trial_on_two_machines_fits_them_one_by_one() -> None:
    layout, room = arrange_trials(10, 1, [Node(2, 0), Node(2, 0)])
    assert (len(layout.blocks), room) == (4, 1)


def test_packing_as_asked() -> None:
    assert [len(b) for b in arrange(10, LAPTOP, Wish(clients_per_actor=4)).blocks] == [4, 4, 2]
    layout = arrange(10, LAPTOP, Wish(clients_per_actor=1))
    assert len(layout.blocks) == 10
    assert 10 * layout.cpus + SERVER_CPUS <= 2
    assert arrange(4, [Node(8, 2)], Wish(clients_per_actor=2, gpus_per_client=0.25)).gpus == 0.5
    assert arrange(4, [Node(8, 2)], Wish(gpus_per_client=0)).gpus == 0


@pytest.mark.parametrize(
    ("kwargs", "nodes", "words"),
    [
        ({"gpus_per_client": 0.5}, LAPTOP, ["--gpus-per-client 0.5", "has 0 GPU", "1.5 GPUs"]),
        # 0.6 + 0.6 fits two GPUs by the sum, but three actors of 0.6 do not fit two GPUs one by one.
        ({"gpus_per_client": 0.6, "clients_per_actor": 1}, [Node(16, 2)], ["room for 2", "0.6 GPU"]),
        ({"gpus_per_client": 0.75, "clients_per_actor": 2}, [Node(16, 8)], ["1.5 GPUs", "whole ones"]),
    ],
)
def test_what_cannot_be_placed_is_refused_with_the_numbers(kwargs: dict, nodes: list[Node], words: list[str]) -> None:
    with pytest.raises(FedRayError) as error:
        arrange(3, nodes, Wish(**kwargs))
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("nodes", "trials", "at_once", "actors"),
    [
        (LAPTOP, 30, 2, 1),  # a CPU each, all clients packed
        (LAPTOP, 1, 1, 2),  # a single trial gets the machine
        ([Node(16, 0)], 4, 4, 4),
        ([Node(64, 0)], 3, 3, 10),  # never more actors than clients
        ([Node(16, 2)], 30, 4, 1),  # two trials per GPU
    ],
)
def test_trials_fill_the_cluster_by_packing(nodes: list[Node], trials: int, at_once: int, actors: int) -> None:
    layout, room = arrange_trials(10, trials, nodes)
    assert (room, len(layout.blocks)) == (at_once, actors)
    assert sorted(i for block in layout.blocks for i in block) == list(range(10))
    assert room * sum(bundle["CPU"] for bundle in layout.bundles) <= sum(node.cpus for node in nodes)
    assert room * sum(bundle.get("GPU", 0) for bundle in layout.bundles) <= sum(node.gpus for node in nodes) + 1e-9


def test_clients_of_a_trial_are_in_its_own_process_where_one_without_a_gpu_holds_them() -> None:
    inside, at_once = arrange_trials(10, 30, LAPTOP)
    apart, as_many = arrange_trials(10, 30, LAPTOP, apart=True)
    assert (len(inside.bundles), len(apart.bundles), at_once) == (1, 2, as_many)
    assert inside.bundles[0]["CPU"] == sum(bundle["CPU"] for bundle in apart.bundles)
    assert not arrange_trials(10, 1, LAPTOP)[0].inside  # two actors
    assert not arrange_trials(10, 30, [Node(16, 2)])[0].inside  # on a share of a GPU, which the server does not have


def test_trials_that_do_not_divide_a_cluster_leave_room_that_is_counted() -> None:
    layout, room = arrange_trials(10, 30, [Node(3, 0), Node(3, 0)], wish=Wish(clients_per_actor=5))
    assert layout.cpus * len(layout.blocks) * room <= 6
    assert 1 <= room <= 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": 300}, "--concurrency 300.*2 CPU and 0 GPU, room for"),
        ({"wish": Wish(gpus_per_client=0.5, clients_per_actor=1)}, "0.5 GPU each.*0 GPU.*--gpus-per-client"),
    ],
)
def test_trials_that_cannot_be_placed_are_refused_with_the_numbers(options: dict, words: str) -> None:
    with pytest.raises(FedRayError, match=words):
        arrange_trials(10, 30, LAPTOP, **options)


def test_clients_share_as_many_gpus_or_cpus_as_were_asked_for() -> None:
    layout = arrange(10, [Node(16, 4)], Wish(gpus=2))
    assert (len(layout.blocks), layout.gpus) == (10, 0.2)
    layout = arrange(10, [Node(16, 4)], Wish(cpus=4))
    assert (len(layout.blocks), layout.cpus, layout.gpus) == (4, 1, 0)
    layout = arrange(10, [Node(16, 0)], Wish(cpus=4, clients_per_actor=1))
    assert (len(layout.blocks), layout.cpus) == (10, 0.4)
    assert arrange(10, [Node(16, 4)], Wish(gpus=0)) == arrange(10, [Node(16, 0)])
    for wish in (Wish(gpus=5), Wish(cpus=17)):
        with pytest.raises(FedRayError, match="the cluster has"):
            arrange(10, [Node(16, 4)], wish)
