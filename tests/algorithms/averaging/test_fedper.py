"""FedPer, FedRep and LG-FedAvg: what is shared and what is not, and the methods that they become in their limits."""

import pytest
import torch
from torch.testing import assert_close

from fedray.algorithms.averaging import fedavg, fedper, fedrep
from fedray.arrays import trees
from fedray.federate.uploads import payload_bytes
from fedray.types import FedRayError
from tests.helpers import block, differing, play, shard, small_plan

EVERYTHING, NOTHING = ("body", "head"), ()
PARTS = {"fedper": ("head",), "fedrep": ("head",), "lg_fedavg": ("body",)}


def outcome(name, **settings):
    """(server, states, uploads and infos) of two rounds with the given settings of the algorithm."""
    plan = small_plan(name, {f"algorithm.{field}": value for field, value in settings.items()})
    return plan, *play(plan, [block(plan)])


def test_the_authors_steps_of_fedrep_are_nine_epochs_of_ten():
    plan = small_plan("fedrep", {"rounds": 1, **fedrep.ALGORITHM.presets["public_code"].overrides})
    ctx, host, model = plan.context, block(plan), plan.model
    data = shard(host, 1)
    server = plan.initial_server()
    local = fedrep.begin(ctx, trees.row(host.states, 1), fedper.broadcast(ctx, server, [1]), data)
    moved = []
    for _ in range(plan.cfg.local_steps):
        before = local.net.theta
        local, _ = fedrep.step(ctx, local, data, torch.zeros(0))
        moved.append({name for name in ("head", "body") if differing(local.net.theta[model.part([name])],
                                                                      before[model.part([name])])})  # fmt: skip
    assert moved == [{"head"}] * 45 + [{"body"}] * 5


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["fedper", "lg_fedavg"])
def test_without_personal_layers_it_is_fedavg_bit_for_bit(name, optimizer):
    _, server, _, seen = outcome(name, personal=NOTHING, optimizer=optimizer, lr=0.05)
    plan, reference, _, expected = outcome("fedavg", optimizer=optimizer, lr=0.05)
    assert differing(server, reference) == []
    for (ups, infos), (theirs, their_infos) in zip(seen, expected, strict=True):
        assert torch.equal(ups.theta, theirs.theta[:, : plan.model.size])
        assert differing(infos, their_infos) == []


@pytest.mark.parametrize("name", PARTS)
def test_with_every_layer_personal_clients_are_alone(name):
    """Nothing is uploaded, and who else takes part changes nothing."""
    plan = small_plan(name, {"algorithm.personal": EVERYTHING})
    server, together, seen = play(plan, [block(plan)])
    assert all(payload_bytes(ups, plan) == 0 for ups, _ in seen)
    assert differing(server, plan.initial_server()) == []
    _, alone, _ = play(plan, [block(plan)], rounds=((2,), (2,)))
    assert differing(trees.row(together, 2), trees.row(alone, 2)) == []


def test_with_every_layer_personal_fedper_is_descent_on_the_own_shard():
    plan = small_plan("fedper", {"algorithm.personal": EVERYTHING, "local_steps": 10, "rounds": 1})
    twice = small_plan("fedper", {"algorithm.personal": EVERYTHING, "local_steps": 5, "rounds": 2})
    (_, once, _), (_, halves, _) = (
        play(plan, [block(plan)], rounds=((0,),)),
        play(twice, [block(twice)], rounds=((0,), (0,))),
    )
    assert differing(trees.row(once, 0), trees.row(halves, 0)) == []  # a round ends nothing


@pytest.mark.parametrize(("name", "personal"), PARTS.items())
def test_what_is_kept_and_what_is_sent_partition_the_network(name, personal):
    plan, server, states, seen = outcome(name)
    model = plan.model
    own, shared = model.part(personal), model.rest(personal)
    assert sorted([*own.tolist(), *shared.tolist()]) == list(range(model.size))
    assert states.theta.shape[1:] == own.shape
    assert seen[0][0].theta.shape[1:] == shared.shape
    assert payload_bytes(seen[0][0], plan) == 4 * 4 * len(shared)  # floats of four clients
    start = plan.initial_server().theta
    assert torch.equal(server.theta[own], start[own])  # no personal layer has left a client
    assert not torch.equal(server.theta[shared], start[shared])


def test_lg_fedavg_is_more_than_local_training():
    """The public implementation of a rival never uses the server's average: there, company changes nothing."""
    _, _, together, _ = outcome("lg_fedavg")
    plan = small_plan("lg_fedavg")
    _, alone, _ = play(plan, [block(plan)], rounds=((2,), (2,)))
    assert differing(trees.row(together, 2), trees.row(alone, 2))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fedrep_trains_one_part_at_a_time(optimizer):
    plan = small_plan("fedrep", {"algorithm.head_steps": 2, "algorithm.optimizer": optimizer, "local_steps": 5})
    cfg, model, host = plan.cfg.algorithm, plan.model, block(plan, [1])
    own, shared, data = model.part(cfg.personal), model.rest(cfg.personal), shard(host, 0)
    batch = trees.tree_map(lambda leaf: leaf[:48] if leaf.ndim else leaf, data)
    down = fedper.broadcast(plan.context, plan.initial_server(), [1])
    local = fedrep.begin(plan.context, trees.row(host.states, 0), down, data)
    for r in range(5):
        before = local.net.theta.clone()
        local, _ = fedrep.step(plan.context, trees.tree_map(torch.clone, local), batch, torch.zeros(0))
        moving, still = (own, shared) if r < 2 else (shared, own)
        assert torch.equal(local.net.theta[still], before[still])
        assert not torch.equal(local.net.theta[moving], before[moving])


def test_a_phase_of_fedrep_has_an_adam_of_its_own():
    """The first step of the body is Adam's first: the rate times the sign of the gradient."""
    plan = small_plan("fedrep", {"algorithm.head_steps": 3, "algorithm.optimizer": "adam", "algorithm.lr": 0.01})
    cfg, model, host = plan.cfg.algorithm, plan.model, block(plan, [1])
    data = shard(host, 0)
    batch = trees.tree_map(lambda leaf: leaf[:48] if leaf.ndim else leaf, data)
    down = fedper.broadcast(plan.context, plan.initial_server(), [1])
    local = fedrep.begin(plan.context, trees.row(host.states, 0), down, data)
    for _ in range(3):
        local, _ = fedrep.step(plan.context, local, batch, torch.zeros(0))
    before = local.net.theta.clone()
    _, grad = fedavg.gradient(model, before, batch)
    local, _ = fedrep.step(plan.context, local, batch, torch.zeros(0))
    shared = model.rest(cfg.personal)
    shared = shared[grad[shared].abs() > 1e-4]
    assert len(shared) > 100
    assert_close(local.net.theta[shared], before[shared] - 0.01 * grad[shared].sign(), rtol=0, atol=1e-5)


def test_fedrep_refuses_a_round_without_a_step_for_the_body():
    with pytest.raises(FedRayError, match="head_steps 5: `local_steps=5` leaves no step"):
        small_plan("fedrep", {"algorithm.head_steps": 5})


def test_an_unknown_layer_is_refused_with_those_that_there_are():
    with pytest.raises(FedRayError, match=r"layer 'tail': .* choose from layer1, layer2, head, body"):
        small_plan("fedper", {"algorithm.personal": ("tail",)})


def test_a_personal_model_is_the_own_part_under_the_latest_average():
    plan, server, states, _ = outcome("fedper")
    model, client = plan.model, trees.row(states, 3)
    theta = fedper.personalize(plan.context, client, plan.view(server), None, torch.zeros(0)).theta
    assert torch.equal(theta[model.part(("head",))], client.theta)
    assert torch.equal(theta[model.part(("body",))], server.theta[model.part(("body",))])


@pytest.mark.parametrize(("name", "personal"), PARTS.items())
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_newcomer_moves_its_own_part_alone(name, personal, optimizer):
    plan = small_plan(name, {"algorithm.optimizer": optimizer})
    model, algorithm, host = plan.model, plan.algorithm, block(plan, [1])
    data = shard(host, 0)
    batch = trees.tree_map(lambda leaf: leaf[:48] if leaf.ndim else leaf, data)
    down = algorithm.broadcast(plan.context, plan.initial_server(), [1])
    local = algorithm.begin(plan.context, trees.row(host.states, 0), down, data)
    for _ in range(7):
        local, _ = algorithm.adapt(plan.context, trees.tree_map(torch.clone, local), batch, torch.zeros(0))
    theta = local.net.theta if name == "fedrep" else local.theta
    assert torch.equal(theta[model.rest(personal)], down.theta)
    assert (theta - plan.initial_server().theta)[model.part(personal)].abs().max() > 1e-3
