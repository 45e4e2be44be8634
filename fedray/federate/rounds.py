"""One communication round, wherever the clients live: select, train, aggregate, evaluate."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.arrays import trees
from fedray.federate import report
from fedray.federate.messages import Cohort, EvalReply, Failure, RoundMetrics, Spotlight, TrainReply
from fedray.federate.plan import Plan
from fedray.federate.uploads import payload_bytes, sound
from fedray.types import EvalStats, RunError

SPOTLIGHT_ROUNDS = (0, 1, 10)  # of pFedBayes, Fig. 3; the last round is added


class State(NamedTuple):
    """The server's state after a round, and what the result will report of the rounds so far."""

    round: int
    server: Any
    selection: Any
    rows: tuple[Mapping[str, float], ...] = ()  # the measures of every round
    spotlights: tuple[Spotlight, ...] = ()


class Snapshot(NamedTuple):
    """A whole federation: the server and every client's private state, stacked [N, ...]."""

    server: Any
    clients: Any


class TrainingError(RunError):
    """A client cannot go on: names the client, the round and the reason."""


def start(plan: Plan) -> State:
    """The state before the first round."""
    return State(0, plan.initial_server(), plan.selection.init(len(plan.members)))


def play_round(plan: Plan, state: State, cohort: Cohort, skip: bool = False) -> tuple[State, RoundMetrics]:
    """Select, broadcast, train, check, aggregate, evaluate: one communication round.

    Raises TrainingError for a client that failed, naming it; with ``skip`` only where no client succeeded.
    """
    if plan.adapting(state.round + 1):
        return _play_adaptation(plan, state, cohort, skip)
    cfg, algorithm, began = plan.cfg, plan.algorithm, time.perf_counter()
    round, context = state.round + 1, plan.context
    spotlights = _gather_spotlights(cohort.evaluate(0, plan.view(state.server), True)) if round == 1 else ()
    scores, probed, told = _scores(plan, state.server, cohort)
    ids, selection = plan.selection.select(
        state.selection, scores, len(plan.members), context.facts.per_round, plan.stream("select", 0, round)
    )
    asked = tuple(plan.members) if cfg.train_all else ids
    down = algorithm.broadcast(context, state.server, asked)
    replies, failures = _checked(asked, cohort.train(round, asked, down), skip)
    trained = time.perf_counter()
    known = scores is not None and algorithm.publish is None  # what is broadcast was sent to all for their scores
    messages = 1 if algorithm.down_per_client else sum(len(reply.ids) for reply in replies)
    chosen = _only(ids, replies, failures)
    ids = tuple(i for reply in chosen for i in reply.ids)
    ups = trees.concatenate([reply.up for reply in chosen])
    n = torch.cat([reply.examples for reply in chosen if reply.examples is not None])
    server = algorithm.aggregate(context, state.server, ids, ups, n)
    aggregated = time.perf_counter()
    personal = global_ = None
    if round % cfg.eval_every == 0 or round == cfg.rounds or round in SPOTLIGHT_ROUNDS:
        evals = cohort.evaluate(round, plan.view(server), round in SPOTLIGHT_ROUNDS or round == cfg.rounds)
        personal, global_ = (_gather_stats([getattr(e, which) for e in evals]) for which in ("personal", "global_"))
        spotlights += _gather_spotlights(evals)
    now = time.perf_counter()
    metrics = RoundMetrics(
        round=round,
        participants=ids,
        train=_train_means(replies),
        personal=personal,
        global_=global_,
        seconds={"train": trained - began, "aggregate": aggregated - trained, "evaluate": now - aggregated,
                 "round": now - began},
        bytes_up=payload_bytes(ups, plan) + told,
        bytes_down=probed + (0 if known else payload_bytes(down, plan) * messages),
        spotlights=spotlights,
        failures=failures,
        selection=_scalars(selection),
    )  # fmt: skip
    row = {"round": round} | report.measures(metrics)
    return State(round, server, selection, (*state.rows, row), state.spotlights + spotlights), metrics


def _play_adaptation(plan: Plan, state: State, cohort: Cohort, skip: bool) -> tuple[State, RoundMetrics]:
    """Local training of the clients that were held out, of their personal factors alone; the server stays as it is."""
    round, ids, began = state.round + 1, plan.novel, time.perf_counter()
    down = plan.algorithm.broadcast(plan.context, state.server, ids)
    replies, failures = _checked(ids, cohort.train(round, ids, down), skip)
    trained, novel = time.perf_counter(), None
    if round % plan.cfg.eval_every == 0 or round == plan.rounds:
        novel = _gather_stats([reply.personal for reply in cohort.evaluate(round, plan.view(state.server), False)])
    now = time.perf_counter()
    metrics = RoundMetrics(
        round=round,
        participants=tuple(i for reply in replies for i in reply.ids),
        train=_train_means(replies),
        personal=None,
        global_=None,
        novel=novel,
        seconds={"train": trained - began, "evaluate": now - trained, "round": now - began},
        bytes_up=0,
        bytes_down=payload_bytes(down, plan) * (1 if plan.algorithm.down_per_client else len(ids)),
        failures=failures,
    )
    row = {"round": round} | report.measures(metrics)
    return state._replace(round=round, rows=(*state.rows, row)), metrics


def _checked(
    ids: Sequence[int], replies: Sequence[TrainReply], skip: bool
) -> tuple[list[TrainReply], tuple[Failure, ...]]:
    """The replies that can be averaged, and what failed; every selected client has answered or failed, and once."""
    replies = [sound(reply) for reply in replies]
    failures = tuple(failure for reply in replies for failure in reply.failures)
    good = [reply for reply in replies if reply.ids]
    answered = [i for reply in good for i in reply.ids]
    if sorted(set(answered)) != answered or not set(answered) <= set(ids):
        raise TrainingError(f"clients {answered} answered where {list(ids)} were asked; this is a fault of FedRay")
    if len(answered) < len(ids) and (not skip or not good):
        raise TrainingError(_why(failures))
    return good, tuple(f._replace(action=f.action or "left out") for f in failures)


def _only(ids: Sequence[int], replies: Sequence[TrainReply], failures: Sequence[Failure]) -> list[TrainReply]:
    """The replies of the selected clients alone, where others were trained too."""
    kept = []
    for reply in replies:
        index = [row for row, i in enumerate(reply.ids) if i in ids]
        if index:
            up, examples, info = trees.rows((reply.up, reply.examples, reply.info), index)
            kept.append(TrainReply(reply.round, tuple(reply.ids[row] for row in index), up, examples, info))
    if not kept:
        raise TrainingError(_why(failures))
    return kept


def _why(failures: Sequence[Failure]) -> str:
    first = next(failure for failure in failures if not failure.action or failure.action == "left out")
    text = (
        f"{first.who}, round {first.round}: {first.reason}, so it was not averaged in and the run stops; lower the "
        "learning rates, check the client's data, or go on without such clients by --on-failure skip"
    )
    return f"{text}\n{first.traceback}" if first.traceback else text


def _scores(plan: Plan, server: Any, cohort: Cohort) -> tuple[Tensor | None, int, int]:
    """The score of every client that the selection policy asks for, [N], stage by stage; bytes down and up for it."""
    name, message, down, up = plan.selection.score, None, 0, 0
    for number, stage in enumerate(plan.algorithm.scores[name] if name else ()):
        view = plan.view(server)
        # Every client gets the view once.
        down += len(plan.members) * payload_bytes((message, () if number else view), plan)
        sent: list[int] = []
        replies = _weighed(cohort.probe(name or "", number, view, message), plan, sent)
        message = stage.combine(plan.context, server, replies)
        up += sum(sent)
    return message, down, up


def _weighed(replies: Iterator[Tensor], plan: Plan, sent: list[int]) -> Iterator[Tensor]:
    """The replies of the federation's clients; the bytes of each join ``sent``."""
    for reply in itertools.islice(replies, len(plan.members)):
        sent.append(payload_bytes(reply, plan))
        yield reply


def _scalars(selection: Any) -> Mapping[str, float]:
    """The fields of the policy's state that are real numbers: what it has to say of the round."""
    found = trees.named_leaves(selection)
    return {
        name: float(leaf)
        for name, leaf in found
        if isinstance(leaf, Tensor) and leaf.ndim == 0 and leaf.is_floating_point()
    }


def _gather_stats(parts: Sequence[EvalStats | None]) -> EvalStats | None:
    there = [part for part in parts if part is not None]
    return trees.concatenate(there) if there else None


def _gather_spotlights(evals: Sequence[EvalReply]) -> tuple[Spotlight, ...]:
    found = [reply.spotlight for reply in evals if reply.spotlight is not None]
    if not found:
        return ()
    ids = tuple(i for spot in found for i in spot.ids)
    labels, probs = torch.cat([spot.label for spot in found]), torch.cat([spot.probs for spot in found])
    return (Spotlight(found[0].round, ids, labels, probs),)


def _train_means(replies: Sequence[TrainReply]) -> Mapping[str, float]:
    """Mean of every info scalar over clients and steps, and its value at the first and last step."""
    means = {}
    for name, values in trees.named_leaves(trees.concatenate([reply.info for reply in replies])):
        values = values.double()
        means |= {name: float(values.mean()), f"{name}_first": float(values[:, 0].mean()),
                  f"{name}_last": float(values[:, -1].mean())}  # fmt: skip
    return means
