"""A comparison of finished runs: what to compare, and the tables, figures and report that it writes."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedray.compare import figures, html, latex, tables
from fedray.compare.figures import Series
from fedray.compare.groups import DATA, History, RunGroup, arrange, called, measurable, with_estimates
from fedray.compare.runs import Files, FinishedRun, RunStore
from fedray.federate.uncertainty import summary as uncertain
from fedray.running.drawing.client_figures import UNNAMED
from fedray.running.files import write_whole
from fedray.terminal import say
from fedray.types import FedRayError, unwritable

Histories = Mapping[str, History]  # by the id of a run

LONGEST = 100  # letters of a title in a file's name
FORMATS = {"md": "table.md", "latex": "table.tex", "csv": "table.csv", "html": "report.html"}
METRICS = (
    "personal/accuracy,global/accuracy,personal/rmse,global/rmse,personal/ece,personal/nll,personal/coverage,"
    "personal/adaptive_ece,personal/aurc,personal/unknown_auroc,personal/unknown_fpr95,personal/thr_coverage,"
    "global/ece,global/nll,global/adaptive_ece,global/aurc,global/unknown_auroc,global/unknown_fpr95,global/thr_coverage,"
    "novel/accuracy,novel/rmse"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which runs to compare, by which settings and metrics, and where to write the result."""

    experiment: str = "fedray"
    """MLflow experiment of the runs."""
    by: str = "algorithm,data.name,data.size"
    """Settings or tags that identify a row, separated by commas; other settings that differ are added automatically."""
    metrics: str = METRICS
    """Metrics, separated by commas, under their MLflow names; of the default only those that some run has."""
    format: str = "md,latex,csv,html"
    """Formats to write, separated by commas: md, latex, csv, html; the first one other than html is also printed."""
    figures: Literal["png", "pdf", "svg"] = "png"
    """Format of the figures: png; pdf or svg, which stay sharp in print, are written beside it."""
    baseline: str = ""
    """Row that the others are compared with, seed by seed, by its name or method; by default the first."""
    markdown: bool = False
    """Print Markdown in a terminal, too, instead of a table for the screen; files and pipes always get the format."""
    study: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Only the runs of this study."""
    sweeps: bool = False
    """Include the trials of sweeps, each in a row of its own settings."""
    uri: str = ""
    """MLflow tracking URI; by default the SQLite file runs/mlflow.db."""
    output: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/compare")
    """Folder for tables, figures and report; those of an earlier comparison are removed."""


def listed(option: str, text: str) -> list[str]:
    """The parts of an option that lists names with commas; raises FedRayError if there are none."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise FedRayError(f"--{option} {text!r}: names nothing; leave it out for the default")
    return list(dict.fromkeys(parts))


def compare(options: Options) -> str:
    """Write the comparison and return the table to print; raises FedRayError for what cannot be compared."""
    by = listed("by", options.by)
    formats = _formats(options)
    store = RunStore(options.uri)
    found = store.find(options.experiment, options.study, options.sweeps)
    metrics = chosen(options.metrics, found)
    groups, histories = grouped(store, found, by, metrics)
    older = len(found) - len(histories)
    if older:
        say(f"left out {older} older {'run' if older == 1 else 'runs'}: a newer one has the same settings and seed")
    table = tables.build(groups, by, metrics)
    gaps = tables.differences(groups, by, metrics, histories, options.baseline)
    written = [table, *([gaps] if gaps else [])]
    facts = {"experiment": options.experiment, "study": options.study or "any", "store": store.where}
    texts = {
        "md": "\n".join(map(tables.markdown, written)),
        "latex": "\n".join(map(latex.latex, written)),
        "csv": tables.plain(groups, by, metrics),
    }
    with _written(options.output):
        (options.output / "figures").mkdir(parents=True, exist_ok=True)
        figures.clear(options.output)
        for name, file in FORMATS.items():
            if name not in formats or name == "html":  # an old table beside a new one could end up in a paper
                (options.output / file).unlink(missing_ok=True)
        for name in formats:
            if name in texts:
                write_whole(options.output / FORMATS[name], texts[name])
        pictures = _draw(options.output, store, groups, histories, by, options.figures)
        if "html" in formats:
            write_whole(options.output / FORMATS["html"], html.page(written, groups, pictures, facts))
    printed = next((name for name in formats if name != "html"), "md")
    if printed == "md" and sys.stdout.isatty() and not options.markdown:
        width = shutil.get_terminal_size().columns
        return "\n".join(tables.terminal(each, width) for each in written)
    return texts[printed]


def grouped(
    store: Files, runs: Sequence[FinishedRun], by: Sequence[str], metrics: Sequence[str]
) -> tuple[list[RunGroup], Histories]:
    """The rows of a table, with their estimates, and the rounds of their runs."""
    arranged = arrange(runs, by)
    histories = {run.id: store.rounds(run, metrics) for group in arranged for run in group.runs}
    return [with_estimates(group, histories, metrics) for group in arranged], histories


def _formats(options: Options) -> list[str]:
    formats = listed("format", options.format)
    for name in formats:
        if name not in FORMATS:
            raise FedRayError(f"--format {name}: not a format; choose from {', '.join(FORMATS)}")
    return formats


def chosen(text: str, runs: Sequence[FinishedRun]) -> list[str]:
    """The metrics that a text lists, of the default those that some run has; raises FedRayError for unknown ones."""
    metrics = listed("metrics", text)
    known = sorted({name for run in runs for name in measurable(run)})
    if text == METRICS:  # a method without personal models can be compared too
        metrics = [name for name in metrics if name in known] or metrics
    for name in metrics:
        if name not in known:
            raise FedRayError(f"--metrics {name}: no run has it; choose from {', '.join(known) or 'none'}")
    return metrics


@contextlib.contextmanager
def _written(output: Path) -> Iterator[None]:
    """Raises FedRayError where a folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise FedRayError(unwritable(f"--output {output}", error)) from None


def _draw(
    folder: Path, store: Files, groups: Sequence[RunGroup], histories: Histories, by: Sequence[str], also: str
) -> dict[str, list[Path]]:
    """The figures of each block of groups, by the block's title."""
    pictures: dict[str, list[Path]] = {}
    taken: set[str] = set()
    for title, block in blocks(groups).items():
        suffix = re.sub(r"[^\w.]+", "-", title)[-LONGEST:]  # a title may hold a whole path
        suffix += f"-{len(taken)}" if suffix in taken else ""
        taken.add(suffix)
        rows = [series(store, group, histories, group.name(by)) for group in block]
        if len(block) > figures.ROWS_MAX:
            title += f": the figures show the first {figures.ROWS_MAX} of {len(block)} rows"
            say(title)
        pictures[title] = figures.draw(folder, suffix, rows, also)
    return pictures


def blocks(groups: Sequence[RunGroup]) -> dict[str, list[RunGroup]]:
    """The groups by the data that they were measured on.

    A title is the dataset and its size, followed by the settings that distinguish it from other blocks of the same
    dataset and size. A file has its name, or its whole path where another file has the same name.
    """
    found = [list(members) for _, members in itertools.groupby(groups, key=lambda group: group.block)]
    details = [dict(block[0].block) for block in found]
    titles = {}
    for block, data in zip(found, details, strict=True):
        alike = [other for other in details if all(other.get(key) == data.get(key) for key in DATA)]
        differing = [key for key in data if len({other.get(key) for other in alike}) > 1]
        name = data.get("data.name", "data")
        names = {other.get("data.name", "data") for other in details}
        words = [called(name, names), data.get("data.size", "")]
        words += [f"{key.removeprefix('data.')}={data[key]}" for key in differing]
        titles[", ".join(filter(None, words))] = block
    return titles


def series(store: Files, group: RunGroup, histories: Histories, name: str) -> Series:
    clients = [store.csv_rows(run, "clients.csv") for run in group.runs]
    missing = sum(not rows and not run.is_trial for rows, run in zip(clients, group.runs, strict=True))
    if missing:
        say(f"{name}: {missing} of {len(group.runs)} runs have no clients.csv; the figures of clients leave them out")
    deviation = [store.csv_rows(run, "loss_deviation.csv") for run in group.runs]
    deviating = next((run for run, rows in zip(group.runs, deviation, strict=True) if rows), None)
    return Series(
        name=f"{name} (control)" if group.control else name,
        control=group.control,
        histories=[histories[run.id] for run in group.runs],
        calibration=[store.csv_rows(run, "calibration.csv") for run in group.runs],
        clients=clients,
        deviation=deviation,
        names=store.names(deviating) if deviating else UNNAMED,
        uncertain=[store.csv_rows(run, uncertain.CLIENTS) for run in group.runs],
        risks=[store.csv_rows(run, uncertain.RISKS) for run in group.runs],
        shift=[store.csv_rows(run, uncertain.SHIFT) for run in group.runs],
    )
