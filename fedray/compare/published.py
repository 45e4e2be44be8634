"""Results that papers published, to stand beside one's own: published.csv.

A line applies to runs of its algorithm (in the paper's spelling), dataset and size that also have all of its
``settings``; one without a size to all sizes. Accuracy and calibration error are in %, as printed. Table 1 of pFedBayes
gives the authors' best hyperparameters and applies to any; Tables 2 and 3 apply only to the hyperparameters that they
name. "logs" and "predictions" come from BPFed's code and are of one seed; the text of that paper lacks the table.

Of pFedBreD's tables the strategy that they call "mg" is mh, and MNIST has their mislabelled examples. Our copy of Table
2 lacks the label of one row and has moved those of four: "row restored" names the rows whose label we inferred, from
the order and from the level of personal and global accuracies. FedEM is printed as a global model, which no single
model with such accuracies can be: it stands with the personal ones.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

# What a line need not say, as all papers have it.
UNSAID = {
    "data.layout": "cluster",
    "data.classes": "None",
    "data.validation": "0",
    "data.label_bug": "False",
    "novel_clients": "0",
}


class Published(NamedTuple):
    """A published result in the unit that runs log: a share where the paper prints %."""

    mean: float
    sd: float | None
    source: str

    @property
    def printed(self) -> bool:
        """Whether a paper prints it: the logs and predictions of its code are not the paper."""
        return not self.source.endswith("'s code")


class _Line(NamedTuple):
    key: tuple[str, str, str]  # algorithm, dataset, metric
    settings: Mapping[str, str]
    result: Published


def find(settings: Mapping[str, str], metric: str, source: str = "") -> list[Published]:
    """The published results for a metric of a run with these settings; the most specific lines that apply win.

    ``source`` is what the name of their source begins with.
    """
    algorithm = _plain(settings.get("algorithm.name", ""))
    key = (algorithm, settings.get("data.name", ""), metric)
    lines = [line for line in _lines() if line.key == key and line.result.source.startswith(source)]
    lines = [line for line in lines if _agree(line.settings, settings)]
    most_specific = max((len(line.settings) for line in lines), default=0)
    return [line.result for line in lines if len(line.settings) == most_specific]


@functools.cache
def _lines() -> list[_Line]:
    lines = []
    with (files("fedray.compare") / "published.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (_plain(row["algorithm"]), row["data.name"], row["metric"])
            settings = dict(pair.split("=", 1) for pair in row["settings"].split())
            if row["data.size"]:
                settings["data.size"] = row["data.size"]
            sd = _share(row["sd"]) if row["sd"] else None
            lines.append(_Line(key, settings, Published(_share(row["mean"]), sd, row["source"])))
    return lines


def _share(percent: str) -> float:
    return round(float(percent) / 100, 6)


def _plain(algorithm: str) -> str:
    """A name without case and punctuation: papers write pFedMe and BPFed."""
    return "".join(letter for letter in algorithm.lower() if letter.isalnum())


def _agree(wanted: Mapping[str, str], settings: Mapping[str, str]) -> bool:
    usual = all(_same(value, settings.get(name, value)) for name, value in UNSAID.items() if name not in wanted)
    return usual and all(name in settings and _same(value, settings[name]) for name, value in wanted.items())


def _same(a: str, b: str) -> bool:
    try:
        return float(a) == float(b)  # 10 and 10.0
    except ValueError:
        return a == b
