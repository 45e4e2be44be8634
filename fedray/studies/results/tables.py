"""What docs/results publishes: which studies, with how many rounds and seeds, and what their papers claim."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal, NamedTuple

from fedray.studies.agenda import Options, PlannedRun, plan_runs
from fedray.studies.results.data import BEST, LATE

MORE = 6  # seeds of the rows of claims that a table's first seeds left open


class Claim(NamedTuple):
    """An ordering that a paper claims, or a question of ours: one cell is better than another in a metric."""

    metric: str
    better: str
    worse: str
    source: str  # where it is claimed, or what we ask
    ours: bool = False
    best: str = ""  # which evaluations it is about: the mean of the last ten, or the best, as the paper prints


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
    within_rows: bool = False  # whether bold is the best of each method, and not of the column
    only: tuple[str, ...] = ()
    size: Literal["small", "medium", "large", "all"] = "all"
    more: tuple[str, ...] = ()  # cells and tags with MORE seeds, for their claims were open with those of the table
    registered: str = ""  # hypothesis, statistic and decision, written down before the first run
    fitted: bool = False  # whether readings of its protocol were chosen by the figures that it is compared with

    def options(self) -> Options:
        """The options that play it."""
        return Options(seeds=self.seeds, rounds=self.rounds, eval_every=self.eval_every, only=self.only, size=self.size)

    @property
    def slug(self) -> str:
        """A name for its files, which no other table has."""
        return "-".join([self.study, *([] if self.size == "all" else [self.size]), str(self.rounds)])

    def runs(self) -> Mapping[str, PlannedRun]:
        """Every run of it that can be played, by the fingerprint of its settings."""
        return _planned(self)


@functools.cache
def _planned(table: Table) -> Mapping[str, PlannedRun]:
    planned = plan_runs(table.study, table.options()).runs
    if table.more:
        planned += plan_runs(table.study, dataclasses.replace(table.options(), seeds=MORE, only=table.more)).runs
    return {run.fingerprint: run for run in planned}


def _claims(source: str, metric: str, better: str, *worse: str) -> tuple[Claim, ...]:
    return tuple(Claim(metric, better, each, source) for each in worse)


def _ours(question: str, metric: str, better: str, *worse: str) -> tuple[Claim, ...]:
    return tuple(each._replace(ours=True) for each in _claims(question, metric, better, *worse))


ACCURACY = ("personal/accuracy", "global/accuracy")

# Client selection. "Steadier" is a smaller deviation of the last ten evaluations.
SELECTION = (
    *_claims("Figure 3, section IV-C", "global/accuracy", "hip", "round_robin", "uniform"),
    *_claims("Figure 4, section IV-D", "global/accuracy", "hip", "ksd"),
    *_claims("Figure 2, section IV-B", "global/accuracy", "ksd", "round_robin", "uniform"),
    *_claims("Figure 3, section IV-C", "global/stability", "hip", "round_robin", "uniform"),
    *_claims("Figure 4, section IV-D", "global/stability", "hip", "ksd"),
    *_claims("Figure 2, section IV-B", "global/stability", "ksd", "round_robin", "uniform"),
)
HYPOTHESIS = _ours("the registered hypothesis", "global/accuracy", "hip", "round_robin")
SECONDARY = (
    *_ours("registered as secondary", "global/nll", "hip", "round_robin"),
    *_ours("registered as secondary", "global/accuracy", "hip", "uniform"),
    *_ours("registered as secondary", "global/accuracy", "ksd", "round_robin", "uniform"),
)
EXCERPT = "Covertype is an excerpt: 92,962 of 581,012 rows (16 %)."
PLOTS = "The paper prints plots without numbers; its claims are those of its text."
COVERTYPE = (
    f"{PLOTS} {EXCERPT} Ten seeds left 14 of the 20 claims of this table and its neighbour open. So thirty more were "
    "added, all at once. They were planned after a look at ten, which makes the intervals a little too narrow."
)
RULE = (
    "The statistic is the accuracy of the global model, the mean of the last ten evaluations (rounds 21 to 30), HIP "
    "minus round robin, paired over the seeds 0 to 9. The hypothesis *holds* if Student's 95 % interval of the mean "
    "difference is above zero, is *refuted* if it is below, and stays *open* otherwise. The settings are those of "
    "`selection`: nothing is tuned on this partition, and no seed is added after a look at results. All else is "
    "secondary: NLL, KSD, random draws, and 100 rounds. This text was written before the first of these runs."
)
RARE = (
    "*Hypothesis*: where few clients hold a class, one turn of round robin (30 rounds) leaves the global model less "
    "accurate than 30 rounds of HIP. Three of 30 clients, the 10th, the 20th and the 30th, hold 92 % of class 1: their "
    "examples are 99:1, and the others' 1:99. Round robin reaches them in rounds 10, 20 and 30. HIP should draw them "
    "sooner and more often. Class 1 is 11 % of the test examples, so 89.2 % are right without any knowledge of it."
)
UNEQUAL = (
    "*Hypothesis*: where sizes differ much, one turn of round robin (30 rounds) leaves the global model less accurate "
    "than 30 rounds of HIP. The share of each class that a client holds is drawn from Dir(0.3, ..., 0.3), so some of "
    "30 clients hold thousands of examples and others a few. Round robin gives each of them one round. HIP should draw "
    "large clients more often, for their likelihoods move the posterior most. Shares of classes differ too."
)
LATER = "The same partition after 100 rounds, as in `selection`. Registered as secondary, with the table above."

READINGS = """

**Six readings were chosen on test data**, because seed 0 came nearer to printed figures of MNIST or, for the first and
the last, FMNIST:

1. pFedBayes takes one step of its posterior per minibatch; our default and public code take five.
2. Its models are tested by one draw of their weights. Large, and some rows of Table 2, fit ten draws better.
3. Per-FedAvg is tested after two steps. This takes it further from its figures on small.
4. pFedMe and Per-FedAvg have minibatches of 100, too; in pFedMe's code they have 20.
5. BNFed has inputs in [0, 1], and the variances of its authors' code.
6. HeurFedAMP has the pull of public codes (λ = 1, α = 10⁴), and a client starts from its own model. Then a client
   trains alone for all that one can tell. With our defaults HeurFedAMP is better than its printed figures.

Readings that came out further away were dropped, pFedMe's own start of its proximal steps among them. In pFedMe's code
Per-FedAvg takes the steps before its test on test examples; ours are training examples."""
TABLE1 = (
    "The paper reports the highest accuracy over 700 to 800 rounds. We take it over the last eighth of the rounds, the "
    "highest of six evaluations: its Table 3 has accuracies below 10 %, which the best of all rounds would not be. "
    "Settings are those of its section 5.2. pFedBayes takes the steps of its Algorithm 1, with Adam. Where the paper "
    "is silent, numbers of steps and examples are those of public code: pFedMe's, on which its experiments are built, "
    "or that of the method. So a round has 20 minibatches, of 100 examples for every method. On each, pFedBayes takes "
    "one step of its posterior and one of its copy of the global distribution, pFedMe five, Per-FedAvg two, and the "
    "others one. Methods that the paper lacks have our defaults; those of FedAMP, FedEM and FedPop were first chosen "
    "by accuracies on test data of MNIST small, then checked on validation examples ([methods](../methods/README.md))."
    f"{READINGS}"
)
AS_TABLE1 = "The protocol is that of [Table 1, MNIST small](#pfedbayes-table-1-mnist-small)."
TUNING = f"{AS_TABLE1} The rows are the paper's: no rate is chosen here, but the readings of that protocol were."
EQUAL_STEPS = (
    "No paper has this table. In Table 1 of pFedBayes a client's model takes five times as many steps in some methods "
    "as in others. Here it takes 100 gradient steps per round in every method, on minibatches of 100. The rates are "
    "the same, but BNFed has our 0.1, with our inputs and variances. Posteriors predict by the mean of ten draws, and "
    "Per-FedAvg's model after one step."
)
BPFED = (
    "Our copy of the paper lacks the figures of its Table I. Those here are from logs and predictions of a co-author's "
    "code: one seed, the best of 800 rounds; the ECE of pFedBayes and FedSOUL is printed (Table II). We play 200 "
    "rounds of 100 steps for every method. `bpfed,head.bias` was found by accuracies on test data of MNIST small, so "
    "it is no fair rival there."
)
NOVEL = (
    "The paper prints plots (Figures 7 to 9) without numbers; its claims are those of its text. It holds one client "
    "out; we hold out two, one of each kind. After 200 rounds of the others they train their personal layers for 100 "
    "rounds, and the shared layers stay as they are. `local` trains all layers of each of them from scratch. Their "
    "models are called *novel*. In a co-author's code the shared layers of BPFed's newcomers are random, so its plots "
    "cannot be compared with."
)
COLUMN = (
    "The paper reports the best of 200 rounds on test data, the mean of five runs, without deviations. We play as many "
    "rounds. The budget is the paper's own: 20 minibatches per round, on each of which pFedMe and pFedBreD take five "
    "steps, and the others one. Bold face is lost in our copy: we take the largest printed figure of a column."
)
UNCERTAINTY = "No paper has these figures. All their measures are in [uncertainty.md](../uncertainty.md)."

PERSONAL_RIVALS = ("pfedme", "per_fedavg", "heurfedamp")
GLOBAL_RIVALS = ("pfedme", "fedavg", "fedprox", "bnfed")
RIVALS = ("pfedbayes", *dict.fromkeys((*PERSONAL_RIVALS, *GLOBAL_RIVALS)))
PRINTED = (*RIVALS, "pfedgp")  # the columns of Table 1
PERSONALIZED = ("bpfed", "fedper", "fedrep", "lg_fedavg", "fedem", "fedpop", "fedamp", "pfedbred")
CONTROLS = ("local", "pooled")
OPEN_TABLE1 = {
    ("FMNIST", "small"): ("pfedbayes", "per_fedavg", "fedprox", "fedavg", "pfedme"),
    ("MNIST", "medium"): ("pfedbayes", "fedprox", "pfedme", "fedavg"),
    ("FMNIST", "medium"): ("pfedbayes", "fedprox", "pfedme", "per_fedavg", "fedavg"),
}
OPEN_COLUMNS = {
    ("FMNIST", "MCLR"): (
        "fedavg",
        "fedavg+am",
        "mh",
        "mh+ft",
        "mh+am",
        "pfedme",
        "pfedme+ft",
        "per_fedavg",
        "per_fedavg+ft",
    ),
    ("MNIST", "DNN"): ("mh", "mh+ft", "fedamp", "fedavg", "per_fedavg+ft"),
}
OPEN_BPFED = {
    "MNIST": ("bpfed-small", "fedper-small", "bpfed-large", "pfedbayes-large"),
    "FMNIST": ("bpfed-small", "fedsoul-small", "fedrep-small"),
}
_PERSONAL_LAYERS = ("fedper", "fedrep", "lg_fedavg", "pfedbayes", "fedsoul")


def _bpfed(size: str) -> tuple[Claim, ...]:
    """What BPFed's paper says of Tables I and II."""
    others = [f"{name}-{size}" for name in _PERSONAL_LAYERS]
    calibrated = [f"{name}-{size}" for name in ("pfedbayes", "fedsoul")]
    return (
        *_claims("BPFed, Table I, section VI-A", "personal/accuracy", f"bpfed-{size}", *others),
        *_claims("BPFed, Table II, section VI-B", "personal/ece", f"bpfed-{size}", *calibrated),
    )


def _table1(dataset: str, size: Literal["small", "medium", "large"]) -> Table:
    return Table(
        f"table1-{dataset.lower()}",
        f"pFedBayes, Table 1: {dataset} {size}",
        TABLE1 if (dataset, size) == ("MNIST", "small") else AS_TABLE1,
        800,
        20,
        3,
        sources=("pFedBayes, Table 1",),
        best=LATE,
        bold=ACCURACY,
        only=PRINTED if size == "large" else (*PRINTED, *PERSONALIZED, *CONTROLS),
        size=size,
        more=OPEN_TABLE1.get((dataset, size), ()),
        fitted=True,
    )


def _equal_steps(dataset: str) -> Table:
    """Is pFedBayes still better than the rivals that its paper has?"""
    asked = "with as many steps"
    claims = (
        *_ours(asked, "personal/accuracy", *(f"{name}-small" for name in ("pfedbayes", *PERSONAL_RIVALS))),
        *_ours(asked, "global/accuracy", *(f"{name}-small" for name in ("pfedbayes", *GLOBAL_RIVALS))),
    )
    title = f"Equal steps: {dataset} small"
    return Table(f"equal-steps-{dataset.lower()}", title, EQUAL_STEPS, 200, 5, 3, claims, only=RIVALS, size="small")


def _column(dataset: str, network: str) -> Table:
    """A column of pFedBreD's Tables 2 and 3. Beside the bold face it claims that mh is better than its parts."""
    claims = (
        *_claims("pFedBreD, Table 2, without tricks", "personal/accuracy", "mh", "pfedme", "per_fedavg"),
        *_claims("pFedBreD, Table 3, section 6.4", "personal/accuracy", "mh", "fo", "mfo"),
        *_claims("pFedBreD, Table 3, section 6.4", "global/accuracy", "mh", "fo"),
    )
    study = f"pfedbred-{dataset}-{network}".lower()
    title = f"pFedBreD, Tables 2 and 3: {dataset}, {network}"
    more = OPEN_COLUMNS.get((dataset, network), ())
    return Table(study, title, COLUMN, 200, 1, 3, claims, ("pFedBreD, Table",), bold=ACCURACY, more=more)


TABLES: tuple[Table, ...] = (
    Table("selection", "Client selection: Covertype 1:9, 30 clients", COVERTYPE, 100, 2, 40, SELECTION),
    Table("selection-120", "Client selection: Covertype 1:9, 120 clients", COVERTYPE, 100, 2, 40, SELECTION),
    Table(
        "selection-rare",
        "Client selection: few clients with a class, one turn",
        EXCERPT,
        30,
        1,
        10,
        (*HYPOTHESIS, *SECONDARY),
        registered=f"{RARE} {RULE}",
    ),
    Table(
        "selection-rare",
        "Client selection: few clients with a class, 100 rounds",
        f"{LATER} {EXCERPT}",
        100,
        2,
        10,
        _ours("registered as secondary", "global/accuracy", "hip", "round_robin"),
    ),
    Table(
        "selection-unequal",
        "Client selection: unequal sizes, one turn",
        EXCERPT,
        30,
        1,
        10,
        (*HYPOTHESIS, *SECONDARY),
        registered=f"{UNEQUAL} {RULE}",
    ),
    Table(
        "selection-unequal",
        "Client selection: unequal sizes, 100 rounds",
        f"{LATER} {EXCERPT}",
        100,
        2,
        10,
        _ours("registered as secondary", "global/accuracy", "hip", "round_robin"),
    ),
    Table(
        "selection-digits",
        "Client selection: scikit-learn's digits, 30 clients",
        "No paper has this table: the paper's claims, on data that need no download. A network, 30 clients with "
        "Dirichlet shares of the classes.",
        100,
        2,
        10,
        tuple(claim._replace(ours=True) for claim in SELECTION),
    ),
    Table("selection-mnist", "Client selection: MNIST 0-8, 27 clients", PLOTS, 100, 4, 10, SELECTION),
    _column("MNIST", "MCLR"),
    _column("FMNIST", "MCLR"),
    _column("MNIST", "DNN"),
    _column("FMNIST", "DNN"),
    Table(
        "pfedbred-c5",
        "pFedBreD, Appendix C.5: averaged clients",
        COLUMN,
        200,
        1,
        2,
        tuple(
            claim
            for column in ("fmnist-mclr", "fmnist-dnn")
            for more in (50, 100)
            for claim in _claims(
                "pFedBreD, Table 3 of the appendix", "global/accuracy", f"{column}-{more}", f"{column}-10"
            )
        ),
        ("pFedBreD, Table 3 of the appendix",),
        only=("fmnist-mclr", "fmnist-dnn"),
    ),
    _table1("MNIST", "small"),
    _table1("FMNIST", "small"),
    _table1("MNIST", "medium"),
    _table1("FMNIST", "medium"),
    _table1("MNIST", "large"),
    Table(
        "table1-cifar10",
        "pFedBayes, Table 1: CIFAR-10 small",
        AS_TABLE1,
        200,
        5,
        3,
        sources=("pFedBayes, Table 1",),
        best=LATE,
        bold=ACCURACY,
        only=("pfedbayes", "bpfed", "fedavg", "fedper", "pfedme"),
        size="small",
    ),
    _equal_steps("MNIST"),
    _equal_steps("FMNIST"),
    Table(
        "table2",
        "pFedBayes, Table 2: ζ, ρ and learning rates",
        TUNING,
        800,
        20,
        3,
        sources=("pFedBayes, Table 2",),
        best=LATE,
        bold=("global/accuracy",),
        fitted=True,
    ),
    Table(
        "table3",
        "pFedBayes, Table 3: learning rates of the rivals",
        TUNING,
        800,
        20,
        3,
        sources=("pFedBayes, Table 3",),
        best=LATE,
        bold=ACCURACY,
        within_rows=True,
        more=("heurfedamp",),
        fitted=True,
    ),
    *(
        Table(
            f"bpfed-{dataset.lower()}",
            f"BPFed: {dataset}",
            BPFED,
            200,
            5,
            3,
            (*_bpfed("small"), *_bpfed("large")),
            ("BPFed", "logs of BPFed's code", "predictions of BPFed's code"),
            more=OPEN_BPFED[dataset],
        )
        for dataset in ("MNIST", "FMNIST")
    ),
    Table(
        "bpfed-novel",
        "BPFed, section VI-C: clients that the federation has not met",
        NOVEL,
        200,
        5,
        3,
        (
            *_claims("BPFed, section VI-C", "novel/accuracy", "bpfed-mnist", "fedper-mnist", "fedrep-mnist"),
            *_ours("shared layers help newcomers", "novel/accuracy", "bpfed-mnist", "local-mnist"),
            *_ours("shared layers help newcomers", "novel/accuracy", "bpfed-fmnist", "local-fmnist"),
        ),
    ),
    Table("uncertainty-digits", "Uncertainty: digits", UNCERTAINTY, 20, 1, 3),
    Table("uncertainty-mnist", "Uncertainty: MNIST small", UNCERTAINTY, 20, 1, 3),
)
