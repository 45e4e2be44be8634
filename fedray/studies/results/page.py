"""The page of results, made of the data and of the reasons in why.md: nobody types a figure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedray import registry
from fedray.compare import published
from fedray.compare.published import Published
from fedray.config import Experiment, fingerprint, flatten, override, to_dict
from fedray.federate.plan import resolve
from fedray.studies.named import STUDIES
from fedray.studies.results import compare, data
from fedray.studies.results.data import BEST, Line
from fedray.studies.results.tables import TABLES, Claim, Table

PAGE, WHY = "README.md", "why.md"
KINDS = ("personal", "global")
COLUMNS = (
    "cell",
    "model",
    "seeds",
    "accuracy, mean of last ten (%)",
    "best (%)",
    "paper (%)",
    "best - paper",
    "verdict",
    "NLL",
    "ECE (%)",
    "unknown AUROC (%)",
    "CPU min per run",
)
HEAD = """# Results as data

This page is made of the files beside it by `python -m fedray.studies page`. A test compares the two, so no figure here
is typed by hand. A line of a CSV file is one run: study, cell, seed, rounds, protocol, commit, command, machine, CPU
seconds, digest of the states, and every metric.

- *Mean of last ten*: the mean over the last ten evaluations, then the mean over seeds ± their sample standard
  deviation.
- *Best*: the same of each run's best evaluation. It selects on test data, as the papers do; only this column is
  compared with theirs.
- *Verdict*: within the paper's ±; within 1 point; within twice the ±; or apart. The papers' data are split anew in each
  repeat, and so are ours.
- *Paired*: the mean difference over the same seeds, hence the same partition, with Student's 95 % interval. A claim
  *holds* if the interval is above zero, is *refuted* if it is below, and stays *open* otherwise. The intervals are
  not corrected for their number.

`python -m fedray.studies verify STUDY/CELL --seed S` plays a line again and compares. `python -m fedray.studies all`
plays what is missing, cheapest first.
"""


class Row(NamedTuple):
    """The runs of a cell, one per seed, and what the paper has for it."""

    cell: str
    lines: tuple[Line, ...]
    settings: Mapping[str, str]
    current: bool  # whether the study has the same settings today

    def values(self, metric: str) -> dict[int, float]:
        """A metric by seed."""
        return {line.seed: line.metrics[metric] for line in self.lines if metric in line.metrics}

    def paper(self, kind: str) -> Published | None:
        """The paper's accuracy of a kind of model; the first source, where there are several."""
        found = published.find(self.settings, f"{kind}/accuracy")
        return found[0] if found else None


class Verdict(NamedTuple):
    """What came of a figure that a paper prints."""

    cell: str
    kind: str
    paper: Published
    text: str


def make(folder: Path) -> str:
    """The text of the page; raises FedRayError for damaged data."""
    reasons = _reasons(folder)
    filled = [(table, rows) for table in TABLES if (rows := _rows(folder, table))]
    sections = [_section(table, rows, reasons) for table, rows in filled]
    return "\n".join([HEAD, *_overview(filled), *sections]).rstrip() + "\n"


def _rows(folder: Path, table: Table) -> list[Row]:
    """The rows of a table for which there are data, in the order of the study."""
    lines = [line for line in data.read(folder, table.study) if line.rounds == table.rounds]
    if not lines:  # planning takes time
        return []
    cells = {cell.name: cell for cell in STUDIES[table.study]()}
    wanted = dict.fromkeys(run.cell for run in table.runs())
    rows = []
    for name in wanted:
        found = tuple(line for line in lines if line.cell == name)
        if found:
            settings = _settings(override(cells[name].experiment, {"rounds": table.rounds}))
            current = all(_fingerprint(cells[name].experiment, line) == line.config for line in found)
            rows.append(Row(name, found, settings, current))
    return rows


def _settings(cfg: Experiment) -> Mapping[str, str]:
    """The settings of a cell as a tracked run has them, under which published.csv looks."""
    resolved = resolve(cfg)
    values = {"algorithm.name": registry.algorithm_name(resolved.algorithm)} | flatten(to_dict(resolved))
    return {name: str(value) for name, value in values.items()}


def _fingerprint(cfg: Experiment, line: Line) -> str:
    changes = {"rounds": line.rounds, "eval_every": line.eval_every, "seed": line.seed}
    return fingerprint(resolve(override(cfg, changes)))


def _overview(filled: Sequence[tuple[Table, Sequence[Row]]]) -> Iterator[str]:
    """How much is played, what it cost, and how much of it agrees."""
    lines = [line for _, rows in filled for row in rows for line in row.lines]
    hours = sum(line.cpu_seconds for line in lines) / 3600
    yield (
        f"**{len(lines)} runs** of {len(filled)} of {len(TABLES)} tables are in the data; they took {hours:.2f} CPU "
        "hours. `python -m fedray.studies all --list` names those that are missing."
    )
    found = [verdict for _, rows in filled for row in rows for verdict in _verdicts(row)]
    if with_sd := [each for each in found if each.paper.sd is not None]:
        near = sum(each.text != "apart" for each in with_sd)
        yield (
            f"Of {len(with_sd)} figures that a paper prints with a ±, {near} ({100 * near / len(with_sd):.0f} %) are "
            "within the larger of 1 point and twice the ±."
        )
    yield "\n| table | runs in the data | planned | CPU hours |\n| :-- | --: | --: | --: |"
    for table, rows in filled:
        played = [line for row in rows for line in row.lines]
        cost = sum(line.cpu_seconds for line in played) / 3600
        yield f"| {table.title} | {len(played)} | {len(table.runs())} | {cost:.2f} |"
    yield ""


def _section(table: Table, rows: Sequence[Row], reasons: Mapping[str, str]) -> str:
    parts = [f"## {table.title}\n", f"`python -m fedray.studies {table.study}`, {table.rounds} rounds, evaluated every "
             f"{_ordinal(table.eval_every)}. {table.protocol}\n"]  # fmt: skip
    parts.append("| " + " | ".join(COLUMNS) + " |")
    parts.append("| :-- | :-- |" + " --: |" * (len(COLUMNS) - 2))
    parts += [line for row in rows for line in _figures(row)]
    claims = list(_claims(table.claims, {row.cell: row for row in rows}))
    if claims:
        parts += [
            "\n| claim: more accurate | than | model | paired difference (points) | 95 % interval | seeds | claim |"
        ]
        parts += ["| :-- | :-- | :-- | --: | --: | --: | :-- |", *claims]
    parts += _remarks(table, rows, reasons)
    return "\n".join(parts) + "\n"


def _ordinal(every: int) -> str:
    return {1: "round", 2: "second round"}.get(every, f"{every}th round")


def _figures(row: Row) -> Iterator[str]:
    """A line for each kind of model that the method has."""
    for kind in KINDS:
        last = row.values(f"{kind}/accuracy")
        if not last:
            continue
        paper, best = row.paper(kind), row.values(f"{BEST}{kind}/accuracy")
        mean = sum(best.values()) / len(best)
        printed = "" if paper is None else _number(paper.mean, paper.sd)
        difference = "" if paper is None else f"{100 * (mean - paper.mean):+.2f}"
        cells = [
            f"{row.cell}{'' if row.current else ' †'}",
            kind,
            str(len(last)),
            _estimate(last, 100, 2),
            _estimate(best, 100, 2),
            printed,
            difference,
            "" if paper is None else compare.verdict(mean, paper),
            _estimate(row.values(f"{kind}/nll"), 1, 3),
            _estimate(row.values(f"{kind}/ece"), 100, 2),
            _estimate(row.values(f"{kind}/unknown_auroc"), 100, 1),
            f"{sum(line.cpu_seconds for line in row.lines) / len(row.lines) / 60:.1f}",
        ]
        yield "| " + " | ".join(cells) + " |"


def _verdicts(row: Row) -> Iterator[Verdict]:
    for kind in KINDS:
        best, paper = row.values(f"{BEST}{kind}/accuracy"), row.paper(kind)
        if best and paper is not None:
            text = compare.verdict(sum(best.values()) / len(best), paper)
            yield Verdict(row.cell, kind, paper, text)


def _claims(claims: Sequence[Claim], rows: Mapping[str, Row]) -> Iterator[str]:
    for claim in claims:
        if claim.better in rows and claim.worse in rows:
            found = compare.paired(rows[claim.better].values(claim.metric), rows[claim.worse].values(claim.metric))
            if found is not None:
                kind = claim.metric.partition("/")[0]
                interval = f"{100 * found.low:+.2f} to {100 * found.high:+.2f}"
                facts = [claim.better, claim.worse, kind, f"{100 * found.mean:+.2f}", interval, str(found.n)]
                yield "| " + " | ".join([*facts, found.verdict]) + " |"


def _remarks(table: Table, rows: Sequence[Row], reasons: Mapping[str, str]) -> Iterator[str]:
    """Why figures are apart, what was left behind by the study, and where the runs were played."""
    for row in rows:
        apart = [verdict.kind for verdict in _verdicts(row) if verdict.text == "apart"]
        reason = reasons.get(f"{table.study}/{row.cell}")
        if reason:
            yield f"\n**{row.cell}**: {reason}"
        elif apart:
            yield f"\n**{row.cell}** ({' and '.join(apart)}) is apart; we have not found out why."
    if not all(row.current for row in rows):
        yield "\n† Played with other settings than the study has today."
    lines = [line for row in rows for line in row.lines]
    machines, commits = (sorted({getattr(line, name) for line in lines}) for name in ("machine", "commit"))
    yield f"\nPlayed on {'; and on '.join(machines)}. Commits: {', '.join(commits)}."


def _estimate(values: Mapping[int, float], scale: float, digits: int) -> str:
    if not values:
        return ""
    scaled = [scale * value for value in values.values()]
    sd = compare.spread(scaled)
    return f"{sum(scaled) / len(scaled):.{digits}f}" + ("" if sd is None else f" ± {sd:.{digits}f}")


def _number(mean: float, sd: float | None) -> str:
    return f"{100 * mean:.2f}" + ("" if sd is None else f" ± {100 * sd:.2f}")


def _reasons(folder: Path) -> dict[str, str]:
    """The paragraphs of why.md by their headings, "## STUDY/CELL"."""
    path = folder / WHY
    if not path.exists():
        return {}
    parts = re.split(r"^## (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name.strip(): " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}
