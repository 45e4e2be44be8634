"""Clients' states in memory and on disk are the same, take no room before a client trains, and survive a process."""

import os
import random
from pathlib import Path

import pytest
import torch

from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.federate import block as block_module
from fedray.federate.in_process import LocalFederation
from fedray.federate.messages import Saved
from fedray.federate.storage import checkpoint
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.federate.storage.states import InMemory, OnDisk, Piece, rows
from fedray.types import RunError
from tests.helpers import block, differing, play, shard, small_plan, whole_and_resumed

CPU = torch.device("cpu")
INITIAL = (torch.arange(4.0), torch.tensor(7))
IDS = (3, 4, 5, 8, 9)


def stored(kind, folder):
    return InMemory(INITIAL, IDS, CPU) if kind == "memory" else OnDisk(INITIAL, IDS, CPU, str(folder))


def fresh(count, key):
    return torch.from_numpy(Stream(0, "fresh", key).numpy.random((count, 4), "f4")), torch.arange(count) + 100 * key


def files(folder):
    return sorted(path for path in Path(folder).rglob("*.safetensors"))


both = pytest.mark.parametrize("kind", ["memory", "disk"])


@both
def test_what_is_kept_is_what_was_last_given_whatever_becomes_of_the_process(kind, tmp_path):
    """Random rounds; now and then a successor takes over, or a new process starts from a checkpoint."""
    rng, known, pieces, where = random.Random(1), {}, [], tmp_path / "a"
    states = stored(kind, where)
    for number in range(1, 40):
        some = sorted(rng.sample(IDS, rng.randint(1, 5)))
        given = fresh(len(some), number)
        states.replace(number, some, given)
        known |= {i: trees.row(given, k) for k, i in enumerate(some)}
        pieces.append(states.piece(some)())
        if number % 5 == 0:
            states = stored(kind, where)
            states.take(pieces)
        if number % 7 == 0:
            folder = tmp_path / f"round-{number}"
            folder.mkdir()
            saved = Saved(str(folder), number, tuple(states.save(str(folder))))
            where = tmp_path / f"from-{number}"
            states = stored(kind, where)
            states.load(saved)
            pieces = [states.piece(IDS)()]
        expected = trees.stack([known.get(i, INITIAL) for i in IDS])
        assert differing(rows(states, IDS), expected) == []
        assert states.trained == sorted(known)


@both
def test_a_client_that_never_trained_takes_no_room(kind, tmp_path):
    states = stored(kind, tmp_path)
    assert (states.trained, states.save(str(tmp_path)), files(tmp_path)) == ([], [], [])
    states.replace(1, [4], fresh(1, 1))
    (tmp_path / "c").mkdir()
    (file,) = states.save(str(tmp_path / "c"))
    assert file.clients == (4,)
    assert states.piece(IDS)().ids == (4,)


@both
def test_a_state_has_memory_of_its_own(kind, tmp_path):
    states, given = stored(kind, tmp_path), fresh(2, 1)
    states.replace(1, [3, 4], given)
    wanted = trees.tree_map(torch.clone, given)
    given[0].zero_()
    rows(states, [3, 4])[0].zero_()
    rows(states, [5])[0].zero_()
    assert differing(rows(states, [3, 4]), wanted) == []
    assert torch.equal(states.row(5)[0], torch.arange(4.0))


@both
def test_a_checkpoint_takes_the_place_of_what_is_here(kind, tmp_path):
    states, first = stored(kind, tmp_path / "a"), fresh(1, 1)
    states.replace(1, [3], first)
    (tmp_path / "1").mkdir()
    saved = Saved(str(tmp_path / "1"), 1, tuple(states.save(str(tmp_path / "1"))))
    states.replace(2, [3, 4], fresh(2, 2))
    states.load(saved)
    assert states.trained == [3]
    assert differing(rows(states, [3]), first) == []


@pytest.mark.parametrize("keep", [1.0, 0.5], ids=["a bit", "the end"])
def test_a_state_that_the_disk_has_changed_is_not_computed_with(keep, tmp_path):
    states = stored("disk", tmp_path)
    states.replace(1, [3, 4], fresh(2, 1))
    (path, _) = files(tmp_path)
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content[: int(keep * len(content))])
    states.row(4)
    with pytest.raises(RunError, match=r"round-000001: clients-000003-000003.safetensors is damaged: .*checkpoint"):
        states.row(3)


def test_a_checkpoint_links_files_and_does_not_change_with_the_next_round(tmp_path):
    states = stored("disk", tmp_path / "a")
    first, kept = fresh(2, 1), []
    states.replace(1, [3, 4], first)
    for number in (1, 2):
        (tmp_path / f"{number}").mkdir()
        kept.append(states.save(str(tmp_path / f"{number}")))
        states.replace(number + 1, [4], fresh(1, number + 1))
    one, two = (files(tmp_path / name) for name in "12")
    assert [path.name for path in one] == [file.name for file in kept[0]] == [path.name for path in two]
    assert one[0].samefile(two[0])  # client 3 did not train again
    assert not one[1].samefile(two[1])
    states.load(Saved(str(tmp_path / "1"), 1, tuple(kept[0])))
    assert differing(rows(states, [3, 4]), first) == []
    assert files(tmp_path / "a")[0].samefile(one[0])


def test_files_are_made_to_outlive_the_machine_once_and_for_a_checkpoint_only(tmp_path, monkeypatch):
    states = stored("disk", tmp_path / "a")
    secured = []
    monkeypatch.setattr("os.fsync", lambda number: secured.append(os.readlink(f"/proc/self/fd/{number}")))
    states.replace(1, [3, 4], fresh(2, 1))
    assert secured == []
    for number, expected in ((1, [3, 4]), (2, [4])):
        (tmp_path / f"{number}").mkdir()
        states.save(str(tmp_path / f"{number}"))
        assert [f"clients-{i:06d}-{i:06d}.safetensors" for i in expected] == [Path(name).name for name in secured]
        secured.clear()
        states.replace(number + 1, [4], fresh(1, number + 1))
    assert secured == []


def test_files_of_a_round_that_is_played_again_are_made_to_outlive_the_machine_again(tmp_path, monkeypatch):
    states, secured = stored("disk", tmp_path / "a"), []
    monkeypatch.setattr("os.fsync", secured.append)
    for number in (1, 2):
        states.replace(1, [3], fresh(1, number))
        (tmp_path / f"{number}").mkdir()
        states.save(str(tmp_path / f"{number}"))
        assert len(secured) == number


def test_a_state_of_a_round_that_is_played_again_stays_when_replaced_ones_go(tmp_path):
    states, again = stored("disk", tmp_path), fresh(1, 2)
    for number, given in ((1, fresh(1, 0)), (2, fresh(1, 1)), (2, again)):
        states.replace(number, [3], given)
    for number in (3, 4):
        states.replace(number, [4], fresh(1, number))
        assert differing(rows(states, [3]), again) == []


def test_a_successor_starts_before_the_round_in_which_its_predecessor_died(tmp_path):
    """The files of a round that was never committed are ignored and removed; older ones are there for a round more."""
    states, old = stored("disk", tmp_path), fresh(2, 1)
    states.replace(1, [3, 4], old)
    piece = states.piece([3, 4])()
    for i in (3, 5):  # one after the other, as a process without stacks trains them
        states.replace(2, [i], fresh(1, 2))  # nobody hears of it
    assert len(files(tmp_path)) == 4
    successor = stored("disk", tmp_path)
    successor.take([piece])
    assert differing(rows(successor, [3, 4]), old) == []
    assert successor.trained == [3, 4]
    assert len(files(tmp_path)) == 2
    states = successor
    for number in range(2, 6):
        states.replace(number, [3, 5], fresh(2, number))
    assert len(files(tmp_path)) == 3 + 2  # three clients, and the last files of the two that trained


@pytest.mark.parametrize("order", ["numbers first", "files first"])
def test_a_successor_takes_later_pieces_over_earlier_ones_be_they_numbers_or_files(order, tmp_path):
    """An actor that did not see the checkpoint's folder got numbers, and commits files of the rounds after it."""
    predecessor, last, old = stored("disk", tmp_path), fresh(1, 7), fresh(2, 1)
    numbers = Piece((3, 4), trees.to_numpy(old))
    predecessor.take([numbers])
    predecessor.replace(7, [3], last)
    pieces = [numbers, predecessor.piece([3])()]
    successor = stored("disk", tmp_path)
    successor.take(pieces if order == "numbers first" else pieces[::-1])
    wanted = trees.concatenate([last, trees.rows(old, [1])]) if order == "numbers first" else old
    for number in (8, 9):
        assert differing(rows(successor, [3, 4]), wanted) == []
        successor.replace(number, [5], fresh(1, number))
    assert successor.trained == [3, 4, 5]


def test_of_a_predecessors_clients_only_those_that_are_hosted_are_taken():
    states, given = stored("memory", ""), fresh(5, 1)
    states.replace(1, IDS, given)
    successor = InMemory(INITIAL, (4, 8), CPU)
    successor.take([states.piece(IDS)()])
    assert successor.trained == [4, 8]
    assert differing(rows(successor, [4, 8]), trees.rows(given, [1, 3])) == []


def test_files_of_another_machine_are_missed(tmp_path):
    states = stored("disk", tmp_path / "here")
    states.replace(1, [3], fresh(1, 1))
    with pytest.raises(FileNotFoundError):
        stored("disk", tmp_path / "there").take([states.piece([3])()])


@pytest.mark.parametrize("name", ["pfedbayes", "fedavg"])
def test_a_federation_is_the_same_with_states_on_disk_resumed_or_not(name, tmp_path):
    plan = small_plan(name, {"rounds": 3, "clients_per_round": 2})
    with LocalFederation(plan, "loop") as plain:
        list(plain)
    store = CheckpointStore(str(tmp_path), states=str(tmp_path / "states"))
    resumed, whole = whole_and_resumed(plan, store)
    assert differing(whole, plain.snapshot()) == []
    assert differing(resumed, whole) == []
    begun = checkpoint.newest(store, plan, pytest.fail)
    left = tmp_path / "states/000000-000000/round-000009"
    left.mkdir(parents=True)
    with LocalFederation(plan, "vmap", store=store, begun=begun) as again:
        list(again)
    assert not left.exists()
    assert differing(again.snapshot(), whole) == []
    assert bool(files(store.states)) == (name == "pfedbayes")
    checkpoint.clear(store)
    assert not tmp_path.exists()


def test_states_in_a_folder_that_is_everybodys_are_private(tmp_path, monkeypatch):
    plan = small_plan("pfedbayes", {"rounds": 1, "clients_per_round": 2})
    tmp_path.chmod(0o777)
    store = CheckpointStore(str(tmp_path / "there"), every=0, states=str(tmp_path / "own"))
    with LocalFederation(plan, "loop", store=store) as federation:
        list(federation)
        assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    (tmp_path / "others").mkdir()
    states = OnDisk(torch.zeros(2), [0], torch.device("cpu"), str(tmp_path / "others"))
    for mode in (0o777, 0o775, 0o757):
        (tmp_path / "others").chmod(mode)
        with pytest.raises(RunError, match="others: another user made it, or may write there"):
            states.replace(1, [0], torch.ones(1, 2))
    (tmp_path / "others").chmod(0o755)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(RunError, match="others: another user made it"):
        states.replace(1, [0], torch.ones(1, 2))


def test_a_method_is_given_its_shard_where_it_looks_at_it_or_keeps_it():
    """Bitwise the same as if every function always got the whole shard."""
    plan = small_plan("fedavg")
    seen = []

    def watching(look):
        def begin(ctx, client, down, data):
            seen.append(getattr(data, "x", None))
            if look == "x":
                assert len(data.x)
            return plan.algorithm.begin(ctx, client, down, data)

        return plan._replace(algorithm=plan.algorithm._replace(begin=begin))

    host = block(watching("x"))
    play(watching("x"), [host], ((0, 3),))
    assert all(torch.equal(x, shard(host, k).x) for x, k in zip(seen[1:], (0, 3), strict=True))
    seen.clear()
    play(watching("nothing"), [block(watching("nothing"))], ((0, 3),))
    assert [len(x) for x in seen[1:]] == [0, 0]


def test_who_hands_a_shard_on_or_fails_without_it_looks_at_it():
    looks, total = block_module._looks, torch.tensor(3.0)
    assert looks(lambda shard: shard.x, total)
    assert looks(lambda shard: (torch.zeros(1), shard), total)
    assert looks(lambda shard: len(shard), total)
    assert not looks(lambda shard: (torch.zeros(1) * shard.total, None), total)


@pytest.mark.parametrize(("sampler", "looks"), [("sgld", 0), ("ula", 1)])
def test_fedpop_looks_at_shards_only_where_its_chain_does(sampler, looks):
    plan = small_plan("fedpop", {"algorithm.sampler": sampler})
    host = block(plan)
    play(plan, [host], ((0, 3),))
    assert host._seen["train"] == looks * plan.facts.shard


def test_who_ends_leaves_nothing_on_its_machine_but_what_others_have_there(tmp_path):
    first, second = (OnDisk(torch.zeros(2), ids, CPU, str(tmp_path / "states")) for ids in ([0, 1], [2]))
    for states, ids in ((first, [0, 1]), (second, [2])):
        states.replace(1, ids, torch.ones(len(ids), 2))
    first.clear()
    assert [path.parts[-3] for path in files(tmp_path)] == ["000002-000002"]
    assert torch.equal(second.row(2), torch.ones(2))
    second.clear()
    assert list(tmp_path.iterdir()) == []
