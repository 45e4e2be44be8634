"""The note of a run in its folder, and beside checkpoints that lie elsewhere: what it was asked to do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedray import registry
from fedray.config import Execution, Experiment, decisive, differences, flatten, from_dict, to_dict
from fedray.config.decode import decode, fits, refuse_damage
from fedray.federate.planning import plug_ins_of
from fedray.federate.storage.places import located
from fedray.running.files import write_json
from fedray.running.mlflow_store import shown
from fedray.types import FedRayError

NOTE, FINISHED = "run.json", "config.json"


class Note(NamedTuple):
    """What a run was asked to do."""

    name: str
    experiment: Experiment  # resolved
    execution: Execution
    run_id: str | None  # in the tracking store
    package: str | None = None  # key of the compiled step that it trains with; empty: none; None: it has not begun
    digests: Mapping[str, str] = {}  # of what is the user's own; older versions noted none


def write(folder: Path, note: Note) -> None:
    """Make the folder with its note."""
    write_json(folder / NOTE, content(note))


def content(note: Note) -> dict[str, Any]:
    """What run.json holds."""
    return {
        "name": note.name,
        "algorithm": registry.algorithm_name(note.experiment.algorithm),
        "plug_ins": plug_ins_of(note.experiment),
        "experiment": to_dict(note.experiment),
        "execution": to_dict(note.execution),
        "run_id": note.run_id,
        "package": note.package,
        "digests": dict(note.digests),
    }


def read(place: str) -> Note:
    """The note of a run's folder, or of the URL of its checkpoints; raises FedRayError where there is none."""
    with refuse_damage(f"--resume {place}: holds no run to go on with", "give the folder of an interrupted run"):
        fs, path = located(place if "://" in place else str(Path(place).absolute()))
        with fs.open(f"{path}/{NOTE}", "rb") as file:
            found = decode(file.read())
        registry.plug_in_again(found.get("plug_ins", ()), f"--resume {place}")
        settings = dict(found["execution"])
        # Older versions kept the failure policy among the settings of the execution.
        moved = {"on_failure": settings.pop("on_failure")} if "on_failure" in settings else {}
        experiment = experiment_of(found["algorithm"], found["experiment"] | moved)
        execution = from_dict(Execution, settings)
        if "://" in place:  # it may have moved
            execution = replace(execution, checkpoint=replace(execution.checkpoint, url=place))
        name = found["name"]
        run_id = found["run_id"]
        package, digests = found.get("package", ""), found.get("digests", {})  # older versions had none
        if (
            not isinstance(name, str)
            or Path(name).name != name
            or not fits(run_id, str | None)
            or not fits(package, str | None)
            or not fits(digests, dict[str, str])
        ):
            raise ValueError("its name, its run_id, its package or its digests are not one")
        return Note(name, experiment, execution, run_id, package, digests)


def noted(place: str) -> Note | None:
    """The note at a place; None where there is none that can be read."""
    try:
        return read(place)
    except FedRayError:
        return None


def holds(folder: Path, note: Note) -> bool:
    """Whether a folder is that of the noted run."""
    found = noted(str(folder))
    return found is not None and (found.name, found.experiment, found.run_id) == (
        note.name,
        note.experiment,
        note.run_id,
    )


def same_run(one: Note, other: Note) -> bool:
    """Whether two notes are of one run, which may have been asked for more rounds."""
    differ = differences(flatten(decisive(one.experiment)), flatten(decisive(other.experiment)))
    return one.name == other.name and set(differ) <= {"rounds"}


def finished_rounds(folder: Path) -> int:
    """The rounds of the result in a folder, which a run that goes on for more keeps until its end; 0 without one."""
    if not (folder / FINISHED).exists():
        return 0
    with refuse_damage(f"{folder}: the result cannot be read", "run it again in a new folder"):
        return int(decode((folder / FINISHED).read_bytes())["experiment"]["rounds"])


def experiment_of(algorithm: str, values: Mapping[str, Any]) -> Experiment:
    """The experiment of :func:`to_dict`'s values and the algorithm's name; raises ValueError for what is none."""
    try:
        record = registry.pick(registry.algorithms(), "algorithm", algorithm)
    except FedRayError as error:  # it knows no file
        raise ValueError(str(error)) from None
    return from_dict(Experiment, dict(values) | {"algorithm": from_dict(record.config, values["algorithm"])})


def absolute(execution: Execution, uri: str) -> Execution:
    """The execution without what belongs to the first start or is secret, with addresses that hold in any folder."""
    url = execution.checkpoint.url
    cfg = replace(execution.checkpoint, url=url if not url or "://" in url else os.path.abspath(url))
    tracking = replace(execution.tracking, uri=shown(uri))
    return replace(execution, name=None, output=None, checkpoint=cfg, tracking=tracking)
