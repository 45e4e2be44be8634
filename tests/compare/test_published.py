"""A published figure stands only beside a run that meets the settings it was published for."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedray.compare import published
from fedray.config import Experiment, flatten, override, to_dict
from fedray.federate.plan import resolve
from fedray.registry import algorithms


def settings(algorithm, changes=None, **more):
    """The parameters of a run, as launch records them."""
    cfg = override(Experiment(algorithm=algorithms()[algorithm].config()), {"data.name": "mnist"} | (changes or {}))
    flat = {name: str(value) for name, value in flatten(to_dict(resolve(cfg))).items()}
    return {"algorithm.name": algorithm} | flat | more


def printed(found):
    return [(round(100 * figure.mean, 2), figure.sd and round(100 * figure.sd, 2), figure.source) for figure in found]


def test_the_table_of_methods():
    assert printed(published.find(settings("pfedbayes", {"data.size": "small"}), "personal/accuracy")) == [
        (94.13, 0.27, "pFedBayes, Table 1")
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
    ],
)
def test_other_data_or_networks_have_no_figure(changes):
    assert published.find(settings("pfedbayes", changes), "personal/accuracy") == []


def test_every_line_is_complete_and_none_is_given_twice():
    with (Path(published.__file__).parent / "published.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 150
    keys = [(r["algorithm"], r["data.name"], r["data.size"], r["metric"], r["source"], r["settings"]) for r in rows]
    assert len(set(keys)) == len(keys)
    for row in rows:
        assert 0 < float(row["mean"]) < 100
        assert row["source"]
        assert "data.partition=labels" in row["settings"]
        assert row["data.size"] in ("small", "medium", "large")
