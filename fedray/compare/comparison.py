"""python -m fedray.compare [options]: tables and figures of the finished runs in a tracking store."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedray.compare import figures as figures_module
from fedray.compare import groups, html, tables
from fedray.compare.groups import Row
from fedray.compare.runs import Store
from fedray.terminal import say
from fedray.types import FedRayError

Histories = Mapping[str, Sequence[Mapping[str, float]]]  # the rounds of each run, by its id
Figures = dict[str, list[Path]]  # by the title of their block

FORMATS = {"md": "table.md", "latex": "table.tex", "csv": "table.csv", "html": "report.html"}
METRICS = "personal/accuracy,global/accuracy,personal/ece,personal/nll,novel/accuracy"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which runs to compare, by what, and where to put it."""

    experiment: str = "fedray"
    """MLflow experiment that the runs belong to."""
    by: str = "algorithm,data.name,data.size"
    """Settings or tags that name a row, with commas between; others in which rows differ are added by themselves."""
    metrics: str = METRICS
    """Metrics, with commas between, as MLflow names them; of the default those that a run has."""
    format: str = "md,latex,csv,html"
    """What to write, of md, latex, csv and html, with commas between; the first that is text is also printed."""
    study: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Only the runs of this study."""
    sweeps: bool = False
    """Also the runs of sweeps, each a row of its own settings."""
    uri: str = ""
    """MLflow tracking URI; by default the SQLite file runs/mlflow.db."""
    output: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/compare")
    """Folder for the tables, the figures and the report; files of an earlier comparison are replaced."""


def compare(options: Options) -> str:
    """Write the comparison and return the table to print; raises FedRayError for what cannot be compared."""
    by, metrics, formats = (_listed(options, name) for name in ("by", "metrics", "format"))
    for name in formats:
        if name not in FORMATS:
            raise FedRayError(f"--format {name}: not a format; choose from {', '.join(FORMATS)}")
    store = Store(options.uri)
    found = store.find(options.experiment, options.study, options.sweeps)
    known = sorted({name for run in found for name in groups.measurable(run)})
    if options.metrics == METRICS:  # methods without personal models can be compared too
        metrics = [name for name in metrics if name in known] or metrics
    for name in metrics:
        if name not in known:
            raise FedRayError(f"--metrics {name}: no run has it; choose from {', '.join(known) or 'none'}")
    rows = groups.arrange(found, by)
    histories = {run.id: store.rounds(run, metrics) for row in rows for run in row.runs}
    rows = [groups.measure(row, histories, metrics) for row in rows]
    if len(found) > len(histories):
        say(f"{len(found) - len(histories)} older runs with the settings and seed of a newer one are left out")
    table = tables.table(rows, by, metrics)
    texts = {"md": tables.markdown(table), "latex": tables.latex(table), "csv": tables.plain(rows, by, metrics)}
    figures = _draw(_folder(options.output), store, rows, histories, by)
    facts = {"experiment": options.experiment, "study": options.study or "any", "store": store.where}
    for name in formats:
        text = texts[name] if name in texts else html.page(table, rows, figures, facts)
        (options.output / FORMATS[name]).write_text(text, encoding="utf-8")
    return next((texts[name] for name in formats if name in texts), texts["md"])


def _listed(options: Options, name: str) -> list[str]:
    """The parts of an option with commas."""
    parts = [part.strip() for part in getattr(options, name).split(",") if part.strip()]
    if not parts:
        raise FedRayError(f"--{name} {getattr(options, name)!r}: names nothing; leave it out for the default")
    return list(dict.fromkeys(parts))


def _folder(output: Path) -> Path:
    try:
        (output / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedRayError(
            f"--output {output}: cannot be written ({error.strerror}); choose a folder that you may write to"
        ) from None
    return output


def _draw(folder: Path, store: Store, rows: Sequence[Row], histories: Histories, by: Sequence[str]) -> Figures:
    """The figures of each block of rows, by its title."""
    figures = {}
    for title, block in _blocks(rows).items():
        series = [_series(store, row, histories, row.name(by)) for row in block]
        if len(block) > figures_module.ROWS_MAX:
            say(f"{title}: the figures show the first {figures_module.ROWS_MAX} of {len(block)} rows")
        figures[title] = figures_module.draw(folder, re.sub(r"[^\w.]+", "-", title), series)
    return figures


def _blocks(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows by the data that they were measured on, under names that tell these apart."""
    blocks = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row.block)]
    details = [dict(block[0].block) for block in blocks]
    titles = {}
    for block, data in zip(blocks, details, strict=True):
        alike = [other for other in details if all(other.get(key) == data.get(key) for key in groups.DATA)]
        telling = [key for key in data if len({other.get(key) for other in alike}) > 1]
        words = [Path(data.get("data.name", "data")).stem, data.get("data.size", "")]
        words += [f"{key.removeprefix('data.')}={data[key]}" for key in telling]
        titles[", ".join(filter(None, words))] = block
    return titles


def _series(store: Store, row: Row, histories: Histories, name: str) -> figures_module.Series:
    calibration, clients, deviation = (
        [store.table(run, f"{kind}.csv") for run in row.runs] for kind in ("calibration", "clients", "loss_deviation")
    )
    missing = sum(not table for table in clients)
    if missing:
        say(f"{name}: {missing} of {len(row.runs)} runs left no clients.csv; those figures are without them")
    return figures_module.Series(name, [histories[run.id] for run in row.runs], calibration, clients, deviation)


def parse(argv: Sequence[str]) -> Options:
    """The options of a command line; tyro prints help and mistakes and leaves with its own exit code (0, 2)."""
    return tyro.cli(
        Options,
        prog="python -m fedray.compare",
        description="Tables and figures of finished runs: mean and standard deviation over seeds, the best in bold, "
        "the published figure beside it where there is one.",
        args=list(argv),
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 2 the request was at fault, 130 interrupted."""
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        print(compare(options), end="")
    except FedRayError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    for name in _listed(options, "format"):
        say(f"{name:<8} {options.output / FORMATS[name]}")
    say(f"figures  {options.output / 'figures'}")
    return 0
