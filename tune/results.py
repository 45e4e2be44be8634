"""What a sweep found: the table of its trials, the best configuration, and two figures."""

from __future__ import annotations

import csv
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedray import terminal
from fedray.federate.measures.tasks import TASKS
from fedray.running.drawing import figure_style
from fedray.running.drawing.figure_style import GREY, PALETTE
from fedray.terminal import WIDE
from fedray.types import LogUniform
from tune.options import Sweep, by_test
from tune.record import outcome_of
from tune.space import Domain, hashable, value_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


OUTCOME_COLUMN = 33  # characters of a column of outcomes, which may take several lines
OUTCOME_MAX = 60  # letters of a trial's outcome in the table
DECADES_MAX = 1.5  # of a logarithmic axis whose ticks are 1, 2 and 5 times powers of ten; with more they overlap
PALEST = 0.85  # of the palette of parallel coordinates, whose end is too pale on white
LABELS_MAX = 30  # letters of all words that fit side by side along an axis


class TrialResult(NamedTuple):
    """One trial; ``score`` averages the metric over the last tenth of its evaluations, as launch's summary does."""

    trial: str
    settings: dict[str, Any]  # searched ones, by dotted name
    seed: int
    rounds: int
    score: float | None
    outcome: str
    tested: Mapping[str, Mapping[str, float]] = {}  # personal, global: measures on test examples, averaged alike

    @property
    def scored(self) -> bool:
        """Whether it has a score that can be compared: NaN is neither better nor worse than any other."""
        return self.score is not None and math.isfinite(self.score)


def rows(trials: Sequence[Any], space: Mapping[str, Domain], rounds: int) -> list[TrialResult]:
    """The results in the order in which the trials were made: a trial's id ends with its number."""
    trials = sorted(trials, key=lambda trial: trial.trial_id.rpartition("_")[2] if "_" in trial.trial_id else "")
    return [
        TrialResult(
            trial.trial_id,
            {name: hashable(trial.config[name]) for name in space},
            trial.config["seed"],
            int((trial.last_result or {}).get("round", 0)),
            (trial.last_result or {}).get("score"),
            outcome_of(trial, rounds),
            (trial.last_result or {}).get("tested", {}),
        )
        for trial in trials
    ]


def ranked(table: Sequence[TrialResult], mode: str) -> list[list[TrialResult]]:
    """Configurations (their trials over the seeds), best first.

    Those of which every trial finished come first, then stopped ones; a configuration with a failed trial has no rank.
    Of one that was drawn twice, the longer trial of each seed counts: the shorter is its beginning.
    """
    groups: dict[tuple[Any, ...], list[TrialResult]] = {}
    for row in table:
        groups.setdefault(_chosen(row), []).append(row)
    sound = [_longest(g) for g in groups.values() if all(r.scored and not r.outcome.startswith("failed") for r in g)]
    sign = -1 if mode == "max" else 1
    return sorted(sound, key=lambda g: (-min(row.rounds for row in g), sign * mean(g)))


def _chosen(row: TrialResult) -> tuple[Any, ...]:
    return tuple(row.settings.items())


def _longest(group: Sequence[TrialResult]) -> list[TrialResult]:
    """The trial with most rounds of each seed."""
    longest: dict[int, TrialResult] = {}
    for row in sorted(group, key=lambda row: -row.rounds):
        longest.setdefault(row.seed, row)
    return [longest[seed] for seed in sorted(longest)]


def by_rank(table: Sequence[TrialResult], mode: str) -> list[TrialResult]:
    """The trials of the best configuration first, those of configurations without a rank last."""
    ranks = {_chosen(group[0]): rank for rank, group in enumerate(ranked(table, mode))}
    return sorted(table, key=lambda row: ranks.get(_chosen(row), len(ranks)))


def mean(group: Sequence[TrialResult]) -> float:
    """The mean score of a configuration over its seeds."""
    return statistics.fmean(row.score for row in group if row.score is not None)


def tested(group: Sequence[TrialResult]) -> dict[str, dict[str, float]]:
    """The measures of a configuration on test examples, by kind of model: means over its seeds."""
    kinds = group[0].tested if group else {}
    measures = {name for task in TASKS for name in task.measures}
    return {
        kind: {name: statistics.fmean(row.tested[kind][name] for row in group) for name in values if name in measures}
        for kind, values in kinds.items()
    }


def basis(metric: str, share: float) -> str:
    """What the ranking stands on, in words."""
    if by_test(metric):
        return "ranked by TEST data, as you asked: the best score is too good to report as a test result"
    return f"ranked on validation examples, {share:.0%} of every client's training examples; the best is tested once"


def repetition(best: Sequence[TrialResult], rounds: int, scheduler: str) -> str:
    """What the command of the best configuration is to its trials, in words."""
    played = min(row.rounds for row in best)
    if scheduler == "pbt":
        return "plays all rounds with its last settings; pbt changed settings in mid-run, so the figures differ"
    if played < rounds:
        return f"plays all {rounds} rounds; its trial ended after {played}"
    if len(best) > 1:
        return f"plays the first of its {len(best)} seeds again, bit for bit; change --seed for the others"
    return "plays it again, bit for bit"


def csv_rows(table: Sequence[TrialResult], metric: str) -> list[dict[str, Any]]:
    """The table for trials.csv."""
    return [
        {"trial": r.trial, **r.settings, "seed": r.seed, "rounds": r.rounds, metric: r.score, "outcome": r.outcome}
        for r in table
    ]


def read_table(path: Path, space: Mapping[str, Domain], metric: str) -> list[TrialResult]:
    """The rows of a trials.csv; raises what damage leads to."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            TrialResult(
                row["trial"],
                {name: value_of(row[name]) if row[name] else None for name in space},
                int(row["seed"]),
                int(row["rounds"]),
                float(row[metric]) if row[metric] else None,
                row["outcome"],
            )
            for row in csv.DictReader(file)
        ]


def show(table: Sequence[TrialResult], metric: str, best: Sequence[TrialResult], note: str, width: int = WIDE) -> Any:
    """The table for a terminal of so many characters, with a note below; the best configuration in bold.

    A wide one is in parts, each with the names of the trials: no number is cut. With several seeds a configuration that
    has a rank has its mean and sample standard deviation below its trials.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    names = [name.removeprefix("algorithm.") for name in (table[0].settings if table else ())]
    several = len({row.seed for row in table}) > 1
    words = ["trial", *(["seed"] if several else [])]
    header = [*words, *names, "rounds", metric, "outcome"]
    lines = _lines(table, best, several)
    widths = [
        max(len(cells[at]) for cells in (header, *(line.cells for line in lines))) + 3 for at in range(len(header))
    ]
    widths[-1] = min(widths[-1], OUTCOME_COLUMN)
    columns = terminal.parts(range(len(words)), range(len(words), len(header)), widths, width - 1)
    views = []
    for part in columns:
        view = Table(title_justify="left")
        for at in part:
            right = header[at] in ("rounds", metric)
            view.add_column(header[at], justify="right" if right else "left", overflow="fold")
        for line in lines:
            view.add_row(*(line.cells[at] for at in part), style="bold" if line.bold else None, end_section=line.last)
        views.append(view)
    views[0].title = f"{len(table)} {'trial' if len(table) == 1 else 'trials'} by {metric}"
    return Group(*views, Text(note, style="italic dim"))


class _Line(NamedTuple):
    """A line of the table for a terminal."""

    cells: list[str]
    bold: bool
    last: bool = False  # of a configuration


def _lines(table: Sequence[TrialResult], best: Sequence[TrialResult], several: bool) -> list[_Line]:
    groups = {_chosen(group[0]): group for group in ranked(table, "max")}
    lines = []
    for chosen, rows in itertools.groupby(table, key=_chosen):
        for row in rows:
            settings = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.settings.values()]
            score = "" if row.score is None else f"{row.score:.4f}"
            seed = [str(row.seed)] if several else []
            cells = [row.trial[-5:], *seed, *settings, str(row.rounds), score, shorten(row.outcome)]
            lines.append(_Line(cells, row in best))
        group = groups.get(chosen, ())
        if len(group) > 1:
            sd = statistics.stdev(row.score for row in group if row.score is not None)
            score = f"{mean(group):.4f} ± {sd:.4f}"
            gap = [""] * len(group[0].settings)
            told = f"{len(group)} seeds, ± their sd"
            lines.append(_Line(["", "mean", *gap, "", score, told], group[0] in best, last=True))
    return lines


def failure(table: Sequence[TrialResult]) -> str | None:
    """The first trial that failed, with the whole reason."""
    return next(
        (
            f"{row.trial[-5:]}: {row.outcome.removeprefix('failed: ')}"
            for row in table
            if row.outcome.startswith("failed")
        ),
        None,
    )


def shorten(outcome: str) -> str:
    """The beginning of an outcome, with a sign where more follows."""
    return outcome if len(outcome) <= OUTCOME_MAX else f"{outcome[: OUTCOME_MAX - 1]}…"


def draw(table: Sequence[TrialResult], space: Mapping[str, Domain], sweep: Sweep, folder: Path) -> list[Path]:
    """The metric against each searched setting, and parallel coordinates, in ``folder``/figures.

    Trials without a score, failed and unfinished ones are left out.
    """
    scored = [row for row in table if row.scored and row.outcome.startswith(("finished", "stopped"))]
    if not scored:
        return []
    builders = {
        "metric_versus_settings": lambda: _versus(scored, space, sweep.metric),
        "parallel_coordinates": lambda: _parallel(scored, space, sweep.metric, sweep.mode),
    }
    return figure_style.save_all(folder, builders)


def _versus(table: Sequence[TrialResult], space: Mapping[str, Domain], metric: str) -> Any:
    columns = 2 if len(space) == 4 else min(3, len(space))
    lines = -(-len(space) // columns)
    figure = figure_style.canvas(3.4 * columns, 3.0 * lines)
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for ax, (name, domain) in zip(grid, space.items(), strict=False):
        positions, labels = _scale([row.settings[name] for row in table])
        for kind, marker, colour in (("finished", "o", PALETTE[0]), ("stopped", "x", PALETTE[1])):
            chosen = [(x, row.score) for x, row in zip(positions, table, strict=True) if row.outcome.startswith(kind)]
            if chosen:
                ax.scatter(
                    *zip(*chosen, strict=True),
                    marker=marker,
                    color=colour,
                    label=kind if kind == "finished" else "stopped early",
                )
        _ticks(ax, domain, labels)
        ax.set_xlabel(name.removeprefix("algorithm."))
    for ax in grid[len(space) :]:
        ax.set_visible(False)
    for ax in grid[::columns]:
        ax.set_ylabel(metric)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def _scale(values: Sequence[Any]) -> tuple[list[float], list[str]]:
    """Positions of values on an axis, and the labels of those that are not numbers."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values], []
    labels = sorted({str(value) for value in values})
    return [float(labels.index(str(value))) for value in values], labels


def _ticks(ax: Axes, domain: Domain, labels: Sequence[str]) -> None:
    if labels:
        fits = sum(map(len, labels)) <= LABELS_MAX
        ax.set_xticks(range(len(labels)), labels, rotation=0 if fits else 30, ha="center" if fits else "right")
    elif isinstance(domain, LogUniform):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        ax.set_xscale("log")
        low, high = ax.get_xlim()
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if math.log10(high / low) <= DECADES_MAX else (1,)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())


def _parallel(table: Sequence[TrialResult], space: Mapping[str, Domain], metric: str, mode: str) -> Any:
    """One vertical axis per setting and one for the metric, one line per trial, the darker the better."""
    from matplotlib import colormaps

    figure = figure_style.canvas(1.6 * (len(space) + 2), 3.6)
    ax = figure.subplots()
    columns: list[tuple[str, list[float], list[str]]] = []
    for name, domain in space.items():
        positions, labels = _scale([row.settings[name] for row in table])
        log = isinstance(domain, LogUniform)
        ends = labels or [f"{value:.3g}" for value in (min(positions), max(positions))]
        columns.append((name.removeprefix("algorithm."), [math.log(x) if log else x for x in positions], ends))
    scores = [float(row.score or 0.0) for row in table]
    columns.append((metric, scores, [f"{min(scores):.3f}", f"{max(scores):.3f}"]))
    heights = [_unit(values) for _, values, _ in columns]
    for line, (row, level) in enumerate(zip(table, heights[-1], strict=True)):
        style = "-" if row.outcome == "finished" else ":"
        ys = [column[line] for column in heights]
        pale = PALEST * (level if mode == "min" else 1 - level)
        ax.plot(range(len(columns)), ys, style, color=colormaps["viridis"](pale), linewidth=1.5)
    for x, (_, values, ends) in enumerate(columns):
        ax.axvline(x, color=GREY, linewidth=0.8)
        _label_ends(ax, x, ends if max(values) > min(values) else ends[:1])
    ax.set_xticks(range(len(columns)), [name for name, _, _ in columns])
    ax.tick_params(axis="x", pad=14, length=0)
    ax.set_yticks([])
    ax.set_ylim(-0.02, 1.02)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.set_title("solid: finished, dotted: stopped early; the darker, the better", pad=18, fontsize=9)
    return figure


def _label_ends(ax: Axes, x: float, labels: Sequence[str]) -> None:
    """What the ends of an axis mean, and the words between them; a single one stands in the middle."""
    look: dict[str, Any] = {"fontsize": 8, "annotation_clip": False}
    if len(labels) == 1:
        labels = ["", *labels, ""]
    low, *between, high = labels
    ax.annotate(high, (x, 1.02), ha="center", va="bottom", **look)
    ax.annotate(low, (x, -0.02), ha="center", va="top", **look)
    for k, label in enumerate(between, 1):
        place = (x, k / (len(labels) - 1))
        box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
        ax.annotate(label, place, (4, 0), textcoords="offset points", ha="left", va="center", bbox=box, **look)


def _unit(values: Sequence[float]) -> list[float]:
    low = min(values)
    high = max(values)
    return [(value - low) / (high - low) if high > low else 0.5 for value in values]
