"""Which machines a run asks for: arithmetic only, no Ray."""

from __future__ import annotations

import math

import pytest

from actors.machines.offer import MachineKind, Need, Offer, enlist, need, need_of_trials
from actors.machines.placement import ACTORS_PER_GPU, ANYTHING, Node, Wish, arrange
from fedray.types import FedRayError

HEAD = Node(2, 0)
SINGLE = MachineKind("single", Node(8, 1), 4)
FOURFOLD = MachineKind("fourfold", Node(32, 4), 2)
PLAIN = MachineKind("plain", Node(16, 0), 3)


def names(
    clients: int, *kinds: MachineKind, wish: Wish = ANYTHING, nodes: list[Node] | None = None, more: int = 10
) -> list[str]:
    picked = enlist(need(clients, wish), nodes or [HEAD], Offer("c", kinds, more))
    return sorted(kind.name for kind in picked)


@pytest.mark.parametrize(("clients", "machines"), [(1, 1), (8, 1), (9, 2), (10, 2), (32, 4), (33, 4), (1000, 4)])
def test_a_gpu_for_every_eight_clients_as_far_as_the_types_go(clients: int, machines: int) -> None:
    assert names(clients, SINGLE, PLAIN) == ["single"] * machines


@pytest.mark.parametrize("clients", [1, 10, 24, 50, 500])
@pytest.mark.parametrize("kinds", [(SINGLE,), (FOURFOLD,), (SINGLE, FOURFOLD), (PLAIN,), (PLAIN, SINGLE)])
def test_the_machines_that_are_asked_for_hold_the_federation(clients: int, kinds: tuple[MachineKind, ...]) -> None:
    wanted = need(clients, Wish())
    planned = [HEAD, *(kind.node for kind in enlist(wanted, [HEAD], Offer("c", kinds, 10)))]
    layout = arrange(clients, planned)
    assert [i for block in layout.blocks for i in block] == list(range(clients))
    gpus = sum(node.gpus for node in planned)
    assert bool(gpus) == any(kind.node.gpus for kind in kinds)
    if gpus:  # a machine fewer would not have done, unless the types had no more
        assert gpus - min(kind.node.gpus for kind in kinds if kind.node.gpus) < wanted.gpus
        assert len(layout.blocks) * layout.gpus <= gpus
    else:
        assert sum(node.cpus for node in planned) >= min(clients, 16 * 3 + 2)


def test_running_machines_count() -> None:
    two = [HEAD, Node(8, 1), Node(8, 1)]
    assert names(16, SINGLE, nodes=two) == []
    assert names(17, SINGLE, nodes=two) == ["single"]
    assert names(4, PLAIN, nodes=[Node(4, 0)]) == []


def test_types_are_combined_with_little_to_spare() -> None:
    assert names(8, FOURFOLD, SINGLE) == ["single"]
    assert names(40, FOURFOLD, SINGLE) == ["fourfold", "single"]
    assert names(24, FOURFOLD) == ["fourfold"]
    assert names(56, FOURFOLD, SINGLE._replace(more=2)) == ["fourfold", "fourfold"]  # 4+1+1 lack one; then 4+4
    assert names(1000, FOURFOLD, SINGLE) == ["fourfold"] * 2 + ["single"] * 4


def test_no_more_machines_than_the_cluster_allows_in_all() -> None:
    assert names(1000, SINGLE, more=3) == ["single"] * 3
    assert names(1000, SINGLE, more=0, nodes=[HEAD, Node(8, 1)]) == []


def test_clients_on_cpus_start_no_machine_with_gpus() -> None:
    assert names(20, PLAIN, SINGLE, wish=Wish(gpus=0)) == ["plain"] * 2
    assert names(20, SINGLE, wish=Wish(gpus_per_client=0)) == []
    assert names(20, PLAIN, SINGLE, wish=Wish(cpus=40)) == ["plain"] * 3
    assert names(10, PLAIN, SINGLE._replace(more=0)) == ["plain"]  # no machine can have a GPU


def test_numbers_that_were_asked_for_are_had_exactly() -> None:
    assert names(10, SINGLE, FOURFOLD, wish=Wish(gpus=4)) == ["fourfold"]
    assert names(10, SINGLE, wish=Wish(gpus=1)) == ["single"]
    assert names(10, SINGLE, wish=Wish(gpus_per_client=0.25)) == ["single"] * 3
    assert names(4, FOURFOLD, wish=Wish(gpus_per_client=2.0)) == ["fourfold"] * 2
    assert names(10, SINGLE, wish=Wish(gpus_per_client=0.25, clients_per_actor=4)) == ["single"] * 3


@pytest.mark.parametrize(
    ("wish", "more", "words"),
    [
        (Wish(gpus=9), 20, ["--gpus 9", "9 GPU", "4 more of single (CPU 8, GPU 1)", "max_workers"]),
        (Wish(gpus=3), 2, ["--gpus 3", "2 more machines"]),
        (Wish(cpus=100), 20, ["--cpus 100", "it has 2,", "3 more of plain"]),
        (Wish(gpus_per_client=0.9), 20, ["--gpus-per-client 0.9", "10 GPU"]),
    ],
)
def test_what_can_never_be_had_is_refused_with_the_types(wish: Wish, more: int, words: list[str]) -> None:
    with pytest.raises(FedRayError) as error:
        names(10, SINGLE, PLAIN, wish=wish, more=more)
    assert all(word in str(error.value) for word in words), error.value


def test_gpus_of_which_there_is_no_type_are_refused() -> None:
    with pytest.raises(FedRayError, match=r"--gpus 1: the cluster can never have 1 GPU: it has 0"):
        names(10, PLAIN, wish=Wish(gpus=1))


@pytest.mark.parametrize("at_once", [1, 3, 8])
def test_trials_ask_for_half_a_gpu_or_a_cpu_each(at_once: int) -> None:
    wanted = need_of_trials(10, at_once, Wish())
    assert (wanted.gpus, wanted.cpus, wanted.asked) == (math.ceil(at_once / 2), at_once, "")
    assert need_of_trials(10, at_once, Wish(gpus=0)) == Need(0, at_once)
    assert need_of_trials(10, at_once, Wish(gpus=5)) == Need(5, 0, "--gpus 5")


def test_packed_clients_need_fewer_gpus() -> None:
    assert need(80, Wish(clients_per_actor=10)).gpus == 1
    assert need(80, Wish()).gpus == 80 / ACTORS_PER_GPU
