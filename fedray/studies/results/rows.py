"""The rows of a table: the runs of a cell, and what the paper has for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fedray.compare.published import Published
from fedray.federate import report
from fedray.studies.results import data, judgement, printed
from fedray.studies.results.data import EVERY, Line
from fedray.studies.results.judgement import Nearness
from fedray.studies.results.table import Table

KINDS = (*report.KINDS, report.NOVEL)


class Verdict(NamedTuple):
    """What came of a figure that a paper prints."""

    kind: str
    ours: float  # the mean over seeds, chosen among evaluations as the paper does
    paper: Published
    nearness: Nearness


class Row(NamedTuple):
    """The runs of a cell, one per seed, and what the paper has for it."""

    cell: str
    lines: tuple[Line, ...]
    table: Table
    settings: Mapping[str, str]
    current: bool  # whether the study has the same settings today; else nothing is compared with the paper

    def values(self, metric: str) -> dict[int, float]:
        """A metric by seed."""
        return {line.seed: line.metrics[metric] for line in self.lines if metric in line.metrics}

    @property
    def chosen(self) -> str:
        """Among which evaluations the best is chosen: every round's, where all its runs have them."""
        complete = all(any(name.startswith(EVERY) for name in line.metrics) for line in self.lines)
        return EVERY if self.table.eval_last and complete else self.table.best

    @property
    def sparse(self) -> bool:
        """Whether its table looks at every one of the last rounds, and not all of its runs do."""
        return bool(self.table.eval_last) and self.chosen != EVERY

    def best(self, kind: str) -> float | None:
        """The mean over seeds of a run's accuracy as the paper chooses it; None of a model that it lacks."""
        found = self.values(f"{self.chosen}{kind}/accuracy")
        return sum(found.values()) / len(found) if found else None

    def paper(self, metric: str) -> Published | None:
        """The paper's figure."""
        return printed.figure(self.table, self.settings, metric)

    def verdicts(self) -> Iterator[Verdict]:
        """How far its accuracies are from the paper's; nothing where the study has other settings today."""
        for kind in KINDS if self.current else ():
            best, paper = self.best(kind), self.paper(f"{kind}/accuracy")
            if best is not None and paper is not None:
                yield Verdict(kind, best, paper, judgement.nearness(best, paper))

    @property
    def apart(self) -> list[str]:
        """The kinds of model whose accuracies are apart from the paper's."""
        return [verdict.kind for verdict in self.verdicts() if verdict.nearness == "apart"]


def rows(folder: Path, table: Table) -> list[Row]:
    """The rows of a table for which there are data, in the order of the study.

    A row has the runs with today's settings. Only where a cell has none of these, it has those with earlier settings:
    the two are never pooled.
    """
    lines = [line for line in data.read(folder, table.study) if line.rounds == table.rounds]
    if not lines:  # planning takes time
        return []
    found, today, comparable = [], table.runs(), table.comparable()
    for name, run in {run.cell: run for run in today.values()}.items():
        earlier = tuple(line for line in lines if line.cell == name)
        own = tuple(line for line in earlier if line.config in comparable)
        if earlier:
            found.append(Row(name, own or earlier, table, printed.settings(run.experiment), bool(own)))
    return found
