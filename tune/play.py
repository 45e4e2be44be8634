"""How Tune plays whole federations as trials: each reserves what its federation needs, or waits for its turn."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ray import tune as ray_tune
from ray.exceptions import RayActorError
from ray.tune.error import TuneError
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment.trial import Trial as TuneTrial

from actors.machines.placement import Layout
from fedray.types import DISK_FULL, RunError, unwritable
from tune.record import Recorder

RESUME: Any = ray_tune.ResumeConfig.ResumeType.RESUME  # an enum, although ResumeConfig calls it a string


class Programme(NamedTuple):
    """What Tune plays."""

    trainable: Any  # class of the trials, and the argument ``common`` of its setup
    common: Any
    parameters: Mapping[str, Any]  # of which Tune makes the trials' configurations
    layout: Callable[[Mapping[str, Any]], Layout]  # of the federation of a configuration
    here: dict[str, float]  # what ties the servers to a machine; empty: they may be anywhere
    searcher: Any
    scheduler: Any
    samples: int  # drawn configurations; those of a grid are repeated as often
    seed: int  # of Tune's own draws
    folder: Path  # of Tune's own state
    checkpoints: ray_tune.CheckpointConfig
    retries: int  # of a trial whose process is lost
    resume: bool = False


def play(programme: Programme, recorder: Recorder) -> list[Any]:
    """Play all trials, or go on with them; Tune's records of them come back, also of those that Ctrl-C left.

    Raises RunError where the disk is full.
    """

    layout, here = programme.layout, programme.here  # all that travels to the trials' processes

    def reservation(config: Mapping[str, Any]) -> ray_tune.PlacementGroupFactory:
        server, *clients = layout(config).bundles
        return ray_tune.PlacementGroupFactory([server | here, *clients])  # all of a federation or nothing

    random.seed(programme.seed)  # Tune's schedulers draw from the global generators
    np.random.seed(programme.seed % 2**32)
    trainable = ray_tune.with_parameters(programme.trainable, common=programme.common)
    trainable = ray_tune.with_resources(trainable, reservation)
    trainable.__qualname__ = programme.trainable.__name__  # the processes' name in ps and in Ray's dashboard
    try:
        with full_disk_ends(programme.folder), recovered_resets():
            analysis = ray_tune.run(
                trainable,
                name=programme.folder.name,
                storage_path=str(programme.folder.parent),
                config=dict(programme.parameters),
                num_samples=programme.samples,
                search_alg=programme.searcher,
                scheduler=programme.scheduler,
                checkpoint_config=programme.checkpoints,
                max_failures=programme.retries,
                reuse_actors=True,
                raise_on_failed_trial=False,
                callbacks=[recorder],
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
                verbose=0,
                resume=programme.resume,
                resume_config=ray_tune.ResumeConfig(errored=RESUME) if programme.resume else None,
            )
        return list(analysis.trials or [])
    finally:
        recorder.close()


@contextlib.contextmanager
def full_disk_ends(folder: Path) -> Iterator[None]:
    """End a sweep by RunError where the disk of its folder, or that of a trial's temporary files, is full.

    Tune would play a trial whose checkpoint finds no room again and again.
    """
    honest = TuneController._trial_task_failure
    full: list[OSError] = []

    def process(self: TuneController, trial: Any, exception: Any) -> None:
        cause = getattr(exception, "cause", None)
        if isinstance(cause, OSError) and cause.errno in DISK_FULL:
            full.append(cause)
            raise cause  # which Tune passes on as an error of its own
        honest(self, trial, exception)

    TuneController._trial_task_failure = process
    try:
        yield
    except (TuneError, OSError) as error:  # an OSError is of the driver's own files
        cause = full[0] if full else error
        if not isinstance(cause, OSError) or cause.errno not in DISK_FULL:
            raise
        reason = OSError(cause.errno, os.strerror(cause.errno))  # Arrow has words of its own
        raise RunError(unwritable(cause.filename or folder, reason)) from None
    finally:
        TuneController._trial_task_failure = honest


@contextlib.contextmanager
def recovered_resets() -> Iterator[None]:
    """Let Tune recover a trial whose process dies while the trial takes it over from another one.

    Tune recovers running trials only, and during a take-over (``reuse_actors``) a trial is still pending: it would fail
    for good, however many failures are allowed (seen with Ray 2.60).
    """
    honest = TuneController._process_trial_failure

    requeued: set[Any] = set()

    def process(self: TuneController, trial: Any, exception: Any) -> None:
        taking_over = trial in self._resetting_trials
        self._resetting_trials.discard(trial)
        if taking_over and isinstance(exception, RayActorError):  # else the process lives, and refused the trial
            self._set_trial_status(trial, TuneTrial.RUNNING)  # as Tune does where a process dies as it starts
            requeued.add(trial)
        elif trial in requeued and trial.status == TuneTrial.PENDING:  # another task of the same dead process
            requeued.discard(trial)
            return
        honest(self, trial, exception)

    TuneController._process_trial_failure = process
    try:
        yield
    finally:
        TuneController._process_trial_failure = honest
