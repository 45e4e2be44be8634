"""What papers print for the cells of a table: figures, and orderings by their bold face."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from fedray import registry
from fedray.compare import published
from fedray.compare.published import Published
from fedray.config import Experiment, flatten, override, to_dict
from fedray.federate.planning import resolve
from fedray.studies.cell import Cell
from fedray.studies.named import STUDIES
from fedray.studies.results.table import Claim, Table

AS_GLOBAL = "(printed as G)"  # the end of a source: personal figures in a line of global models, which mark nothing


def settings(cfg: Experiment) -> Mapping[str, str]:
    """The settings of an experiment as a tracked run has them, under which published.csv looks."""
    resolved = resolve(cfg)
    values = {"algorithm.name": registry.algorithm_name(resolved.algorithm)} | flatten(to_dict(resolved))
    return {name: str(value) for name, value in values.items()}


def figure(table: Table, of: Mapping[str, str], metric: str) -> Published | None:
    """What a paper prints for a metric of a cell, by its settings; the first of the table's sources that has it."""
    for source in table.sources:
        if found := published.find(of, metric, source):
            return found[0]
    return None


@functools.cache
def claims(table: Table) -> tuple[Claim, ...]:
    """The orderings that a paper claims: those in words, and those of its bold face, the best figure of a column.

    A paper that prints figures claims an ordering of what it prints, the best evaluations. One with plots alone, and
    questions of ours, are answered by the mean of the last ten.
    """
    stated = tuple(claim._replace(best=table.best) if _of_figures(table, claim) else claim for claim in table.claims)
    return (*stated, *(_bold(table) if table.bold else ()))


def _of_figures(table: Table, claim: Claim) -> bool:
    """Whether a claim is about figures that its paper prints, of which the best evaluations are chosen."""
    return bool(table.sources) and claim.metric.endswith("/accuracy") and not claim.ours


def _bold(table: Table) -> list[Claim]:
    """In each column of the printed table, or among the cells of one method there, the best is above every other."""
    cells = {cell.name: cell for cell in STUDIES[table.study]()}
    columns: dict[tuple[str, str], dict[str, Published]] = {}
    for name in dict.fromkeys(run.cell for run in table.runs().values()):
        cell: Cell = cells[name]
        found = settings(override(cell.experiment, {"rounds": table.rounds}))
        for metric in (*table.bold, *table.largest):
            result = figure(table, found, metric)
            if result and result.source.startswith(table.marked) and not result.source.endswith(AS_GLOBAL):
                columns.setdefault((metric, cell.tags[0] if table.within_rows else ""), {})[name] = result
    claimed = []
    for (metric, _), figures in columns.items():
        best = max(figures, key=lambda name: figures[name].mean)
        inferred = metric in table.largest
        source = f"{figures[best].source}, {'largest' if inferred else 'bold'}"
        claimed += [
            Claim(metric, best, name, source, best=table.best, inferred=inferred)
            for name, result in figures.items()
            if result.mean < figures[best].mean
        ]
    return claimed
