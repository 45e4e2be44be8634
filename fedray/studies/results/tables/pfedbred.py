"""pFedBreD's tables: its Tables 2 and 3, a column each, and how many clients are averaged."""

from __future__ import annotations

from fedray.studies.results.table import MORE, Table, claimed

PROTOCOL = (
    "The paper reports the best round on test data, the mean of five runs, without deviations. Its released scripts "
    "play 200 rounds, and so do we. The budget is the paper's own as its code has it (the text says *20 local "
    "epochs*): 20 local steps per round, each on a minibatch, of which Per-FedAvg and `mh` draw a second one; on each "
    "pFedMe and pFedBreD take five proximal steps. Its Appendix C.1 tests Per-FedAvg after two steps; its code, and "
    "we, after one. That comes nearer to its figures ([Per-FedAvg](../methods/per_fedavg.md)). Our `mh` is the paper's "
    "mg, as its released code has it. Bold face is lost in our copy: we take the largest figure of a column of its "
    "Table 2. The second best of the personal figures are still underlined there, and are second by our reading, too. "
    "No global figure has a mark, so orderings of these are our inference, marked *largest*. That `mh` without tricks "
    "is better than its parts is *inferred* from its figures; they do not show that it is better than FedAMP. FedEM is "
    "left out of all orderings: it has no global model, although the paper prints its figures as such (on FMNIST 92.47 "
    "and 95.23, above all others). Four of the eight columns are left out: both of FEMNIST, CIFAR-10 and Sent140."
)
UNITS = {
    "MNIST": "",
    "FMNIST": " FedAvg, FedAMP, FedEM and Per-FedAvg scale inputs by the mean and deviation of the training "
    "examples, the other rows by those of all: zero differs by 0.02 deviations.",
}
APPENDIX = "pFedBreD, Table 3 of the appendix"
OPEN = {
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
    ("FMNIST", "DNN"): ("mh+ft", "fedavg", "fedavg+am", "per_fedavg+am", "mh+am"),
}
FURTHER = {("FMNIST", "DNN"): 7}  # seeds of these


def _column(dataset: str, network: str) -> Table:
    """A column of Tables 2 and 3. Beside the bold face the paper claims that mh is better than its parts."""
    claims = (
        *claimed("pFedBreD, Table 2, without tricks", "personal/accuracy", "mh", "pfedme", "per_fedavg", inferred=True),
        *claimed("pFedBreD, Table 3, section 6.4", "personal/accuracy", "mh", "fo", "mfo", inferred=True),
        *claimed("pFedBreD, Table 3, section 6.4", "global/accuracy", "mh", "fo", inferred=True),
    )
    return Table(
        f"pfedbred-{dataset}-{network}".lower(),
        f"pFedBreD, Tables 2 and 3: {dataset}, {network}",
        f"{PROTOCOL}{UNITS[dataset]}",
        200,
        1,
        3,
        claims,
        ("pFedBreD, Table",),
        bold=("personal/accuracy",),
        largest=("global/accuracy",),
        marked="pFedBreD, Table 2",
        more=OPEN.get((dataset, network), ()),
        more_seeds=FURTHER.get((dataset, network), MORE),
    )


TABLES = (
    _column("MNIST", "MCLR"),
    _column("FMNIST", "MCLR"),
    _column("MNIST", "DNN"),
    _column("FMNIST", "DNN"),
    Table(
        "pfedbred-c5",
        "pFedBreD, Appendix C.5: averaged clients",
        f"{PROTOCOL} The figures of this appendix are means of two runs. Its text calls them the best, the caption of "
        "its table those *at the same not-converged global epoch*; we take the best, for its column of 20 clients is "
        "Table 2's. Its half on FEMNIST is left out.",
        200,
        1,
        3,
        tuple(
            claim
            for column in ("fmnist-mclr", "fmnist-dnn")
            for more in (50, 100)
            for claim in claimed(APPENDIX, "global/accuracy", f"{column}-{more}", f"{column}-10")
        ),
        (APPENDIX,),
        only=("fmnist-mclr", "fmnist-dnn"),
        more=(
            "fmnist-mclr-10",
            "fmnist-mclr-50",
            "fmnist-mclr-100",
            "fmnist-dnn-10",
            "fmnist-dnn-50",
            "fmnist-dnn-100",
        ),
        more_seeds=7,
    ),
)
