"""The name of a run, its folder, and what to type to go on with it."""

from __future__ import annotations

import os
import shlex
from datetime import datetime
from pathlib import Path

from fedray import registry
from fedray.config import Execution
from fedray.federate.plan import Plan
from fedray.types import FedRayError


def name(plan: Plan, execution: Execution) -> str:
    """A run's name, the user's or algorithm-dataset-s<seed>-<time>; raises FedRayError for one that is a path."""
    if given := given_name(execution):
        return given
    dataset = Path(plan.cfg.data.name).stem
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return f"{registry.algorithm_name(plan.cfg.algorithm)}-{dataset}-s{plan.cfg.seed}-{stamp}"


def given_name(execution: Execution) -> str:
    """The user's name for what is played, or the empty one; raises FedRayError for one that is a path."""
    given = execution.name or ""
    if given and (given == ".." or Path(given).name != given or not given.isprintable()):
        shown_name = given if given.isprintable() else repr(given)
        raise FedRayError(f"--name {shown_name}: is not a plain name; use --output for a folder elsewhere")
    return given


def place(resume: str, output: str | Path | None, name: str) -> Path:
    """Where a result goes: the folder that is resumed, or a new one; raises FedRayError for one that is no text."""
    here = resume and "://" not in resume
    folder = os.path.abspath(os.path.expanduser(resume if here else output or Path("runs") / name))
    try:
        folder.encode()  # the files of the result name it
    except UnicodeEncodeError:
        raise FedRayError(
            f"{folder!a}: the name of this folder cannot be read in the encoding of this terminal; set LC_ALL=C.UTF-8, "
            "or give --output and work in folders whose names are UTF-8"
        ) from None
    return Path(folder)


def command(folder: Path) -> str:
    """What to type to go on with the run of a folder."""
    return f"python -m fedray.launch --resume {shlex.quote(str(folder))}"
