"""A comparison as one self-contained HTML file: the table, the figures and the list of runs."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import NamedTuple

import jinja2

from fedray.compare.groups import RunGroup
from fedray.compare.tables import ComparisonTable

HISTORY = (
    "Mean over seeds; the band is one sample standard deviation. Horizontal lines are controls, at the mean over their "
    "last evaluations. Seconds depend on the machine that executed the run. Traffic is what the clients send and "
    "receive."
)
CAPTIONS = {
    "accuracy": HISTORY,
    "rmse": HISTORY,
    "clients": "Each client at the last evaluation: one point per client and seed. The box reaches from the first to "
    "the third quartile; the line is the median.",
    "loss_deviation": "The first client, by class: how far the NLL of its personal model lies above the mean of all "
    "clients' models, on the test examples of all clients (ΔG) and on its own (ΔL). One run of each row that has "
    "--loss-deviation.",
    "reliability": "Accuracy per confidence bin at the last evaluation, pooled over clients and seeds.",
    "risk_coverage": "Errors among the predictions that are answered, where every client answers the same share of its "
    "examples, the surest first. Mean over seeds.",
    "unknown": "AUROC of the maximum probability: test examples of classes that a client does not hold against its "
    "own. One point per client and seed; box and line as above. Half would be chance.",
    "shift": "Corrupted test examples, pooled over clients, mean over seeds. Severity 0 is the examples as they are.",
}


class Picture(NamedTuple):
    """A figure on the page."""

    name: str
    caption: str
    data: str  # the PNG file in base64


def page(
    written: Sequence[ComparisonTable],
    groups: Sequence[RunGroup],
    figures: Mapping[str, Sequence[Path]],
    facts: Mapping[str, str],
) -> str:
    """The report, from report.html.jinja.

    ``figures`` are by the title of their section; ``facts`` say what was compared. Every value is escaped: the names
    of runs and tags may come from anybody.
    """
    return _template("report.html.jinja").render(
        tables=written,
        captioned=True,
        groups=groups,
        sections={title: [_picture(path) for path in paths] for title, paths in figures.items() if paths},
        facts=facts,
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )


def fragment(table: ComparisonTable) -> str:
    """The table by itself, for a notebook."""
    shown = _template("table.html.jinja").render(table=table, captioned=False)
    return f'<div>{shown}<div style="opacity: 0.7">{escape(table.caption)}</div></div>'


def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)


def _picture(path: Path) -> Picture:
    kind = path.stem.partition("-")[0]
    return Picture(path.stem, CAPTIONS[kind], base64.b64encode(path.read_bytes()).decode())
