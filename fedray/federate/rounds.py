"""One communication round, wherever the clients live: select, train, aggregate, evaluate."""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.arrays import trees
from fedray.federate import report, totals
from fedray.federate.failures import REMEDIES, RETRY, FailurePolicy, described, stage
from fedray.federate.messages import (
    Cohort,
    EvalReply,
    Failure,
    OwnMeasures,
    RoundMetrics,
    Spotlight,
    TrainReply,
    Validation,
)
from fedray.federate.plan import Plan
from fedray.federate.uploads import payload_bytes, rows, sound
from fedray.types import RunError, Stats, Sums

SPOTLIGHT_ROUNDS = (0, 1, 10)  # of pFedBayes, Fig. 3; the last round is added


class State(NamedTuple):
    """The server's state after a round, and the records of all rounds so far."""

    round: int
    server: Any
    selection: Any
    rows: tuple[Mapping[str, float], ...] = ()  # the measures of every round
    spotlights: tuple[Spotlight, ...] = ()


class Snapshot(NamedTuple):
    """A whole federation: the server and every client's private state."""

    server: Any
    clients: Any  # stacked [N, ...]; or Saved, in files that are read one by one


class TrainingError(RunError):
    """A client cannot go on: names the client, the round and the reason."""


def start(plan: Plan) -> State:
    """The state before the first round."""
    return State(0, plan.initial_server(), plan.selection.init(len(plan.trainers)))


def last_common(plan: Plan, state: State) -> int:
    """The last round that all clients have played: those in which newcomers adapt do not count."""
    return min(state.round, plan.cfg.rounds)


class _Clock:
    """Wall seconds of a round and of its phases; a phase begins where the one before it ended."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._phases: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """Note that a phase has ended."""
        now = time.perf_counter()
        self._phases[phase] = now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Seconds of every phase, and of the round up to the end of the last phase."""
        return self._phases | {"round": self._last - self._began}


class _Trained(NamedTuple):
    """The outcome of local training in a round."""

    replies: list[TrainReply]  # of the clients that succeeded
    failures: tuple[Failure, ...]
    bytes_down: int


def play_round(plan: Plan, state: State, cohort: Cohort, policy: FailurePolicy = RETRY) -> tuple[State, RoundMetrics]:
    """Select, broadcast, train, check, aggregate, evaluate: one communication round.

    After the federation's rounds, the clients that were held out adapt instead. Raises TrainingError, which names the
    client, if a client failed; with a policy that skips such clients, only if none succeeded.
    """
    began, cpu = time.perf_counter(), time.process_time()
    started = cohort.wait_until_ready()
    start_up = {"start": time.perf_counter() - began} if started else {}
    play = _adapt if plan.adapting(state.round + 1) else _federate
    after, metrics = play(plan, state, cohort, policy)
    metrics = metrics._replace(seconds={**start_up, **metrics.seconds, "cpu": time.process_time() - cpu})
    row = {"round": after.round} | report.measures(metrics)
    return after._replace(rows=(*state.rows, row)), metrics


def _federate(plan: Plan, state: State, cohort: Cohort, policy: FailurePolicy) -> tuple[State, RoundMetrics]:
    """A round of the federation."""
    cfg = plan.cfg
    algorithm = plan.algorithm
    round_number = state.round + 1
    clock = _Clock()
    spotlights = _gather_spotlights(cohort.evaluate(0, plan.view(state.server), True)) if round_number == 1 else ()
    scores, score_bytes_down, score_bytes_up = _scores(plan, state.server, cohort, round_number)
    ids, selection = _selected(plan, state.selection, scores, round_number)
    asked = tuple(plan.trainers) if cfg.train_all else ids
    trained = _train(plan, state.server, cohort, policy, round_number, asked)
    clock.end("train")
    # Without publish, the view is the broadcast: all clients got it for their scores already.
    known = scores is not None and algorithm.publish is None
    chosen = _only(ids, trained.replies, trained.failures)
    ids = tuple(i for reply in chosen for i in reply.ids)
    server = aggregate(plan, state.server, chosen, cohort.add)
    clock.end("aggregate")
    shown = round_number in SPOTLIGHT_ROUNDS or round_number == cfg.rounds
    evals = cohort.evaluate(round_number, plan.view(server), shown) if shown or cfg.evaluates(round_number) else []
    spotlights += _gather_spotlights(evals)
    clock.end("evaluate")
    metrics = RoundMetrics(
        round=round_number,
        participants=ids,
        train=_train_means(trained.replies),
        personal=_gather_stats([reply.personal for reply in evals]),
        global_=_gather_stats([reply.global_ for reply in evals]),
        validation=_gather_validation(evals),
        evaluated=tuple(i for reply in evals for i in reply.ids),
        seconds=clock.seconds(),
        bytes_up=sum(reply.up_bytes * len(reply.ids) for reply in chosen) + score_bytes_up,
        bytes_down=score_bytes_down + (0 if known else trained.bytes_down),
        spotlights=spotlights,
        failures=trained.failures,
        selection=_scalars(selection),
        own=_gather_own(evals),
    )
    return State(round_number, server, selection, state.rows, state.spotlights + spotlights), metrics


def aggregate(plan: Plan, server: Any, chosen: Sequence[TrainReply], add: Callable[..., list[Any]]) -> Any:
    """The server's new state: from sums to which every process adds its own clients, or from all uploads."""
    round_number = chosen[0].round
    ctx = plan.context
    how = plan.algorithm.aggregate
    ids = tuple(i for reply in chosen for i in reply.ids)
    n = torch.cat([reply.examples for reply in chosen if reply.examples is not None])
    if isinstance(how, Sums):
        exponents = totals.units(trees.concatenate([reply.largest for reply in chosen]), len(ids))
        parts = add(round_number, ids, exponents)
        with stage("absorb", "server", round_number):
            return totals.absorbed(ctx, how, server, parts, exponents, n)
    ups = trees.concatenate([reply.up for reply in chosen])
    with stage("aggregate", "server", round_number):
        return how(ctx, server, ids, ups, n)


def _adapt(plan: Plan, state: State, cohort: Cohort, policy: FailurePolicy) -> tuple[State, RoundMetrics]:
    """A round after the federation's: the clients that were held out train their personal parameters only."""
    round_number = state.round + 1
    clock = _Clock()
    trained = _train(plan, state.server, cohort, policy, round_number, plan.novel)
    clock.end("train")
    evaluated = round_number % plan.cfg.eval_every == 0 or round_number == plan.rounds
    evals = cohort.evaluate(round_number, plan.view(state.server), False) if evaluated else []
    clock.end("evaluate")
    metrics = RoundMetrics(
        round=round_number,
        participants=tuple(i for reply in trained.replies for i in reply.ids),
        train=_train_means(trained.replies),
        personal=None,
        global_=None,
        novel=_gather_stats([reply.personal for reply in evals]),
        validation=_of_newcomers(_gather_validation(evals)),
        evaluated=tuple(i for reply in evals for i in reply.ids),
        seconds=clock.seconds(),
        bytes_up=0,
        bytes_down=trained.bytes_down,
        failures=trained.failures,
    )
    return state._replace(round=round_number), metrics


def _train(
    plan: Plan, server: Any, cohort: Cohort, policy: FailurePolicy, round_number: int, ids: Sequence[int]
) -> _Trained:
    """Broadcast to the clients ``ids``, let them train, and check their replies."""
    with stage("broadcast", "server", round_number):
        down = plan.algorithm.broadcast(plan.context, server, ids)
    replies, failures = _checked(ids, cohort.train(round_number, ids, down), policy.skip)
    receivers = 1 if plan.algorithm.down_per_client else sum(len(reply.ids) for reply in replies)
    return _Trained(replies, failures, payload_bytes(down, plan) * receivers)


def _checked(
    ids: Sequence[int], replies: Sequence[TrainReply], skip: bool
) -> tuple[list[TrainReply], tuple[Failure, ...]]:
    """The replies that can be averaged, and the failures; every client must have answered or failed exactly once."""
    replies = [sound(reply) for reply in replies]
    failures = tuple(failure for reply in replies for failure in reply.failures)
    good = [reply for reply in replies if reply.ids]
    answered = [i for reply in good for i in reply.ids]
    if sorted(set(answered)) != answered or not set(answered) <= set(ids):
        raise TrainingError(f"clients {answered} answered where {list(ids)} were asked; this is a fault of FedRay")
    if len(answered) < len(ids) and (not skip or not good):
        raise TrainingError(_why(failures, skip))
    return good, tuple(f._replace(action=f.action or "left out") for f in failures)


def _only(ids: Sequence[int], replies: Sequence[TrainReply], failures: Sequence[Failure]) -> list[TrainReply]:
    """The replies of the selected clients; with train_all, others were trained too."""
    kept = []
    wanted = set(ids)
    for reply in replies:
        index = [row for row, i in enumerate(reply.ids) if i in wanted]
        if index:
            kept.append(rows(reply, index))
    if not kept:
        raise TrainingError(_why(failures, skip=True))
    return kept


def _why(failures: Sequence[Failure], skip: bool) -> str:
    """Why the run stops: because of a client or, where clients are left out, because none is left."""
    first = next(failure for failure in failures if not failure.action or failure.action == "left out")
    remedy = REMEDIES[first.kind]
    if skip:
        then = f"and no selected client is left in this round; {remedy}"
    else:
        then = (
            f"so it was not averaged in and the run stops; {remedy}, or go on without such clients by `on_failure=skip`"
        )
    text = f"{described(first)}, {then}"
    return f"{text}\n{first.traceback}" if first.traceback else text


def _selected(plan: Plan, state: Any, scores: Tensor | None, round_number: int) -> tuple[tuple[int, ...], Any]:
    """The clients of a round and the policy's new state; raises TrainingError for a choice that no round can have."""
    clients, m = len(plan.trainers), plan.facts.per_round
    with stage("select", f"policy {plan.cfg.selection}", round_number):
        ids, after = plan.selection.select(state, scores, clients, m, plan.stream("select", 0, round_number))
        ids = tuple(map(operator.index, ids))
    if len(ids) != m or sorted(set(ids)) != list(ids) or ids[0] < 0 or ids[-1] >= clients:
        raise TrainingError(
            f"policy {plan.cfg.selection}, round {round_number}: it chose {list(ids)}; return {m} different clients "
            f"of 0 to {clients - 1}, in ascending order"
        )
    return ids, after


def _scores(plan: Plan, server: Any, cohort: Cohort, round_number: int) -> tuple[Tensor | None, int, int]:
    """The score [N] that the selection policy asks for, computed stage by stage, and the bytes sent down and up."""
    name = plan.selection.score
    message: Any = None
    bytes_down = 0
    bytes_up = 0
    stages = plan.algorithm.scores[name] if name else ()
    for number, (_, combine) in enumerate(stages):
        view = plan.view(server)
        # Every client gets the view once, in the first stage.
        bytes_down += len(plan.members) * payload_bytes((message, () if number else view), plan)
        sent: list[int] = []
        replies = _weighed(cohort.probe(name or "", number, view, message), plan, sent)
        with stage(f"combine of {name}", "server", round_number):
            message = combine(plan.context, server, replies)
        bytes_up += sum(sent)
    return message, bytes_down, bytes_up


def _weighed(replies: Iterator[Tensor], plan: Plan, sent: list[int]) -> Iterator[Tensor]:
    """The replies of the federation's clients; appends the bytes of each to ``sent``."""
    for reply in itertools.islice(replies, len(plan.members)):
        sent.append(payload_bytes(reply, plan))
        yield reply


def _scalars(selection: Any) -> Mapping[str, float]:
    """The fields of the policy's state that are real numbers, which are logged."""
    return {
        name: float(leaf)
        for name, leaf in trees.named_leaves(selection)
        if isinstance(leaf, Tensor) and leaf.ndim == 0 and leaf.is_floating_point()
    }


def _gather_stats(parts: Sequence[Stats | None]) -> Stats | None:
    there = [part for part in parts if part is not None]
    return trees.concatenate(there) if there else None


def _gather_own(evals: Sequence[EvalReply]) -> OwnMeasures | None:
    found = [reply.own for reply in evals if reply.own is not None]
    return OwnMeasures(found[0].names, torch.cat([own.values for own in found])) if found else None


def _gather_validation(evals: Sequence[EvalReply]) -> Validation | None:
    found = [reply.validation for reply in evals if reply.validation is not None]
    kinds = [_gather_stats(parts) for parts in zip(*found, strict=True)]
    return Validation(*kinds) if found else None


def _of_newcomers(found: Validation | None) -> Validation | None:
    """The sums of a round of adaptation, where personal models are those of newcomers."""
    return None if found is None else Validation(None, None, found.personal)


def _gather_spotlights(evals: Sequence[EvalReply]) -> tuple[Spotlight, ...]:
    found = [reply.spotlight for reply in evals if reply.spotlight is not None]
    if not found:
        return ()
    ids = tuple(i for spot in found for i in spot.ids)
    labels = torch.cat([spot.label for spot in found])
    probs = torch.cat([spot.probs for spot in found])
    return (Spotlight(found[0].round, ids, labels, probs),)


def _train_means(replies: Sequence[TrainReply]) -> Mapping[str, float]:
    """Mean of every info scalar over clients and steps, and its value at the first and last step."""
    means: dict[str, float] = {}
    for name, values in trees.named_leaves(trees.concatenate([reply.info for reply in replies])):
        values = values.double()
        means[name] = float(values.mean())
        means[f"{name}_first"] = float(values[:, 0].mean())
        means[f"{name}_last"] = float(values[:, -1].mean())
    return means
