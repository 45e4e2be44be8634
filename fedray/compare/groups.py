"""Which runs a comparison averages: runs whose settings differ only in the seed."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit  # of Student's t; scipy.stats takes 0.7 s to import

from fedray import registry
from fedray.compare.runs import FinishedRun
from fedray.config import Experiment, origins
from fedray.federate import report
from fedray.federate.plan import PLUG_IN
from fedray.types import Algorithm, FedRayError

ALIASES = {"algorithm": "algorithm.name", "dataset": "data.name"}
DATA = ("data.name", "data.size")
SIZES = ("small", "medium", "large")
PROTOCOL = ("rounds", "eval_every", "eval_last", "eval_clients", "clients", "novel_clients", "adapt_rounds")
PER_ROUND = "clients_per_round"
EXACT = 2**53  # whole numbers below it are exact in a double
# The seed is averaged over. The others say where a run was executed, which does not change its results.
NOT_SETTINGS = {"seed", "runtime", "data.root", "data.download"}
# Not named by older runs, or with the name of what it came to by a run that was lengthened.
SAME_NUMBERS = {
    ("on_failure", "retry"),
    ("on_failure", "abort"),
    ("noise_generator", "auto"),
    ("noise_generator", "sfc64"),
}

MISSING = "–"

History = Sequence[Mapping[str, float]]  # the rounds of a run


class Estimate(NamedTuple):
    """Mean and spread of a metric over seeds, in the unit that runs log."""

    mean: float
    sd: float | None  # sample standard deviation; None for a single run
    n: int

    @property
    def half(self) -> float | None:
        """Half the 95 % interval of the mean, t_{0.975, n-1} sd / √n (Student's t); None for a single run."""
        return None if self.sd is None else float(stdtrit(self.n - 1, 0.975)) * self.sd / math.sqrt(self.n)


class RunGroup(NamedTuple):
    """Runs with equal settings, one per seed: a row of the table."""

    values: tuple[str, ...]  # of the keys that the user compares by
    label: str  # further settings, where they differ from those of similar groups
    runs: tuple[FinishedRun, ...]
    estimates: Mapping[str, Estimate] = MappingProxyType({})  # by metric; without those that no run has

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that all runs share."""
        return settings(self.runs[0])

    @property
    def block(self) -> tuple[tuple[str, str], ...]:
        """Every setting of the data. Only groups with the same data compete."""
        return tuple(sorted((key, value) for key, value in self.settings.items() if key.startswith("data.")))

    @property
    def protocol(self) -> tuple[str | None, ...]:
        """How long these runs were, and who was evaluated when: only rows with the same protocol compete."""
        return tuple(self.settings.get(key) for key in PROTOCOL)

    @property
    def record(self) -> Algorithm | None:
        """The method's record; None for one that this installation does not have."""
        return registry.algorithms().get(self.settings.get("algorithm.name", ""))

    @property
    def control(self) -> bool:
        """Whether these runs are a control that bounds the federated methods, and not one of them."""
        return self.record is not None and bool(self.record.control)

    def chose(self, key: str) -> bool:
        """Whether the user decided a setting: a method that pools has one client per round, whatever was asked for."""
        return key != PER_ROUND or self.record is None or not self.record.pools

    def name(self, by: Sequence[str]) -> str:
        """The group's name in a legend; it leaves out the dataset, which the whole figure shares."""
        values = [value for key, value in zip(by, self.values, strict=True) if ALIASES.get(key, key) not in DATA]
        return ", ".join(filter(None, [*values, self.label])) or "all runs"


def settings(run: FinishedRun) -> Mapping[str, str]:
    """The settings that determine what a run measures, without its seed, and without those that older runs lack."""
    before = _before(run.settings.get("algorithm.name", ""))
    idle = NOT_SETTINGS | ({"data.size"} if own_file(run.settings.get("data.name", "")) else set())
    found = {key: _plain(value) for key, value in run.settings.items() if key not in idle}
    return {key: value for key, value in found.items() if (key, value) not in SAME_NUMBERS and value != before.get(key)}


@functools.cache
def _before(algorithm: str) -> Mapping[str, str]:
    """What stands for the absence of settings that came later."""
    record = registry.algorithms().get(algorithm)
    newest = Experiment(algorithm=record.config() if record else None)
    return {name: _plain(str(value)) for name, value in origins(newest).items()}


def _plain(value: str) -> str:
    """A setting in one spelling: whoever writes 1 for 1.0 means the same."""
    if not _is_number(value):
        return value
    number = float(value)
    return str(int(number)) if number.is_integer() and abs(number) < EXACT else repr(number)


def arrange(runs: Sequence[FinishedRun], by: Sequence[str]) -> list[RunGroup]:
    """Runs grouped by the values of ``by`` and by all other settings, in the order of the table.

    If two runs of a group have the same seed, the newer one counts. Raises FedRayError for a key that no run has.
    """
    _check_keys(runs, by)
    names = {run.settings.get("data.name", "") for run in runs}
    seeds_of: dict[tuple, dict[str, FinishedRun]] = {}
    for run in sorted(runs, key=lambda run: run.started, reverse=True):
        values = tuple(_shown(run, ALIASES.get(key, key), names) for key in by)
        seeds = seeds_of.setdefault((values, frozenset(settings(run).items())), {})
        seeds.setdefault(run.settings.get("seed", ""), run)
    unlabelled = []
    for (values, _), seeds in seeds_of.items():
        ordered = tuple(seeds[seed] for seed in sorted(seeds, key=_natural))
        unlabelled.append(RunGroup(values, "", ordered))
    return sorted((group._replace(label=_label(group, unlabelled, by)) for group in unlabelled), key=_order)


def _shown(run: FinishedRun, key: str, names: Collection[str]) -> str:
    """The value of a key in a table: of the user's own files the names, which have no sizes."""
    value, name = _plain(run.value(key) or MISSING), run.settings.get("data.name", "")
    if key == "data.name":
        return called(value, names)
    return MISSING if key == "data.size" and own_file(name) else value


def own_file(name: str) -> bool:
    """Whether a dataset is a file of the user's own: these are named by their whole paths."""
    return Path(name).is_absolute()


def called(name: str, others: Collection[str]) -> str:
    """The name of a dataset; of a file its own, or the whole path where another file of ``others`` has the same."""
    short = Path(name).stem
    return short if own_file(name) and sum(Path(other).stem == short for other in others) == 1 else name


def _check_keys(runs: Sequence[FinishedRun], by: Sequence[str]) -> None:
    for key in by:
        if all(run.value(ALIASES.get(key, key)) is None for run in runs):
            known = sorted({name for run in runs for name in (*run.settings, *run.tags)})
            raise FedRayError(f"--by {key}: no run has such a setting or tag; choose from {', '.join(known)}")


def _label(group: RunGroup, groups: Sequence[RunGroup], by: Sequence[str]) -> str:
    """The settings outside ``by`` that distinguish a group from similar ones, as name=value."""
    named = {ALIASES.get(key, key) for key in by}
    keys = dict.fromkeys(key for each in groups for key in each.settings if key not in named and group.chose(key))
    parts = []
    for key in keys:
        values = {each.settings.get(key) for each in _similar(group, groups, key)}
        if len(values) > 1:
            parts.append(f"{_short(key)}={_brief(group.settings.get(key, MISSING))}")
    return ", ".join(parts)


def _similar(group: RunGroup, groups: Sequence[RunGroup], key: str) -> list[RunGroup]:
    """The groups to compare a setting with.

    A hyperparameter is compared within one method, a setting of the protocol within one dataset.
    """
    same_values = [each for each in groups if each.values == group.values]
    if key in DATA:  # figures of different data are no comparison, whatever the rows are made of
        return list(groups)
    if key == "algorithm.name":
        return same_values
    if key.startswith("algorithm."):
        return [each for each in same_values if _agree(each, group, ["algorithm.name"])]
    same_data = [each for each in groups if each.chose(key) and _agree(each, group, DATA)]
    if key.startswith(PLUG_IN):  # a file that others do not use does not tell them apart
        return [each for each in same_data if (key in each.settings) == (key in group.settings)]
    return same_data


def _agree(a: RunGroup, b: RunGroup, keys: Sequence[str]) -> bool:
    return all(a.settings.get(key) == b.settings.get(key) for key in keys)


def _short(key: str) -> str:
    return "algorithm" if key == "algorithm.name" else key.removeprefix("algorithm.")


def _brief(value: str) -> str:
    """A number in six digits if these are all it has, such as 10 for 10.0."""
    if not _is_number(value):
        return value
    brief = f"{float(value):g}"
    return brief if math.isclose(float(brief), float(value), rel_tol=1e-12) else value


def _order(group: RunGroup) -> tuple:
    """Sort key: by dataset, by size, by the other settings of the data, controls last, then by what the row says."""
    size = group.settings.get("data.size", "")
    rank = SIZES.index(size) if size in SIZES else len(SIZES)
    words = tuple(_natural(text) for text in (*group.values, group.label))
    return group.settings.get("data.name", ""), rank, group.block, group.control, words


def _natural(text: str) -> list[tuple[int, float, str]]:
    """Sort key that puts 2 before 10."""
    parts = text.replace("=", " ").replace(",", " ").split()
    return [(0, float(part), "") if _is_number(part) else (1, 0.0, part) for part in parts]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def measurable(run: FinishedRun) -> set[str]:
    """The metrics that :func:`run_value` can give for a run."""
    evaluated = [name.partition("/")[0] for name in report.EVALUATED if name in run.measured]
    return {*run.measured, *(f"{kind}/{report.STABILITY}" for kind in evaluated)}


def run_value(rounds: History, metric: str) -> float | None:
    """The one number that a run contributes to a comparison; None if it has no such metric.

    Measures of a model: the mean over the last tenth of the evaluations, at most ten, as in summary.json. Newcomers are
    evaluated after the others, and trials of a sweep on validation examples only, so those have evaluations of their
    own. Stability: the standard deviation of the accuracy over the last ten evaluations. Bytes: the sum over all
    rounds. Selection scores: the mean over all rounds.
    """
    kind, _, name = metric.partition("/")
    if name == report.STABILITY:
        return report.stability(rounds, kind)
    if kind in ("comm", "selection"):
        chosen = rounds
    elif kind in (report.NOVEL, report.VALIDATION):
        chosen = report.window(rounds, (metric,))
    else:
        chosen = report.window(rounds)
    values = [row[metric] for row in chosen if metric in row]
    if not values:
        return None
    return sum(values) if kind == "comm" else sum(values) / len(values)


def estimate(histories: Sequence[History], metric: str) -> Estimate | None:
    """Mean and sample standard deviation over runs; None if no run has the metric."""
    values = [value for value in (run_value(rounds, metric) for rounds in histories) if value is not None]
    return of_runs(values) if values else None


def of_runs(values: Sequence[float]) -> Estimate:
    """Mean and sample standard deviation of one number per run."""
    with np.errstate(invalid="ignore"):  # of an infinite value, as a run that diverged has
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Estimate(float(np.mean(values)), sd, len(values))


def with_estimates(group: RunGroup, histories: Mapping[str, History], metrics: Sequence[str]) -> RunGroup:
    """The group with an estimate of each metric; ``histories`` are the rounds of each run, by its id."""
    rounds = [histories[run.id] for run in group.runs]
    found = {metric: estimate(rounds, metric) for metric in metrics}
    return group._replace(estimates={metric: value for metric, value in found.items() if value})
