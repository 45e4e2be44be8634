"""What docs/results publishes: the tables of every paper, in the order of the page."""

from __future__ import annotations

from fedray.studies.results.table import Table
from fedray.studies.results.tables import bpfed, pfedbayes, pfedbred, selection, uncertainty

TABLES: tuple[Table, ...] = (
    *selection.TABLES,
    *pfedbred.TABLES,
    *pfedbayes.TABLES,
    *bpfed.TABLES,
    *uncertainty.TABLES,
)
