"""What docs/results publishes: which studies, with how many rounds and seeds, and what their papers claim."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Literal, NamedTuple

from fedray.studies.agenda import Options, PlannedRun, plan_runs


class Claim(NamedTuple):
    """An ordering that a paper claims, such as by its bold face: one cell has the larger value of a metric."""

    metric: str
    better: str
    worse: str


class Table(NamedTuple):
    """A table of the page: cells of a study with rounds and seeds of their own."""

    study: str
    title: str
    protocol: str  # how ours differs from the paper's
    rounds: int
    eval_every: int
    seeds: int
    claims: tuple[Claim, ...] = ()
    only: tuple[str, ...] = ()
    size: Literal["small", "medium", "large", "all"] = "all"

    def options(self) -> Options:
        """The options that play it."""
        return Options(seeds=self.seeds, rounds=self.rounds, eval_every=self.eval_every, only=self.only, size=self.size)

    def runs(self) -> tuple[PlannedRun, ...]:
        """Every run of it that can be played."""
        return _planned(self)


@functools.cache
def _planned(table: Table) -> tuple[PlannedRun, ...]:
    return plan_runs(table.study, table.options()).runs


def _claims(metric: str, better: str, *worse: str) -> tuple[Claim, ...]:
    return tuple(Claim(metric, better, each) for each in worse)


def _table1(size: str) -> tuple[Claim, ...]:
    """The bold face of pFedBayes' Table 1."""
    personal = [f"{name}-{size}" for name in ("per_fedavg", "pfedme", "heurfedamp", "pfedgp")]
    common = [f"{name}-{size}" for name in ("fedavg", "fedprox", "bnfed", "pfedme")]
    return (
        *_claims("personal/accuracy", f"pfedbayes-{size}", *personal),
        *_claims("global/accuracy", f"pfedbayes-{size}", *common),
    )


SELECTION = tuple(
    claim for policy in ("hip", "ksd") for claim in _claims("global/accuracy", policy, "round_robin", "uniform")
)
BREGMAN = _claims("personal/accuracy", "mh", "pfedme", "per_fedavg", "fedem", "fedamp", "fo", "mfo")
PIXELS = "The paper reports the best of 700 to 800 rounds, of one split; we play {rounds} rounds of 100 gradient steps."
TABLE1 = (
    f"{PIXELS.format(rounds=200)} A client's model takes as many steps in every method, on minibatches of 100. The "
    "paper does not say how many its methods take, and tunes learning rates; ours are the defaults."
)
BPFED = (
    "The figures are those of a co-author's code: one seed, the best of 800 rounds. We play 200 rounds of 100 steps."
)
COLUMN = (
    "The paper reports the best of 200 rounds on test data, the mean of five runs, without deviations. We play as many "
    "rounds. The budget is the paper's own: 20 minibatches per round, on each of which pFedMe and pFedBreD take five "
    "steps."
)
POLICIES = (
    "The paper prints plots without numbers. Covertype is an excerpt: 92,962 of 581,012 rows (16 %). A claim is that "
    "the policy has the more accurate global model."
)
UNCERTAINTY = "No paper has these figures. All their measures are in [uncertainty.md](../uncertainty.md)."

TABLES: tuple[Table, ...] = (
    Table("selection", "Client selection: Covertype 1:9, 30 clients", POLICIES, 100, 2, 10, SELECTION),
    Table("selection-120", "Client selection: Covertype 1:9, 120 clients", POLICIES, 100, 2, 10, SELECTION),
    Table(
        "selection-mnist", "Client selection: MNIST 0-8, 27 clients", "The paper prints plots.", 100, 4, 10, SELECTION
    ),
    Table("pfedbred-mnist-mclr", "pFedBreD, Tables 2 and 3: MNIST, MCLR", COLUMN, 200, 1, 3, BREGMAN),
    Table("pfedbred-fmnist-mclr", "pFedBreD, Tables 2 and 3: FMNIST, MCLR", COLUMN, 200, 1, 3, BREGMAN),
    Table("pfedbred-mnist-dnn", "pFedBreD, Tables 2 and 3: MNIST, DNN", COLUMN, 200, 1, 2, BREGMAN),
    Table("pfedbred-fmnist-dnn", "pFedBreD, Tables 2 and 3: FMNIST, DNN", COLUMN, 200, 1, 2, BREGMAN),
    Table(
        "pfedbred-c5", "pFedBreD, Appendix C.5: averaged clients", COLUMN, 200, 1, 1, (), ("fmnist-mclr", "fmnist-dnn")
    ),
    Table("table1-mnist", "pFedBayes, Table 1: MNIST small", TABLE1, 200, 5, 3, _table1("small"), size="small"),
    Table("table1-fmnist", "pFedBayes, Table 1: FMNIST small", TABLE1, 200, 5, 3, _table1("small"), size="small"),
    Table("table1-mnist", "pFedBayes, Table 1: MNIST medium", TABLE1, 200, 5, 3, _table1("medium"), size="medium"),
    Table("table1-fmnist", "pFedBayes, Table 1: FMNIST medium", TABLE1, 200, 5, 3, _table1("medium"), size="medium"),
    Table("table1-mnist", "pFedBayes, Table 1: MNIST large", TABLE1, 200, 5, 3, _table1("large"), size="large"),
    Table(
        "table1-cifar10",
        "pFedBayes, Table 1: CIFAR-10 small",
        TABLE1,
        200,
        5,
        3,
        only=("pfedbayes", "bpfed", "fedavg", "fedper", "pfedme"),
        size="small",
    ),
    Table("table2", "pFedBayes, Table 2: ζ, ρ and learning rates", PIXELS.format(rounds=200), 200, 5, 3),
    Table("table3", "pFedBayes, Table 3: learning rates of the rivals", PIXELS.format(rounds=200), 200, 5, 3),
    Table("bpfed-mnist", "BPFed: MNIST", BPFED, 200, 5, 3),
    Table("bpfed-fmnist", "BPFed: FMNIST", BPFED, 200, 5, 3),
    Table("uncertainty-digits", "Uncertainty: digits", UNCERTAINTY, 20, 5, 3),
    Table("uncertainty-mnist", "Uncertainty: MNIST small", UNCERTAINTY, 20, 5, 3),
)


def published() -> Iterator[tuple[Table, PlannedRun]]:
    """Every run of every table."""
    for table in TABLES:
        for run in table.runs():
            yield table, run
