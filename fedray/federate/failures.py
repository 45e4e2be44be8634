"""What a federation does about failures, and how a failure names the stage of the algorithm in which it arose."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import NamedTuple

from fedray.config import Experiment
from fedray.federate.messages import Failure
from fedray.types import RunError, first_line

ATTEMPTS = 4  # of a call to an actor, and of building a federation, unless the run is to stop at once

REMEDIES = {  # for a client that a run cannot go on without, by the kind of its failure
    "exception": "mend what raised it",
    "not finite": "lower the learning rates, check the client's data",
    "late": "raise `round_timeout`",
    "lost": "see why its process ended",
}


class FailurePolicy(NamedTuple):
    """What happens when a client raises, sends an upload that is not finite, hangs, or loses its process."""

    attempts: int = ATTEMPTS  # calls before an actor, and rebuilds before a federation, is given up
    skip: bool = False  # leave a client that keeps failing out of the round; otherwise the run stops
    timeout: float | None = None  # seconds after which an actor that has not answered counts as hanging


RETRY = FailurePolicy()


class ClientsLostError(Exception):
    """Clients are gone for good, perhaps with their states: the federation must go back to a checkpoint."""


def failure_policy(cfg: Experiment, timeout: float | None = None) -> FailurePolicy:
    """The policy of an experiment (retry, skip or abort), executed with this time limit in seconds."""
    return FailurePolicy(1 if cfg.on_failure == "abort" else ATTEMPTS, cfg.on_failure == "skip", timeout)


class StageError(RunError):
    """A function of the algorithm raised; ``failure`` names who called it, the round, the stage and the reason."""

    def __init__(self, failure: Failure):
        super().__init__(failure)  # exceptions are pickled with their arguments
        self.failure = failure

    def __str__(self) -> str:
        return f"{described(self.failure)}\n{self.failure.traceback}"


@contextlib.contextmanager
def stage(name: str, who: str, round_number: int) -> Iterator[None]:
    """Turn what a function of the algorithm raises into a StageError; an inner stage is more precise and passes."""
    try:
        yield
    except StageError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        trace = traceback.format_exc(chain=False)
        raise StageError(Failure(round_number, who, "exception", reason, "", trace, name)) from error


def described(failure: Failure) -> str:
    """A failure in one line: who, in which round and stage, and why."""
    parts = [failure.who, f"round {failure.round}" if failure.round else "", failure.stage]
    return f"{', '.join(part for part in parts if part)}: {failure.reason}"


def out_of_memory(failure: Failure, clients: int, fewer: int) -> Failure:
    """That a stack did not fit into a GPU's memory, and how many clients are stacked from now on."""
    reason = f"{clients} clients at a time do not fit into the memory: {failure.reason}"
    return failure._replace(kind="memory", reason=reason, action=f"at most {fewer} at a time from now on", traceback="")


def no_graph(round_number: int, clients: int, reason: str) -> Failure:
    """That the steps of a stack could not be recorded as a CUDA graph."""
    who = f"stack of {clients} clients"
    return Failure(round_number, who, "graph", reason, "its kernels are launched one by one", stage="step")
