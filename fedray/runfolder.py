"""The folder of a run from its first moment: what it takes to go on with it, and who may.

    run.json       the experiment, where it is tracked, how it was executed
    status.json    how far it is
    checkpoints/   the federation after the last few rounds, unless --checkpoint.url says elsewhere
    (the result)   see fedray/result.py; config.json comes last and says that the run is finished
"""  # fmt: skip

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedray import registry
from fedray.checkpoint import Store
from fedray.config import Execution, Experiment, differing, from_dict, to_dict
from fedray.types import FedRayError

NOTE, FINISHED = "run.json", "config.json"


class Note(NamedTuple):
    """What a run was asked to do."""

    name: str
    experiment: Experiment  # resolved
    execution: Execution
    run_id: str | None  # in the tracking store


def write(folder: Path, note: Note) -> None:
    """Make the folder with its note."""
    content = {"name": note.name, "algorithm": registry.algorithm_name(note.experiment.algorithm)}
    content |= {"experiment": to_dict(note.experiment), "execution": to_dict(note.execution), "run_id": note.run_id}
    write_json(folder / NOTE, content)


def read(folder: Path) -> Note:
    """The note of a folder; raises FedRayError where there is none."""
    try:
        found = json.loads((folder / NOTE).read_text())
        experiment = experiment_of(found["algorithm"], found["experiment"])
        return Note(found["name"], experiment, from_dict(Execution, found["execution"]), found["run_id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, FedRayError):
            raise
        raise FedRayError(
            f"--resume {folder}: holds no run to go on with ({error}); give the folder of an interrupted run"
        ) from None


def experiment_of(algorithm: str, values: Mapping[str, Any]) -> Experiment:
    """The experiment of :func:`to_dict`'s values and the algorithm's name."""
    record = registry.pick(registry.algorithms(), "algorithm", algorithm)
    return from_dict(Experiment, dict(values) | {"algorithm": from_dict(record.config, values["algorithm"])})


def check_same(folder: Path, stored: Experiment, asked: Experiment) -> None:
    """Raise FedRayError where the options beside --resume ask for another experiment; data may have moved."""
    names = [name for name in differing(stored, asked) if name not in ("data.root", "data.download")]
    if names:
        raise FedRayError(
            f"--resume {folder}: is another experiment (it differs in {', '.join(names)}); leave these options out, or "
            "start a new run without --resume"
        )


def store(folder: Path, execution: Execution) -> Store:
    """Where the checkpoints of a run go."""
    cfg = execution.checkpoint
    url = cfg.url if "://" in cfg.url else os.path.abspath(cfg.url or folder / "checkpoints")
    return Store(url, cfg.every, cfg.keep, cfg.on_error == "stop")


def absolute(execution: Execution, uri: str) -> Execution:
    """The execution without what belongs to the first start, and with addresses that hold in any folder."""
    url = execution.checkpoint.url
    cfg = replace(execution.checkpoint, url=url if not url or "://" in url else os.path.abspath(url))
    return replace(execution, name=None, output=None, checkpoint=cfg, tracking=replace(execution.tracking, uri=uri))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others from going on with the same run; raises FedRayError where somebody does."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except OSError as error:
        if isinstance(error, Timeout) and Path(lock.lock_file).exists():
            raise FedRayError(
                f"--resume {folder}: this run is going on in another process; wait for it or stop it"
            ) from None
        reason = error.strerror or "permission denied"
        raise FedRayError(
            f"--output {folder}: cannot be written ({reason}); choose a folder that you may write to"
        ) from None
    try:
        yield
    finally:
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(part, path)
