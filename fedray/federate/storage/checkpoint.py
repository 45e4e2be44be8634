"""Where a federation keeps checkpoints, which rounds it keeps, and which one a resumed run starts from."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
from collections.abc import Callable
from typing import NamedTuple

from fedray.federate.failures import ClientsLostError
from fedray.federate.messages import Cohort, Failure
from fedray.federate.plan import Plan
from fedray.federate.rounds import State
from fedray.federate.storage.checkpoint_files import MANIFEST, Checkpoint, CheckpointError, read, write
from fedray.federate.storage.places import located
from fedray.types import first_line

KIND = "checkpoint"  # of a failure to write one
STATES = "fedray-states"  # the folder of clients' states beside the checkpoints: a name that nobody else gives


class CheckpointStore(NamedTuple):
    """Where checkpoints are kept, and which."""

    url: str  # absolute path, or a URL that fsspec knows
    every: int = 1  # rounds
    kept: int = 2
    stop: bool = False  # stop the run where one cannot be written
    states: str = ""  # the folder of clients' states; empty: they stay in memory

    def wants(self, plan: Plan, round_number: int) -> bool:
        """Whether a round is kept; the last one is not, for the result follows it.

        Nor are those in which newcomers adapt: whoever goes on needs the last evaluation of the others, too.
        """
        return self.every > 0 and round_number % self.every == 0 and round_number < plan.cfg.rounds


def keep(store: CheckpointStore, plan: Plan, state: State, cohort: Cohort) -> tuple[Failure, ...]:
    """Write a checkpoint and remove all but the last few; if that fails, report it or stop.

    Raises CheckpointError if the store says to stop.
    """
    folder = _folder(store, state.round)
    try:
        _remove(folder)  # of a server that was lost after it
        fs, path = located(folder)
        fs.makedirs(path, exist_ok=True)
        write(folder, plan, state, cohort.save(folder))
    except ClientsLostError:  # no fault of the store
        with contextlib.suppress(Exception):
            _remove(folder)
        raise
    except Exception as error:  # any of a storage library's
        reason = f"{first_line(error)}, while writing {folder}"
        with contextlib.suppress(Exception):  # a part of one only takes room
            _remove(folder)
        if store.stop:
            raise CheckpointError(f"round {state.round}: {reason}; free space or give --checkpoint.url") from None
        return (Failure(state.round, "checkpoint", KIND, reason, "went on without it", stage="save"),)
    return _prune(store, state.round)


def _prune(store: CheckpointStore, round_number: int) -> tuple[Failure, ...]:
    """Remove all but the last few checkpoints; one that cannot be removed only takes room, which is reported.

    Later ones than the round do not count: who resumed could not use them, and needs the ones before.
    """
    try:
        so_far = [number for number in rounds(store) if number <= round_number]
        # The one before stays in any case: the last round may be lost with the server that tells of it.
        for number in reversed(so_far[: -max(store.kept, 2)]):  # what stays for good is the last one tried
            _remove(_folder(store, number))
    except Exception as error:  # any of a storage library's
        reason = f"{first_line(error)}, while removing old checkpoints of {store.url}"
        return (Failure(round_number, "checkpoint", "pruning", reason, "they stay", stage="save"),)
    return ()


def _folder(store: CheckpointStore, number: int) -> str:
    return f"{store.url}/round-{number:06d}"


def _remove(folder: str) -> None:
    fs, path = located(folder)
    if fs.exists(path):
        fs.rm(path, recursive=True)


def rounds(store: CheckpointStore) -> list[int]:
    """Rounds that have a folder in the store, ascending."""
    return sorted(int(name[6:]) for name in names(store.url) if re.fullmatch(r"round-\d{6,}", name))


def names(folder: str) -> list[str]:
    """What lies directly in a folder; nothing where there is none."""
    fs, path = located(folder)
    fs.invalidate_cache()
    return [str(entry).rstrip("/").rpartition("/")[2] for entry in fs.ls(path, detail=False)] if fs.exists(path) else []


def newest(
    store: CheckpointStore, plan: Plan, warn: Callable[[str], object], last: float = math.inf
) -> Checkpoint | None:
    """The last usable checkpoint of this federation; None if none was written to its end.

    Later ones than the round ``last`` are passed over. Warns of each one that cannot be used. Raises CheckpointError
    if there are some and none can be used.
    """
    try:
        found = rounds(store)
    except Exception as error:
        raise CheckpointError(f"--checkpoint.url {store.url}: cannot be read ({error}); check the address") from None
    found = [number for number in found if number <= last]
    for number in reversed(found):
        try:
            if not _complete(store, number):  # the process or its machine was stopped while it wrote
                warn(f"checkpoint {_folder(store, number)} was not written to its end; it is passed over")
                continue
            return read(_folder(store, number), plan, own=True)
        except CheckpointError as error:
            warn(str(error))
    if len(found) > 1 or any(_complete(store, number) for number in found):
        raise CheckpointError(f"{store.url}: none of its {len(found)} checkpoints can be used; start a new run")
    return None


def copied(begun: Checkpoint, store: CheckpointStore) -> Checkpoint:
    """A checkpoint of another store, in this one too; raises CheckpointError where it cannot be written."""
    folder = _folder(store, begun.state.round)
    try:
        source, path = located(begun.clients.folder)
        fs, target = located(folder)
        fs.makedirs(target, exist_ok=True)
        for name in sorted(names(begun.clients.folder), key=MANIFEST.__eq__):  # last what makes it a checkpoint
            with source.open(f"{path}/{name}", "rb") as there, fs.open(f"{target}/{name}", "wb") as here:
                shutil.copyfileobj(there, here)
    except Exception as error:  # any of a storage library's
        raise CheckpointError(
            f"--checkpoint.url {store.url}: cannot be written ({first_line(error)}); free space or give another place"
        ) from None
    return begun._replace(clients=begun.clients._replace(folder=folder))


def _complete(store: CheckpointStore, number: int) -> bool:
    """Whether a checkpoint was written to its end: its manifest is written last."""
    fs, path = located(_folder(store, number))
    return fs.exists(f"{path}/{MANIFEST}")


def prepared(store: CheckpointStore | None) -> str:
    """The folder of clients' states, without those of a process that was killed; empty: they stay in memory."""
    folder = store.states if store else ""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    return folder


def clear(store: CheckpointStore) -> None:
    """Remove all checkpoints: the run is finished. What cannot be removed stays."""
    prepared(store)
    with contextlib.suppress(Exception):
        _remove(f"{store.url}/{STATES}")  # of a process that was killed, where the run went on in memory
    with contextlib.suppress(Exception):
        fs, path = located(store.url)
        for number in rounds(store):
            _remove(_folder(store, number))
        if not fs.ls(path, detail=False):
            fs.rmdir(path)
