"""What a run reports: the numbers of a round, their average at the end, and the table for the terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedray import registry
from fedray.data import papers
from fedray.federate.measures import metrics
from fedray.federate.measures.tasks import TASKS, Shown, printed, task_of
from fedray.federate.messages import RoundMetrics, Validation
from fedray.federate.plan import Plan
from fedray.federate.uncertainty import summary as uncertain
from fedray.types import LEVELS, EvalStats, RegressionStats, Stats, one_draw

WINDOW = 10  # evaluations averaged at the end, of runs that are long enough: a tenth of the evaluations, at most ten
KINDS = ("personal", "global")
NOVEL = "novel"  # the models of clients that were held out, while they adapt
STABILITY = "stability"  # of the accuracies of the last evaluations: runs log no such metric
VALIDATION = "validation"  # before the names of what is measured on validation examples; all else is on test examples
AVERAGED = "averaged"  # before the names of a summary's averages in a tracking store
PLAYED = "rounds_played"  # tag of a run: a callback or a scheduler may have stopped it before its rounds
NAMES = {"personal": "personal model", "global": "global model", NOVEL: "newcomers"}  # in figures and tables
# A round that has one of these was evaluated.
EVALUATED = tuple(f"{kind}/{task.headline}" for task in TASKS for kind in KINDS)


def measures(played: RoundMetrics) -> dict[str, float]:
    """The metrics of a round under the names that MLflow and metrics.csv carry."""
    values: dict[str, float] = {}
    for kind, stats in (*_kinds(played), *_validated(played)):
        if stats is not None:
            values |= {f"{kind}/{name}": value for name, value in task_of(stats).measure(stats).items()}
    values |= {f"{kind}/{name}": float(column.nanmean()) for kind, name, column in _own(played)}
    values |= {f"train/{name}": value for name, value in played.train.items()}
    values |= {f"selection/{name}": value for name, value in played.selection.items()}
    values |= {f"time/{name}_seconds": value for name, value in played.seconds.items()}
    values |= {"failures": float(len(played.failures))} if played.failures else {}
    return values | {"comm/bytes_up": float(played.bytes_up), "comm/bytes_down": float(played.bytes_down)}


def is_measured(name: str) -> bool:
    """Whether a measure of a round is one of an evaluation."""
    return name.startswith(tuple(f"{kind}/" for kind in (*KINDS, NOVEL, VALIDATION)))


def diverged(values: Mapping[str, float]) -> list[str]:
    """The models with a NaN among their predictions on test examples, by the measures of a round."""
    return [name for kind, name in NAMES.items() if math.isnan(values.get(f"{kind}/nll", 0.0))]


def client_rows(played: RoundMetrics, plan: Plan) -> Iterator[dict[str, Any]]:
    """One row per client of an evaluated round: shard sizes and the metrics of its models, empty where it has none."""
    parts = {"train": plan.partition.train, "test": plan.partition.test, VALIDATION: plan.partition.validation}
    sizes = {f"{part}_examples": shards for part, shards in parts.items() if shards}
    found = [(kind, stats) for kind, stats in (*_kinds(played), *_validated(played)) if stats is not None]
    names = {kind: [f"{kind.replace('/', '_')}_{name}" for name in task_of(stats).ratios] for kind, stats in found}
    places = {kind: {i: k for k, i in enumerate(_concerned(kind, played, plan))} for kind, _ in found}
    measured = list(_own(played))
    for i in range(plan.clients):
        row: dict[str, Any] = {"client": i} | ({"name": plan.names.users[i]} if plan.names.users else {})
        row |= {name: len(shards[i]) for name, shards in sizes.items()}
        for kind, stats in found:
            k = places[kind].get(i)
            own = [""] * len(names[kind]) if k is None else task_of(stats).of_client(stats, k)
            row |= zip(names[kind], own, strict=True)
        k = places["personal" if "personal" in places else "global"].get(i) if measured else None
        row |= {f"{kind}_{name}": "" if k is None else float(column[k]) for kind, name, column in measured}
        yield row


def _concerned(kind: str, played: RoundMetrics, plan: Plan) -> list[int]:
    """The clients whose models of a kind were evaluated."""
    of = plan.novel if kind.endswith(NOVEL) else plan.members
    return [i for i in played.evaluated if i in of]


def calibration_rows(played: RoundMetrics) -> list[dict[str, Any]]:
    """Count, mean confidence and accuracy of every confidence bin, pooled over clients; empty bins have no means.

    Predictions of real targets have no such bins.
    """
    pooled = [(kind, metrics.pooled(stats)) for kind, stats in _kinds(played) if isinstance(stats, EvalStats)]
    return [{"model": kind} | row for kind, stats in pooled for row in _bins(stats)]


def client_calibration_rows(played: RoundMetrics, plan: Plan) -> Iterator[dict[str, Any]]:
    """The same of every client that was evaluated by itself."""
    for kind, stats in _kinds(played):
        if isinstance(stats, EvalStats):
            for i, fields in zip(_concerned(kind, played, plan), zip(*stats, strict=True), strict=True):
                yield from ({"model": kind, "client": i} | row for row in _bins(EvalStats(*fields)))


def coverage_rows(played: RoundMetrics) -> list[dict[str, Any]]:
    """Share of real targets in the central interval of every level, pooled over clients."""
    pooled = [(kind, metrics.pooled(stats)) for kind, stats in _kinds(played) if isinstance(stats, RegressionStats)]
    return [
        {"model": kind, "level": level, "coverage": float(covered / stats.examples)}
        for kind, stats in pooled
        for level, covered in zip(LEVELS, stats.covered, strict=True)
    ]


def _bins(stats: EvalStats) -> list[dict[str, Any]]:
    rows = []
    for b, n in enumerate(stats.bin_count.tolist()):
        means = (float(stats.bin_confidence[b]) / n, float(stats.bin_correct[b]) / n) if n else ("", "")
        rows.append({"bin": b, "count": int(n), "confidence": means[0], "accuracy": means[1]})
    return rows


def _kinds(played: RoundMetrics | Validation) -> tuple[tuple[str, Stats | None], ...]:
    return ("personal", played.personal), ("global", played.global_), (NOVEL, played.novel)


def _own(played: RoundMetrics) -> Iterator[tuple[str, str, Tensor]]:
    """(kind of model, name, values [K]) of the caller's own metrics."""
    if played.own is not None:
        for kind, table in zip(KINDS, played.own.values.unbind(1), strict=True):
            for name, column in zip(played.own.names, table.unbind(1), strict=True):
                if not column.isnan().all():  # of a model that the method lacks
                    yield kind, name, column


def _validated(played: RoundMetrics) -> tuple[tuple[str, Stats | None], ...]:
    return tuple((f"{VALIDATION}/{kind}", stats) for kind, stats in _kinds(played.validation or Validation(None, None)))


def with_newcomers(evaluated: RoundMetrics, adapted: RoundMetrics, plan: Plan) -> RoundMetrics:
    """An evaluation of the federation with that of its newcomers after it, in the place of one before."""
    novel = adapted.validation.novel if adapted.validation else None
    held = evaluated.validation
    return evaluated._replace(
        novel=adapted.novel,
        validation=held and held._replace(novel=novel),
        evaluated=(*(i for i in evaluated.evaluated if i in plan.members), *adapted.evaluated),
    )


def summarize(plan: Plan, rows: Sequence[Mapping[str, float]], run_id: str | None) -> dict[str, Any]:
    """The result of a run: metrics averaged over the last tenth of the evaluations, at most ten; seconds, bytes in all.

    ``rows`` are the measures of the rounds played, with their 'round'; a model that the method lacks is None.
    """
    averaged, adapted = window(rows), window(rows, (f"{NOVEL}/{plan.task.headline}",))
    return {
        "run_id": run_id,
        "algorithm": registry.algorithm_name(plan.cfg.algorithm),
        "rounds": min(len(rows), plan.cfg.rounds),
        "seed": plan.cfg.seed,
        **{
            kind: (found := _average(plan, kind, averaged)) and found | {STABILITY: stability(rows, kind)}
            for kind in KINDS
        },
        **({NOVEL: _average(plan, NOVEL, adapted)} if plan.novel else {}),
        **({VALIDATION: _validation(plan, averaged, adapted)} if plan.partition.validation else {}),
        "seconds": sum(row["time/round_seconds"] for row in rows),
        "bytes_up": int(sum(row["comm/bytes_up"] for row in rows)),
        "bytes_down": int(sum(row["comm/bytes_down"] for row in rows)),
        "protocol": protocol(plan, [int(row["round"]) for row in averaged])
        | ({NOVEL: _held_out(plan, len(rows) - plan.cfg.rounds)} if plan.novel else {}),
    }


def averaged(plan: Plan, summary: Mapping[str, Any]) -> dict[str, float]:
    """The averages of a summary under the names that a tracking store carries beside the measures of the rounds.

    'averaged' says that they are not those of a round; charts in alphabetical order begin with it.
    """
    shown = [name for name in (plan.task.headline, "nll", "ece", "coverage") if name in plan.task.measures]
    return {f"{AVERAGED}/{kind}_{name}": summary[kind][name] for kind in KINDS if summary[kind] for name in shown}


def stored(values: Mapping[str, float]) -> dict[str, float]:
    """The measures of a round that a tracking store gets: on validation examples only what tables show.

    The others are in metrics.csv. A page with more than sixty metrics is slow.
    """
    shown = {each.name for task in TASKS for each in task.shown}
    return {
        name: value
        for name, value in values.items()
        if not name.startswith(f"{VALIDATION}/") or name.rpartition("/")[2] in shown
    }


def window(rows: Sequence[Mapping[str, float]], names: Sequence[str] = EVALUATED) -> Sequence[Mapping[str, float]]:
    """The evaluations that a result averages: of the measures of the rounds played, the last tenth, at most ten."""
    evaluated = [row for row in rows if any(name in row for name in names)]
    return evaluated[-min(WINDOW, math.ceil(len(evaluated) / 10)) :] if evaluated else []


def stability(rows: Sequence[Mapping[str, float]], kind: str) -> float | None:
    """Sample sd of a model's accuracy, or RMSE, over the last ten evaluations; None of fewer than two.

    NaN of a model that has diverged in one of them: statistics.stdev has no answer.
    """
    names = [f"{kind}/{task.headline}" for task in TASKS]
    values = [row[name] for row in rows for name in names if name in row][-WINDOW:]
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def _average(plan: Plan, kind: str, rows: Sequence[Mapping[str, float]]) -> dict[str, float | None] | None:
    if not rows or f"{kind}/{plan.task.headline}" not in rows[0]:
        return None
    own = [name for name in plan.own_metrics if any(f"{kind}/{name}" in row for row in rows)]
    return {name: mean(rows, f"{kind}/{name}") for name in (*plan.task.measures, *own)}


def mean(rows: Sequence[Mapping[str, float]], name: str) -> float:
    """The mean of a measure over the evaluations that have it: one of the caller's own may be NaN in some."""
    values = [row[name] for row in rows if name in row]
    return sum(values) / len(values)


def _validation(
    plan: Plan, averaged: Sequence[Mapping[str, float]], adapted: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """The same averages on validation examples, by kind of model."""
    found = {kind: _average(plan, f"{VALIDATION}/{kind}", averaged) for kind in KINDS}
    return found | ({NOVEL: _average(plan, f"{VALIDATION}/{NOVEL}", adapted)} if plan.novel else {})


def protocol(plan: Plan, rounds: Sequence[int]) -> dict[str, Any]:
    """What the numbers mean: which models, rounds, clients, draws and data."""
    cfg = plan.cfg
    trained = f"all trained, {cfg.clients_per_round} averaged" if cfg.train_all else f"{cfg.clients_per_round} trained"
    span = f"round {rounds[0]}" if len(rounds) == 1 else f"mean of {len(rounds)} evaluations"
    return {
        "rounds": f"{span}, rounds {rounds[0]}-{rounds[-1]}" if len(rounds) > 1 else span if rounds else "none",
        "personal": f"{plan.algorithm.personal}, on its own test shard" if plan.personal else None,
        "global": f"the {_whole(plan)} model on every client's test shard" if plan.algorithm.predict_global else None,
        "clients": f"{_asked(plan)} evaluated, {trained} per round",
        **({"control": plan.algorithm.control} if plan.algorithm.control else {}),
        "prediction": _prediction(plan),
        "pooling": "sums over all test examples of all clients",
        "dataset": cfg.data.name,
        "partition": papers.describe(cfg.data),
        "train_examples": _count(plan.partition.train, plan.members),
        "test_examples": _count(plan.partition.test, plan.members),
        **({"validation_examples": _count(held, plan.members)} if (held := plan.partition.validation) else {}),
    }


def _count(shards: Sequence[np.ndarray], clients: Sequence[int]) -> int:
    """How many examples some clients have."""
    return sum(len(shards[i]) for i in clients)


def _asked(plan: Plan) -> str:
    """Who is evaluated."""
    members, drawn = len(plan.members), plan.cfg.eval_clients
    return f"all {members}" if drawn is None or drawn >= members else f"{drawn} of {members}, drawn anew each time,"


def _whole(plan: Plan) -> str:
    """How the one model of all clients came about."""
    return "pooled" if plan.algorithm.pools else "aggregated"


def _prediction(plan: Plan) -> str:
    """What a prediction averages."""
    samples = plan.cfg.predict_samples
    particles = plan.algorithm.particles(plan.cfg.algorithm)
    if plan.algorithm.predict_noise is not one_draw:
        return f"average of {samples} posterior draws" if samples else "mean weights"
    return f"average of {particles} particles" if particles > 1 else "one prediction, without draws"


def _held_out(plan: Plan, rounds: int) -> str:
    """What became of the clients that were held out, after so many rounds of theirs."""
    then = f"then {rounds} rounds of their personal factors alone" if rounds > 0 else "and stopped before they adapted"
    train, test = (_count(shards, plan.novel) for shards in (plan.partition.train, plan.partition.test))
    return f"{len(plan.novel)} clients held out with {train} training and {test} test examples, {then}"


def table(plan: Plan, summary: Mapping[str, Any]) -> Any:
    """The summary as a rich table, personal beside global."""
    from rich.table import Table

    sizes = ", ".join(
        f"{n} {unit}{'' if n == 1 else 's'}"
        for n, unit in ((len(plan.members), "client"), (summary["rounds"], "round"))
    )
    title = f"{summary['algorithm']} on {plan.cfg.data.name}: {sizes}"
    view = Table(title=title, caption=caption(summary), title_justify="left", caption_justify="left")
    view.add_column("")
    kinds = measured(summary)
    for kind in kinds:
        view.add_column(NAMES[kind], justify="right")
    for label, cells in table_rows(plan, summary, kinds):
        view.add_row(label, *cells)
    return view


def measured(summary: Mapping[str, Any]) -> list[str]:
    """The kinds of models that a summary has measures of."""
    return [kind for kind in NAMES if summary.get(kind) is not None]


def table_rows(plan: Plan, summary: Mapping[str, Any], kinds: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(label, one cell for each kind of model) of every row of the table."""
    of_models = [summary[kind] for kind in kinds]
    for shown in plan.task.shown:
        yield shown.label, _cells(of_models, shown)
    for name in plan.own_metrics:
        yield f"{name} (mean of clients)", _cells(of_models, Shown(name, name, 1, 4))
    if VALIDATION in summary:
        shown = plan.task.shown[0]
        yield f"{shown.label}, validation", _cells([summary[VALIDATION].get(kind) for kind in kinds], shown)
    if "uncertainty" in summary:
        for shown in uncertain.SHOWN:
            found = _cells([summary["uncertainty"].get(kind) for kind in kinds], shown)
            if any(found):
                yield shown.label, found


def _cells(models: Sequence[Mapping[str, float] | None], shown: Shown) -> list[str]:
    values = [(model or {}).get(shown.name) for model in models]
    return ["" if value is None else printed(value * shown.scale, shown.digits, shown.unit) for value in values]


def _marked(summary: Mapping[str, Any]) -> str:
    """The line that tells a control from a federated method."""
    control = summary["protocol"].get("control")
    return f"control, {control}\n" if control else ""


def _after(summary: Mapping[str, Any]) -> str:
    """The line that says of which models the measures of the uncertainty report are."""
    first = uncertain.SHOWN[0].label.removesuffix(" (%)")
    return f"from {first} on: the models after round {summary['rounds']}\n" if "uncertainty" in summary else ""


def caption(summary: Mapping[str, Any]) -> str:
    """What the numbers of a run mean, and what it cost, in lines."""
    up, down = (summary[f"bytes_{way}"] / 1e6 for way in ("up", "down"))
    return (
        f"{summary['protocol']['rounds']}; {summary['protocol']['prediction']}\n"
        f"{_after(summary)}"
        f"{_marked(summary)}"
        f"{summary['seconds']:.1f} s of rounds; {up:.1f} MB up, {down:.1f} MB down"
    )
