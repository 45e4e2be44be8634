"""A federation that goes on from its checkpoint is the one that never stopped, and damage is noticed."""

import errno
import json
import os
import random
import shutil
import zlib
from pathlib import Path

import pytest

from fedray.federate import report
from fedray.federate.failures import RETRY, ClientsLostError
from fedray.federate.in_process import LocalCohort, LocalFederation, play_and_keep
from fedray.federate.rounds import start
from fedray.federate.storage import checkpoint, checkpoint_files
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.federate.storage.checkpoint_files import CheckpointError
from tests.helpers import ALGORITHMS, differing, small_plan

SETTINGS = {"rounds": 4, "eval_every": 2}
ALL = SETTINGS | {"clients_per_round": 6}  # a client that never trained is in no file
FILES = (
    "manifest.json",
    "history.json",
    "server.safetensors",
    "spotlights.safetensors",
    "clients-000000-000005.safetensors",
)


def numbers(rows):
    """Measures without times."""
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


def kept(folder, rounds=2, **settings):
    """A store after some rounds of a small federation."""
    plan, store = small_plan("pfedbayes", ALL), CheckpointStore(str(folder), **settings)
    state, cohort = start(plan), LocalCohort(plan, "loop")
    for _ in range(rounds):
        state, metrics = play_and_keep(plan, state, cohort, RETRY, store)
        assert metrics.failures == ()
    return plan, store, state, cohort


def test_a_name_with_colons_is_a_folder_of_its_own(tmp_path):
    """fsspec would take runs/a::b for runs/a, and the run there for an old checkpoint of this one."""
    other = tmp_path / "a" / "run.json"
    other.parent.mkdir()
    other.write_text("{}")
    plan, store, _, _ = kept(tmp_path / "a::b")
    assert other.read_text() == "{}"
    assert sorted(path.name for path in (tmp_path / "a::b").iterdir()) == ["round-000001", "round-000002"]
    begun = checkpoint.newest(store, plan, pytest.fail)
    assert begun is not None
    assert begun.state.round == 2
    checkpoint.clear(store)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_a_killed_run_left_of_a_later_round_is_none_of_the_last_few(tmp_path):
    """Else the checkpoint that was just written would go, as the oldest one."""
    (tmp_path / "round-000020").mkdir()
    plan, store, _, _ = kept(tmp_path, rounds=3, kept=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-000002", "round-000003", "round-000020"]
    warned = []
    begun = checkpoint.newest(store, plan, warned.append)
    assert begun is not None
    assert begun.state.round == 3
    assert len(warned) == 1


def test_rounds_after_the_one_that_is_asked_for_are_passed_over(tmp_path):
    plan, store, *_ = kept(tmp_path, rounds=3, kept=1)
    assert checkpoint.newest(store, plan, pytest.fail, 2).state.round == 2
    assert checkpoint.newest(store, plan, pytest.fail, 1) is None


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_federation_goes_on_bitwise_from_a_checkpoint(name, tmp_path):
    plan, store = small_plan(name, SETTINGS), CheckpointStore(str(tmp_path))
    with LocalFederation(plan, "loop") as whole:
        expected = list(whole)
    first = iter(LocalFederation(plan, "loop", store=store))
    assert [next(first).round, next(first).round] == [1, 2]
    begun = checkpoint.newest(store, plan, pytest.fail)
    assert begun is not None
    assert begun.state.round == 2
    with LocalFederation(plan, "vmap", begun=begun) as second:
        rest = list(second)
    assert [metrics.round for metrics in rest] == [3, 4]
    assert differing(second.snapshot(), whole.snapshot()) == []
    assert numbers(second.history().rows) == numbers(whole.history().rows)
    assert [row["round"] for row in second.history().rows] == [1, 2, 3, 4]
    assert [s.round for s in second.history().spotlights] == [s.round for s in whole.history().spotlights]
    assert differing(*([s[2:] for s in run.history().spotlights] for run in (second, whole))) == []
    assert numbers([report.measures(rest[-1])]) == numbers([report.measures(expected[-1])])


def test_the_last_few_rounds_are_kept_and_not_the_very_last(tmp_path):
    plan, store, *_ = kept(tmp_path, rounds=3, kept=2)
    assert checkpoint.rounds(store) == [2, 3]
    assert not store.wants(plan, 4)  # the result follows it
    assert [r for r in range(1, 9) if CheckpointStore("", 3).wants(small_plan(settings={"rounds": 9}), r)] == [3, 6]
    assert not CheckpointStore("", 0).wants(plan, 1)
    checkpoint.clear(store)
    assert not tmp_path.exists()
    assert checkpoint.newest(store, plan, pytest.fail) is None


def test_a_folder_without_a_manifest_does_not_exist(tmp_path):
    plan, store, *_ = kept(tmp_path)
    (tmp_path / "round-000002/manifest.json").unlink()
    warnings = []
    assert checkpoint.newest(store, plan, warnings.append).state.round == 1
    assert warnings == [f"checkpoint {tmp_path}/round-000002 was not written to its end; it is passed over"]


@pytest.mark.parametrize("file", FILES)
def test_a_missing_or_torn_file_costs_one_checkpoint(file, tmp_path):
    plan, store, *_ = kept(tmp_path)
    path = tmp_path / "round-000002" / file
    whole = path.read_bytes()
    for rest in (whole[: len(whole) // 2], whole + b"x", b"", None):
        path.unlink() if rest is None else path.write_bytes(rest)
        warnings = []
        assert checkpoint.newest(store, plan, warnings.append).state.round == 1
        assert len(warnings) == 1
    (tmp_path / "round-000001" / file).unlink()
    with pytest.raises(CheckpointError, match="none of its 2 checkpoints can be used"):
        checkpoint.newest(store, plan, lambda _: None)


def test_files_that_contradict_each_other_are_refused_though_their_checksums_hold(tmp_path):
    plan, *_ = kept(tmp_path)
    folder = tmp_path / "round-000002"
    path = folder / "history.json"
    whole = path.read_text()
    assert read_again(folder, plan).state.round == 2
    path.write_text(json.dumps(json.loads(whole)[:-1]))
    with pytest.raises(CheckpointError, match="its history is not that of rounds 1 to 2"):
        read_again(folder, plan)
    path.write_text(whole)
    with pytest.raises(CheckpointError, match="it holds clients twice"):
        read_again(folder, plan, [FILES[-1]])


def read_again(folder, plan, more=()):
    """A checkpoint with the checksums of the files as they are now, and some files listed once more."""
    path = folder / checkpoint_files.MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["crc32"]
    manifest["files"] += [file for file in manifest["files"] if file["name"] in more]
    for file in manifest["files"]:
        content = (folder / file["name"]).read_bytes()
        file |= {"size": len(content), "crc32": zlib.crc32(content)}
    path.write_text(json.dumps(manifest | {"crc32": checkpoint_files._checksum(manifest)}))
    return checkpoint_files.read(str(folder), plan)


@pytest.mark.slow
def test_a_thousand_flipped_bits_are_all_noticed(tmp_path):
    plan, store, *_ = kept(tmp_path)
    good, bad = tmp_path / "round-000001", tmp_path / "round-000002"
    wanted = tensors_of(checkpoint_files.read(str(good), plan))
    rng, warnings = random.Random(0), []
    for case in range(1200):
        path = bad / FILES[case % len(FILES)]
        content = path.read_bytes()
        at = rng.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
        try:
            found = checkpoint.newest(store, plan, warnings.append)
            assert found is not None
            assert found.state.round == 1 or path.name == "manifest.json"
            if found.state.round == 1:
                assert differing(tensors_of(found), wanted) == []
            else:  # white space of the manifest says nothing
                assert json.loads(path.read_text()) == json.loads(content)
        finally:
            path.write_bytes(content)
    assert len(warnings) > 1100
    assert checkpoint.newest(store, plan, pytest.fail).state.round == 2


def tensors_of(found):
    cohort = LocalCohort(small_plan("pfedbayes", ALL))
    cohort.restore(found.clients)
    return found.state.server, cohort.snapshot()


def test_a_checkpoint_of_another_experiment_is_not_used(tmp_path):
    _, store, *_ = kept(tmp_path)
    for other, reason in ((("pfedbayes", ALL | {"seed": 1}), "another experiment"), (("fedavg", SETTINGS), "")):
        warnings = []
        with pytest.raises(CheckpointError, match="none of its 2"):
            checkpoint.newest(store, small_plan(*other), warnings.append)
        assert all(reason in text for text in warnings)
    with pytest.raises(CheckpointError, match="other fields, shapes"):
        checkpoint_files.read(f"{store.url}/round-000002", small_plan("pfedbayes", ALL | {"model.hidden": (9,)}))


def test_a_checkpoint_of_more_rounds_than_the_run_has_is_not_used(tmp_path):
    """Its result would be that of other rounds than it says."""
    _, store, *_ = kept(tmp_path)
    warnings = []
    assert checkpoint.newest(store, small_plan("pfedbayes", ALL | {"rounds": 1}), warnings.append).state.round == 1
    [said] = warnings
    assert "it is of round 2, and the run has only 1" in said


def test_a_full_disk_is_said_and_the_run_goes_on_or_stops(tmp_path, monkeypatch):
    plan, store, state, cohort = kept(tmp_path)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        after, metrics = play_and_keep(plan, state, cohort, RETRY, store)
        (failure,) = metrics.failures
        assert failure.kind == "checkpoint"
        assert "No space left on device" in failure.reason
        with pytest.raises(CheckpointError, match=r"round 3.*No space left.*--checkpoint\.url"):
            play_and_keep(plan, state, cohort, RETRY, store._replace(stop=True))
    assert after.round == 3
    assert checkpoint.newest(store, plan, lambda _: None).state.round == 2


def test_clients_that_are_lost_while_they_are_saved_are_no_fault_of_the_store(tmp_path):
    plan, store, state, _ = kept(tmp_path)

    class Lost(LocalCohort):
        def save(self, folder):
            raise ClientsLostError("its machine is gone")

    for each in (store, store._replace(stop=True)):
        with pytest.raises(ClientsLostError, match="its machine is gone"):
            checkpoint.keep(each, plan, state._replace(round=9), Lost(plan, "loop"))
    assert checkpoint.rounds(store) == checkpoint.rounds(store._replace(stop=True))
    assert 9 not in checkpoint.rounds(store)


def test_a_lost_permission_or_store_is_said_too(tmp_path):
    plan, store, state, cohort = kept(tmp_path)
    shutil.rmtree(tmp_path)
    Path(tmp_path).write_text("not a folder")
    _, metrics = play_and_keep(plan, state, cohort, RETRY, store)
    assert metrics.failures[0].action == "went on without it"
    _, metrics = play_and_keep(plan, state, cohort, RETRY, store._replace(url="nowhere://x"))
    assert "nowhere" in metrics.failures[0].reason


@pytest.mark.parametrize("stop", [False, True])
def test_an_old_checkpoint_that_cannot_be_removed_costs_no_new_one(stop, tmp_path, monkeypatch):
    plan, store, state, cohort = kept(tmp_path, rounds=1, kept=1, stop=stop)
    remove = checkpoint._remove

    def refuses(folder):
        if folder.endswith("round-000001"):
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        remove(folder)

    monkeypatch.setattr(checkpoint, "_remove", refuses)
    state, metrics = play_and_keep(plan, state, cohort, RETRY, store)
    assert metrics.failures == ()
    _, metrics = play_and_keep(plan, state, cohort, RETRY, store)
    (failure,) = metrics.failures
    assert (failure.kind, failure.action) == ("pruning", "they stay")
    assert "Permission denied" in failure.reason
    assert checkpoint.rounds(store) == [1, 2, 3]
    assert checkpoint.newest(store, plan, pytest.fail).state.round == 3


def test_a_folder_that_is_not_here_is_not_seen_however_it_is_written(tmp_path):
    here, gone = str(tmp_path), str(tmp_path / "gone")
    assert [checkpoint_files.sees(place) for place in (here, f"file://{here}", "memory://kept")] == [True] * 3
    assert [checkpoint_files.sees(place) for place in (gone, f"file://{gone}")] == [False] * 2


def test_a_url_of_a_remote_store_will_do():
    plan, store = small_plan("fedavg", SETTINGS), CheckpointStore("memory://runs/x")
    state, cohort = start(plan), LocalCohort(plan, "loop")
    for _ in range(3):
        state, metrics = play_and_keep(plan, state, cohort, RETRY, store)
        assert metrics.failures == ()
    assert checkpoint.rounds(store) == [2, 3]
    found = checkpoint.newest(store, plan, pytest.fail)
    assert differing(found.state.server, state.server) == []
    checkpoint.clear(store)
    assert checkpoint.rounds(store) == []


def test_large_states_are_written_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "FILE_BYTES", 30_000)
    plan, store, _, cohort = kept(tmp_path, rounds=1)
    names = sorted(path.name for path in (tmp_path / "round-000001").glob("clients-*"))
    assert len(names) > 1
    assert differing(tensors_of(checkpoint.newest(store, plan, pytest.fail))[1], cohort.snapshot()) == []
