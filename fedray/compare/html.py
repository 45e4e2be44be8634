"""A comparison as one HTML file that needs nothing else: its table, its figures inside, and the runs behind them."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from fedray.compare.groups import Row
from fedray.compare.tables import Table, webpage

CSS = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6570; --line: #d5dae0; --page: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #a3adb8; --line: #3a424b; --page: #15191e; }
}
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--ink); background: var(--page);
  font: 16px/1.5 system-ui, sans-serif; }
h1, h2 { line-height: 1.2; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; text-align: left; color: var(--soft); padding-top: 0.6rem; }
th, td { padding: 0.35rem 0.8rem; text-align: left; vertical-align: top; }
.number { text-align: right; }
thead th, tbody tr:last-child td { border-bottom: 1px solid var(--line); }
td small, .soft { color: var(--soft); }
td small { display: block; }
figure { margin: 1.5rem 0; }
/* The figures are drawn for paper: they keep a white ground. */
img { max-width: 100%; background: white; border-radius: 6px; }
figcaption { color: var(--soft); }
code { font-size: 0.85em; }
""".strip()

CAPTIONS = {
    "accuracy": "Mean over seeds, with a band of one sample standard deviation. Seconds are those of the machine that "
    "played the run; traffic is what the clients send and receive.",
    "clients": "Accuracy of each client at the last evaluation: one point per client and seed, the box from the first "
    "to the third quartile, the line the median.",
    "loss_deviation": "Of the first client and by class: NLL of its personal model on the test examples of all clients "
    "(ΔG) and on its own (ΔL), above the mean of the clients' models; one run of each row that has --loss-deviation.",
    "reliability": "Accuracy per confidence bin at the last evaluation, added up over clients and seeds.",
}


def page(table: Table, rows: Sequence[Row], figures: Mapping[str, Sequence[Path]], facts: Mapping[str, str]) -> str:
    """The report; ``figures`` by the title of their section, ``facts`` say what was compared."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    told = " · ".join(f"{html.escape(name)} {html.escape(value)}" for name, value in facts.items())
    sections = [_section(title, paths) for title, paths in figures.items() if paths]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>FedRay comparison</title>\n<style>\n{CSS}\n</style>\n</head>\n<body>",
            f'<h1>FedRay comparison</h1>\n<p class="soft">{told} · made {now}</p>',
            f'<div class="scroll">\n{webpage(table)}\n</div>',
            *sections,
            _runs(rows),
            "</body>\n</html>\n",
        ]
    )


def _section(title: str, paths: Sequence[Path]) -> str:
    parts = [f"<h2>{html.escape(title)}</h2>"]
    for path in paths:
        kind = path.stem.partition("-")[0]
        data = base64.b64encode(path.read_bytes()).decode()
        parts.append(
            f'<figure>\n<img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}">\n'
            f"<figcaption>{CAPTIONS[kind]}</figcaption>\n</figure>"
        )
    return "\n".join(parts)


def _runs(rows: Sequence[Row]) -> str:
    lines = [
        "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in _facts(row, number)) + "</tr>"
        for row in rows
        for number in range(len(row.runs))
    ]
    head = "".join(f"<th>{name}</th>" for name in ("row", "run", "seed", "commit", "MLflow id"))
    return (
        '<h2>Runs</h2>\n<div class="scroll">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody>\n</table>\n</div>"
    )


def _facts(row: Row, number: int) -> tuple[str, ...]:
    run = row.runs[number]
    name = ", ".join(filter(None, [*row.values, row.label]))
    return name, run.name, run.settings.get("seed", "–"), run.tags.get("git_commit", "–"), run.id
