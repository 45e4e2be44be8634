"""What may be asked of a run that goes on: the same experiment, perhaps with more rounds, on the same examples."""

from __future__ import annotations

import os
from pathlib import Path

from fedray import registry
from fedray.config import Execution, Experiment, decisive, differences, flatten, to_dict
from fedray.data.digests import EXAMPLES
from fedray.running.folder import naming
from fedray.running.folder.notes import Note, finished_rounds
from fedray.types import FedRayError, require

# What only the federation can answer, as long as its clients have their states.
SETTLED = ("uncertainty", "ood", "loss_deviation", "figures")


def check_same(place: str, note: Note, asked: Experiment, execution: Execution) -> None:
    """Raise FedRayError where the options beside --resume ask for another experiment (data may have moved, and rounds
    may be added) or another place, for more than a finished run can give, or leave out the store's password."""
    ours, theirs = (registry.algorithm_name(each.algorithm) for each in (note.experiment, asked))
    if ours != theirs:
        raise FedRayError(
            f"--resume {place}: is a run of {ours}; leave {theirs} out, or start a new run without --resume"
        )
    names = differences(flatten(decisive(note.experiment)), flatten(decisive(asked)))
    if names == ["rounds"]:
        reason = f"the run began with {note.experiment.rounds}, and rounds can only be added"
        require(asked.rounds > note.experiment.rounds, "rounds", asked.rounds, reason, "give more, or leave it out")
        names = []
    if names == ["on_failure"]:
        raise FedRayError(
            f"--on-failure {asked.on_failure}: the run began with {note.experiment.on_failure}, and skip changes the "
            "numbers; leave the option out, or start a new run without --resume"
        )
    if names:
        raise FedRayError(
            f"--resume {place}: is another experiment (it differs in {', '.join(names)}); leave these options out, or "
            "start a new run without --resume"
        )
    _check_place(place, note, execution)
    if finished_rounds(Path(place)) >= asked.rounds:
        before, now = (flatten(to_dict(each)) for each in (note.execution, execution))
        for name in SETTLED:
            reason = f"{place} is finished, and its clients' states are gone"
            require(now[name] == before[name], name, now[name], reason, "leave it out, or play a new run with it")
    uri = execution.tracking.uri
    if uri != "none" and uri == note.execution.tracking.uri and "***" in uri:
        raise FedRayError(
            f"--resume {place}: the password of its store was not kept; add --tracking.uri {uri} with the password"
        )


def _check_place(resume: str, note: Note, execution: Execution) -> None:
    """Raise FedRayError where a resumed run is to have another name or folder: it goes on where it is."""
    kept = note.execution
    reason, remedy = f"--resume {resume} goes on with {note.name}", "leave it out, or start a new run without --resume"
    require(execution.name in (kept.name, note.name), "name", execution.name, reason, remedy)
    if "://" not in resume:
        asked, here = execution.output, (kept.output, naming.place(resume, None, note.name))
        same = asked in here or (asked is not None and Path(os.path.abspath(asked)) == here[1])
        require(same, "output", asked, f"{reason} where it is", remedy)


def check_examples(place: str, note: Note, data: str, examples: str) -> None:
    """Raise FedRayError where the user's own examples, by their digest, are not those with which the run began."""
    if note.digests.get(EXAMPLES, examples) != examples:
        raise FedRayError(
            f"--resume {place}: {data} holds other examples than when the run began, and a test example "
            "may be one of training by now; bring the data of then back, or start a new run without --resume"
        )
