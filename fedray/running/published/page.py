"""What the page of a run in MLflow says: a description with figures, its datasets with digests, a table of clients."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from fedray import registry
from fedray.data import papers
from fedray.federate import report
from fedray.federate.plan import Plan

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

# In the order of their importance.
SHOWN_FIGURES = ("accuracy.png", "rmse.png", "reliability.png", "coverage.png", "unknown.png", "uncertainty.png")
CURVES = ("accuracy", "rmse", "nll", "ece", "coverage")  # of these the average so far is logged, too
TABLE = "clients.json"  # among the artifacts of a run
MAX_ROWS = 1000  # of the table: the page loads all of them
NOTE = "mlflow.note.content"  # the tag that MLflow shows as the description of a run, in Markdown
MAX_NOTE = 7500  # characters: of a tag MLflow keeps 8000
LINE = 90  # characters of a command: a long line widens the page
TEST = "evaluation"  # MLflow's word for the context of test examples
DIGEST_DIGITS = 16
CHOSEN = 3  # figures in the description
WIDTH = 720  # pixels of each
PREVIEWS = "page"  # their folder among the artifacts


def command(plan: Plan) -> str | None:
    """What to type to run it again; None for data, a partition or a network that a program gave."""
    from fedray import cli

    given = papers.GIVEN in (plan.cfg.data.partition, plan.cfg.model.name) or plan.given is not None
    return None if given else cli.command(plan.cfg)


def tags(plan: Plan) -> dict[str, str]:
    """Tags of a run as it begins, by which MLflow shows its source and a description."""
    again = command(plan)
    return {NOTE: _title(plan) + block("Run it again", again), "mlflow.source.type": "LOCAL"} | (
        {"mlflow.source.name": again} if again else {}
    )


def description(plan: Plan, summary: Mapping[str, Any], figures: Sequence[str], run_id: str) -> str:
    """Markdown: what was run, what it found, the protocol, the command that repeats it, and figures.

    ``figures`` are the names of :func:`previews`, which the server of the page reads from the run's artifacts.
    """
    parts = [_title(plan), _results(plan, summary), block("Run it again", command(plan))]
    parts += [f"- *{name}*: {said}\n" for name, said in summary["protocol"].items() if said is not None]
    parts += ["\n"]
    for path in figures:
        source = f"get-artifact?path={quote(f'{PREVIEWS}/{path}', safe='')}&run_uuid={run_id}"
        parts.append(f"![{Path(path).stem}]({source})\n\n")
    # From the end: a figure or a line of the protocol rather goes than the numbers.
    while sum(map(len, parts)) > MAX_NOTE:
        parts.pop()
    return "".join(parts)


def _title(plan: Plan) -> str:
    name = registry.algorithm_name(plan.cfg.algorithm)
    sizes = f"{len(plan.members)} clients, {plan.cfg.rounds} rounds, seed {plan.cfg.seed}"
    return f"**{name}** ({plan.algorithm.summary}) on **{plan.cfg.data.name}**: {sizes}\n\n"


def block(title: str, command: str | None) -> str:
    """Markdown: a command below its title, in lines that do not widen the page; empty without one."""
    if not command:
        return ""
    lines: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):  # a break within quotes would belong to the value
        if lines and len(lines[-1]) + len(word) < LINE:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return f"{title}:\n\n```\n" + " \\\n  ".join(lines) + "\n```\n\n"


def _results(plan: Plan, summary: Mapping[str, Any]) -> str:
    """The table of the terminal."""
    kinds = report.measured(summary)
    lines = ["| |" + "|".join(report.NAMES[kind] for kind in kinds) + "|", "|---|" + "---|" * len(kinds)]
    for label, cells in report.table_rows(plan, summary, kinds):
        lines.append(f"|{label}|" + "|".join(cells) + "|")
    return "\n".join(lines) + f"\n\n{summary['protocol']['rounds']}\n\n" if kinds else ""


def previews(folder: Path, place: Path) -> list[str]:
    """Copy the figures of a result that its description shows to ``place``, the important ones first, as wide as the
    page; their names. MLflow shows an image in its own size, whatever the Markdown asks for."""
    from PIL import Image

    found = sorted(path.name for path in (folder / "figures").glob("*.png"))
    first = [name for name in SHOWN_FIGURES if name in found][:CHOSEN]
    for name in first:
        with Image.open(folder / "figures" / name) as image:
            image.thumbnail((WIDTH, WIDTH))
            image.save(place / name)
    return first


def datasets(plan: Plan) -> list[DatasetInput]:
    """The training, the test and the validation examples, each with a digest of examples, labels and owners."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    pooled = plan.dataset()
    content = hashlib.sha256(np.ascontiguousarray(pooled.x).data)
    content.update(np.ascontiguousarray(pooled.y).data)
    if plan.partition.relabel is not None:
        content.update(np.ascontiguousarray(plan.partition.relabel).data)
    parts = {"training": plan.partition.train, TEST: plan.partition.test, "validation": plan.partition.validation}
    source = json.dumps({"uri": plan.cfg.data.name, "partition": papers.describe(plan.cfg.data)})
    schema = json.dumps({"mlflow_tensorspec": {"features": _spec(pooled.x), "targets": _spec(pooled.y)}})
    inputs = []
    for context, shards in parts.items():
        if shards:
            digest = _dealt(content.copy(), shards)
            profile = json.dumps({"examples": sum(map(len, shards)), "clients": len(shards)})
            dataset = Dataset(Path(plan.cfg.data.name).name, digest, "local", source, schema, profile)
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", context)]))
    return inputs


def _dealt(content: Any, shards: Sequence[np.ndarray]) -> str:
    """The digest of some content, and of who holds which of it."""
    for shard in shards:
        content.update(len(shard).to_bytes(8, "little"))
        content.update(np.ascontiguousarray(shard, dtype="<i8").data)
    return content.hexdigest()[:DIGEST_DIGITS]


def _spec(array: np.ndarray) -> list[dict[str, Any]]:
    return [{"type": "tensor", "tensor-spec": {"dtype": str(array.dtype), "shape": [-1, *array.shape[1:]]}}]


def client_table(folder: Path) -> dict[str, list[Any]]:
    """The columns of clients.csv, of the first thousand clients; empty of a run without an evaluation."""
    path = folder / "clients.csv"
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(itertools.islice(csv.DictReader(file), MAX_ROWS))
    return {name: [_cell(row[name]) for row in rows] for name in rows[0]} if rows else {}


def _cell(text: str) -> float | int | str | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


def averages(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The result if the run ended now, of the measures of its rounds so far: averaged as :func:`report.summarize` does.

    Named as the summary's averages, which end their curves: MLflow sorts its charts by name, and these come first.
    """
    window = report.window(rows)
    return {
        f"{report.AVERAGED}/{kind}_{name}": report.mean(window, f"{kind}/{name}")
        for kind in report.KINDS
        for name in CURVES
        if window and f"{kind}/{name}" in window[0]
    }
