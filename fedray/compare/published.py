"""The figures that papers printed, to stand beside one's own: published.csv.

A line holds for the runs of its algorithm (spelt as in the paper), dataset and size whose settings agree with all of
its ``settings``; accuracy and calibration error are in %, as printed. Of pFedBayes, Table 1 is at the authors' best
hyperparameters and holds for any; Tables 2 and 3 are for the hyperparameters that they name. "logs" and "predictions"
of BPFed's code are one seed, in place of a table that the text of that paper lost.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple


class Published(NamedTuple):
    """A figure in units of the stored metric: a share where the paper prints %."""

    mean: float
    sd: float | None
    source: str


class _Line(NamedTuple):
    key: tuple[str, str, str, str]  # algorithm, dataset, size, metric
    settings: Mapping[str, str]
    figure: Published


def find(settings: Mapping[str, str], metric: str) -> list[Published]:
    """The figures for a metric of a run with these settings: those for the most particular settings that it meets."""
    names = ("algorithm.name", "data.name", "data.size")
    algorithm, data, size = (settings.get(name, "") for name in names)
    key = (_plain(algorithm), data, size, metric)
    met = [line for line in _lines() if line.key == key and _agree(line.settings, settings)]
    most = max((len(line.settings) for line in met), default=0)
    return [line.figure for line in met if len(line.settings) == most]


@functools.cache
def _lines() -> list[_Line]:
    lines = []
    with (files("fedray.compare") / "published.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (_plain(row["algorithm"]), row["data.name"], row["data.size"], row["metric"])
            settings = dict(pair.split("=", 1) for pair in row["settings"].split())
            mean, sd = (round(float(row[name]) / 100, 6) if row[name] else None for name in ("mean", "sd"))
            assert mean is not None
            lines.append(_Line(key, settings, Published(mean, sd, row["source"])))
    return lines


def _plain(algorithm: str) -> str:
    return "".join(letter for letter in algorithm.lower() if letter.isalnum())


def _agree(wanted: Mapping[str, str], settings: Mapping[str, str]) -> bool:
    return all(name in settings and _same(value, settings[name]) for name, value in wanted.items())


def _same(a: str, b: str) -> bool:
    try:
        return float(a) == float(b)  # 10 and 10.0
    except ValueError:
        return a == b
