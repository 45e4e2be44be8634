"""The only writer of trials: the driver hands what each trial reports to Tune to that trial's own record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ray.tune import Callback

from fedray.types import for_command_line

UNFINISHED = "unfinished"


class Record(Protocol):
    """What the driver keeps of one trial."""

    def add(self, row: Mapping[str, float]) -> None:
        """Take the measures of a round; one that a retry played again comes again."""

    def close(self) -> None:
        """End the record as the trial ended, or was left."""


class Recorder(Callback):
    """Keeps a record per trial, opened when the trial starts; ``show`` gets all trials after every event."""

    def __init__(self, open_record: Callable[[Any], Record], show: Callable[[list[Any]], object] = lambda trials: None):
        self._open = open_record
        self._show = show
        self._records: dict[str, Record] = {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._record(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        record = self._record(trial)
        for row in result.get("rows", ()):
            record.add(row)
        self._show(trials)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._close(trial)
        self._show(trials)

    on_trial_error = on_trial_complete

    def close(self) -> None:
        """End the records of the trials that were left unfinished."""
        for record in self._records.values():
            record.close()
        self._records.clear()

    def _close(self, trial: Any) -> None:
        self._record(trial).close()
        del self._records[trial.trial_id]

    def _record(self, trial: Any) -> Record:
        if trial.trial_id not in self._records:
            self._records[trial.trial_id] = self._open(trial)
        return self._records[trial.trial_id]


def failure_of(trial: Any) -> str:
    """Why a trial of Tune's failed, in a line; empty where it did not."""
    last = trial.last_result or {}
    if "failure" in last:
        return str(last["failure"])
    if trial.status == "ERROR":
        return str(trial.get_error() or "its process was lost").strip().splitlines()[-1]
    return ""


def outcome_of(trial: Any, rounds: int) -> str:
    """How a trial ended: finished, stopped early, failed with its reason (also where it diverged), or unfinished."""
    last = trial.last_result or {}
    if failure := failure_of(trial):
        return f"failed: {for_command_line(failure)}"
    # Not the status: an interrupted sweep leaves its running trials as terminated, as if they had been stopped.
    finished = last.get("round", 0) >= rounds
    if not finished and not last.get("done"):
        return UNFINISHED
    if not math.isfinite(score := last.get("score") or 0.0):
        return f"failed: its score is {score}"
    return "finished" if finished else "stopped early"
