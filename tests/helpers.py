"""Small federations that several tests share, and how two trees of tensors are compared."""

import ast
import functools
import inspect
import textwrap
from typing import NamedTuple

import pytest
import torch
from torch import nn

from fedray import registry
from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.bayes.stein import Kernel, squared_distances
from fedray.config import DataConfig, Experiment, ModelConfig, override
from fedray.data import loading
from fedray.data.shards import Shards
from fedray.federate import totals
from fedray.federate.block import Block
from fedray.federate.compiled import package
from fedray.federate.in_process import LocalFederation
from fedray.federate.planning import make_plan
from fedray.federate.rounds import aggregate
from fedray.federate.storage import checkpoint
from fedray.nets import network
from fedray.nets.model import Model
from fedray.types import Batch, Context, Facts, Sums

torch.set_num_threads(1)  # as in every actor

ALGORITHMS = tuple(registry.algorithms())
# What a method asks of the federation below, and what keeps it quick: pFedGP's cost grows with the cube of its points.
REQUIRED = {"svgd": {"clients_per_round": 6}, "pfedgp": {"algorithm.points": 48, "algorithm.chains": 3}}


def described(input_shape, classes, *layers):
    """A network of any layers; only their shapes count."""
    return Model(nn.Sequential(*layers).to("meta"), input_shape, classes)


def built(name, input_shape, classes, **settings):
    """A registered network for inputs of this shape."""
    return network.build(registry.networks()[name], ModelConfig(**settings), input_shape, classes)


TOP = nn.Flatten(), nn.Linear(12, 4)
NETS = {
    "mclr": built("mclr", (2, 3), 4),
    "mlp": built("mlp", (2, 3), 4, hidden=(5,)),
    "deep": built("mlp", (2, 3), 4, hidden=(5, 7)),
    "leaky": built("dnn", (2, 3), 4, hidden=(5, 7)),
    "conv": described((2, 8, 8), 4, nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), *TOP),
}


def examples(n, total=None):
    """A batch of n random examples for NETS, of a shard of as many or of ``total``."""
    stream = Stream(0, "examples", n)
    x, y = stream.normal([n, 2, 3]).double(), (4 * stream.uniform([n])).long()
    return Batch(x, y, torch.ones(n).double(), torch.arange(n), torch.tensor(float(total or n)))


def joined(*batches):
    """Minibatches one after the other, as a step that takes several gets them."""
    leaves = (torch.cat(parts) for parts in zip(*(batch[:-1] for batch in batches), strict=True))
    return Batch(*leaves, batches[0].total)


def context(cfg, model=None, facts=None):
    """What an algorithm's functions are given first, outside of a federation: of one client, unless facts are given."""
    return Context(cfg, model, facts or Facts(clients=1, per_round=1, rounds=1, local_steps=1, batch_size=9, shard=9))


def experiment(algorithm="fedavg", settings=None):
    """Six digits clients with unequal shards, batches that divide none of them, a network of 610 parameters."""
    base = Experiment(
        algorithm=registry.algorithms()[algorithm].config(),
        data=DataConfig(partition="dirichlet"),
        model=ModelConfig(name="mlp", hidden=(8,)),
        clients=6,
        clients_per_round=4,
        rounds=2,
        batch_size=48,
        local_steps=5,
        predict_samples=3,
    )
    return override(base, REQUIRED.get(algorithm, {}) | (settings or {}))


def small_plan(algorithm="fedavg", settings=None):
    return make_plan(experiment(algorithm, settings))


def federated_plan(algorithm="fedavg", settings=None):
    """The same; the functions of an algorithm that pools run on clients that each have their own examples, too."""
    plan = small_plan(algorithm, settings)
    if not plan.algorithm.pools:
        return plan
    cfg = override(plan.cfg, {"clients_per_round": 4} | (settings or {}))
    dealt = small_plan("fedavg", {"seed": cfg.seed}).partition
    return plan._replace(cfg=cfg, algorithm=plan.algorithm._replace(pools=""), partition=dealt)


def block(plan, ids=None, backend="loop", gather=True):
    """A block of clients whose uploads can be looked at, unless the server is to do with their sums."""
    ids = range(plan.clients) if ids is None else ids
    plan = gathering(plan) if gather else plan
    return Block(plan, ids, Shards(loading.load(plan.cfg.data), plan.partition, ids), backend)


class Own(NamedTuple):
    """The examples of one client."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    validation: tuple[torch.Tensor, torch.Tensor] | None


def each_of(shards):
    """The examples of every client of some shards."""
    batches = (trees.row(shards.padded([k], n), 0) for k, n in enumerate(shards.sizes.tolist()))
    return [Own(each.x, each.y, *shards.test(k), shards.validation(k)) for k, each in enumerate(batches)]


def shard(host, k):
    """The padded training shard of the k-th client of a block."""
    return trees.row(host.shards.padded([k], host.plan.facts.shard), 0)


def draws(host, round_number, index):
    """Minibatches and noise of the local steps of a block's clients."""
    rounds = host.rounds
    batches = host.shards.minibatches(index, *rounds._picked(round_number, index))
    return zip(batches, rounds._noise(round_number, index), strict=True)


def play(plan, hosts, rounds=((0, 2, 3, 5), (1, 2, 4, 5))):
    """Rounds with the given participants over blocks of clients: (server, states, uploads and infos)."""
    server, seen = plan.initial_server(), []
    for number, ids in enumerate(rounds, 1):
        down = plan.algorithm.broadcast(plan.context, server, ids)
        replies = [host.train(number, [i for i in ids if i in host.ids], down) for host in hosts]
        infos = trees.concatenate([reply.info for reply in replies])
        ups = trees.concatenate([reply.up for reply in replies])
        server = aggregate(hosts[0].plan, server, replies, None)
        seen.append((ups, infos))
    return server, trees.concatenate([host.states for host in hosts]), seen


def gathering(plan):
    """The same plan, whose server gathers all uploads, where tests look at them, and forms the same sums itself."""
    record = plan.algorithm
    return plan._replace(algorithm=record._replace(aggregate=functools.partial(aggregated, record)))


def whole_and_resumed(plan, store):
    """Snapshots of three rounds by the loop, and of two followed by a stack that goes on from their checkpoint."""
    whole = LocalFederation(plan, "loop")
    assert len(list(whole)) == 3
    first = iter(LocalFederation(plan, "loop", store=store))
    assert [next(first).round, next(first).round] == [1, 2]
    begun = checkpoint.newest(store, plan, pytest.fail)
    second = LocalFederation(plan, "vmap", begun=begun)
    assert [played.round for played in second] == [3]
    return second.snapshot(), whole.snapshot()


def aggregated(record, ctx, server, ids, ups, n):
    """The server's new state from uploads [K, ...], by whichever kind of aggregation the algorithm has."""
    how = record.aggregate
    if not isinstance(how, Sums):
        return how(ctx, server, ids, ups, n)
    n = torch.ones(len(ids)) if n is None else n
    held = totals.terms(ctx, how, ups, n)
    exponents = totals.units(held.largest, len(ids))
    return totals.absorbed(ctx, how, server, [totals.partial_sum(held, range(len(ids)), exponents)], exponents, n)


def eager(work):
    """What would be loaded of the package of a unit, uncompiled."""
    return package.Loaded(lambda inputs: list(package._Flat(work)(*inputs)), work)


def differing(a, b):
    """Names of the tensors in which two trees of one structure differ, be it in a bit."""
    pairs = zip(trees.named_leaves(a), trees.named_leaves(b), strict=True)
    return [name for (name, x), (other, y) in pairs if name != other or not torch.equal(x, y)]


def schema(tree):
    return [(name, leaf.dtype, tuple(leaf.shape)) for name, leaf in trees.named_leaves(tree)]


def undocumented(config):
    """Fields of a dataclass, inherited ones too, without the string under them that --help shows."""
    missing = []
    for kind in config.__mro__[:-1]:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
        for field, after in zip(body, [*body[1:], None], strict=True):
            documented = isinstance(after, ast.Expr) and isinstance(getattr(after.value, "value", None), str)
            missing += [field.target.id] if isinstance(field, ast.AnnAssign) and not documented else []
    return missing


def fixed_kernel(x: torch.Tensor, h: float) -> Kernel:
    """The kernel with a given h, of which expectations have closed forms."""
    distance = squared_distances(x)
    return Kernel(torch.exp(-distance / h), distance, torch.tensor(h).double())
