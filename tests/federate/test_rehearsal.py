"""The round that a plug-in plays before a run: our own pass it, and a mistake is one error that names its function."""

import math
import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedray import registry
from fedray.algorithms.averaging import fedavg
from fedray.arrays import trees
from fedray.federate import rehearsal
from fedray.types import FedRayError, Stage, require
from tests.helpers import ALGORITHMS, small_plan

PERSONAL = small_plan("fedper")
MIXED = small_plan("fedem")
PARTICLES = small_plan("dsvgd", {"selection": "ksd"})
SHARED = small_plan("fedavg")


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


def wrong(field, function, plan=PERSONAL):
    """The error for an algorithm with another function; ``function`` is given the right one."""
    algorithm = plan.algorithm
    if field in ("absorb", "weigh", "terms"):
        how = algorithm.aggregate
        changed = algorithm._replace(aggregate=how._replace(**{field: function(getattr(how, field))}))
    else:
        changed = algorithm._replace(**{field: function(getattr(algorithm, field))})
    with pytest.raises(FedRayError) as caught:
        rehearsal.play(plan._replace(algorithm=changed), plan.context)
    return str(caught.value)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_of_ours_passes(name):
    plan = small_plan(name)
    assert rehearsal.play(plan, plan.context) == ()


@pytest.mark.parametrize("name", registry.selections())
def test_every_policy_of_ours_passes(name):
    rehearsal.choose(small_plan("dsvgd", {"selection": name}))


@pytest.mark.parametrize(
    "field",
    ["server_init", "client_init", "broadcast", "begin", "step", "finish", "absorb", "personalize", "predict_personal"],
)
def test_a_function_that_raises_is_named(field):
    def fails(*args):
        raise KeyError("bias")

    if field == "server_init":
        changed = PERSONAL._replace(algorithm=PERSONAL.algorithm._replace(server_init=fails))
        with pytest.raises(FedRayError, match=r"^algorithm fedper: server_init raises KeyError: 'bias'"):
            rehearsal.play(changed, changed.context)
        return
    said = wrong(field, lambda _: fails)
    assert said.startswith(f"algorithm fedper: {field} raises KeyError: 'bias'")
    assert said.endswith("(tried before the run, on examples drawn at random)")


def test_what_an_author_refuses_is_said_in_the_author_s_words():
    def refuses(ctx, local, batch, noise):
        require(False, "mu", 3, "it is below 1", "try 0.1")

    assert wrong("step", lambda _: refuses) == "mu 3: it is below 1; try 0.1"


@pytest.mark.parametrize(
    "draw", [lambda: torch.randn(1), lambda: torch.tensor(random.random()), lambda: torch.tensor(np.random.rand())]
)
def test_randomness_of_its_own_is_refused(draw):
    said = wrong("begin", lambda begin: lambda *args: begin(*args)._replace(theta=begin(*args).theta + draw()))
    assert "begin draws random numbers of its own, which no seed fixes" in said


@pytest.mark.parametrize(
    "change",
    [lambda theta, calls: theta + calls, lambda theta, calls: torch.zeros(calls)],  # of one number, and of two
)
def test_a_function_that_counts_its_calls_is_refused(change):
    calls = []

    def counting(begin):
        def function(*args):
            calls.append(1)
            local = begin(*args)
            return local._replace(theta=change(local.theta, len(calls)))

        return function

    assert "begin returns other numbers when it is called again" in wrong("begin", counting)


def test_only_a_step_writes_into_an_argument_and_only_into_its_local():
    def begin(right):
        return lambda ctx, client, down, data: [data.x.zero_(), right(ctx, client, down, data)][1]

    assert "begin writes into its arguments" in wrong("begin", begin)

    def unseen(right):
        return lambda ctx, client, down, data: [down.theta.data.mul_(0.9), right(ctx, client, down, data)][1]

    assert "begin writes into its arguments" in wrong("begin", unseen)

    def shared(right):
        return lambda ctx, local, data: [np.negative(data.x.numpy(), out=data.x.numpy()), right(ctx, local, data)][1]

    assert "finish writes into its arguments" in wrong("finish", shared)

    def batch(right):
        return lambda ctx, local, batch, noise: [batch.x.zero_(), right(ctx, local, batch, noise)][1]

    assert "step writes into its arguments" in wrong("step", batch)

    def local(right):
        return lambda ctx, local, batch, noise: [local.theta.mul_(0.5), right(ctx, local, batch, noise)][1]

    changed = PERSONAL.algorithm._replace(step=local(PERSONAL.algorithm.step))
    rehearsal.play(PERSONAL._replace(algorithm=changed), PERSONAL.context)


def after(change):
    """A function whose result is changed."""
    return lambda right: lambda *args: change(right(*args))


@pytest.mark.parametrize(
    ("field", "change", "said"),
    [
        ("client_init", lambda client: None, "returns nothing, where a NamedTuple of tensors is due"),
        ("client_init", lambda client: {"theta": client}, "returns a dict, where a NamedTuple of tensors is due"),
        ("client_init", lambda client: client[0], "returns float32 ["),
        ("begin", lambda local: Pair(local.theta, 0), "returns the int 0 as b, where a tensor is due"),
        ("step", lambda result: result[0], "returns a Local, where local and info are due, in this order"),
        ("step", lambda result: (*result, 1), "returns a tuple, where local and info are due, in this order"),
        ("step", lambda result: (result[0], {"nll": result[1].nll}), "returns a dict, where a NamedTuple"),
        ("step", lambda result: (result[0], fedavg.Info(0.5)), "returns the float 0.5 as nll, where a tensor is due"),
        ("step", lambda result: (result[0], fedavg.Info(torch.ones(2))), "returns float32 [2] as nll of its info"),
        (
            "step",
            lambda result: (result[0]._replace(theta=result[0].theta.double()), result[1]),
            "as theta, where float32 [",
        ),
        ("step", lambda result: (Pair(*result[0][:2]), result[1]), "returns nothing as theta, where float32 ["),
        ("finish", lambda result: result[1], "returns a Part, where client and up are due, in this order"),
        ("finish", lambda result: (result[1], result[0]), "as theta, where float32 ["),
        ("absorb", lambda server: server._replace(theta=server.theta.double()), "as theta, where float32 ["),
        ("weigh", lambda weights: -weights, "where 2 weights that are not negative are due"),
        ("particles", lambda count: count + 0.5, "returns 1.5, which is not how many there are"),
        ("minibatches", lambda count: 0, "returns 0, which is not how many there are"),
        ("predict_personal", lambda rows: rows[0], "returns float32 [3, 10] for 3 examples, where log p [M, B, C]"),
        (
            "predict_personal",
            lambda rows: rows[..., :4],
            "where log p [M, B, C] with 10 columns is due",
        ),
        ("predict_personal", lambda rows: rows.exp(), "not 1; return log p [M, B, C]"),
        ("predict_global", lambda rows: rows * math.nan, "returns NaN under a model that has trained one step"),
    ],
)
def test_what_a_function_may_not_return_is_refused(field, change, said):
    plan = small_plan("fedavg") if field == "predict_global" else PERSONAL
    error = wrong(field, after(change), plan)
    assert error.startswith(f"algorithm {'fedavg' if plan is not PERSONAL else 'fedper'}: {field} ")
    assert said in error


@pytest.mark.parametrize(
    "change",
    [lambda shares: 2 * shares, lambda shares: shares[:1], lambda shares: shares * torch.tensor([-1.0, 3.0, 0.0])],
)
def test_weights_of_a_mixture_that_are_no_distribution_are_refused(change):
    assert "weights of sum 1 are due" in wrong("shares", after(change), MIXED)


def test_a_personal_model_that_needs_its_examples_says_so():
    def taught(ctx, client, view, data, noise):
        model = PERSONAL.algorithm.personalize(ctx, client, view, data, noise)
        return model._replace(theta=model.theta + data.x.mean())

    plan = PERSONAL._replace(algorithm=PERSONAL.algorithm._replace(personal_data=False, personalize=taught))
    with pytest.raises(FedRayError, match="personalize computes with the examples, but the record says"):
        rehearsal.play(plan, plan.context)
    honest = plan._replace(algorithm=plan.algorithm._replace(personal_data=True))
    rehearsal.play(honest, honest.context)


def test_what_robust_aggregation_needs_is_there():
    """As many uploads as in a round, no two of them alike."""
    plan = small_plan("fedavg", {"clients_per_round": 4})

    def trimmed(ctx, server, ids, ups, n):
        spread = (ups.theta - ups.theta.mean(0)).norm(dim=1)
        assert len(ids) == 4
        assert len(spread.unique()) > 1
        weights = (spread / spread.sum())[:, None]
        return server._replace(theta=(weights * ups.theta).sum(0) + 0 * ups.theta.sort(0).values[1:-1].mean(0))

    changed = plan._replace(algorithm=plan.algorithm._replace(aggregate=trimmed))
    rehearsal.play(changed, changed.context)
    bare = plan.algorithm._replace(aggregate=lambda *args: trimmed(*args)._replace(theta=args[1].theta * math.nan))
    with pytest.raises(FedRayError, match="aggregate returns NaN as theta, and nothing that it is given has any"):
        rehearsal.play(plan._replace(algorithm=bare), plan.context)


def test_a_run_that_goes_on_asks_for_no_more_than_that_nothing_raises():
    plan = small_plan("fedavg", {"algorithm.lr": 1e30})
    with pytest.raises(FedRayError, match="returns NaN"):
        rehearsal.play(plan, plan.context)
    rehearsal.play(plan, plan.context, strict=False)


def test_a_view_under_inference_mode_is_a_view():
    @torch.inference_mode()
    def publish(ctx, server):
        return server._replace(theta=server.theta.clone())

    plan = small_plan("fedavg")
    rehearsal.play(plan._replace(algorithm=plan.algorithm._replace(publish=publish)), plan.context)


def test_a_policy_may_keep_its_scores():
    class Last(NamedTuple):
        scores: Tensor

    plan = small_plan("dsvgd", {"selection": "ksd"})
    select = lambda state, scores, clients, m, rng: (tuple(range(m)), Last(scores))  # noqa: E731
    init = lambda clients: Last(torch.zeros(clients, dtype=torch.float64))  # noqa: E731
    rehearsal.choose(plan._replace(selection=plan.selection._replace(init=init, select=select)))


def test_the_total_of_a_minibatch_is_that_of_the_client():
    seen = []

    def step(right):
        def function(ctx, local, batch, noise):
            seen.append(float(batch.total))
            return right(ctx, local, batch, noise)

        return function

    changed = PERSONAL.algorithm._replace(step=step(PERSONAL.algorithm.step))
    rehearsal.play(PERSONAL._replace(algorithm=changed), PERSONAL.context)
    fewest = min(len(PERSONAL.partition.train[i]) for i in PERSONAL.trainers)
    assert set(seen) == {PERSONAL.facts.shard, fewest}


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("begin", lambda local: local._replace(theta=local.theta * math.nan)),
        ("step", lambda result: (result[0]._replace(theta=result[0].theta * math.nan), result[1])),
        ("finish", lambda result: (result[0], result[1]._replace(theta=result[1].theta * math.nan))),
    ],
)
def test_nan_is_refused_where_it_comes_from(field, change):
    """Not where it shows: exact sums of uploads make numbers of it."""
    assert "returns NaN as theta, and nothing that it is given has any" in wrong(field, after(change), SHARED)


def test_uploads_of_clients_with_more_and_fewer_examples_have_one_form():
    def cut(right):
        def finish(ctx, local, data):
            client, up = right(ctx, local, data)
            return client, up._replace(theta=up.theta[: int(data.total)])

        return finish

    error = wrong("finish", cut, SHARED)
    assert "finish returns float32 [130] as theta, where float32 [360] was for a client with more examples" in error


@pytest.mark.parametrize("name", ["fedavg", "fedamp"])  # fedamp sends each client something else
@pytest.mark.parametrize("field", ["begin", "step", "finish"])
def test_what_cannot_be_stacked_is_said(name, field):
    plan = small_plan(name)
    right = getattr(plan.algorithm, field)

    def branches(*args):
        # What is sent down is stacked where each client is sent something else.
        state = args[1] if field != "begin" else args[2] if name == "fedamp" else args[3]
        assert trees.leaves(state)[0].sum() > -math.inf
        return right(*args)

    changed = plan.algorithm._replace(**{field: branches})
    (remark,) = rehearsal.play(plan._replace(algorithm=changed), plan.context)
    assert remark.startswith(f"algorithm {name}: {field} cannot be stacked over clients (")
    assert "torch.where" in remark


def test_the_client_with_fewer_examples_is_one_that_a_run_may_have():
    """A weight for each of its examples, by their places, as importance sampling has it."""
    plan = small_plan("fedavg", {"batch_size": 200})

    class Local(NamedTuple):
        base: Any
        share: Tensor

    def begin(ctx, client, down, data):
        return Local(plan.algorithm.begin(ctx, client, down, data), data.weight / data.weight.sum())

    def step(ctx, local, batch, noise):
        weight = torch.where(batch.weight > 0, 1 / local.share[batch.place], 0)
        base, info = plan.algorithm.step(ctx, local.base, batch._replace(weight=weight), noise)
        return local._replace(base=base), info

    def finish(ctx, local, data):
        return plan.algorithm.finish(ctx, local.base, data)

    changed = plan.algorithm._replace(begin=begin, step=step, finish=finish)
    assert rehearsal.play(plan._replace(algorithm=changed), plan.context) == ()


def test_scores_are_one_for_each_client():
    (name, (*before, last)), *_ = PARTICLES.algorithm.scores.items()
    short = Stage(last.probe, lambda ctx, server, replies: last.combine(ctx, server, replies)[1:])
    changed = PARTICLES.algorithm._replace(scores={name: (*before, short)})
    with pytest.raises(
        FedRayError, match=rf"{name}'s combine returns float64 \[5\], where a score of each of 6 is due"
    ):
        rehearsal.play(PARTICLES._replace(algorithm=changed), PARTICLES.context)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"init": lambda clients: {"turn": torch.zeros(())}},
            "init returns a dict, where a NamedTuple of tensors is due",
        ),
        ({"init": lambda clients: 1 / 0}, "init raises ZeroDivisionError"),
        ({"select": lambda *args: (0, 1, 2)}, "select returns a tuple, where clients and state are due, in this order"),
        (
            {"select": lambda state, *rest: ((0, 1), Pair(*torch.zeros(2)))},
            "select returns float32 [] as a, where",
        ),
        (
            {"select": lambda state, *rest: (tuple(np.random.default_rng().permutation(600)[:2].tolist()), state)},
            "select returns other numbers when it is called again",
        ),
        (
            {"select": lambda state, *rest: (tuple(torch.randperm(6)[:2].tolist()), state)},
            "select draws random numbers of its own",
        ),
    ],
)
def test_a_policy_that_cannot_choose_is_refused(changed, said):
    plan = small_plan("fedavg")
    with pytest.raises(FedRayError) as caught:
        rehearsal.choose(plan._replace(selection=plan.selection._replace(**changed)))
    assert str(caught.value).startswith(f"policy uniform: {said}")


def test_a_plug_in_is_tried_before_a_plan_is_made_and_ours_are_not(tmp_path, monkeypatch):
    (tmp_path / "wrong_step.py").write_text(WRONG, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_named", {})
    monkeypatch.setattr(registry, "programs", {})
    registry.plug_in("wrong_step")
    with pytest.raises(FedRayError) as caught:
        small_plan("wrong_step")
    assert "algorithm wrong_step: step raises AttributeError: 'WrongStep' object has no attribute 'rate'" in str(
        caught.value
    )
    assert "(wrong_step.py, line 14)" in str(caught.value)
    monkeypatch.setattr(rehearsal, "play", None)
    small_plan("fedavg")


WRONG = '''"""A step with a misspelt setting."""

from dataclasses import dataclass

from fedray.algorithms.averaging import fedavg


@dataclass(frozen=True, kw_only=True)
class WrongStep(fedavg.FedAvg):
    """Settings."""


def step(ctx, local, batch, noise):
    return fedavg.step(ctx, local._replace(theta=ctx.cfg.rate * local.theta), batch, noise)


ALGORITHM = fedavg.ALGORITHM._replace(config=WrongStep, step=step)
'''
