"""A round before the run, with two clients and examples drawn at random: a mistake in a plug-in is one error, before
any actor starts.

Every function is called for one client, as the contract says, and once more with the same arguments. It may not raise,
draw random numbers of its own, write into its arguments, or return anything else than fedray/types/contracts.py says.
Where it cannot be stacked over clients, a warning says so: on a GPU, and with the backend vmap, the run would fail.
"""

from __future__ import annotations

import operator
import random
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray import registry
from fedray.arrays import trees
from fedray.federate import totals
from fedray.federate.device.cpu import numerics
from fedray.federate.measures.metrics import SUM_TOLERANCE
from fedray.federate.plan import Plan
from fedray.types import Batch, Combine, Context, FedRayError, Sums, client_itself, first_line

ROWS = 3  # examples that are predicted
DRAWN = 4096  # examples of a shard that differ from each other
WRITERS = ("step", "adapt")  # they may write into their local

Leaves = Iterable[tuple[str, Any]]  # of a state, with their names


def rehearse(plan: Plan) -> tuple[str, ...]:
    """What to know of an algorithm of a plug-in before it is played.

    Raises FedRayError for an algorithm or a selection policy that cannot play a round of this plan.
    """
    remarks: tuple[str, ...] = ()
    if registry.is_plug_in(registry.ALGORITHM, registry.algorithm_name(plan.cfg.algorithm)):
        with numerics():
            remarks = play(plan, plan.context)
    if registry.is_plug_in(registry.SELECTION, plan.cfg.selection):
        with numerics():
            choose(plan)
    return remarks


def play(plan: Plan, ctx: Context[Any], strict: bool = True) -> tuple[str, ...]:
    """One round with two clients; raises FedRayError for the first function that is wrong.

    Unless it is ``strict``, only for one that raises, and nothing is predicted. Returns what is worth a warning.
    """
    algorithm, cfg = plan.algorithm, plan.cfg.algorithm
    on = _Rehearsal(f"algorithm {registry.algorithm_name(cfg)}", (type(cfg).__module__,), strict)
    for field in ("particles", "minibatches"):
        count = on.call(field, getattr(algorithm, field), ctx.cfg)
        if type(count) is not int or count < 1:
            raise on.error(field, f"returns {count!r}, which is not how many there are")
    server = on.state("server_init", on.call("server_init", plan.initial_server))
    client = on.state("client_init", on.call("client_init", algorithm.client_init, ctx, server))
    data = _examples(plan, plan.facts.shard, "shard")
    _score(on, plan, ctx, server, client, data)
    ids = range(min(plan.facts.per_round, 2) if isinstance(algorithm.aggregate, Sums) else plan.facts.per_round)
    down = on.state("broadcast", on.call("broadcast", algorithm.broadcast, ctx, server, ids))
    down = trees.row(down, 0) if algorithm.down_per_client else down
    one = _uploaded(on, plan, ctx, client, down, data, "one")
    other = _uploaded(on, plan, ctx, client, down, _fewer(plan, data), "other")
    if strict:
        on.check_alike("finish", trees.named_leaves(other), trees.named_leaves(one), "for a client with more examples")
    after = _aggregated(on, plan, ctx, server, ids, _between(one, other, len(ids)))
    view = _view(on, plan, ctx, after)
    if not strict:
        return ()
    _predict(on, plan, ctx, client, view, data)
    return _stacking(on, plan, ctx, client, down, data)


def choose(plan: Plan) -> None:
    """The clients of one round; raises FedRayError where a policy is wrong, but for its choice, which is checked in
    every round."""
    clients, policy = len(plan.trainers), plan.selection
    on = _Rehearsal(f"policy {plan.cfg.selection}", (getattr(policy.select, "__module__", ""),))
    scores = None if policy.score is None else plan.stream("rehearsal-scores").uniform([clients]).double()
    before = on.call("init", policy.init, clients)
    if hasattr(before, "_fields") or not isinstance(before, tuple | None):  # a plain tuple can be kept, too
        on.state("init", before)

    def select(state: Any, scores: Tensor | None) -> Any:
        chosen = policy.select(state, scores, clients, plan.facts.per_round, plan.stream("select"))
        ids, after = on.pair("select", "clients and state", chosen)
        return tuple(map(operator.index, ids)), after

    _, after = on.call("select", select, before, scores)
    on.check_alike("select", trees.named_leaves(after), trees.named_leaves(before))


class _Rehearsal(NamedTuple):
    """Calls the functions of a plug-in, and says what is wrong with one."""

    who: str  # "algorithm NAME" or "policy NAME"
    modules: tuple[str, ...]  # that are its own
    strict: bool = True  # whether more is asked of a function than not to raise

    def call(self, field: str, function: Callable[..., Any], *args: Any) -> Any:
        """What a function returns, twice the same."""
        if not self.strict:
            return self._called(field, function, args)
        before = _generators()
        first, second = (self._called(field, function, args) for _ in range(2))
        if _generators() != before:
            raise self.error(field, "draws random numbers of its own, which no seed fixes; use those that it is given")
        if not _same(first, second):
            raise self.error(field, "returns other numbers when it is called again with the same arguments")
        return first

    def _called(self, field: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if field in WRITERS:
            args = (args[0], trees.tree_map(torch.clone, args[1]), *args[2:])
        mine = args[2 if field in WRITERS else 0 :] if self.strict else ()
        kept = [leaf for leaf in trees.leaves(mine) if isinstance(leaf, Tensor)]
        before = list(map(_trace, kept))
        try:
            result = function(*args)
        except FedRayError:  # of an author who says why
            raise
        except Exception as error:
            line = registry.line_of(error, *self.modules)
            reason = f"raises {type(error).__name__}: {first_line(error)}{f' ({line})' if line else ''}"
            raise self.error(field, reason) from error
        if list(map(_trace, kept)) != before:
            raise self.error(field, "writes into its arguments; change a clone() of them")
        return result

    def error(self, field: str, what: str) -> FedRayError:
        """What is wrong with a function."""
        return FedRayError(f"{self.who}: {field} {what} (tried before the run, on examples drawn at random)")

    def state(self, field: str, tree: Any, like: Any = None) -> Any:
        """The NamedTuple of tensors that a function returned, of the shapes and types of an earlier one."""
        if not self.strict:
            return tree
        if not hasattr(tree, "_fields"):
            raise self.error(field, f"returns {_short(tree)}, where a NamedTuple of tensors is due")
        for name, leaf in trees.named_leaves(tree):
            if not isinstance(leaf, Tensor):
                raise self.error(field, f"returns {_short(leaf)} as {name}, where a tensor is due")
        if like is not None:
            self.check_alike(field, trees.named_leaves(tree), trees.named_leaves(like))
            self.check_numbers(field, tree, like)
        return tree

    def check_alike(self, field: str, now: Leaves, before: Leaves, when: str = "before") -> None:
        """Raise FedRayError where the leaves of a state have other shapes or types than they had."""
        both = dict(before), dict(now)
        for name in (*both[0], *both[1]):
            had, has = (_short(tensors[name]) if name in tensors else "nothing" for tensors in both)
            if had != has:
                raise self.error(field, f"returns {has} as {name}, where {had} was {when}; a state keeps its form")

    def check_numbers(self, field: str, tree: Any, before: Any) -> None:
        """Raise FedRayError where NaN comes of numbers: here nothing has had the time to diverge."""
        if self.strict and not any(leaf.isnan().any() for leaf in trees.leaves(before)):
            for name, leaf in trees.named_leaves(tree):
                if leaf.isnan().any():
                    raise self.error(field, f"returns NaN as {name}, and nothing that it is given has any")

    def pair(self, field: str, names: str, result: Any) -> tuple[Any, Any]:
        """The two things of these names that a function returned."""
        if not isinstance(result, tuple) or len(result) != 2 or hasattr(result, "_fields"):
            raise self.error(field, f"returns {_short(result)}, where {names} are due, in this order")
        return result


def _uploaded(on: _Rehearsal, plan: Plan, ctx: Context[Any], client: Any, down: Any, data: Batch, purpose: str) -> Any:
    """What one of the clients uploads."""
    algorithm = plan.algorithm
    start = on.state("begin", on.call("begin", algorithm.begin, ctx, client, down, data))
    on.check_numbers("begin", start, (client, down))
    size = plan.facts.batch_size * algorithm.minibatches(ctx.cfg)
    batch = _minibatch(plan, size, purpose, data)
    noise = _noise(on, plan, purpose, "noise_shape", ctx)
    local = start
    for field, step in (("adapt", algorithm.adapt if on.strict else None), ("step", algorithm.step)):
        if step is None:
            continue
        local, info = on.pair(field, "local and info", on.call(field, step, ctx, start, batch, noise))
        on.state(field, local, like=start)
        for name, number in trees.named_leaves(on.state(field, info)):
            if on.strict and number.shape:
                raise on.error(field, f"returns {_short(number)} as {name} of its info, where a scalar is due")
    kept, up = on.pair("finish", "client and up", on.call("finish", algorithm.finish, ctx, local, data))
    on.state("finish", kept, like=client)
    on.check_numbers("finish", on.state("finish", up), local)
    return up


def _stacking(on: _Rehearsal, plan: Plan, ctx: Context[Any], client: Any, down: Any, data: Batch) -> tuple[str, ...]:
    """What to say of functions that cannot be stacked over clients, tried on two that are alike."""
    algorithm = plan.algorithm
    batch = _minibatch(plan, plan.facts.batch_size * algorithm.minibatches(ctx.cfg), "one", data)
    noise = plan.normals("rehearsal-one", 0, 0, algorithm.noise_shape(ctx))
    clients, shards, batches, noises = (trees.stack([each, each]) for each in (client, data, batch, noise))
    axis, down = (0, trees.stack([down, down])) if algorithm.down_per_client else (None, down)
    field = "begin"
    try:
        local = torch.vmap(partial(algorithm.begin, ctx), in_dims=(0, axis, 0))(clients, down, shards)
        field = "step"
        local, _ = torch.vmap(partial(algorithm.step, ctx))(trees.tree_map(torch.clone, local), batches, noises)
        field = "finish"
        torch.vmap(partial(algorithm.finish, ctx))(local, shards)
    except Exception as error:  # whatever the plug-in, or PyTorch under vmap, raises
        line = registry.line_of(error, *on.modules)
        reason = first_line(error).partition(". ")[0]
        return (
            f"{on.who}: {field} cannot be stacked over clients ({f'{line}: ' if line else ''}{reason}), so a run "
            "fails on a GPU and with `backend=vmap`; use torch.where in place of branches and boolean indices, and "
            "neither .item() nor NumPy",
        )
    return ()


def _between(one: Any, other: Any, count: int) -> Any:
    """So many uploads, stacked: those of two clients, and others between them."""

    def stacked(a: Tensor, b: Tensor) -> Tensor:
        if not a.is_floating_point():
            return torch.stack([a, b] * count)[:count]
        share = torch.arange(count, dtype=a.dtype) / max(count - 1, 1)
        return a + share.view(-1, *[1] * a.ndim) * (b - a)

    return trees.tree_map(stacked, one, other)


def _view(on: _Rehearsal, plan: Plan, ctx: Context[Any], server: Any) -> Any:
    """What clients evaluate with."""
    algorithm = plan.algorithm
    if algorithm.publish is None:
        return on.state("broadcast", on.call("broadcast", algorithm.broadcast, ctx, server, range(plan.clients)))
    return on.state("publish", on.call("publish", algorithm.publish, ctx, server))


def _score(on: _Rehearsal, plan: Plan, ctx: Context[Any], server: Any, client: Any, data: Batch) -> None:
    """The score that the policy asks for, with one client in the place of all."""
    name, view, clients = plan.selection.score, _view(on, plan, ctx, server), len(plan.members)
    message: Any = None
    for probe, combine in plan.algorithm.scores.get(name or "", ()):
        reply = on.call(f"{name}'s probe", probe, ctx, client, view, message, data)

        def combined(reply: Tensor, combine: Combine = combine) -> Any:
            return combine(ctx, server, iter([reply] * clients))

        message = on.call(f"{name}'s combine", combined, reply)
    if name is not None and (not isinstance(message, Tensor) or message.shape != (clients,)):
        raise on.error(f"{name}'s combine", f"returns {_short(message)}, where a score of each of {clients} is due")


def _aggregated(on: _Rehearsal, plan: Plan, ctx: Context[Any], server: Any, ids: range, ups: Any) -> Any:
    """The server's state after the round."""
    how, n = plan.algorithm.aggregate, torch.full((len(ids),), float(plan.facts.shard))
    if not isinstance(how, Sums):
        after = on.state("aggregate", on.call("aggregate", how, ctx, server, ids, ups, n), like=server)
        on.check_numbers("aggregate", after, ups)
        return after
    weights = on.call("weigh", how.weigh, ctx, n)
    if not isinstance(weights, Tensor) or weights.shape != n.shape or not bool((weights >= 0).all()):
        raise on.error("weigh", f"returns {_listed(weights)}, where {len(n)} weights that are not negative are due")
    held = on.call("terms", lambda ups, n: totals.terms(ctx, how, ups, n), ups, n)
    exponents = totals.units(held.largest, len(ids))
    parts = [totals.partial_sum(held, ids, exponents)]
    after = on.call("absorb", lambda server, n: totals.absorbed(ctx, how, server, parts, exponents, n), server, n)
    on.check_numbers("absorb", on.state("absorb", after, like=server), ups)
    return after


def _predict(on: _Rehearsal, plan: Plan, ctx: Context[Any], client: Any, view: Any, data: Batch) -> None:
    """What both models say of some examples."""
    algorithm = plan.algorithm
    noise = plan.prediction_noise(ctx, plan.cfg.predict_samples, "rehearsal-predict", 0, 0)
    x = data.x[:ROWS]
    if algorithm.predict_global is not None:
        rows = on.call("predict_global", algorithm.predict_global, ctx, view, x, noise)
        _check_rows(on, plan, "predict_global", rows)
    if algorithm.predict_personal is None:
        return
    own = _noise(on, plan, "personal", "personal_noise", ctx)
    personal = on.call("personalize", algorithm.personalize, ctx, client, view, data, own)
    if not algorithm.trains_to_predict and algorithm.personalize is not client_itself:
        other = data._replace(x=1 - data.x, total=data.total + 1)
        if not _same(personal, on.call("personalize", algorithm.personalize, ctx, client, view, other, own)):
            raise on.error("personalize", "computes with the examples, but the record says personal_data=False")
    rows = on.call("predict_personal", algorithm.predict_personal, ctx, personal, x, noise)
    _check_rows(on, plan, "predict_personal", rows)
    if algorithm.shares is not None:
        found = on.call("shares", algorithm.shares, ctx, personal)
        fits = isinstance(found, Tensor) and found.shape == rows.shape[:1] and bool((found >= 0).all())
        if not fits or abs(float(found.sum()) - 1) > SUM_TOLERANCE:
            raise on.error("shares", f"returns {_listed(found)}, where {len(rows)} weights of sum 1 are due")


def _check_rows(on: _Rehearsal, plan: Plan, field: str, rows: Any) -> None:
    """Raise FedRayError for what is no log p [M, B, C], or no mean and log-variance [M, B, 2]."""
    size, columns = min(ROWS, plan.facts.shard), plan.model.classes if plan.target is None else 2
    if not isinstance(rows, Tensor) or rows.ndim != 3 or rows.shape[1:] != (size, columns):
        due = "log p [M, B, C]" if plan.target is None else "means and log-variances [M, B, 2]"
        raise on.error(field, f"returns {_short(rows)} for {size} examples, where {due} with {columns} columns is due")
    if rows.isnan().any():
        raise on.error(field, "returns NaN under a model that has trained one step")
    total = float(rows[0, 0].exp().sum())
    if plan.target is None and abs(total - 1) > SUM_TOLERANCE:
        raise on.error(field, f"returns probabilities that add up to {total:.3g}, not 1; return log p [M, B, C]")


def _examples(plan: Plan, size: int, purpose: str) -> Batch:
    """A client's examples, drawn at random: inputs in [0, 1), labels of all classes in turn."""
    stream, place = plan.stream(f"rehearsal-{purpose}"), torch.arange(size)
    x = stream.uniform([min(size, DRAWN), *plan.model.input_shape])
    x = x if size <= DRAWN else x[place % DRAWN]
    y = place % plan.model.classes if plan.target is None else stream.normal([size])
    return Batch(x, y, torch.ones(size), place % plan.facts.shard, torch.tensor(float(size)))


def _minibatch(plan: Plan, size: int, purpose: str, data: Batch) -> Batch:
    """Rows of a client's examples; the rest is empty where it has fewer."""
    n = int(data.total)
    batch = _examples(plan, size, purpose)._replace(place=torch.arange(size) % n, total=data.total)
    return _padded(batch, n)


def _fewer(plan: Plan, data: Batch) -> Batch:
    """The same for the client with the fewest examples."""
    total = min(len(plan.partition.train[i]) for i in plan.trainers)
    return _padded(data, total)._replace(total=torch.tensor(float(total)))


def _padded(batch: Batch, n: int) -> Batch:
    """The same with empty rows after the first n."""
    x, y, weight = batch.x.clone(), batch.y.clone(), batch.weight.clone()
    for column in (x, y, weight):
        column[n:] = 0
    return batch._replace(x=x, y=y, weight=weight)


def _noise(on: _Rehearsal, plan: Plan, purpose: str, field: str, ctx: Context[Any]) -> Tensor:
    """Standard normals of the shape that the algorithm names."""
    shape = on.call(field, getattr(plan.algorithm, field), ctx)
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise on.error(field, f"returns {shape!r}, which is no shape")
    return plan.normals(f"rehearsal-{purpose}", 0, 0, shape)


def _trace(leaf: Tensor) -> tuple[int, int]:
    """How often a tensor was written to, and a checksum of what it holds.

    Where PyTorch does not count, it does not let one write either, but for ``.data`` and NumPy arrays of the memory.
    """
    held = leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return 0 if leaf.is_inference() else leaf._version, zlib.crc32(held.data)


def _generators() -> list[Any]:
    """The states of the random generators that everybody shares."""
    return [
        torch.get_rng_state().tolist(),
        random.getstate(),
        [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state(legacy=True)],
    ]


def _same(first: Any, second: Any) -> bool:
    """Whether two trees have the same numbers, to the bit."""
    one, other = trees.leaves(first), trees.leaves(second)
    return len(one) == len(other) and all(map(_equal, one, other))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b) or (a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()))
    return type(a) is type(b) and (a == b if isinstance(a, int | float | str) else True)


def _listed(what: object) -> str:
    """The numbers of a short tensor."""
    return str([round(x, 3) for x in what.tolist()]) if isinstance(what, Tensor) and what.ndim == 1 else _short(what)


def _short(what: object) -> str:
    """A tensor by its type and shape, a number by its value, another thing by its type."""
    if isinstance(what, Tensor):
        return f"{str(what.dtype).removeprefix('torch.')} {list(what.shape)}"
    kind = type(what).__name__
    return "nothing" if what is None else f"the {kind} {what!r}" if isinstance(what, int | float | str) else f"a {kind}"
