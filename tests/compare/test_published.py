"""A published figure stands only beside a run that meets the settings it was published for."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest

from fedray.compare import published
from fedray.config import Experiment, flatten, override, to_dict
from fedray.federate.planning import resolve
from fedray.registry import algorithm_name, algorithms
from fedray.studies.named import STUDIES


def settings(algorithm, changes=None, **more):
    """The parameters of a run, as launch records them."""
    cfg = override(Experiment(algorithm=algorithms()[algorithm].config()), {"data.name": "mnist"} | (changes or {}))
    flat = {name: str(value) for name, value in flatten(to_dict(resolve(cfg))).items()}
    return {"algorithm.name": algorithm} | flat | more


def printed(found):
    return [(round(100 * figure.mean, 2), figure.sd and round(100 * figure.sd, 2), figure.source) for figure in found]


def test_the_table_of_methods():
    assert printed(published.find(settings("pfedbayes", {"data.size": "small"}), "personal/accuracy")) == [
        (94.13, 0.27, "pFedBayes, Table 1"),
        (93.31, None, "logs of BPFed's code"),
    ]
    assert printed(published.find(settings("fedavg", {"data.name": "cifar10"}), "global/accuracy")) == [
        (56.73, 1.81, "pFedBayes, Table 1")
    ]
    assert printed(published.find(settings("pfedbayes", {"data.size": "large"}), "personal/ece")) == [
        (1.4, None, "BPFed, Table II")
    ]


def test_the_most_particular_settings_win():
    assert printed(published.find(settings("pfedbayes", {"algorithm.zeta": 1.0}), "global/accuracy")) == [
        (91.24, None, "pFedBayes, Table 2")
    ]
    assert printed(published.find(settings("pfedbayes", {"algorithm.zeta": 3.0}), "global/accuracy")) == [
        (92.33, 0.76, "pFedBayes, Table 1")
    ]
    assert printed(published.find(settings("pfedbayes"), "global/accuracy")) == [
        (93.22, None, "pFedBayes, Table 2"),  # the paper gives this setting twice
        (92.33, 0.76, "pFedBayes, Table 1"),
    ]
    assert printed(
        published.find(settings("fedprox", {"algorithm.lr": 0.001, "algorithm.mu": 1.0}), "global/accuracy")
    )[0] == (76.79, None, "pFedBayes, Table 3")


@pytest.mark.parametrize(
    "changes",
    [
        {"data.partition": "dirichlet"},
        {"data.labels_per_client": 3},
        {"model.name": "mclr"},
        {"clients": 20},
        {"model.hidden": (50,)},
        {"data.name": "digits"},
        {"data.layout": "window"},
        {"data.classes": 5},
        {"data.validation": 0.2},
        {"novel_clients": 2},
    ],
)
def test_other_data_or_networks_have_no_figure(changes):
    assert published.find(settings("pfedbayes", changes), "personal/accuracy") == []


def test_every_line_is_complete_and_none_is_given_twice():
    with (Path(published.__file__).parent / "published.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 390
    keys = [(r["algorithm"], r["data.name"], r["data.size"], r["metric"], r["source"], r["settings"]) for r in rows]
    assert len(set(keys)) == len(keys)
    for row in rows:
        assert 0 < float(row["mean"]) < 100
        assert row["source"]
        labels = "data.partition=labels" in row["settings"]
        assert row["data.size"] in (("small", "medium", "large") if labels else ("",))


def test_every_setting_of_a_line_is_one_of_its_method():
    """A line whose method or settings nobody can have would never be shown."""
    records = {published._plain(name): record for name, record in algorithms().items()}
    for line in published._lines():
        method = line.key[0]
        assert method in records, line
        known = flatten(to_dict(Experiment(algorithm=records[method].config())))
        assert set(line.settings) <= set(known), line


COLUMNS = {  # study -> global accuracy of FedAvg and mh, personal accuracy of mh (Table 2) and fo (Table 3)
    "pfedbred-mnist-mclr": (86.96, 86.91, 89.90, 88.30),
    "pfedbred-mnist-dnn": (88.74, 89.41, 92.07, 90.42),
    "pfedbred-fmnist-mclr": (82.90, 82.58, 98.57, 97.78),
    "pfedbred-fmnist-dnn": (81.22, 79.55, 98.88, 98.34),
    "pfedbred-cifar10": (58.27, 52.66, 79.86, 65.26),
    "pfedbred-femnist-mclr": (53.96, 55.38, 56.38, 49.39),
    "pfedbred-femnist-dnn": (57.94, 60.08, 65.29, 49.30),
    "pfedbred-sent140": (71.15, 72.01, 72.25, 60.87),
}


def recorded(cell):
    """The parameters of a run of a study, as launch records them."""
    flat = {name: str(value) for name, value in flatten(to_dict(resolve(cell.experiment))).items()}
    return {"algorithm.name": algorithm_name(cell.experiment.algorithm)} | flat


@pytest.mark.parametrize("study", COLUMNS)
def test_every_row_of_pfedbreds_tables_has_its_figures_beside_it(study):
    cells = {cell.name: recorded(cell) for cell in STUDIES[study]()}
    expected = zip(
        ("fedavg", "mh", "mh", "fo"), ("global", "global", "personal", "personal"), COLUMNS[study], strict=True
    )
    for name, model, figure in expected:
        assert printed(published.find(cells[name], f"{model}/accuracy"))[0][0] == figure
    found = {
        name: [published.find(run, f"{m}/accuracy") for m in ("personal", "global")] for name, run in cells.items()
    }
    lost = {"pfedme+am"}  # its global row is the one that our copy lacks
    for name, (personal, global_) in found.items():
        assert len(personal) == (0 if name.startswith("fedavg") else 1)
        assert bool(global_) == (name not in lost | {"fedem", "fedamp"})
    values = [figure.mean for both in found.values() for figures in both for figure in figures]
    assert len(set(values)) >= len(values) - 4  # each row has its own, but for a few that are printed alike


def test_rows_that_our_copy_of_the_paper_mislabels_are_restored():
    cells = {cell.name: recorded(cell) for cell in STUDIES["pfedbred-mnist-mclr"]()}
    restored = "pFedBreD, Table 2 (row restored)"
    for name, model, figure in (
        ("pfedme", "global", 86.34),
        ("pfedme+ft", "global", 88.35),
        ("per_fedavg", "personal", 87.01),
        ("per_fedavg", "global", 86.72),
    ):
        assert printed(published.find(cells[name], f"{model}/accuracy")) == [(figure, None, restored)]
    assert printed(published.find(cells["pfedme+ft"], "personal/accuracy")) == [(88.37, None, "pFedBreD, Table 2")]


def test_the_appendix_of_pfedbred_varies_the_number_of_averaged_clients():
    found = [published.find(recorded(cell), "global/accuracy") for cell in STUDIES["pfedbred-c5"]()]
    assert [round(100 * figure.mean, 2) for (figure,) in found] == [
        79.96, 81.77, 82.72, 75.07, 79.37, 79.34, 54.43, 55.41, 55.52, 58.96, 60.06, 59.82,
    ]  # fmt: skip


def test_table_3_of_pfedbayes_gives_learning_rates():
    rates = {"algorithm.alpha": 0.005, "algorithm.alpha_m": 0.005}
    assert printed(published.find(settings("pfedme", rates), "personal/accuracy"))[0] == (
        94.35,
        None,
        "pFedBayes, Table 3",
    )
    assert printed(published.find(settings("pfedme", rates), "global/accuracy"))[0][0] == 89.17
    assert printed(published.find(settings("per_fedavg", {"algorithm.alpha": 0.1}), "personal/accuracy"))[0][0] == 19.94
    for method, changes, model, figure in (
        ("heurfedamp", {"lr": 0.01, "xi_own": 0.5}, "personal", 94.95),
        ("heurfedamp", {"lr": 0.01, "xi_own": 0.1}, "personal", 88.68),
        ("pfedgp", {"lr": 0.05}, "personal", 92.14),
        ("bnfed", {"lr": 0.5}, "global", 80.31),
    ):
        run = settings(method, {f"algorithm.{name}": value for name, value in changes.items()})
        assert printed(published.find(run, f"{model}/accuracy"))[0] == (figure, None, "pFedBayes, Table 3")


METHODS = Path(published.__file__).parents[2] / "docs" / "methods"


def table(page, header):
    """The rows of a table of a method's page: the first whose first column is so called."""
    lines = (METHODS / page).read_text().split("## Figures", 1)[1].splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(f"| {header}"))
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in itertools.takewhile(str.strip, lines[start:])
    ]
    return [dict(zip(cells[0], row, strict=True)) if len(set(cells[0])) == len(row) else row for row in cells[2:]]


def test_the_figures_that_the_pages_of_methods_quote_are_published():
    """Every cell of a column "paper" or "published" that a line of published.csv should have."""
    checked = []

    def agree(quoted, run, metric):
        if quoted:
            assert float(quoted) in [figure for figure, *_ in printed(published.find(run, metric))], (quoted, metric)
            checked.append(quoted)

    for page in ("bpfed.md", "personal-layers.md"):
        for row in table(page, "command"):
            method = row["command"].split()[0].strip("`,")
            agree(row["published"], settings(method, {"data.size": "small"}), "personal/accuracy")
    columns = {"MNIST": "pfedbred-mnist-dnn", "FMNIST": "pfedbred-fmnist-dnn"}
    names = {"`mh`": "mh", "`--strategy mfo`": "mfo"}
    for run, _, _, personal, _, global_ in table("pfedbred.md", "run"):
        dataset, name = run.split(", ")
        cells = {cell.name: recorded(cell) for cell in STUDIES[columns[dataset]]()}
        agree(personal, cells[names[name]], "personal/accuracy")
        agree(global_, cells[names[name]], "global/accuracy")
    assert len(checked) == 13
