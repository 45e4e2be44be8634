"""The uncertainty report in numbers: of every client, of the run, and as the curves of its figures.

A number of the run is that of its clients, weighted by their scored examples, as all measures are that a run reports.
ECE and adaptive ECE are taken from bins pooled over clients. What does not exist is left out: AUROC where a client
holds all classes, mutual information of a model without draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.arrays import trees
from fedray.config import Execution
from fedray.federate.measures import metrics
from fedray.federate.measures.tasks import Shown
from fedray.federate.plan import Plan
from fedray.federate.uncertainty import adaptive, conformal, temperature
from fedray.federate.uncertainty.conformal import ALPHA, CELLS, RULES
from fedray.federate.uncertainty.ranking import Ranked
from fedray.federate.uncertainty.reply import SAMPLE, SCORES, Answers, Uncertainty
from fedray.federate.uncertainty.selective import COVERAGE, POINTS, RISK
from fedray.federate.uncertainty.shift import corruptions
from fedray.federate.uncertainty.temperature import TEMPERATURES, UNSCALED
from fedray.types import EvalStats

CLIENTS, RISKS, SHIFT = "client_uncertainty.csv", "risk_coverage.csv", "shift.csv"  # files of a result
SELECTIVE = ("aurc", "coverage_at_risk", "risk_at_coverage")
# Of the model that a method is about, in the tracking store; all others are in the files.
TRACKED = (
    "adaptive_ece",
    "nll_scaled",
    "ece_scaled",
    "aurc",
    "coverage_at_risk",
    "risk_at_coverage",
    "unknown_auroc",
    "unknown_auroc_entropy",
    "unknown_auroc_mi",
    "unknown_fpr95",
    "far_auroc",
    "far_fpr95",
    "thr_coverage",
    "thr_size",
)
# In the table of a finished run.
SHOWN = (
    Shown("adaptive_ece", "adaptive ECE (%)", 100, 2),
    Shown("ece_scaled", "ECE at the clients' own temperatures (%)", 100, 2),
    Shown("aurc", "area under the risk-coverage curve (%)", 100, 2),
    Shown("unknown_auroc", "AUROC of unknown classes (%)", 100, 1),
    Shown("far_auroc", "AUROC of another dataset (%)", 100, 1),
    Shown("thr_coverage", f"coverage of the {100 * (1 - ALPHA):g} % sets (%)", 100, 1),
    Shown("thr_size", "mean size of these sets", 1, 2),
)


class Shared(NamedTuple):
    """What all clients together calibrate, for one kind of model."""

    temperature: int  # place in TEMPERATURES
    cells: tuple[int, ...]  # of the histograms, at whose ends the thresholds of the rules lie

    @property
    def thresholds(self) -> tuple[float, ...]:
        """q of every rule; infinity where sets have to be all classes."""
        ends = conformal.ends()
        return tuple(float(ends[cell]) if cell < CELLS else math.inf for cell in self.cells)


def shared(found: Answers) -> Shared:
    """The federated temperature and thresholds of all clients' answers."""
    cells = (conformal.federated(each) for each in found.sets.calibration.unbind(1))
    return Shared(int(temperature.best(found.scaled.calibration_nll.sum(0))), tuple(cells))


def summarize(plan: Plan, execution: Execution, found: Uncertainty) -> dict[str, Any]:
    """The part ``uncertainty`` of summary.json: the measures of every kind of model, and what they mean."""
    kinds = {"personal": found.personal, "global": found.global_}
    measured = {kind: None if each is None else _of_all(each) for kind, each in kinds.items()}
    return {"clients": len(found.ids)} | measured | {"protocol": _protocol(plan, execution)}


def _of_all(found: Answers) -> dict[str, float]:
    """The measures of one kind of model, with the federated thresholds where there are any."""
    common = shared(found)
    thresholds = zip(RULES, common.thresholds, strict=True)
    finite = {f"{rule}_threshold_federated": q for rule, q in thresholds if not math.isinf(q)}
    return measures(found, common) | finite


def _protocol(plan: Plan, execution: Execution) -> dict[str, str]:
    held_out = bool(plan.partition.validation)
    own = "its validation examples" if held_out else f"half of its test examples, at most {SAMPLE}, which do not score"
    return {
        "calibration": f"every client on {own}",
        "scored": "all of its test examples" if held_out else "the rest of its test examples",
        "unknown": f"at most {SAMPLE} test examples of others, of classes that the client does not train on; a "
        "simulation only",
        **({"far": f"at most {SAMPLE} examples of {execution.ood}"} if execution.ood else {}),
        "sets": f"of {100 * (1 - ALPHA):g} %",
        "selective": f"coverage at a risk of {100 * RISK:g} %, risk at a coverage of {100 * COVERAGE:g} %",
        "pooling": "clients weighted by their scored examples",
    }


def tracked(summary: Mapping[str, Any]) -> dict[str, float]:
    """The measures of a result that go to the tracking store, of the personal models or else of the global one."""
    found = summary.get("uncertainty")
    if found is None:
        return {}
    kind = "personal" if found["personal"] else "global"
    return {f"{kind}/{name}": found[kind][name] for name in TRACKED if name in found[kind]}


def measures(found: Answers, common: Shared) -> dict[str, float]:
    """The measures of some clients, by name, with what all clients calibrated in ``common``."""
    values = {"scored_examples": float(found.scored.sum()), "calibration_examples": float(found.calibrated.sum())}
    values |= _calibration(found, common)
    weights = found.scored
    values |= {name: _mean(getattr(found.selective, name), weights) for name in SELECTIVE}
    values |= _ranking("unknown", found.unknown, weights) | _ranking("far", found.far, weights)
    for place, (rule, cell) in enumerate(zip(RULES, common.cells, strict=True)):
        values |= _sets(rule, trees.tree_map(lambda leaf, place=place: leaf[:, place], found.sets), cell, weights)
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _calibration(found: Answers, common: Shared) -> dict[str, float]:
    """NLL, ECE and adaptive ECE as they are, at each client's own temperature, and at the federated one."""
    own = temperature.best(found.scaled.calibration_nll)
    places = {"": torch.full_like(own, UNSCALED), "_scaled": own}
    places["_scaled_federated"] = torch.full_like(own, common.temperature)
    values = {}
    for suffix, place in places.items():
        stats, bins = (_pooled_at(tree, place) for tree in (found.scaled.stats, found.scaled.tenths))
        values[f"nll{suffix}"] = float(stats.nll / stats.examples)
        values[f"ece{suffix}"] = metrics.calibration_errors(stats)[0]
        values[f"adaptive_ece{suffix}"] = adaptive.error(bins)
    logs = torch.tensor(TEMPERATURES).log()[own]
    return values | {"temperature": float(logs.mean().exp()), "temperature_federated": TEMPERATURES[common.temperature]}


def _pooled_at(tree: Any, place: Tensor) -> Any:
    """The sums over K clients of a tree [K, T, ...], of each at its own place [K]."""
    return trees.tree_map(lambda leaf: leaf[torch.arange(len(place)), place].sum(0), tree)


def _ranking(what: str, found: Ranked, weights: Tensor) -> dict[str, float]:
    """By name, as unknown_auroc of the confidence, unknown_auroc_entropy and unknown_auroc_mi."""
    values = {}
    for place, score in enumerate(SCORES):
        suffix = f"_{score}" if place else ""
        values |= {f"{what}_{name}{suffix}": _mean(field[:, place], weights) for name, field in found._asdict().items()}
    return values


def _sets(rule: str, found: conformal.Sets, cell: int, weights: Tensor) -> dict[str, float]:
    """Coverage and mean size by each client's own threshold, the federated one where it has too few examples, and by
    the federated one for all; with one client, its threshold."""
    few = found.threshold.isinf()
    covered, size = conformal.below(found.labels, cell), conformal.below(found.classes, cell)
    n = weights.sum()
    values = {
        f"{rule}_coverage": torch.where(few, covered, found.covered).sum() / n,
        f"{rule}_size": torch.where(few, size, found.size).sum() / n,
        f"{rule}_coverage_federated": covered.sum() / n,
        f"{rule}_size_federated": size.sum() / n,
    }
    return {name: float(value) for name, value in values.items()}


def _mean(values: Tensor, weights: Tensor) -> float:
    """The weighted mean [] of values [K], of those that exist; NaN if there are none."""
    there = ~values.isnan()
    return float((values[there] * weights[there]).sum() / weights[there].sum())


def _models(found: Uncertainty) -> Iterator[tuple[str, Answers]]:
    """The answers of each kind of model that the method has."""
    return ((kind, each) for kind, each in (("personal", found.personal), ("global", found.global_)) if each)


def client_rows(found: Uncertainty) -> list[dict[str, Any]]:
    """One row per kind of model and client for client_uncertainty.csv, with the thresholds of its sets."""
    rows = []
    for kind, each in _models(found):
        common = shared(each)
        for k, i in enumerate(found.ids):
            one = trees.rows(each, [k])
            own = zip(one.sets.threshold[0].tolist(), common.thresholds, strict=True)
            q = (federated if math.isinf(threshold) else threshold for threshold, federated in own)
            names = (f"{rule}_threshold" for rule in RULES)
            rows.append({"model": kind, "client": i} | measures(one, common) | dict(zip(names, q, strict=True)))
    return rows


def risk_rows(found: Uncertainty) -> Iterator[dict[str, Any]]:
    """The risk-coverage curve of every kind of model: each client answers the same share of its examples."""
    for kind, each in _models(found):
        risks = (each.selective.curve * each.scored[:, None]).sum(0) / each.scored.sum()
        for j, risk in enumerate(risks.tolist(), 1):
            yield {"model": kind, "coverage": j / POINTS, "risk": risk}


def shift_rows(plan: Plan, found: Uncertainty) -> Iterator[dict[str, Any]]:
    """Accuracy, NLL and ECE under every corruption, pooled over clients."""
    for kind, each in _models(found):
        if each.shift is None:
            continue
        pooled = metrics.pooled(each.shift)
        for place, corruption in enumerate(corruptions(plan.model.input_shape)):
            measured = metrics.summarize(EvalStats(*(field[place] for field in pooled)))
            names = ("accuracy", "nll", "ece", "entropy", "mutual_information")
            row = {"model": kind, "corruption": corruption.kind, "severity": corruption.severity}
            yield row | {name: getattr(measured, name) for name in names}
