"""pFedBreD's tables: its Tables 2 and 3, a column each, and how many clients are averaged."""

from __future__ import annotations

from fedray.studies.results.table import Table, claimed

PROTOCOL = (
    "The paper reports the best of 200 rounds on test data, the mean of five runs, without deviations. We play as many "
    "rounds. The budget is the paper's own: 20 minibatches per round, on each of which pFedMe and pFedBreD take five "
    "steps, and the others one. Bold face is lost in our copy: we take the largest printed figure of a column."
)
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
}


def _column(dataset: str, network: str) -> Table:
    """A column of Tables 2 and 3. Beside the bold face the paper claims that mh is better than its parts."""
    claims = (
        *claimed("pFedBreD, Table 2, without tricks", "personal/accuracy", "mh", "pfedme", "per_fedavg"),
        *claimed("pFedBreD, Table 3, section 6.4", "personal/accuracy", "mh", "fo", "mfo"),
        *claimed("pFedBreD, Table 3, section 6.4", "global/accuracy", "mh", "fo"),
    )
    return Table(
        f"pfedbred-{dataset}-{network}".lower(),
        f"pFedBreD, Tables 2 and 3: {dataset}, {network}",
        PROTOCOL,
        200,
        1,
        3,
        claims,
        ("pFedBreD, Table",),
        bold=("personal/accuracy", "global/accuracy"),
        more=OPEN.get((dataset, network), ()),
    )


TABLES = (
    _column("MNIST", "MCLR"),
    _column("FMNIST", "MCLR"),
    _column("MNIST", "DNN"),
    _column("FMNIST", "DNN"),
    Table(
        "pfedbred-c5",
        "pFedBreD, Appendix C.5: averaged clients",
        PROTOCOL,
        200,
        1,
        2,
        tuple(
            claim
            for column in ("fmnist-mclr", "fmnist-dnn")
            for more in (50, 100)
            for claim in claimed(APPENDIX, "global/accuracy", f"{column}-{more}", f"{column}-10")
        ),
        (APPENDIX,),
        only=("fmnist-mclr", "fmnist-dnn"),
    ),
)
