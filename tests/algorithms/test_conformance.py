"""What the run-time asks of every registered algorithm and selection policy."""

import dataclasses
import functools

import pytest
import torch
from torch.testing import assert_close

from fedray import registry
from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.config import override
from fedray.federate import evaluation
from fedray.types import Batch, Choice, Sums
from tests.helpers import (
    ALGORITHMS,
    aggregated,
    block,
    differing,
    experiment,
    federated_plan,
    play,
    schema,
    shard,
    undocumented,
)

plan_of = functools.cache(federated_plan)
played = functools.cache(lambda name, backend: play(plan_of(name), [block(plan_of(name), backend=backend)]))
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
every_selection = pytest.mark.parametrize("name", registry.selections())


def functions(name):
    """The algorithm's functions with their context filled in; a step that leaves its ``local`` alone."""
    plan = plan_of(name)
    record, ctx = plan.algorithm, plan.context
    kinds = ("broadcast", "begin", "finish", "personalize")
    parts = {kind: functools.partial(getattr(record, kind), ctx) for kind in kinds}
    return parts | {"step": lambda local, *rest: record.step(ctx, trees.tree_map(torch.clone, local), *rest)}


def noise(name, kind="noise_shape"):
    plan = plan_of(name)
    return Stream(1, kind).normal(getattr(plan.algorithm, kind)(plan.context))


def client(name):
    """(local, a batch with padding, the shard) of the first client at the start of its first round."""
    plan, f = plan_of(name), functions(name)
    host, server = block(plan, [0, 4]), plan.initial_server()
    data = shard(host, 1)
    down = f["broadcast"](server, (0, 4))
    down = trees.row(down, 1) if plan.algorithm.down_per_client else down
    size, repeats = plan.cfg.batch_size, plan.algorithm.minibatches(plan.cfg.algorithm)
    at = torch.arange(size).repeat(repeats)
    weight = (at < size - 5).float()
    batch = Batch(data.x[at], data.y[at], weight, at, data.total)
    return f["begin"](trees.row(host.states, 1), down, data), batch, data


def guarded(record):
    """The same algorithm, in which every function is watched for writing into its arguments, but a step's ``local``."""

    def watch(function):
        first = 2 if function is record.step else 1  # the context and perhaps local come before

        def watched(*args):
            kept = args[first:]
            before = trees.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, kept)
            result = function(*args)
            for a, b in zip(trees.leaves(before), trees.leaves(kept), strict=True):
                if isinstance(a, torch.Tensor):
                    assert torch.equal(a, b), f"{function.__name__} wrote into its arguments"
            return result

        return watched

    kinds = ("client_init", "broadcast", "begin", "step", "finish", "publish", "personalize")
    kinds += ("predict_global", "predict_personal")
    watched = {kind: watch(getattr(record, kind)) for kind in kinds if getattr(record, kind)}
    how = record.aggregate
    how = how._replace(absorb=watch(how.absorb), weigh=watch(how.weigh)) if isinstance(how, Sums) else watch(how)
    return record._replace(aggregate=how, **watched)


@every_algorithm
def test_a_loop_and_a_stack_are_bitwise_the_same(name):
    sizes = [len(shard) for shard in plan_of(name).partition.train]
    assert len(set(sizes)) == 6
    assert min(sizes) < 5 * 48  # some client meets a short batch
    for loop, stack in zip(played(name, "loop"), played(name, "vmap"), strict=True):
        assert differing(loop, stack) == []


@every_algorithm
def test_a_round_asked_for_again_is_the_same(name):
    again = play(plan_of(name), [block(plan_of(name))])
    for first, second in zip(played(name, "loop"), again, strict=True):
        assert differing(first, second) == []
    assert differing(plan_of(name).initial_server(), plan_of(name).initial_server()) == []


@every_algorithm
def test_arguments_are_never_written_to(name):
    plan = plan_of(name)._replace(algorithm=guarded(plan_of(name).algorithm))
    host = block(plan)
    server, _, _ = play(plan, [host])
    evaluation.evaluate(host, 1, plan.view(server), True)


@every_algorithm
def test_every_state_keeps_its_schema_in_float32(name):
    plan, (server, states, seen) = plan_of(name), played(name, "loop")
    local, batch, _ = client(name)
    assert schema(functions(name)["step"](local, batch, noise(name))[0]) == schema(local)
    assert schema(server) == schema(plan.initial_server())
    assert schema(states) == schema(block(plan).states)
    (ups, infos), (later, _) = seen
    assert schema(ups) == schema(later)
    for leaf in trees.leaves((server, states, ups)):
        assert leaf.dtype == torch.float32
        assert leaf.isfinite().all()
    assert all(leaf.shape[0] == 4 for leaf in trees.leaves(ups))
    for leaf in trees.leaves(infos):  # a scalar for each of 4 clients and 5 steps
        assert leaf.shape == (4, 5)
        assert leaf.isfinite().all()


@every_algorithm
@pytest.mark.parametrize("kind", ["predict_global", "predict_personal"])
def test_predictions_are_log_probabilities_of_every_draw(name, kind):
    plan, (server, states, _) = plan_of(name), played(name, "loop")
    predict = getattr(plan.algorithm, kind)
    if predict is None:
        assert plan.algorithm.predict_global or plan.algorithm.predict_personal
        return
    view = plan.view(server)
    _, batch, data = client(name)
    personal = functions(name)["personalize"](trees.row(states, 4), view, data, noise(name, "personal_noise"))
    log_p = predict(
        plan.context,
        view if kind == "predict_global" else personal,
        batch.x[:7],
        plan.prediction_noise(plan.context, 3, "predict", 4, 1),
    )
    assert log_p.shape[1:] == (7, 10)
    assert len(log_p) >= 1
    assert_close(torch.logsumexp(log_p, -1), torch.zeros(log_p.shape[:2]), rtol=0, atol=1e-5)


@every_algorithm
def test_the_order_of_clients_does_not_matter_to_the_server(name):
    plan, (server, _, seen) = plan_of(name), played(name, "loop")
    ups, n, order = seen[-1][0], torch.tensor([30, 10, 70, 20]), [2, 0, 3, 1]
    ids, record = (1, 2, 4, 5), plan.algorithm
    first = aggregated(record, plan.context, server, ids, ups, n)
    mixed = aggregated(record, plan.context, server, [ids[k] for k in order], trees.rows(ups, order), n[order])
    if isinstance(record.aggregate, Sums):
        assert differing(first, mixed) == []
    assert_close(first, mixed, rtol=1e-6, atol=1e-6)
    assert bool(differing(first, plan.initial_server())) == bool(trees.leaves(ups))  # the server learns from uploads


@every_algorithm
def test_rows_of_weight_zero_never_matter(name):
    local, batch, data = client(name)
    f, eps = functions(name), noise(name)

    def spoiled(batch):
        keep = batch.weight > 0
        x = torch.where(keep.view(-1, *[1] * (batch.x.ndim - 1)), batch.x, torch.full_like(batch.x, 30.0))
        return batch._replace(x=x, y=torch.where(keep, batch.y, 9), place=torch.where(keep, batch.place, 0))

    after, info = f["step"](local, batch, eps)
    assert differing((after, info), f["step"](local, spoiled(batch), eps)) == []
    assert 0 < data.weight.sum() < len(data.weight)
    assert differing(f["finish"](after, data), f["finish"](after, spoiled(data))) == []


@every_algorithm
def test_every_setting_has_a_help_text_and_the_search_space_fits(name):
    record = registry.algorithms()[name]
    assert undocumented(record.config) == []
    names = {field.name for field in dataclasses.fields(record.config)}
    assert set(record.space) <= names
    for field, dial in record.space.items():
        ends = dial.values if isinstance(dial, Choice) else (dial.low, dial.high)
        assert isinstance(dial, Choice) or dial.low < dial.high
        for value in ends:
            record.config(**{field: value})


@every_algorithm
def test_presets_and_defaults_apply(name):
    record = registry.algorithms()[name]
    for overrides in (record.defaults, *(preset.overrides for preset in record.presets.values())):
        cfg = override(experiment(name), overrides)
        for dotted, value in overrides.items():
            assert functools.reduce(getattr, dotted.split("."), cfg) == value
    assert all(preset.warning for preset in record.presets.values())


@every_selection
def test_policies_pick_distinct_clients_in_order_and_repeatably(name):
    policy = registry.selections()[name]

    def picks(seed, clients, m):
        state, found = policy.init(clients), []
        for number in range(1, 30):
            scores = Stream(7, "scores", 0, number).uniform([clients]) if policy.score else None
            ids, state = policy.select(state, scores, clients, m, Stream(seed, "select", 0, number))
            found.append(tuple(ids))
        return found

    for clients, m in ((10, 4), (10, 10), (10, 1), (1, 1)):
        found = picks(0, clients, m)
        assert found == picks(0, clients, m)
        for ids in found:
            assert len(ids) == m
            assert list(ids) == sorted(set(ids))
            assert set(ids) <= set(range(clients))
            assert all(type(i) is int for i in ids)


def test_uniform_selection_is_uniform_over_clients_and_pairs():
    policy, counts, rounds = registry.selections()["uniform"], torch.zeros(5, 5), 4000
    for number in range(rounds):
        (a, b), _ = policy.select(policy.init(5), None, 5, 2, Stream(0, "select", 0, number))
        counts[a, b] += 1
    pairs = counts[torch.triu(torch.ones(5, 5), 1) > 0]
    assert ((pairs / rounds - 0.1).abs() < 4 * (0.09 / rounds) ** 0.5).all()
