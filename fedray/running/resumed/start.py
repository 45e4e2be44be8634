"""From what a run that goes on starts: its newest checkpoint, wherever it was kept, or its result."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fedray.federate.plan import PLUG_IN, Plan
from fedray.federate.planning import changed
from fedray.federate.storage import checkpoint
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.federate.storage.checkpoint_files import Checkpoint, CheckpointError
from fedray.running import progress
from fedray.running.folder import checkpoint_place
from fedray.running.folder.notes import Note, finished_rounds
from fedray.running.resumed import extension
from fedray.terminal import say
from fedray.types import FedRayError


def newest(folder: Path, store: CheckpointStore, plan: Plan, note: Note) -> Checkpoint | None:
    """The checkpoint from which the run of a folder goes on; None where it begins with the first round.

    Raises CheckpointError where it is gone.
    """
    begun = _newest(store, plan) or _moved(checkpoint_place.store(folder, note.execution), store, plan)
    if begun is not None and note.experiment.rounds != plan.cfg.rounds:
        begun = extension.lengthened(begun, plan)
    if begun is None and finished_rounds(folder):
        return extension.from_result(folder, plan)
    if begun is None:
        _check_lost(folder, store)
    if begun is None and note.package is not None:
        say("no checkpoint was written to its end before the run stopped: it starts again at round 0")
    return begun


def mended(note: Note, plan: Plan) -> dict[str, str]:
    """The digests, joined by +, of plug-ins that have changed since a run began."""
    names = [f"{PLUG_IN}{module}" for module in changed(note.digests, plan.digests)]
    return {name: f"{note.digests[name]}+{plan.digests[name]}" for name in names}


def _newest(store: CheckpointStore, plan: Plan) -> Checkpoint | None:
    return checkpoint.newest(store, plan, lambda text: say(f"warning: {text}"))


def _moved(noted: CheckpointStore, store: CheckpointStore, plan: Plan) -> Checkpoint | None:
    """The last checkpoint at the noted place, copied to the one that was asked for now; None if there is none."""
    begun = _newest(noted, plan) if noted.url != store.url else None
    if begun is None:
        return None
    say(f"its last checkpoint is copied to {store.url}; those in {noted.url} stay there")
    return checkpoint.copied(begun, store)


def _check_lost(folder: Path, store: CheckpointStore) -> None:
    """Raise CheckpointError where the run had written a checkpoint that is not there any more."""
    saved = None
    with contextlib.suppress(FedRayError):  # without a status nobody knows
        saved = progress.read(folder).checkpoint
    if saved:
        raise CheckpointError(
            f"{store.url}: the checkpoint of round {saved} is gone; bring it back, or remove {folder} and start the "
            "run again"
        )
