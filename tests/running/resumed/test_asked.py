"""What may be asked of a run that goes on."""

from __future__ import annotations

import pytest

from fedray.config import Execution, override
from fedray.running.folder.notes import Note
from fedray.running.resumed.asked import check_same
from fedray.types import FedRayError
from tests.helpers import small_plan


def note(on_failure: str) -> Note:
    return Note("x", override(small_plan().cfg, {"on_failure": on_failure}), Execution(), None)


@pytest.mark.parametrize(("begun", "asked"), [("retry", "abort"), ("abort", "retry"), ("skip", "skip")])
def test_a_resumed_run_may_give_up_sooner_or_later(begun: str, asked: str) -> None:
    old, new = note(begun), note(asked)
    check_same("runs/x", old, new.experiment, new.execution)


@pytest.mark.parametrize(("begun", "asked"), [("retry", "skip"), ("abort", "skip"), ("skip", "retry")])
def test_a_resumed_run_may_not_begin_or_cease_to_leave_clients_out(begun: str, asked: str) -> None:
    old, new = note(begun), note(asked)
    with pytest.raises(FedRayError, match=f"--on-failure {asked}: the run began with {begun}, and skip changes the"):
        check_same("runs/x", old, new.experiment, new.execution)
    both = override(new.experiment, {"rounds": 7})
    with pytest.raises(FedRayError, match=r"it differs in rounds, on_failure"):
        check_same("runs/x", old, both, new.execution)
