"""How good the models of a block of clients are: predictions of test examples, as sums that add."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.arrays import trees
from fedray.data.shards import Examples
from fedray.federate.block import Block
from fedray.federate.failures import stage
from fedray.federate.measures import metrics
from fedray.federate.messages import EvalReply, OwnMeasures, Spotlight, Validation
from fedray.federate.plan import Plan
from fedray.types import FedRayError, Predict, Stats, first_line

ROWS = 1000  # test examples predicted at a time
SPOTLIGHT_DRAWS = 100  # posterior draws of the uncertainty figure

Pair = tuple[Stats | None, Stats | None]  # of the personal and of the global model; None: there is none


class Predictive(NamedTuple):
    """A model, ready to predict."""

    rows: Callable[[Tensor], Tensor]  # x [B, ...] -> log p [M, B, C], or mean and log-variance [M, B, 2]
    shares: Tensor | None = None  # [M] weights of the draws in the average; None: all the same


def evaluate(block: Block, round_number: int, view: Any, spotlight: bool) -> EvalReply:
    """Evaluation sums of the hosted clients that a round evaluates; with ``spotlight`` also one image's draws.

    The same models, by the same draws, predict the test examples and the validation examples if some are held out. Real
    targets have no draws to show: the uncertainty figure is of class probabilities. Before the first round only these
    draws are wanted.
    """
    plan = block.plan
    asked = set(plan.evaluated(round_number) if round_number else ())
    shown = set(plan.shown if spotlight and plan.personal and plan.target is None else ())
    samples = plan.cfg.predict_samples
    tested: list[Pair] = []
    validated: list[Pair] = []
    measured: list[list[list[float]]] = []  # [K, 2, Q]
    looks = []
    everyone = global_predictor(block, round_number, view)
    for k, i in enumerate(block.ids):
        if i not in asked and i not in shown:
            continue
        test = block.shards.test(k)
        validation = block.shards.validation(k)
        with stage("evaluate", f"client {i}", round_number):
            model = personal_model(block, k, round_number, view) if plan.personal else None
            if i in shown:
                looks.append(_look(personal_predictor(block, k, round_number, model, SPOTLIGHT_DRAWS), test))
            if i not in asked:
                continue
            own = personal_predictor(block, k, round_number, model, samples) if plan.personal else None
            tested.append((sums(plan, own, test), sums(plan, everyone, test)))
            if validation is not None:
                validated.append((sums(plan, own, validation), sums(plan, everyone, validation)))
        if plan.own_metrics:
            measured.append([_own_measures(plan, i, predict, test) for predict in (own, everyone)])
    ids, seen = (tuple(i for i in block.ids if i in some) for some in (asked, shown))
    look = Spotlight(round_number, seen, *map(torch.stack, zip(*looks, strict=True))) if looks else None
    personal, overall = _stacked(tested)
    held = Validation(*_stacked(validated)) if validated else None
    found = OwnMeasures(tuple(plan.own_metrics), torch.tensor(measured, dtype=torch.float64)) if measured else None
    return EvalReply(round_number, ids, personal, overall, look, held, found)


def personal_model(block: Block, k: int, round_number: int, view: Any) -> Any:
    """The personal model of the k-th hosted client after a round, under the view that the server published then."""
    plan = block.plan
    shape = plan.algorithm.personal_noise(block.context)
    noise = plan.normals("personalize", block.ids[k], round_number, shape, block.device)
    client = block.private.row(block.ids[k])

    def personalized(data: Any) -> Any:
        return plan.algorithm.personalize(block.context, client, view, data, noise)

    return personalized(trees.row(block.data([k], "personalize", personalized), 0))


def personal_predictor(block: Block, k: int, round_number: int, model: Any, samples: int) -> Predictive:
    """What the k-th hosted client's personal model predicts by so many draws."""
    function = block.plan.algorithm.predict_personal
    assert function is not None
    noise = block.plan.prediction_noise(block.context, samples, "predict", block.ids[k], round_number, block.device)
    shares = block.plan.algorithm.shares
    weights = None if shares is None else shares(block.context, model)
    return Predictive(_predictor(block, "predict_personal", function, model, noise), weights)


def global_predictor(block: Block, round_number: int, view: Any) -> Predictive | None:
    """What the global model predicts; None where the method has none."""
    plan = block.plan
    function = block.plan.algorithm.predict_global
    if function is None:
        return None
    # One stream for all clients: the global model is one predictor.
    samples = plan.cfg.predict_samples
    noise = plan.prediction_noise(block.context, samples, "predict-global", 0, round_number, block.device)
    return Predictive(_predictor(block, "predict_global", function, view, noise))


def _predictor(block: Block, name: str, function: Predict, model: Any, noise: Tensor) -> Callable[[Tensor], Tensor]:
    """The function of a model and its draws; it raises FedRayError for what is no log p of labels."""
    ctx = block.context
    unseen = block.plan.target is None

    def rows(x: Tensor) -> Tensor:
        nonlocal unseen
        found = function(ctx, model, x, noise)
        if unseen and found.ndim == 3:  # once: a GPU is waited for
            unseen = False
            total = float(found[:, :1].exp().sum(-1).mean())  # of one example
            if abs(total - 1) > metrics.SUM_TOLERANCE:  # of NaN nothing is said
                raise FedRayError(f"{name}: its probabilities add up to {total:.3g}, not 1; return log p [M, B, C]")
        return found

    return rows


def pieces(examples: Examples) -> Iterator[Examples]:
    """The examples, as many at a time as are predicted at once."""
    x, y = examples
    return zip(x.split(ROWS), y.split(ROWS), strict=True)


def sums(plan: Plan, predict: Predictive | None, examples: Examples) -> Stats | None:
    """The sums of a model over examples; None where there is no model."""
    if predict is None:
        return None
    parts = [plan.measure(predict.rows(x), y, predict.shares) for x, y in pieces(examples)]
    return metrics.pooled(trees.stack(parts))


def _own_measures(plan: Plan, client: int, predict: Predictive | None, examples: Examples) -> list[float]:
    """What the caller's metrics [Q] say of a model's probabilities; NaN where there is no model.

    Raises FedRayError, which names the metric, for one that raises or returns anything else than a number.
    """
    if predict is None:
        return [math.nan] * len(plan.own_metrics)
    parts = [metrics.log_average(predict.rows(x).double(), predict.shares).exp() for x, _ in pieces(examples)]
    p = torch.cat(parts)
    probs, y = (p / p.sum(-1, keepdim=True)).cpu().numpy(), examples[1].cpu().numpy()  # float32 sums to nearly 1
    found = []
    for name, metric in plan.own_metrics.items():
        try:
            found.append(float(metric(probs, y)))
        except Exception as error:  # whatever the caller's function raises
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise FedRayError(
                f"metrics[{name!r}] failed at client {client} ({reason}); it is called with probabilities "
                f"{list(probs.shape)} and labels {list(y.shape)}, and returns a number"
            ) from error
    return found


def _stacked(clients: Sequence[Pair]) -> Pair:
    """The sums of some clients [K, ...] on the CPU; where there is no client, none."""
    return trees.tree_map(Tensor.cpu, trees.stack(clients)) if clients else (None, None)


def _look(predict: Predictive, test: Examples) -> Examples:
    """Label and predictive draws [M, C] of the first test example; of a mixture, 100 that hold each by its share."""
    x, y = test
    draws = predict.rows(x[:1])[:, 0].exp()
    if predict.shares is not None:
        places = (torch.arange(SPOTLIGHT_DRAWS, device=draws.device) + 0.5) / SPOTLIGHT_DRAWS
        ends = predict.shares.cumsum(0)[:-1].contiguous()
        draws = draws[torch.searchsorted(ends, places)]
    return y[0].cpu(), draws.cpu()
