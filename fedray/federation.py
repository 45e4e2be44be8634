"""The rounds of a federation, wherever its clients live."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray import data, trees
from fedray.local import Block, numerics
from fedray.plan import Plan
from fedray.types import Cohort, EvalReply, EvalStats, FedRayError, RoundMetrics, Spotlight, TrainReply

SPOTLIGHT_ROUNDS = (0, 1, 10)  # of pFedBayes, Fig. 3; the last round is added


class State(NamedTuple):
    """The server's state after a round."""

    round: int
    server: Any
    selection: Any


class Snapshot(NamedTuple):
    """A whole federation: the server and every client's private state, stacked [N, ...]."""

    server: Any
    clients: Any


class TrainingError(FedRayError):
    """A client cannot go on: names the client, the round and the reason."""


def start(plan: Plan) -> State:
    """The state before the first round."""
    return State(0, plan.initial_server(), plan.selection.init(plan.clients))


def play_round(plan: Plan, state: State, cohort: Cohort) -> tuple[State, RoundMetrics]:
    """Select, broadcast, train, check, aggregate, evaluate: one communication round.

    Raises TrainingError for an upload that is not finite, naming the client.
    """
    cfg, algorithm, began = plan.cfg, plan.algorithm, time.perf_counter()
    round = state.round + 1
    spotlights = _gather_spotlights(cohort.evaluate(0, plan.view(state.server), True)) if round == 1 else ()
    scores = _scores(plan, state.server, cohort)
    ids, selection = plan.selection.select(
        state.selection, scores, plan.clients, cfg.clients_per_round, plan.stream("select", 0, round)
    )
    down = algorithm.broadcast(cfg.algorithm, plan.model, state.server, ids)
    replies = cohort.train(round, ids, down)
    trained = time.perf_counter()
    for reply in replies:
        check_upload(reply)
    ups = trees.concatenate([reply.up for reply in replies])
    n = torch.cat([reply.examples for reply in replies])
    server = algorithm.aggregate(cfg.algorithm, plan.model, state.server, ids, ups, n)
    state = State(round, server, selection)
    aggregated = time.perf_counter()
    personal = global_ = None
    if round % cfg.eval_every == 0 or round == cfg.rounds or round in SPOTLIGHT_ROUNDS:
        evals = cohort.evaluate(round, plan.view(server), round in SPOTLIGHT_ROUNDS or round == cfg.rounds)
        personal, global_ = (_gather_stats([getattr(e, which) for e in evals]) for which in ("personal", "global_"))
        spotlights += _gather_spotlights(evals)
    now = time.perf_counter()
    return state, RoundMetrics(
        round=round,
        participants=tuple(ids),
        train=_train_means(replies),
        personal=personal,
        global_=global_,
        seconds={"train": trained - began, "aggregate": aggregated - trained, "evaluate": now - aggregated,
                 "round": now - began},
        bytes_up=payload_bytes(ups, plan),
        bytes_down=payload_bytes(down, plan) * (1 if algorithm.down_per_client else len(ids)),
        spotlights=spotlights,
    )  # fmt: skip


def _scores(plan: Plan, server: Any, cohort: Cohort) -> Tensor | None:
    """The score of every client that the selection policy asks for, [N], stage by stage."""
    name, message = plan.selection.score, None
    if name is None:
        return None
    for number, stage in enumerate(plan.algorithm.scores[name]):
        replies = cohort.probe(name, number, plan.view(server), message)
        message = stage.combine(plan.cfg.algorithm, plan.model, server, replies)
    return message


def _gather_stats(parts: Sequence[EvalStats | None]) -> EvalStats | None:
    return None if parts[0] is None else trees.concatenate(parts)


def _gather_spotlights(evals: Sequence[EvalReply]) -> tuple[Spotlight, ...]:
    found = [reply.spotlight for reply in evals if reply.spotlight is not None]
    if not found:
        return ()
    ids = tuple(i for spot in found for i in spot.ids)
    labels, probs = torch.cat([spot.label for spot in found]), torch.cat([spot.probs for spot in found])
    return (Spotlight(found[0].round, ids, labels, probs),)


def _train_means(replies: Sequence[TrainReply]) -> Mapping[str, float]:
    """Mean of every info scalar over participants and steps, and its value at the first and last step."""
    means = {}
    for name, values in trees.named_leaves(trees.concatenate([reply.info for reply in replies])):
        values = values.double()
        means |= {name: float(values.mean()), f"{name}_first": float(values[:, 0].mean()),
                  f"{name}_last": float(values[:, -1].mean())}  # fmt: skip
    return means


def check_upload(reply: TrainReply) -> None:
    """Refuse an upload with NaN or infinity, naming the client and the field."""
    for name, values in trees.named_leaves(reply.up):
        sums = values.flatten(1).sum(1) if values.ndim > 1 else values
        if torch.isfinite(sums).all():  # a third of the cost of testing every element
            continue
        bad = ~torch.isfinite(values.reshape(len(values), -1)).all(1)
        if bad.any():
            client = reply.ids[int(bad.nonzero()[0])]
            raise TrainingError(
                f"client {client}, round {reply.round}: its upload {name!r} is not finite, so it was not averaged in "
                "and the run stops; lower the learning rates or check the client's data"
            )


def payload_bytes(tree: Any, plan: Plan) -> int:
    """Bytes of the parameters in a message: padding, which is ours, is not counted."""
    total = 0
    for leaf in trees.leaves(tree):
        padded = leaf.ndim > 0 and leaf.shape[-1] == plan.model.padded
        total += (
            leaf.numel()
            * leaf.element_size()
            * (plan.model.size if padded else 1)
            // (plan.model.padded if padded else 1)
        )
    return total


class LocalCohort:
    """All clients in this process."""

    def __init__(self, plan: Plan, backend: str = "auto", device: str = "cpu"):
        ids = range(plan.clients)
        shards = data.shards(data.load(plan.cfg.data), plan.partition, ids)
        self.block = Block(plan, ids, shards, backend, device)

    def train(self, round: int, ids: Sequence[int], down: Any) -> list[TrainReply]:
        return [self.block.train(round, ids, down)]

    def evaluate(self, round: int, view: Any, spotlight: bool) -> list[EvalReply]:
        return [self.block.evaluate(round, view, spotlight)]

    def probe(self, score: str, stage: int, view: Any, message: Any) -> Tensor:
        return self.block.probe(score, stage, view, message)

    def snapshot(self) -> Any:
        return self.block.states


class LocalFederation:
    """A federation in this process, without Ray: iterate over its rounds, then take the snapshot."""

    def __init__(self, plan: Plan, backend: str = "auto", device: str = "cpu"):
        self.plan, self.state = plan, start(plan)
        with numerics():
            self.cohort = LocalCohort(plan, backend, device)

    def __enter__(self) -> LocalFederation:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def __iter__(self) -> Iterator[RoundMetrics]:
        while self.state.round < self.plan.cfg.rounds:
            with numerics():
                self.state, metrics = play_round(self.plan, self.state, self.cohort)
            yield metrics

    def snapshot(self) -> Snapshot:
        """The server's and the clients' states now."""
        return Snapshot(self.state.server, self.cohort.snapshot())
