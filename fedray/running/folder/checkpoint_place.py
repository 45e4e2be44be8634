"""Where the checkpoints of a run lie, which may be outside of its folder, and whose that place is."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zlib
from pathlib import Path

from fedray.config import Execution
from fedray.federate.plan import Plan
from fedray.federate.storage import checkpoint
from fedray.federate.storage.checkpoint import STATES, CheckpointStore, rounds
from fedray.federate.storage.checkpoint_files import CheckpointError
from fedray.federate.storage.places import located
from fedray.running.folder.lock import locked
from fedray.running.folder.notes import FINISHED, NOTE, Note, content, noted, same_run
from fedray.running.mlflow_store import shown
from fedray.types import FedRayError, first_line


def store(folder: Path, execution: Execution) -> CheckpointStore:
    """Where the checkpoints of a run go; raises FedRayError for an address with a password."""
    cfg = execution.checkpoint
    if shown(cfg.url) != cfg.url:
        raise FedRayError(
            f"--checkpoint.url {shown(cfg.url)}: its password would end up in files; give it to fsspec in the "
            "environment of all machines (FSSPEC_<PROTOCOL>_PASSWORD)"
        )
    url = cfg.url.rstrip("/") if "://" in cfg.url else os.path.abspath(cfg.url or folder / "checkpoints")
    # Files cannot be linked into a remote store: there the states lie in a folder of each machine.
    local = f"{tempfile.gettempdir()}/{STATES}-{os.getuid()}-{zlib.crc32(url.encode()):08x}"
    states = local if "://" in url else f"{url}/{STATES}"
    states = states if execution.client_states == "disk" else ""
    return CheckpointStore(url, cfg.every, cfg.keep, cfg.on_error == "stop", states)


def elsewhere(folder: Path, store: CheckpointStore) -> bool:
    """Whether the checkpoints of a run are kept outside of its folder."""
    here = Path(os.path.realpath(folder))
    return "://" in store.url or here not in (place := Path(os.path.realpath(store.url)), place.parent)


def claim(store: CheckpointStore, note: Note, plan: Plan, before: str) -> None:
    """Leave the note beside checkpoints that are kept elsewhere, so that the run survives the loss of its folder.

    ``before`` is where a run that goes on has kept them so far, and empty for a new one. Raises FedRayError where
    nothing can be written there, or where another run is, or its result.
    """
    try:
        taken = "" if before and _ours(store, note, plan, before) else _held(store, note if before else None)
        if not taken:
            fs, path = located(store.url)
            fs.makedirs(path, exist_ok=True)
            fs.pipe_file(f"{path}/{NOTE}", json.dumps(content(note), indent=2).encode())
    except Exception as error:  # any of a storage library's
        raise FedRayError(
            f"--checkpoint.url {store.url}: cannot be written ({first_line(error)}); check the address and your "
            "rights there"
        ) from None
    if taken:
        raise FedRayError(f"--checkpoint.url {store.url}: holds the {taken}")


def _ours(store: CheckpointStore, note: Note, plan: Plan, before: str) -> bool:
    """Whether what lies at a place is of the run that goes on: by its note, or else by the checkpoints themselves."""
    if found := noted(store.url):
        return same_run(found, note)
    if store.url == before and NOTE in checkpoint.names(store.url):  # a torn note keeps nobody from his own
        return True
    with contextlib.suppress(CheckpointError):
        return checkpoint.newest(store, plan, lambda _: None) is not None
    return False


def _held(store: CheckpointStore, own: Note | None) -> str:
    """What of another run lies at a place, and what to do; empty where nothing does.

    It may be going on, and not have a checkpoint yet. ``own`` is the note of a run that goes on, which may move its
    checkpoints.
    """
    remedy = "give an empty place" if own else f"go on with it by --resume {store.url}, or give an empty place"
    if numbers := rounds(store):
        return f"checkpoints of another run, up to round {numbers[-1]}; {remedy}"
    there = checkpoint.names(store.url)
    if FINISHED in there:
        return f"result of another run; {remedy}"
    if found := noted(store.url):
        return f"note of another run, {found.name}, which may be going on; {remedy}"
    above = "" if "://" in store.url else os.path.dirname(store.url)  # a run's folder, of which this may be a part
    owner = noted(above) if above else None
    if owner and _kept(above, owner) == store.url and not (own and same_run(owner, own)):
        return f"checkpoints of {owner.name}, which may be going on; give an empty place"
    return "clients' states of another run; give an empty place" if STATES in there else ""


def _kept(folder: str, note: Note) -> str:
    """Where the run of a folder keeps its checkpoints."""
    return store(Path(folder), note.execution).url


def clear(folder: Path, store: CheckpointStore) -> None:
    """Remove the checkpoints of a finished run, and its note beside them; what cannot be removed stays, and what
    another run has put in their place."""
    if not elsewhere(folder, store):
        checkpoint.clear(store)
        return
    own, there = noted(str(folder)), noted(store.url)
    if own and there and same_run(own, there):
        checkpoint.clear(store)
        with contextlib.suppress(Exception):
            fs, path = located(store.url)
            fs.rm_file(f"{path}/{NOTE}")
            if not fs.ls(path, detail=False):
                fs.rmdir(path)


def locked_place(folder: Path, store: CheckpointStore) -> contextlib.AbstractContextManager[None]:
    """Keep others out of where the checkpoints of the run of a folder are kept, if that is another folder here.

    Not where the file of the lock cannot lie beside it, as beside a volume: whether the place itself can be written
    is said by :func:`claim`.
    """
    here = "://" not in store.url and elsewhere(folder, store)
    beside = os.path.dirname(os.path.realpath(store.url))
    lockable = here and os.access(beside, os.W_OK | os.X_OK)
    return locked(Path(store.url), "--checkpoint.url") if lockable else contextlib.nullcontext()
