"""A table of docs/results: cells of a study with rounds and seeds of their own, and what their paper claims."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Set
from typing import Literal, NamedTuple

from fedray.config import override
from fedray.studies.agenda import Options, PlannedRun, plan_runs
from fedray.studies.results.data import BEST

MORE = 6  # seeds, as a rule, of the rows of claims that a table's first seeds left open


class Claim(NamedTuple):
    """An ordering that a paper claims, or a question of ours: one cell is better than another in a metric."""

    metric: str
    better: str
    worse: str
    source: str  # where it is claimed, or what we ask
    ours: bool = False
    best: str = ""  # which evaluations it is about: the mean of the last ten, or the best, as the paper prints
    inferred: bool = False  # whether it is our reading: of figures without a mark in our copy, or of other words


class Table(NamedTuple):
    """A table of the page: cells of a study with rounds and seeds of their own."""

    study: str
    title: str
    protocol: str  # how ours differs from the paper's
    rounds: int
    eval_every: int
    seeds: int
    claims: tuple[Claim, ...] = ()  # in words
    sources: tuple[str, ...] = ()  # of the figures to compare with, as in published.csv, the first that has one
    best: str = BEST  # which evaluations the paper takes the best of
    bold: tuple[str, ...] = ()  # metrics of which the paper prints the best in bold
    largest: tuple[str, ...] = ()  # metrics of which it should, but our copy of the paper shows no mark
    marked: str = ""  # what the sources of the figures begin with among which the best is marked: all of the table's
    within_rows: bool = False  # whether bold is the best of each method, and not of the column
    only: tuple[str, ...] = ()
    size: Literal["small", "medium", "large", "all"] = "all"
    more: tuple[str, ...] = ()  # cells and tags with more seeds, for those of the table left claims open
    border: tuple[str, ...] = ()  # others with as many, whose verdicts those of the table left near their border
    more_seeds: int = MORE
    eval_last: int = 0  # how many of the last rounds are all evaluated
    registered: str = ""  # hypothesis, statistic and decision, written down before the first run
    reading: str = ""  # of a paper whose figures stand in another table, too: what is read in another way here
    fitted: bool = False  # whether readings of its protocol were chosen by the figures that it is compared with

    def options(self) -> Options:
        """The options that play it."""
        return Options(
            seeds=self.seeds,
            rounds=self.rounds,
            eval_every=self.eval_every,
            eval_last=self.eval_last,
            only=self.only,
            size=self.size,
        )

    @property
    def slug(self) -> str:
        """A name for its files, which no other table has."""
        return "-".join([self.study, *([] if self.size == "all" else [self.size]), str(self.rounds)])

    @property
    def extended(self) -> tuple[str, ...]:
        """The cells and tags with more seeds than the table."""
        return (*self.more, *self.border)

    def runs(self) -> Mapping[str, PlannedRun]:
        """Every run of it that can be played, by the fingerprint of its settings."""
        first, further = _planned(self)
        return {**first, **further}

    def comparable(self) -> Set[str]:
        """Fingerprints of runs that its rows may have: its own, and the same without ``eval_last``."""
        runs = self.runs()
        if not self.eval_last:
            return runs.keys()
        without = (run._replace(experiment=override(run.experiment, {"eval_last": 0})) for run in runs.values())
        return runs.keys() | {run.fingerprint for run in without}

    def further(self) -> Mapping[str, PlannedRun]:
        """Those that only the rows with more seeds have."""
        return _planned(self)[1]


@functools.cache
def _planned(table: Table) -> tuple[Mapping[str, PlannedRun], Mapping[str, PlannedRun]]:
    """The runs of all rows, and those that only rows with more seeds have, by their fingerprints."""
    first = {run.fingerprint: run for run in plan_runs(table.study, table.options()).runs}
    if not table.extended:
        return first, {}
    options = dataclasses.replace(table.options(), seeds=table.more_seeds, only=table.extended)
    further = {run.fingerprint: run for run in plan_runs(table.study, options).runs}
    return first, {fingerprint: run for fingerprint, run in further.items() if fingerprint not in first}


def claimed(source: str, metric: str, better: str, *worse: str, inferred: bool = False) -> tuple[Claim, ...]:
    """A paper's claim that one cell is better than each of the others; inferred: it says so in other words."""
    said = f"{source}, inferred" if inferred else source
    return tuple(Claim(metric, better, each, said, inferred=inferred) for each in worse)


def asked(question: str, metric: str, better: str, *worse: str) -> tuple[Claim, ...]:
    """A question of ours: is one cell better than each of the others?"""
    return tuple(each._replace(ours=True) for each in claimed(question, metric, better, *worse))
