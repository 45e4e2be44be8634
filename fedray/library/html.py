"""A run and a comparison as HTML, which a notebook shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from fedray.federate import report
from fedray.federate.plan import Plan


def run(plan: Plan, summary: Mapping[str, Any], title: str) -> str:
    """The table of a finished run, as the terminal shows it, with how its data were read and what one must know."""
    kinds = report.measured(summary)
    notes = [*report.caption(summary).splitlines(), *plan.notes]
    return _template().render(
        title=title,
        header=[report.NAMES[kind] for kind in kinds],
        rows=list(report.table_rows(plan, summary, kinds)),
        notes=notes,
        remarks=plan.remarks,
    )


def text(line: str) -> str:
    """A line by itself."""
    return _template().render(title=line, header=[], rows=[], notes=[], remarks=[])


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("run.html.jinja")
