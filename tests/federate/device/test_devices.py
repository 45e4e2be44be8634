"""No method mixes CPU and GPU, and no step of one waits for its GPU: seen without one, on tensors that hold nothing."""

import contextlib
import dataclasses
import functools
import typing

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedray import registry
from fedray.arrays import philox, trees
from fedray.data import loading
from fedray.data.shards import Shards
from fedray.federate import block as block_module
from fedray.federate import evaluation, local_rounds, totals
from fedray.federate.block import Block
from fedray.federate.device.host import moved
from fedray.federate.local_rounds import LocalRounds
from fedray.federate.measures import loss_deviation
from fedray.federate.planning import make_plan
from fedray.types import FedRayError, Sums
from tests.helpers import ALGORITHMS, experiment, federated_plan, small_plan

IDS = (0, 1)
HOST_ONLY = {"bnfed": "matches neurons by an assignment, which SciPy solves on the CPU"}  # their aggregate
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
SLOW = {"pfedgp"}  # thousands of small operations, each of which is looked at
quick_algorithms = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in ALGORITHMS]
)


class OneDevice(TorchDispatchMode):
    """Refuses an operation on tensors of several devices; PyTorch allows some, such as indices on the CPU.

    With ``still``, tensors may not change devices either: a graph cannot replay a copy from the host. Numbers, tensors
    without a dimension, count for no device: they are arguments of the kernel.
    """

    def __init__(self, still=False):
        super().__init__()
        self.still = still

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten._local_scalar_dense and not self.still:
            return args[0].dtype.is_floating_point * 1.0 or 1  # what a server reads of its clients' sizes
        made = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        kinds = {x.device.type for x in given if x.ndim}
        copies = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
        if self.still:
            kinds |= {
                x.device.type for x in (*tree_leaves(made), *(given if copies else ())) if isinstance(x, torch.Tensor)
            }
        elif copies:
            return made
        assert len(kinds) <= 1, f"{func} mixes {sorted(kinds)}"
        return made


def still(function):
    """A function within which tensors may not change devices."""

    @functools.wraps(function)
    def within(*args):
        with OneDevice(still=True):
            return function(*args)

    return within


def without_engine(function, argnums=0):
    """grad_and_value whose gradients are zeros: the engine of automatic differentiation needs a device that exists."""

    def zeros(*args):
        chosen = args[argnums] if isinstance(argnums, int) else tuple(args[k] for k in argnums)
        return torch.utils._pytree.tree_map(torch.zeros_like, chosen), function(*args)

    return zeros


def vjp(function, *primals):
    return function(*primals), lambda _: torch.utils._pytree.tree_map(torch.zeros_like, primals)


@pytest.fixture
def pretended(monkeypatch):
    """A GPU that holds no numbers: what looks at numbers is told that all is well."""
    monkeypatch.setattr(block_module, "bad_rows", lambda ups: {})
    monkeypatch.setattr(totals, "boundless", lambda held: {})
    monkeypatch.setattr(torch.func, "grad_and_value", without_engine)
    monkeypatch.setattr(torch.func, "vjp", vjp)
    monkeypatch.setattr(philox, "_can_compile", lambda: False)
    monkeypatch.setattr(evaluation, "SPOTLIGHT_DRAWS", 2)
    steps, picked = local_rounds._stacked, LocalRounds._picked

    def stacked(functions, down_per_client):
        found = steps(functions, down_per_client)
        return found._replace(step=still(found.step))

    monkeypatch.setattr(local_rounds, "_stacked", stacked)
    monkeypatch.setattr(local_rounds, "gpu_memory", lambda device: None)
    # One step is as good as all.
    monkeypatch.setattr(LocalRounds, "_picked", lambda *args: tuple(array[:1] for array in picked(*args)))

    @contextlib.contextmanager
    def gpu(plan, ids=IDS):
        with FakeTensorMode(allow_non_fake_inputs=True), OneDevice():
            shards = Shards(loading.load(plan.cfg.data), plan.partition, ids)
            yield Block(plan, ids, shards, "graph", "cuda")

    return gpu


def trained(gpu, plan, round_number=1):
    """The plan's server after a stack has trained one round."""
    ctx, how, server = plan.context, plan.algorithm.aggregate, plan.initial_server()
    down = plan.algorithm.broadcast(ctx, server, IDS)
    with gpu(plan) as host:
        reply = host.train(round_number, IDS, moved(down, "cuda"))
        for failure in reply.failures:
            pytest.fail(f"{failure.stage}: {failure.reason}\n{failure.traceback}")
        assert reply.ids == IDS
        assert {leaf.device.type for leaf in trees.leaves((host.states, reply.up))} <= {"cuda"}
        if host.plan.adapting(round_number):
            return server
        if not isinstance(how, Sums):
            return (
                server
                if registry.algorithm_name(plan.cfg.algorithm) in HOST_ONLY
                else how(ctx, moved(server, "cuda"), IDS, reply.up, reply.examples)
            )
        parts = host.add(IDS, [0] * len(reply.largest))
        assert {leaf.device.type for leaf in trees.leaves((parts, reply.largest))} == {"cpu"}
        ((_, held),) = host._terms
        added = trees.tree_map(lambda leaf: leaf.double().sum(0), held.values)
        return how.absorb(ctx, moved(server, "cuda"), added, reply.examples)


@every_algorithm
def test_training_the_sums_of_uploads_and_the_server(name, pretended):
    plan = federated_plan(name)
    after = trained(pretended, plan)
    assert name in HOST_ONLY or {leaf.device.type for leaf in trees.leaves(after)} <= {"cuda"}


# What depends on another setting, or has no list of choices.
MORE = {
    "pfedme": [{"prior": "gaussian", "variance": (0.5, 2.0)}],
    "pfedbred": [
        {"prior": "gaussian", "variance": (0.5, 2.0)},
        {"prior": "gaussian", "coordinates": "dual"},
        {"ft": 1},
    ],
    "bpfed": [{"sync": False, "prior": "carried"}],
}


def variants(name):
    """Settings of an algorithm apart from its own: one choice or switch changed, where that alone can run."""
    config = registry.algorithms()[name].config
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        hint = hints[field.name]
        choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else [True, False] * (hint is bool)
        yield from ({field.name: value} for value in choices if value != field.default)
    yield from MORE.get(name, ())


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if any(variants(name))])
def test_every_choice_of_a_setting(name, pretended):
    played = 0
    for settings in variants(name):
        try:
            plan = federated_plan(name, {f"algorithm.{field}": value for field, value in settings.items()})
        except FedRayError:
            continue
        trained(pretended, plan)
        played += 1
    assert played


class Normed(nn.Module):
    """No chain: a norm."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.norm(self.body(x.flatten(1)).tanh()))


TOP = nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
NETWORKS = {
    "by hand": nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *TOP),
    "by PyTorch": nn.Sequential(nn.Conv2d(1, 4, 3, padding="same"), *TOP),
    "own": Normed(),
}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("name", ["fedavg", "pfedbayes", "bpfed"])
def test_other_networks(name, network, pretended):
    plan = make_plan(experiment(name), layers=network)
    trained(pretended, plan)
    with pretended(plan, (0,)) as host:
        evaluation.evaluate(host, 1, moved(plan.view(plan.initial_server()), "cuda"), True)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if federated_plan(name).algorithm.adapt])
def test_adaptation_of_newcomers(name, pretended):
    plan = small_plan(name, {"novel_clients": 2, "clients_per_round": 4})
    trained(pretended, plan, plan.rounds)


@quick_algorithms
def test_evaluation_and_the_loss_deviation(name, pretended):
    plan = federated_plan(name, {"data.validation": 0.2})
    view = plan.view(plan.initial_server())
    with pretended(plan, (0,)) as host:
        reply = evaluation.evaluate(host, 1, moved(view, "cuda"), True)
        assert {leaf.device.type for leaf in trees.leaves(reply) if isinstance(leaf, torch.Tensor)} == {"cpu"}
        if plan.personal:
            losses = loss_deviation.class_losses(host, 1, moved(view, "cuda"), plan.dataset())
            assert {leaf.device.type for leaf in trees.leaves(losses)} == {"cpu"}


@every_algorithm
def test_the_stages_of_every_score(name, pretended):
    plan = federated_plan(name)
    server = plan.initial_server()
    host = Block(plan, range(6), Shards(loading.load(plan.cfg.data), plan.partition, range(6)), "loop")
    for score, stages in plan.algorithm.scores.items():
        message = None
        for number, (_, combine) in enumerate(stages):
            with pretended(plan) as gpu:
                replies = list(gpu.probe(score, number, *moved((plan.view(server), message), "cuda")))
                assert {reply.device.type for reply in replies} == {"cpu"}
            real = host.probe(score, number, plan.view(server), message)
            message = combine(plan.context, server, real)


def planted(**functions):
    plan = federated_plan("fedavg")
    wrapped = {name: make(getattr(plan.algorithm, name)) for name, make in functions.items()}
    return plan._replace(algorithm=plan.algorithm._replace(**wrapped))


def failing(pretended, plan, match):
    with pytest.raises(pytest.fail.Exception, match=match):
        trained(pretended, plan)


def test_a_planted_mix_in_a_step_is_found(pretended):
    def mixing(step):
        def mixed(ctx, local, batch, noise):
            return step(ctx, local._replace(theta=local.theta + torch.zeros(ctx.model.padded)), batch, noise)

        return mixed

    failing(pretended, planted(step=mixing), "step: .*cuda")


def test_a_planted_index_on_the_host_is_found(pretended):
    def indexing(begin):
        return lambda ctx, client, down, data: begin(ctx, client, down, data._replace(y=data.y[torch.arange(3)]))

    failing(pretended, planted(begin=indexing), "begin: .*mixes")


def test_a_planted_copy_from_the_host_in_a_step_is_found(pretended):
    def copying(step):
        def copied(ctx, local, batch, noise):
            ones = torch.ones(ctx.model.padded).to(local.theta.device)
            return step(ctx, local._replace(theta=local.theta * ones), batch, noise)

        return copied

    failing(pretended, planted(step=copying), "step: .*mixes")


def test_a_planted_look_at_a_number_in_a_step_is_found(pretended):
    def looking(step):
        def looked(ctx, local, batch, noise):
            assert batch.weight.sum() >= 0
            return step(ctx, local, batch, noise)

        return looked

    failing(pretended, planted(step=looking), "step: ")


def test_a_planted_mix_at_the_end_and_in_the_terms_is_found(pretended):
    def ending(finish):
        def ended(ctx, local, data):
            client, up = finish(ctx, local, data)
            return client, up._replace(theta=up.theta + torch.ones(len(up.theta)))

        return ended

    failing(pretended, planted(finish=ending), "finish: ")
    plan = federated_plan("fedavg")
    how = plan.algorithm.aggregate._replace(terms=lambda ctx, up: up.theta + torch.ones(len(up.theta)))
    failing(pretended, plan._replace(algorithm=plan.algorithm._replace(aggregate=how)), "terms: ")
