"""Schedulers that must neither lose a trial nor wait for ever."""

import contextlib
import errno
import os
import pickle
import random
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ray import tune as ray_tune
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment.trial import Trial as TuneTrial

from fedray.types import LogUniform, RunError, Uniform
from tune import search
from tune.options import Sweep
from tune.play import full_disk_ends, recovered_resets
from tune.space import Grid


def slow_to_save():
    """A trainable, made here so that it travels by value: workers cannot import this file."""

    class SlowToSave(ray_tune.Trainable):
        """Counts rounds; saving takes longer than a round, so that others report while a trial is being saved."""

        def setup(self, config):
            self.round = 0

        def reset_config(self, new_config):
            return True

        def step(self):
            self.round += 1
            time.sleep(0.05 * self.config["seed"])
            return {"round": self.round, "score": -self.config["algorithm.lr"], "done": self.round >= 6}

        def save_checkpoint(self, checkpoint_dir):
            time.sleep(0.4)
            Path(checkpoint_dir, "round").write_text(str(self.round))

        def load_checkpoint(self, checkpoint_dir):
            self.round = int(Path(checkpoint_dir, "round").read_text())

    return SlowToSave


@pytest.mark.ray
@pytest.mark.slow
def test_a_trial_that_is_copied_over_while_it_is_saved_still_ends_its_rounds(tmp_path, own_cluster):
    space = {"algorithm.lr": LogUniform(1e-4, 0.5)}
    sweep = Sweep(scheduler="pbt", metric="score", mode="max", max_rounds=6, grace_rounds=2)
    random.seed(0)
    np.random.seed(0)
    own_cluster(num_cpus=4)
    found = ray_tune.run(
        slow_to_save(),
        config=search.parameters(space, "random", [0, 1, 2, 3]),
        scheduler=search.scheduler(sweep, space),
        reuse_actors=True,
        checkpoint_config=ray_tune.CheckpointConfig(checkpoint_frequency=1),
        storage_path=str(tmp_path),
        verbose=0,
        raise_on_failed_trial=False,
    )
    assert [trial.last_result["round"] for trial in found.trials] == [6, 6, 6, 6]


def fails_late(how):
    """A trainable of which the last trial fails as it comes to where the others wait."""

    class FailsLate(ray_tune.Trainable):
        def setup(self, config):
            self.round = 0

        def reset_config(self, new_config):
            self.round = 0
            return True

        def step(self):
            self.round += 1
            if self.config["seed"] == 3 and self.round == 2:
                if how == "error":
                    raise ValueError("lost")
                return {"round": self.round, "failure": "diverged", "done": True}
            return {"round": self.round, "score": -self.config["algorithm.lr"], "done": self.round >= 6}

        def save_checkpoint(self, checkpoint_dir):
            Path(checkpoint_dir, "round").write_text(str(self.round))

        def load_checkpoint(self, checkpoint_dir):
            self.round = int(Path(checkpoint_dir, "round").read_text())

    return FailsLate


class SomebodyGoesOn(ray_tune.Callback):
    """Fails where all trials wait, step after step."""

    waited = 0

    def on_step_end(self, iteration, trials, **info):
        left = [trial.status for trial in trials if not trial.is_finished()]
        self.waited = self.waited + 1 if set(left) == {"PAUSED"} else 0
        assert self.waited < 10


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("how", ["result", "error"])
def test_the_trials_that_wait_for_one_that_fails_are_copied_and_go_on(how, tmp_path, own_cluster):
    space = {"algorithm.lr": LogUniform(1e-4, 0.5)}
    sweep = Sweep(scheduler="pbt", metric="score", mode="max", max_rounds=6, grace_rounds=2)
    own_cluster(num_cpus=1)
    found = ray_tune.run(
        fails_late(how),
        config=search.parameters(space, "random", [0, 1, 2, 3]),
        search_alg=search.searcher(sweep, space, 1, [0]),
        scheduler=search.scheduler(sweep, space),
        reuse_actors=True,
        checkpoint_config=ray_tune.CheckpointConfig(checkpoint_frequency=1),
        storage_path=str(tmp_path),
        verbose=0,
        raise_on_failed_trial=False,
        callbacks=[SomebodyGoesOn()],
    )
    ended = [trial.last_result["round"] for trial in sorted(found.trials, key=lambda trial: trial.config["seed"])]
    assert ended == [6, 6, 6, 1 if how == "error" else 2]
    # They ran one at a time, and yet somebody was copied over.
    assert any(trial.config["algorithm.lr"] != trial.evaluated_params["algorithm.lr"] for trial in found.trials)


def dies_in_reset(folder):
    """A trainable whose process dies the first time that another trial takes it over."""

    class DiesInReset(ray_tune.Trainable):
        def setup(self, config):
            self.round = 0

        def reset_config(self, new_config):
            with contextlib.suppress(FileExistsError):
                (folder / "died").touch(exist_ok=False)
                os._exit(1)
            self.round = 0
            return True

        def step(self):
            self.round += 1
            return {"round": self.round, "score": 0.0, "done": self.round >= 2}

        def save_checkpoint(self, checkpoint_dir):
            Path(checkpoint_dir, "round").write_text(str(self.round))

        def load_checkpoint(self, checkpoint_dir):
            self.round = int(Path(checkpoint_dir, "round").read_text())

    return DiesInReset


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_trial_whose_process_dies_as_it_takes_it_over_is_recovered(tmp_path):
    with recovered_resets():
        found = ray_tune.run(
            dies_in_reset(tmp_path),
            config={"seed": ray_tune.grid_search([0, 1, 2])},
            max_concurrent_trials=1,
            max_failures=3,
            reuse_actors=True,
            storage_path=str(tmp_path),
            verbose=0,
            raise_on_failed_trial=False,
        )
    assert (tmp_path / "died").exists()
    assert [trial.last_result.get("round") for trial in found.trials] == [2, 2, 2]


def refuses_in_reset():
    """A trainable that refuses one trial as this takes over the process of another one."""

    class RefusesInReset(ray_tune.Trainable):
        def setup(self, config):
            self.round = 0

        def reset_config(self, new_config):
            if new_config["seed"] == 1:
                raise ValueError("no such setting")
            self.round = 0
            return True

        def step(self):
            self.round += 1
            return {"round": self.round, "score": 0.0, "done": self.round >= 2}

        def save_checkpoint(self, checkpoint_dir):
            pass

    return RefusesInReset


class NoFailedTrialWaits(ray_tune.Callback):
    def on_step_end(self, iteration, trials, **info):
        assert not [trial for trial in trials if trial.num_failures and trial.status == "PENDING"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_trial_that_a_living_process_refuses_to_take_over_fails_and_the_others_end(tmp_path):
    with recovered_resets():
        found = ray_tune.run(
            refuses_in_reset(),
            config={"seed": ray_tune.grid_search([0, 1, 2])},
            max_concurrent_trials=1,
            max_failures=3,
            reuse_actors=True,
            storage_path=str(tmp_path),
            verbose=0,
            raise_on_failed_trial=False,
            callbacks=[NoFailedTrialWaits()],
        )
    assert [trial.status for trial in found.trials] == ["TERMINATED", "ERROR", "TERMINATED"]
    assert "no such setting" in str(found.trials[1].get_error())


def finds_no_room(here):
    """A trainable whose checkpoints find no room on the disk; ``here``, on the driver's side, its own find some."""

    class FindsNoRoom(ray_tune.Trainable):
        def step(self):
            return {"round": 1, "score": 0.0, "done": False}

        def save_checkpoint(self, checkpoint_dir):
            if not here:
                raise OSError(errno.ENOSPC, "error writing bytes to file")

    return FindsNoRoom


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("here", [False, True], ids=["of a trial", "of the driver"])
def test_a_full_disk_ends_a_sweep_with_its_reason(tmp_path, monkeypatch, here):
    """Tune played the trial again, as after the loss of its process, with a traceback each time."""

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if here:
        monkeypatch.setattr(TuneController, "save_to_dir", full)
    with pytest.raises(RunError) as error, full_disk_ends(tmp_path):
        ray_tune.run(
            finds_no_room(here),
            checkpoint_config=ray_tune.CheckpointConfig(checkpoint_frequency=1),
            max_failures=3,
            storage_path=str(tmp_path),
            verbose=0,
            raise_on_failed_trial=False,
        )
    assert str(error.value) == f"{tmp_path}: cannot be written (no space left on device); free space there"


@pytest.mark.parametrize(("eval_every", "grace"), [(1, 2), (5, 2), (10, 5), (3, 2), (2, 1), (2, 3)])
def test_a_population_is_copied_at_rounds_that_have_a_result(eval_every, grace):
    """Tune counts from the copy before; of trials that have all come farther than the next one, none would go on."""
    sweep = Sweep(scheduler="pbt", metric="score", mode="max", grace_rounds=grace)
    pbt = search.scheduler(sweep, {"algorithm.lr": Uniform(0.1, 0.2)}, eval_every)
    assert pbt._perturbation_interval >= grace
    pbt._checkpoint_or_exploit = lambda *_: None
    trials = [Played(i) for i in range(3)]
    controller = SimpleNamespace(get_trials=lambda: trials, get_live_trials=lambda: set(trials), search_alg=None)
    for trial in trials:
        pbt.on_trial_add(controller, trial)
    while not all(trial.is_finished() for trial in trials):
        trial = pbt.choose_trial_to_run(controller)
        assert trial is not None, "all trials wait"
        trial.play(pbt, controller, eval_every)
    assert [trial.last_result["round"] for trial in trials] == [60] * 3


class Played:
    """A trial that Tune's scheduler sees, without a process."""

    def __init__(self, number):
        self.trial_id, self.status, self.last_result = str(number), TuneTrial.PENDING, {"round": 0}
        self.config = self.evaluated_params = {"algorithm.lr": 0.1}
        kept = SimpleNamespace(checkpoint_config=SimpleNamespace(checkpoint_frequency=1, num_to_keep=None))
        self.run_metadata = SimpleNamespace(checkpoint_manager=kept)
        self.trainable_name = self.experiment_tag = "played"

    def is_finished(self):
        return self.status == TuneTrial.TERMINATED

    def play(self, scheduler, controller, rounds):
        """Rounds until it is paused or done with sixty."""
        self.status = TuneTrial.RUNNING
        while self.status == TuneTrial.RUNNING:
            reached = self.last_result["round"] + rounds
            self.last_result = {"round": reached, "score": 1.0, "training_iteration": reached}
            if reached >= 60:
                self.status = TuneTrial.TERMINATED
                scheduler.on_trial_complete(controller, self, self.last_result)
            elif scheduler.on_trial_result(controller, self, self.last_result) == "PAUSE":
                self.status = TuneTrial.PAUSED


def test_the_median_rule_goes_on_where_a_trial_has_failed():
    median = search.scheduler(Sweep(scheduler="median", metric="score", mode="max", grace_rounds=2), {})
    controller = SimpleNamespace(get_live_trials=list)
    bad, good = Played(0), Played(1)
    for number in (1, 2):
        median.on_trial_result(controller, bad, {"round": number, "score": 0.5})
    median.on_trial_complete(controller, bad, {"round": 3, "failure": "client 0: not finite", "done": True})
    found = [median.on_trial_result(controller, good, {"round": number, "score": 0.6}) for number in (1, 2, 3, 4)]
    assert found == ["CONTINUE"] * 4


def test_perturbed_settings_stay_in_their_ranges():
    """Tune multiplies by 0.8 or 1.2, whatever the range."""
    steps = "algorithm.local_steps"
    space = {"algorithm.damping": Uniform(0.5, 1.0), "algorithm.lr": LogUniform(0.1, 0.11), steps: Grid((5, 9))}
    pbt = search.scheduler(Sweep(scheduler="pbt", metric="score", mode="max"), space)
    random.seed(0)
    old = SimpleNamespace(config={"algorithm.damping": 0.95, "algorithm.lr": 0.1, steps: 9, "seed": 3})
    drawn = [pbt._get_new_config(None, old)[0] for _ in range(60)]
    assert max(new["algorithm.damping"] for new in drawn) == 1.0
    assert all(0.5 <= new["algorithm.damping"] <= 1.0 and 0.1 <= new["algorithm.lr"] <= 0.11 for new in drawn)
    assert {new[steps] for new in drawn} == {5, 9}
    assert {new["seed"] for new in drawn} == {3}
    pickle.loads(pickle.dumps(pbt))  # Tune keeps it in the sweep's folder
