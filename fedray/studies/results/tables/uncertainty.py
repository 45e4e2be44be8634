"""What uncertainty is worth: the tables of docs/uncertainty.md."""

from __future__ import annotations

from fedray.studies.results.table import Table

PROTOCOL = "No paper has these figures. All their measures are in [uncertainty.md](../uncertainty.md)."

TABLES = (
    Table("uncertainty-digits", "Uncertainty: digits", PROTOCOL, 20, 1, 3),
    Table("uncertainty-mnist", "Uncertainty: MNIST small", PROTOCOL, 20, 1, 3),
)
