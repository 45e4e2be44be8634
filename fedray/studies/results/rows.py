"""The rows of a table: the runs of a cell, and what the paper has for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fedray.compare.published import Published
from fedray.config import Experiment, fingerprint, override
from fedray.federate import report
from fedray.federate.plan import resolve
from fedray.studies.named import STUDIES
from fedray.studies.results import data, judgement, printed
from fedray.studies.results.data import Line
from fedray.studies.results.judgement import Nearness
from fedray.studies.results.tables import Table

KINDS = (*report.KINDS, report.NOVEL)


class Verdict(NamedTuple):
    """What came of a figure that a paper prints."""

    kind: str
    paper: Published
    nearness: Nearness


class Row(NamedTuple):
    """The runs of a cell, one per seed, and what the paper has for it."""

    cell: str
    lines: tuple[Line, ...]
    table: Table
    settings: Mapping[str, str]
    current: bool  # whether the study has the same settings today

    def values(self, metric: str) -> dict[int, float]:
        """A metric by seed."""
        return {line.seed: line.metrics[metric] for line in self.lines if metric in line.metrics}

    def best(self, kind: str) -> float | None:
        """The mean over seeds of a run's accuracy as the paper chooses it; None of a model that it lacks."""
        found = self.values(f"{self.table.best}{kind}/accuracy")
        return sum(found.values()) / len(found) if found else None

    def paper(self, metric: str) -> Published | None:
        """The paper's figure."""
        return printed.figure(self.table, self.settings, metric)

    def verdicts(self) -> Iterator[Verdict]:
        """How far its accuracies are from the paper's."""
        for kind in KINDS:
            best, paper = self.best(kind), self.paper(f"{kind}/accuracy")
            if best is not None and paper is not None:
                yield Verdict(kind, paper, judgement.nearness(best, paper))

    @property
    def apart(self) -> list[str]:
        """The kinds of model whose accuracies are apart from the paper's."""
        return [verdict.kind for verdict in self.verdicts() if verdict.nearness == "apart"]


def rows(folder: Path, table: Table) -> list[Row]:
    """The rows of a table for which there are data, in the order of the study."""
    lines = [line for line in data.read(folder, table.study) if line.rounds == table.rounds]
    if not lines:  # planning takes time
        return []
    cells = {cell.name: cell for cell in STUDIES[table.study]()}
    found = []
    for name in dict.fromkeys(run.cell for run in table.runs()):
        own = tuple(line for line in lines if line.cell == name)
        if own:
            cfg = override(cells[name].experiment, {"rounds": table.rounds})
            current = all(_fingerprint(cfg, line) == line.config for line in own)
            found.append(Row(name, own, table, printed.settings(cfg), current))
    return found


def _fingerprint(cfg: Experiment, line: Line) -> str:
    changes = {"rounds": line.rounds, "eval_every": line.eval_every, "seed": line.seed}
    return fingerprint(resolve(override(cfg, changes)))
