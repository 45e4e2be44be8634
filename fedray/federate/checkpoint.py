"""Which rounds of a federation are kept in a store, and the one that a run goes on from."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import NamedTuple

import fsspec

from fedray.config import fingerprint
from fedray.federate.checkpoint_files import Checkpoint, CheckpointError, read, write
from fedray.federate.messages import Cohort, Failure
from fedray.federate.plan import Plan
from fedray.federate.rounds import State

KIND = "checkpoint"  # of a failure to write one


class Store(NamedTuple):
    """Where checkpoints are kept, and which."""

    url: str  # absolute path, or a URL that fsspec knows
    every: int = 1  # rounds
    kept: int = 2
    stop: bool = False  # stop the run where one cannot be written

    def wants(self, plan: Plan, round: int) -> bool:
        """Whether a round is kept; the last one is not, for the result follows it."""
        return self.every > 0 and round % self.every == 0 and round < plan.rounds


def keep(store: Store, plan: Plan, state: State, cohort: Cohort) -> tuple[Failure, ...]:
    """Write a checkpoint and remove the ones before the last few; where that fails, say so or stop.

    Raises CheckpointError if the store says to stop.
    """
    folder = f"{store.url}/round-{state.round:06d}"
    try:
        _remove(folder)  # of a server that was lost after it
        fs, path = fsspec.url_to_fs(folder)
        fs.makedirs(path, exist_ok=True)
        write(folder, plan, state, cohort.save(folder))
        for round in rounds(store)[: -store.kept]:
            _remove(f"{store.url}/round-{round:06d}")
    except Exception as error:  # any of a storage library's
        reason = f"{str(error) or type(error).__name__}, while writing {folder}"
        with contextlib.suppress(Exception):  # a part of one only takes room
            _remove(folder)
        if store.stop:
            raise CheckpointError(f"round {state.round}: {reason}; free space or give --checkpoint.url") from None
        return (Failure(state.round, "checkpoint", KIND, reason, "went on without it"),)
    return ()


def _remove(folder: str) -> None:
    fs, path = fsspec.url_to_fs(folder)
    if fs.exists(path):
        fs.rm(path, recursive=True)


def rounds(store: Store) -> list[int]:
    """Rounds of which there is anything in the store, ascending."""
    fs, path = fsspec.url_to_fs(store.url)
    fs.invalidate_cache()
    names = (
        [str(entry).rstrip("/").rpartition("/")[2] for entry in fs.ls(path, detail=False)] if fs.exists(path) else []
    )
    return sorted(int(name[6:]) for name in names if re.fullmatch(r"round-\d{6,}", name))


def newest(store: Store, plan: Plan, warn: Callable[[str], object]) -> Checkpoint | None:
    """The last sound checkpoint of this federation; None where none was written to its end.

    Warns of everyone that cannot be used. Raises CheckpointError where none of several can.
    """
    try:
        found = rounds(store)
    except Exception as error:
        raise CheckpointError(f"--checkpoint.url {store.url}: cannot be read ({error}); check the address") from None
    for round in reversed(found):
        try:
            return read(f"{store.url}/round-{round:06d}", plan, fingerprint(plan.cfg))
        except CheckpointError as error:
            warn(str(error))
    if len(found) > 1 or any(_complete(store, round) for round in found):
        raise CheckpointError(f"{store.url}: none of its {len(found)} checkpoints can be used; start a new run")
    return None


def _complete(store: Store, round: int) -> bool:
    """Whether a checkpoint was written to its end: its manifest is written last."""
    fs, path = fsspec.url_to_fs(store.url)
    return fs.exists(f"{path}/round-{round:06d}/manifest.json")


def clear(store: Store) -> None:
    """Remove all checkpoints: the run is finished. What cannot be removed stays."""
    with contextlib.suppress(Exception):
        fs, path = fsspec.url_to_fs(store.url)
        for round in rounds(store):
            _remove(f"{store.url}/round-{round:06d}")
        if not fs.ls(path, detail=False):
            fs.rmdir(path)
