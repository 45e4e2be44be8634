"""Which runs a comparison averages: those that differ in nothing but their seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fedray.compare.runs import Run
from fedray.federate import report
from fedray.types import FedRayError

ALIASES = {"algorithm": "algorithm.name", "dataset": "data.name"}
DATA = ("data.name", "data.size")
STABILITY = "stability"  # of a model: not logged, made of its accuracies
# Where and on which machine a run was played is no setting of it; the seed is what is averaged over.
NOT_SETTINGS = {"seed", "runtime", "data.root", "data.download"}
SAME_NUMBERS = {("on_failure", "retry"), ("on_failure", "abort")}  # older runs do not name either


class Cell(NamedTuple):
    """A metric over the seeds of a row, in its stored unit."""

    mean: float
    sd: float | None  # sample standard deviation; None of a single run
    n: int


class Row(NamedTuple):
    """Runs of one setting, one per seed."""

    values: tuple[str, ...]  # of the keys that the user compares by
    label: str  # the further settings in which it differs from its neighbours
    runs: tuple[Run, ...]
    cells: Mapping[str, Cell] = MappingProxyType({})  # by metric; none where none of its runs has it

    @property
    def settings(self) -> Mapping[str, str]:
        """Those of any of its runs; not the seed, nor where it was played."""
        return settings(self.runs[0])

    @property
    def block(self) -> tuple[tuple[str, str], ...]:
        """The data that it was measured on, in every detail: only rows of one block compete."""
        return tuple(sorted((key, value) for key, value in self.settings.items() if key.startswith("data.")))

    def name(self, by: Sequence[str]) -> str:
        """What tells the row from others on the same data, for a legend."""
        values = [value for key, value in zip(by, self.values, strict=True) if ALIASES.get(key, key) not in DATA]
        return ", ".join(filter(None, [*values, self.label])) or "all runs"


def settings(run: Run) -> Mapping[str, str]:
    """The settings that decide what a run measures."""
    return {
        key: value
        for key, value in run.settings.items()
        if key not in NOT_SETTINGS and (key, value) not in SAME_NUMBERS
    }


def arrange(runs: Sequence[Run], by: Sequence[str]) -> list[Row]:
    """One row per value of ``by`` and distinct setting; of runs with the same seed in a row the newest counts.

    Raises FedRayError for a key that no run has.
    """
    for key in by:
        if all(run.value(ALIASES.get(key, key)) is None for run in runs):
            known = sorted({name for run in runs for name in (*run.settings, *run.tags)})
            raise FedRayError(f"--by {key}: no run has such a setting or tag; choose from {', '.join(known)}")
    grouped: dict[tuple, dict[str, Run]] = {}
    for run in sorted(runs, key=lambda run: run.started, reverse=True):
        values = tuple(run.value(ALIASES.get(key, key)) or "–" for key in by)
        seeds = grouped.setdefault((values, frozenset(settings(run).items())), {})
        seeds.setdefault(run.settings.get("seed", ""), run)
    bare = [
        Row(values, "", tuple(seeds[seed] for seed in sorted(seeds, key=_natural)))
        for (values, _), seeds in grouped.items()
    ]
    return sorted((row._replace(label=_label(row, bare, by)) for row in bare), key=_order)


def _label(row: Row, rows: Sequence[Row], by: Sequence[str]) -> str:
    """The settings, beside ``by``, that tell a row from its neighbours."""
    named = {ALIASES.get(key, key) for key in by}
    keys = dict.fromkeys(key for each in rows for key in each.settings if key not in named)
    telling = [key for key in keys if len({each.settings.get(key) for each in _neighbours(row, rows, key)}) > 1]
    return ", ".join(f"{_short(key)}={_brief(row.settings.get(key, '–'))}" for key in telling)


def _neighbours(row: Row, rows: Sequence[Row], key: str) -> list[Row]:
    """The rows among which a setting matters: hyperparameters of one method, and the protocol on one dataset."""
    group = [each for each in rows if each.values == row.values]
    if key in ("algorithm.name", *DATA):
        return group
    if key.startswith("algorithm."):
        return [each for each in group if _same(each, row, ["algorithm.name"])]
    return [each for each in rows if _same(each, row, DATA)]


def _same(a: Row, b: Row, keys: Sequence[str]) -> bool:
    return all(a.settings.get(key) == b.settings.get(key) for key in keys)


def _short(key: str) -> str:
    return "algorithm" if key == "algorithm.name" else key.removeprefix("algorithm.")


def _brief(value: str) -> str:
    """A number without the digits that only its binary form has."""
    if not _number(value):
        return value
    brief = f"{float(value):g}"
    return brief if math.isclose(float(brief), float(value), rel_tol=1e-12) else value


def _order(row: Row) -> tuple:
    sizes = ("small", "medium", "large")
    size = row.settings.get("data.size", "")
    place = sizes.index(size) if size in sizes else len(sizes)
    return row.settings.get("data.name", ""), place, row.block, tuple(map(_natural, (*row.values, row.label)))


def _natural(text: str) -> list[tuple[int, float, str]]:
    """A key that sorts 2 before 10."""
    parts = text.replace("=", " ").replace(",", " ").split()
    return [(0, float(part), "") if _number(part) else (1, 0.0, part) for part in parts]


def _number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def measurable(run: Run) -> set[str]:
    """The metrics of which a run has a figure."""
    return {
        *run.measured,
        *(f"{name.partition('/')[0]}/{STABILITY}" for name in report.EVALUATED if name in run.measured),
    }


def figure(rounds: Sequence[Mapping[str, float]], metric: str) -> float | None:
    """A run's figure, None where it was not measured: the mean over the window of its summary.json.

    Bytes are added up over all rounds, and what a policy reports of its choices is averaged over all; stability is
    the standard deviation of the accuracy over the last ten evaluations. Newcomers are evaluated after the others.
    """
    group, _, name = metric.partition("/")
    if name == STABILITY:
        return report.stability(rounds, group)
    chosen = report.window(rounds, (metric,)) if group == report.NOVEL else report.window(rounds)
    values = [row[metric] for row in (rounds if group in ("comm", "selection") else chosen) if metric in row]
    return sum(values) / (1 if group == "comm" else len(values)) if values else None


def measure(row: Row, histories: Mapping[str, Sequence[Mapping[str, float]]], metrics: Sequence[str]) -> Row:
    """The row with its cells, from the rounds of its runs by their ids."""
    found = {metric: cell([histories[run.id] for run in row.runs], metric) for metric in metrics}
    return row._replace(cells={metric: value for metric, value in found.items() if value})


def cell(histories: Sequence[Sequence[Mapping[str, float]]], metric: str) -> Cell | None:
    """Mean and sample standard deviation of the figures of runs; None where none has the metric."""
    figures = [value for value in (figure(rounds, metric) for rounds in histories) if value is not None]
    if not figures:
        return None
    sd = float(np.std(figures, ddof=1)) if len(figures) > 1 else None
    return Cell(float(np.mean(figures)), sd, len(figures))
