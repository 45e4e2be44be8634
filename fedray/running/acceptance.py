"""What a run is refused for before anything of it is written, and what is said of its data and settings."""

from __future__ import annotations

from collections.abc import Callable

from fedray.config import Experiment
from fedray.data import loading
from fedray.data.digests import of_examples
from fedray.federate import loss_deviation
from fedray.federate.plan import Plan
from fedray.federate.uncertainty import questions
from fedray.running import runfolder
from fedray.running.runfolder import Note
from fedray.running.stages import Request
from fedray.terminal import say
from fedray.types import FedRayError, for_command_line


def accepted(request: Request, note: Note | None, plan_of: Callable[[Experiment], Plan]) -> Plan:
    """The plan of a request, by ``plan_of``; ``note`` is that of the run that it goes on with.

    Raises FedRayError where it cannot run, cannot answer what is asked of its models, or began with other examples.
    """
    cfg = request.experiment
    try:
        plan = plan_of(cfg)
    except FedRayError:
        if note and note.examples:  # that they changed may be why, and is what the user can mend
            runfolder.check_examples(request.resume, note, cfg.data.name, of_examples(loading.load(cfg.data)))
        raise
    if note:
        runfolder.check_examples(request.resume, note, cfg.data.name, plan.examples)
    if request.execution.loss_deviation:
        loss_deviation.check(plan)
    questions.check(plan, request.execution)
    return plan


def announce(plan: Plan, name: str = "") -> None:
    """Say how the data of a run, perhaps of one among others, were read, and what one must know to quote a number."""
    who = f"{name}: " if name else ""
    for note in plan.notes:
        say(f"data     {who}{for_command_line(note)}")
    for remark in plan.remarks:
        say(f"warning: {who}{for_command_line(remark)}")
