"""The uncertainty report inside an actor: one pass of the final models over each client's questions.

What leaves a client are ratios, sums and histograms of fixed size, never a prediction or an example.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.arrays import trees
from fedray.data.readers import Dataset
from fedray.federate.block import Block
from fedray.federate.evaluation import (
    ROWS,
    Examples,
    Predictive,
    global_predictor,
    personal_model,
    personal_predictor,
    sums,
)
from fedray.federate.failures import stage
from fedray.federate.measures import metrics
from fedray.federate.plan import Plan
from fedray.federate.uncertainty import adaptive, conformal, selective, temperature
from fedray.federate.uncertainty.questions import Questions, pool, questions
from fedray.federate.uncertainty.ranking import ranked
from fedray.federate.uncertainty.reply import SAMPLE, Answers, Scaled, Uncertainty
from fedray.federate.uncertainty.shift import corruptions
from fedray.federate.uncertainty.temperature import TEMPERATURES
from fedray.types import EvalStats


class Predicted(NamedTuple):
    """The predictive distribution of n examples, on the CPU, where all measures are computed."""

    log_p: Tensor  # [n, C] log p̄, float64
    information: Tensor  # [n] mutual information in nats; NaN of a model without draws, which has none

    @property
    def confidence(self) -> Tensor:
        """max_c p̄_c [n]."""
        return self.log_p.exp().amax(-1)

    def wrong(self, y: Tensor) -> Tensor:
        """1 where the predicted class is not the label [n], else 0."""
        return (self.log_p.argmax(-1) != y).double()


def uncertainty(block: Block, round_number: int, view: Any, dataset: Dataset, far: Tensor | None) -> Uncertainty:
    """The report on those hosted clients whom an evaluation of the round asks.

    ``dataset`` holds the examples of all clients; ``far`` [n, ...] are examples of another dataset.
    """
    plan = block.plan
    asked = set(plan.evaluated(round_number))
    strangers = pool(plan, dataset)
    far = None if far is None else far.to(block.device)
    everyone = global_predictor(block, round_number, view)
    found = []
    for k, i in enumerate(block.ids):
        if i not in asked:
            continue
        with stage("uncertainty", f"client {i}", round_number):
            asks = questions(block, k, strangers)
            own = None
            if plan.personal:
                model = personal_model(block, k, round_number, view)
                own = personal_predictor(block, k, round_number, model, plan.cfg.predict_samples)
            models = (own, everyone)
            found.append(tuple(None if each is None else _answers(plan, i, each, asks, far) for each in models))
    ids = tuple(i for i in block.ids if i in asked)
    return Uncertainty(ids, *(trees.tree_map(Tensor.cpu, trees.stack(found)) if found else (None, None)))


def _answers(plan: Plan, client: int, model: Predictive, asks: Questions, far: Tensor | None) -> Answers:
    x = asks.scored[0]
    calibration, scored = predicted(model, asks.calibration[0]), predicted(model, x)
    y_calibration, y = asks.calibration[1].cpu(), asks.scored[1].cpu()
    u = plan.stream("conformal", client).uniform([len(y_calibration) + len(y)])
    known = _scores(scored)[:, asks.known.cpu()]
    return Answers(
        _number(y),
        _number(y_calibration),
        _scaled(calibration, y_calibration, scored, y),
        selective.selective(scored.confidence, scored.wrong(y)),
        conformal.sets(calibration.log_p.exp(), y_calibration, scored.log_p.exp(), y, u),
        ranked(known, _scores(predicted(model, asks.unknown))),
        ranked(known, _scores(predicted(model, x[:0] if far is None else far))),
        _shifted(plan, client, model, asks.scored),
    )


def predicted(model: Predictive, x: Tensor) -> Predicted:
    """What a model predicts of x [n, ...], as many at a time as an evaluation takes."""
    parts = [_predicted(model.rows(piece), model.shares) for piece in x.split(ROWS) if len(piece)]
    if parts:
        return trees.concatenate(parts)
    return Predicted(torch.empty((0, 1), dtype=torch.float64), torch.empty(0, dtype=torch.float64))


def _predicted(log_probs: Tensor, shares: Tensor | None) -> Predicted:
    """Of draws log p [M, n, C]."""
    log_probs, shares = log_probs.cpu().double(), None if shares is None else shares.cpu()
    log_p = metrics.log_average(log_probs, shares)
    information = metrics.entropy_of(log_p.exp()) - metrics.expected_entropy(log_probs, shares)
    information = torch.where(information < metrics.ROUNDING_NATS, 0, information)
    return Predicted(log_p, information if len(log_probs) > 1 else torch.full_like(information, torch.nan))


def _scores(found: Predicted) -> Tensor:
    """How strange n examples are to a model by each of SCORES, [S, n]."""
    return torch.stack([-found.confidence, metrics.entropy_of(found.log_p.exp()), found.information])


def _scaled(calibration: Predicted, y_calibration: Tensor, scored: Predicted, y: Tensor) -> Scaled:
    stats, bins = [], []
    for each in TEMPERATURES:
        log_p = temperature.scaled(scored.log_p, each)
        stats.append(metrics.evaluate(log_p[None], y))
        bins.append(adaptive.tenths(log_p.exp().amax(-1), 1 - scored.wrong(y)))
    return Scaled(temperature.losses(calibration.log_p, y_calibration), trees.stack(stats), trees.stack(bins))


def _shifted(plan: Plan, client: int, model: Predictive, examples: Examples) -> EvalStats | None:
    """Sums over corrupted examples, one row per corruption."""
    x, y = (part[:SAMPLE] for part in examples)
    z = plan.normals("shift", client, 0, tuple(x.shape), x.device)
    found = [sums(plan, model, (each.apply(x, z), y)) for each in corruptions(tuple(x.shape[1:]))]
    return trees.stack(found) if found else None


def _number(y: Tensor) -> Tensor:
    return torch.tensor(float(len(y)), dtype=torch.float64)
