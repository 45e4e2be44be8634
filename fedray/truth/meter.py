"""The measurement: every method on every problem, against the exact posterior and by simulation-based calibration.

A global posterior is compared with the posterior of all clients' examples together. A personal one is compared with
the client's posterior given its own examples, under the prior that the method holds it to: the global distribution
where it publishes one (pFedBayes), else the problem's prior.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch

from fedray.truth import calibration, contestants, reference
from fedray.truth.calibration import Calibration
from fedray.truth.distance import Distance, distance, mean
from fedray.truth.posterior import MeanAndCovariance, Reader
from fedray.truth.problem import PROBLEMS, simulate

DRAWS = 99  # of a Gaussian, among which the truth is ranked


class Job(NamedTuple):
    """One method on simulated data sets of one problem."""

    problem: str
    method: str
    seeds: tuple[int, ...]
    measured: bool  # whether the first data set is also compared with its exact posterior


class Finding(NamedTuple):
    """What a job finds."""

    job: Job
    distance: Distance | None
    calibration: Calibration
    seconds: float  # of CPU


class Contest(NamedTuple):
    """A method on a problem."""

    problem: str
    method: str
    distance: Distance
    calibration: Calibration | None  # None: nothing was ranked
    seconds: float = 0.0  # of CPU


def measure(job: Job) -> Finding:
    """Play the federations of a job."""
    torch.set_num_threads(1)
    began = time.process_time()
    problem = PROBLEMS[job.problem]
    contestant = contestants.of(job.problem)[job.method]
    found, ranks, draws = None, [], 0
    for seed in job.seeds:
        world = simulate(problem, seed)
        reader = Reader(problem, contestants.play(contestant, world, seed))
        clients: Sequence[int | None] = range(len(problem.x)) if problem.personal else [None]
        if job.measured and found is None:
            data = reference.of_clients(world) if problem.personal else reference.pooled(world)
            exact = reference.posteriors(problem, data, held_to(reader) if problem.personal else None)
            found = mean([distance(reader.moments(i), p) for i, p in zip(clients, exact, strict=True)])
        for i in clients:
            taken = reader.draws(i, DRAWS)
            ranks.append(calibration.rank(world.theta[i or 0], taken))
            draws = len(taken)
    return Finding(job, found, Calibration(np.stack(ranks), draws), time.process_time() - began)


def held_to(reader: Reader) -> MeanAndCovariance | None:
    """The global distribution, which is the prior of the personal posteriors; None: there is none."""
    return reader.moments() if reader.federation.plan.algorithm.predict_global else None


def jobs(problems: Sequence[str], sets: int) -> Iterator[Job]:
    """Every method on every problem; of global posteriors ``sets`` data sets, in pieces, on one problem only.

    Clients with parameters of their own are as many data sets.
    """
    for name in problems:
        ranked = name == RANKED
        for method in contestants.of(name):
            seeds = range(sets) if ranked else range(1)
            for k in range(PIECES if ranked else 1):
                own = tuple(seeds[k :: PIECES if ranked else 1])
                if own:
                    yield Job(name, method, own, k == 0)


RANKED = "correlated"  # the problem of the global posteriors on which the truth is ranked
PIECES = 5  # jobs of its data sets


def bounds(problems: Sequence[str]) -> list[Contest]:
    """What no method with independent Gaussian parameters can be better than, where the exact posterior is known."""
    rows = []
    for name in problems:
        problem = PROBLEMS[name]
        if problem.noise_sd is None or problem.personal:
            continue
        (exact,) = reference.posteriors(problem, reference.pooled(simulate(problem, 0)))
        rows.append(
            Contest(name, "bound: best independent Gaussian", distance(reference.independent(exact), exact), None)
        )
    return rows


def play(
    problems: Sequence[str], sets: int, processes: int, moved: Callable[[int, str], Any] = lambda done, note: None
) -> list[Contest]:
    """All rows, in the order of the problems and methods; ``moved`` is told of every job that has ended."""
    wanted = list(jobs(problems, sets))
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running = [pool.submit(measure, job) for job in wanted]
        for done, future in enumerate(as_completed(running), 1):
            job = future.result().job
            moved(done, f"{job.problem}: {job.method}")
        outcomes = [future.result() for future in running]
    return [*bounds(problems), *joined(outcomes)]


def count(problems: Sequence[str], sets: int) -> int:
    """The number of jobs."""
    return len(list(jobs(problems, sets)))


def joined(outcomes: Sequence[Finding]) -> list[Contest]:
    """A row for each method on each problem, of the pieces of its data sets."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.job[:2], []).append(outcome)
    rows = []
    for (problem, method), parts in groups.items():
        found = next(part.distance for part in parts if part.distance is not None)
        ranks = np.concatenate([part.calibration.ranks for part in parts])
        seconds = sum(part.seconds for part in parts)
        ranked = Calibration(ranks, parts[0].calibration.draws) if len(ranks) > 1 else None
        rows.append(Contest(problem, method, found, ranked, seconds))
    return rows
