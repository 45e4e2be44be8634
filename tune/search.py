"""Which configurations are tried, and which trials go on: Tune's searchers and schedulers with our defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ray import tune as ray_tune
from ray.tune.experiment.trial import Trial as TuneTrial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule, PopulationBasedTraining
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.basic_variant import BasicVariantGenerator

from fedray.types import FedRayError, LogUniform, Uniform
from tune.options import Sweep
from tune.space import Choice, Domain, Grid, show, to_tune

REDUCTION = 3  # of the trials at a rung, one in three goes on (Li et al. 2020 use 4, for hundreds of trials)


class _Bounded:
    """Resumes with as many trials at a time as it was made for; Tune's own searchers go back to the first command's."""

    max_concurrent: int

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state | {"max_concurrent": self.max_concurrent})  # pyright: ignore[reportAttributeAccessIssue]


class Variants(_Bounded, BasicVariantGenerator):
    """Tune's own draws and grids."""


class Limiter(_Bounded, ConcurrencyLimiter):
    """A sampler that sees a few trials at a time."""


class Median(MedianStoppingRule):
    """The median rule among trials with a result: Tune's own looks for the measure in what a failed one reports."""

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Keep the last result of a trial that ended well."""
        if self._metric in result:
            super().on_trial_complete(tune_controller, trial, result)


class Population(PopulationBasedTraining):
    """Population based training that loses no trial: Tune's own ends one that it copies over while it is saved, and
    leaves all others waiting for one that fails."""

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """The next trial; where all that are left have waited for one that failed, they are copied without it."""
        trials = tune_controller.get_trials()
        left = [trial for trial in trials if not trial.is_finished()]
        states = self._trial_state
        reached = self._next_perturbation_sync
        # Tune copies when the last trial reports that it has come as far as the others, which a failed one never does.
        if left and all(
            trial.status == TuneTrial.PAUSED and states[trial].last_train_time >= reached for trial in left
        ):
            for trial in set(trials).difference(left):  # Tune goes on waiting for one whose process was lost
                states[trial].last_train_time = max(states[trial].last_train_time, int(reached))
            self.on_trial_result(tune_controller, left[0], states[left[0]].last_result or {})
        return super().choose_trial_to_run(tune_controller)

    def _exploit(self, tune_controller: Any, trial: Any, trial_to_clone: Any) -> None:
        # Pausing a trial whose save is under way makes Tune's controller note a stop for it, which it executes after
        # the trial's next round (seen with Ray 2.56). That save is of no more use: forget it before the pause.
        trial.temporary_state.saving_to = None
        super()._exploit(tune_controller, trial, trial_to_clone)


def parameters(space: Mapping[str, Domain], search: str, seeds: Sequence[int]) -> dict[str, Any]:
    """What every trial's configuration is made of, in Tune's terms; several seeds repeat each configuration.

    Raises FedRayError where the search cannot cover the space.
    """
    if search == "grid":
        for path, domain in space.items():
            name = path.removeprefix("algorithm.")
            given = f"--search grid: {name}={show(domain)}"
            if not isinstance(domain, Grid | Choice):
                raise FedRayError(f"{given} has no grid; write --space '{name}=grid(A,B,...)'")
            if len(set(domain.values)) < len(domain.values):  # its trials would count as two seeds
                raise FedRayError(f"{given}: a value is given twice; give each once")
        domains: dict[str, Any] = {name: ray_tune.grid_search(list(d.values)) for name, d in space.items()}  # type: ignore[union-attr]
    else:
        domains = {name: to_tune(domain) for name, domain in space.items()}
    return domains | {"seed": ray_tune.grid_search(seeds) if len(seeds) > 1 else seeds[0]}


def draws(space: Mapping[str, Domain], search: str, samples: int) -> int:
    """How many configurations are drawn: one of a space of grids alone, for the others would be the same again."""
    return 1 if search == "grid" or all(isinstance(domain, Grid) for domain in space.values()) else samples


def count(space: Mapping[str, Domain], search: str, samples: int, seeds: int) -> int:
    """How many trials the sweep has."""
    trials = seeds * draws(space, search, samples)
    for domain in space.values():
        if isinstance(domain, Grid) or (search == "grid" and isinstance(domain, Choice)):
            trials *= len(domain.values)
    return trials


def searcher(sweep: Sweep, space: Mapping[str, Domain], concurrency: int, seeds: Sequence[int]) -> Any:
    """Tune's search algorithm.

    Raises FedRayError for what Optuna's sampler does not do: several seeds, and grids.
    """
    if sweep.search != "tpe":
        # Trials that wait to be copied count, too: a bound would be one for the population. Reservations bound it.
        most = 0 if sweep.scheduler == "pbt" else concurrency
        # A configuration is drawn once and repeated for every seed.
        return Variants(constant_grid_search=True, random_state=seeds[0], max_concurrent=most)
    if len(seeds) > 1:
        raise FedRayError(f"--seeds {len(seeds)}: tpe learns from single trials; use --search random, or one seed")
    if any(isinstance(domain, Grid) for domain in space.values()):
        raise FedRayError("--search tpe: does not cover a grid; write choice(...) in --space, or use --search random")
    import optuna
    from optuna.samplers import TPESampler
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # each study would say that it was created
    sampler = TPESampler(seed=seeds[0], n_startup_trials=max(4, concurrency))
    return Limiter(OptunaSearch(metric=sweep.metric, mode=sweep.mode, sampler=sampler), max_concurrent=concurrency)


def scheduler(sweep: Sweep, space: Mapping[str, Domain], eval_every: int = 1) -> Any:
    """Tune's trial scheduler; time is counted in rounds, of which every ``eval_every``-th has a result.

    Raises FedRayError for what stops or copies trials over several seeds, whose mean needs equal rounds; and for
    population based training over clients, data or networks, for it copies the states of one trial into another, and
    with Optuna's sampler.
    """
    metric = sweep.metric
    mode = sweep.mode
    rounds = sweep.max_rounds or 1
    grace = sweep.grace_rounds or 1
    if sweep.scheduler == "none":
        return FIFOScheduler()
    if sweep.seeds > 1:
        does = "copies trials into each other" if sweep.scheduler == "pbt" else "stops the trial of each seed by itself"
        raise FedRayError(
            f"--seeds {sweep.seeds}: --scheduler {sweep.scheduler} {does}, and federations of different length have no "
            "mean; use --scheduler none, or one seed"
        )
    if sweep.scheduler == "asha":
        return AsyncHyperBandScheduler(
            "round", metric, mode, max_t=rounds, grace_period=grace, reduction_factor=REDUCTION
        )
    if sweep.scheduler == "median":
        return Median("round", metric, mode, grace_period=grace, min_samples_required=2)
    if sweep.search == "tpe":
        raise FedRayError(
            "--search tpe: --scheduler pbt begins all trials together, before there is a result to learn from; use "
            "--search random, or --scheduler asha"
        )
    for name in space:
        if not name.startswith("algorithm."):
            raise FedRayError(
                f"--space {name}: --scheduler pbt copies a federation's states into trials with another {name}; "
                "search settings of the algorithm, or use asha"
            )
    mutations = {
        name: list(domain.values) if isinstance(domain, Choice | Grid) else to_tune(domain)
        for name, domain in space.items()
    }
    return Population(
        "round",
        metric,
        mode,
        # At an evaluated round: of trials that are beyond the next copy already, Tune waits for one that is not.
        perturbation_interval=math.ceil(grace / eval_every) * eval_every,
        hyperparam_mutations=mutations,
        custom_explore_fn=partial(_clipped, space),
        synch=True,
    )


def _clipped(space: Mapping[str, Domain], config: dict[str, Any]) -> dict[str, Any]:
    """A configuration that Tune perturbed, by factors that know no range, with its settings back in theirs."""
    ranges = {name: domain for name, domain in space.items() if isinstance(domain, LogUniform | Uniform)}
    return config | {name: min(max(config[name], domain.low), domain.high) for name, domain in ranges.items()}
