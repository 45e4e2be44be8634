"""pFedGP: the class tree, a level as one process, predictions along paths, large shards, newcomers."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedray.algorithms.averaging.fedavg import Nothing
from fedray.algorithms.averaging.fedper import Part
from fedray.algorithms.bayesian import pfedgp
from fedray.algorithms.bayesian.pfedgp import PFedGP
from fedray.arrays.rng import Stream
from fedray.bayes import polya_gamma as pg
from fedray.federate.in_process import LocalFederation
from fedray.types import Batch, Facts, FedRayError
from tests.helpers import NETS, block, built, context, described, differing, play, small_plan

CFG = PFedGP(chains=6, gibbs_steps=3)


def shard(labels, size=None, spread=0.3):
    """A shard with these labels, each class around a corner of its own, padded to a size."""
    labels = torch.tensor(labels)
    n, size = len(labels), size or len(labels)
    x = torch.zeros(size, 2, 3)
    corners = 2 * Stream(3, "corners").normal([10, 6])
    x[:n] = (corners[labels] + spread * Stream(4, "shard").normal([n, 6])).view(n, 2, 3)
    y = torch.zeros(size, dtype=torch.int64)
    y[:n] = labels
    weight = (torch.arange(size) < n).float()
    return Batch(x, y, weight, torch.arange(size), torch.tensor(float(n)))


def ctx(cfg=CFG, model=NETS["mlp"], size=24):
    return context(cfg, model, Facts(clients=1, per_round=1, rounds=1, local_steps=1, batch_size=size, shard=size))


def personal(c, data, seed=0):
    view = pfedgp.server_init(c, Stream(seed, "server"))
    noise = Stream(seed, "personal").normal(pfedgp.personal_noise(c))
    return pfedgp.personalize(c, Nothing(), view, data, noise)


def predicted(c, data, x):
    return pfedgp.predict_personal(c, personal(c, data), x, torch.zeros(0)).exp()


def tree_of(means, present=None):
    """The tree of classes with one example each, at these places."""
    classes = len(means)
    present = torch.ones(classes) if present is None else torch.tensor(present)
    return pfedgp.class_tree(torch.tensor(means), torch.arange(classes), present, classes)


def test_every_class_has_a_path_of_its_own():
    for classes in (2, 3, 5, 10, 11):
        tree = tree_of(Stream(0, "means", classes).normal([classes, 3]).tolist())
        assert len(tree.node) == math.ceil(math.log2(classes))
        paths = torch.cat([tree.node, (2 * tree.side).long()]).T
        assert len(paths.unique(dim=0)) == classes
        for level, (node, side) in enumerate(zip(tree.node, tree.side, strict=True)):
            assert node.max() < 2**level
            for found in node.unique():
                sides = side[node == found]
                first, second = int((sides > 0).sum()), int((sides < 0).sum())
                assert first - second in (0, 1)
                assert (len(sides) == 1) == (first == 0)


def test_the_farthest_classes_part_first_and_their_neighbours_go_with_them():
    tree = tree_of([[0.0, 0.0], [5.0, 0.0], [0.5, 0.3], [5.5, 0.2]])
    assert tree.node[1].tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    assert tree.side[0, 0] == tree.side[0, 2] == -tree.side[0, 1] == -tree.side[0, 3]


def test_an_absent_class_is_nowhere_and_changes_nothing_for_the_others():
    places = Stream(0, "means").normal([4, 2])
    few = tree_of(places.tolist())
    more = tree_of(torch.cat([places, 9 * torch.ones(2, 2)]).tolist(), [1, 1, 1, 1, 0, 0])
    assert (more.side[:, 4:] == 0).all()
    assert more.present.tolist() == [1, 1, 1, 1, 0, 0]
    assert torch.equal(more.side[:2, :4], few.side)
    assert (more.side[2] == 0).all()
    assert (tree_of(places.tolist(), [0, 0, 1, 0]).side == 0).all()


def test_a_level_is_its_nodes_one_by_one():
    z = Stream(0, "z").normal([9, 4]).double()
    k = pfedgp.kernel(CFG, z, z) + 1e-3 * torch.eye(9)
    node = torch.tensor([0, 1, 1, 0, 2, 1, 0, 2, 1])
    kappa = torch.tensor([1, -1, 1, -1, 0, 1, 1, 0, -1]).double() / 2
    omega = Stream(0, "omega").uniform([3, 9]).double() * (kappa != 0)
    whole = pg.precision(k * (node[:, None] == node), omega)
    for n in range(3):
        at = (node == n).nonzero().flatten()
        alone = pg.precision(k[at][:, at], omega[:, at])
        assert_close(whole[:, at][..., at], alone)
        assert_close(pg.weights(whole, kappa, omega)[:, at], pg.weights(alone, kappa[at], omega[:, at]))
    assert (whole[:, node[:, None] != node] == 0).all()


@pytest.mark.parametrize("labels", [[0, 1, 2, 3] * 6, [0, 1, 3] * 5, [2] * 9])
def test_the_leaves_share_one_and_absent_classes_get_a_little(labels):
    data = shard(labels, 24)
    p = predicted(ctx(), data, data.x)
    assert p.shape == (6, 24, 4)
    assert_close(p.sum(-1), torch.ones(6, 24))
    absent = [c for c in range(4) if c not in labels]
    assert_close(p[..., absent], torch.full((6, 24, len(absent)), 1 / 4 / (len(labels) + 1)))
    assert p.log().isfinite().all()


def test_two_classes_are_one_process():
    model = built("mlp", (2, 3), 2, hidden=(5,))
    c, data = ctx(model=model), shard([0, 1, 1] * 8)
    mine = personal(c, data)
    assert mine.alpha.shape == (1, 6, 24)
    x = Stream(0, "new").normal([7, 2, 3])
    z = pfedgp.features(model, model.split(mine.theta), x)
    cross = pfedgp.kernel(CFG, z, mine.z)
    f = mine.alpha[0] @ cross.mT
    v = CFG.outputscale - (cross @ mine.a[0] * cross).sum(-1)
    first = pg.probability(f, v)
    sides = mine.tree.side[0] * 2
    tree = torch.stack([torch.where(side > 0, first, 1 - first) for side in sides], -1)
    assert_close(predicted(c, data, x), (24 * tree + 0.5) / 25)


def test_processes_on_features_nobody_trained_tell_clear_classes_apart():
    c, data = ctx(PFedGP(), NETS["deep"], 60), shard([0, 1, 2, 3] * 15)
    p = predicted(c, data, data.x).mean(0)
    assert (p.argmax(-1) == data.y).float().mean() > 0.8


def test_the_variance_averaged_over_chains_does_for_every_chain():
    """Predictions with the variances of other chains, each its own, differ by what 40 chains leave to chance."""
    c = ctx(PFedGP(chains=40), built("mlp", (2, 3), 2, hidden=(5,)), 60)
    data = shard([0, 1] * 30, spread=1.5)
    mine = personal(c, data)
    z = pfedgp.features(c.model, c.model.split(mine.theta), Stream(0, "new").normal([50, 2, 3]))
    cross = pfedgp.kernel(c.cfg, z, mine.z)
    own = pfedgp.kernel(c.cfg, mine.z, mine.z) + pfedgp.JITTER * torch.eye(60)
    kappa = mine.tree.side[0][data.y[_order(mine, data, c)]]
    omega = pg.gibbs(own, kappa, Stream(1, "again").normal([6, pg.NORMALS, 40, 60]))
    a = pg.precision(own, omega)
    f = pg.weights(a, kappa, omega) @ cross.mT
    exact, averaged = (8.0 - ((cross @ m) * cross).sum(-1) for m in (a, mine.a[0]))
    assert (pg.probability(f, exact).mean(0) - pg.probability(f, averaged).mean(0)).abs().max() < 0.005


def _order(mine, data, c):
    """Where the examples of a personal model lie in the shard, found by their features."""
    z = pfedgp.features(c.model, c.model.split(mine.theta), data.x)
    return torch.cdist(mine.z, z).argmin(-1)


def test_padding_never_matters_to_a_personal_model():
    data = shard([0, 1, 2, 3] * 4, 24)
    keep = data.weight > 0
    spoiled = data._replace(x=torch.where(keep[:, None, None], data.x, 30.0), y=torch.where(keep, data.y, 3))
    first, second = (predicted(ctx(), d, data.x[:16]) for d in (data, spoiled))
    assert torch.equal(first, second)


def test_a_large_shard_is_thinned_with_the_shares_of_its_classes():
    data, noise = shard([0] * 20 + [1] * 10 + [3] * 10, 50), Stream(0, "keys").normal([50])
    part = pfedgp.spread(data, noise, 20)
    assert torch.bincount(part.y, minlength=4).tolist() == [10, 5, 0, 5]
    assert part.weight.sum() == 20
    assert len(part.place.unique()) == 20
    other = pfedgp.spread(data, Stream(1, "keys").normal([50]), 20)
    assert not torch.equal(part.place, other.place)
    whole = pfedgp.spread(data, noise, 50)
    assert whole.place[:40].sort().values.tolist() == list(range(40))
    assert whole.weight.tolist() == [1] * 40 + [0] * 10


def test_points_bound_what_a_prediction_costs():
    data = shard([0, 1, 2, 3] * 6)
    few, many = (personal(ctx(PFedGP(chains=6, points=points)), data) for points in (10, 100))
    assert few.z.shape[0] == few.a.shape[-1] == few.alpha.shape[-1] == 10
    assert many.z.shape[0] == 24


def test_steps_learn_features_that_classify():
    data = shard([0, 1, 2, 3] * 12, spread=1.0)
    c = ctx(PFedGP(chains=6, lr=0.1), NETS["deep"], 48)
    down = pfedgp.server_init(c, Stream(0, "server"))
    local, seen = pfedgp.begin(c, Nothing(), down, data), []
    for k in range(60):
        local, info = pfedgp.step(c, local, data, Stream(k, "noise").normal(pfedgp.noise_shape(c)))
        seen.append(float(info.nll))
    assert sum(seen[-10:]) < 0.6 * sum(seen[:10])
    _, up = pfedgp.finish(c, local, data)
    body = NETS["deep"].slices["body"]
    assert up.theta.shape == down.theta.shape == (body.stop,)
    assert (local.theta[body.stop :] == 0).all()


def test_a_newcomer_trains_nothing():
    data = shard([0, 1, 2, 3] * 6)
    c = ctx()
    local = pfedgp.begin(c, Nothing(), pfedgp.server_init(c, Stream(0, "server")), data)
    noise = Stream(0, "noise").normal(pfedgp.noise_shape(c))
    after, info = pfedgp.adapt(c, local, data, noise)
    assert differing(after, local) == []
    stepped, same = pfedgp.step(c, local, data, noise)
    assert differing(stepped, local)
    assert torch.equal(info.nll, same.nll)


def test_newcomers_are_served_at_once():
    plan = small_plan("pfedgp", {"novel_clients": 2, "adapt_rounds": 1, "local_steps": 10})
    with LocalFederation(plan) as federation:
        *_, last = federation
    assert last.novel.correct.sum() / last.novel.examples.sum() > 0.6


def test_what_travels_is_the_body_alone():
    plan = small_plan("pfedgp")
    with LocalFederation(plan) as federation:
        metrics = next(iter(federation))
    assert metrics.bytes_down == metrics.bytes_up == 4 * 4 * plan.model.slices["body"].stop


def test_convolutions_train_alike_alone_and_stacked():
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    plan = small_plan("pfedgp")
    plan = plan._replace(model=described((1, 8, 8), 10, *layers))
    loop, stack = (play(plan, [block(plan, backend=backend)])[0] for backend in ("loop", "vmap"))
    assert_close(loop, stack, rtol=1e-3, atol=1e-5)
    assert differing(loop, plan.initial_server())


def test_units_that_are_negative_for_every_example_still_learn():
    """After a ReLU all features would be 0, and no step could change them."""
    c, data = ctx(), shard([0, 1, 2, 3] * 6)
    start = pfedgp.server_init(c, Stream(0, "server"))
    bias = c.model.tensors["layer1.bias"]
    theta = start.theta.clone()
    theta[bias] = -100.0
    local = pfedgp.begin(c, Nothing(), Part(theta), data)
    assert (pfedgp.features(c.model, c.model.split(local.theta), data.x) < 0).all()
    _, grad = pfedgp.objective(c, local, data, Stream(0, "noise").normal(pfedgp.noise_shape(c)))
    assert (grad[bias] != 0).all()


def test_a_network_without_features_is_refused():
    with pytest.raises(FedRayError, match=r"no layer below its head.*mlp"):
        small_plan("pfedgp", {"model.name": "mclr"}).initial_server()


def test_the_gradient_is_that_of_the_loss_with_omega_fixed(monkeypatch):
    monkeypatch.setattr(pg, "gibbs", lambda kernel, kappa, noise: 0.2 * (kappa != 0).expand(6, -1).double())
    data, c = shard([0, 1, 2, 3] * 6), ctx()
    data = data._replace(x=data.x.double(), weight=data.weight.double())
    start = Part(pfedgp.server_init(c, Stream(0, "server")).theta.double())
    local = pfedgp.begin(c, Nothing(), start, data)
    noise = Stream(0, "noise").normal(pfedgp.noise_shape(c)).double()
    _, grad = pfedgp.objective(c, local, data, noise)
    along = NETS["mlp"].pad(Stream(0, "along").normal([len(grad)])).double()
    up, down = (
        pfedgp.objective(c, local._replace(theta=local.theta + h * along), data, noise)[0] for h in (1e-5, -1e-5)
    )
    assert_close((up - down) / 2e-5, grad @ along, rtol=1e-5, atol=1e-7)


def test_the_kernel_of_orthogonal_features_by_hand():
    """‖z - z'‖² = 2, so k = s exp(-2/2ℓ²)."""
    z = torch.eye(2)
    k = pfedgp.kernel(PFedGP(outputscale=3, lengthscale=2), z, z)
    assert_close(k[0, 1], torch.tensor(3 * math.exp(-2 / (2 * 2**2))))


def test_the_loss_is_the_mean_over_the_held_out_examples(monkeypatch):
    """Of three examples two are fitted and one is scored, so the mean is the sum over the levels."""
    c, data, values, held_out = ctx(), shard([0, 1, 2], 24), [], pg.held_out

    def watched(*args):
        value, *gradients = held_out(*args)
        values.append(value)
        return value, *gradients

    monkeypatch.setattr(pg, "held_out", watched)
    local = pfedgp.begin(c, Nothing(), pfedgp.server_init(c, Stream(0, "server")), data)
    nll, _ = pfedgp.objective(c, local, data, Stream(0, "noise").normal(pfedgp.noise_shape(c)))
    assert_close(nll, sum(values))


def test_the_loss_of_nodes_adds_their_means():
    """Node 0 has three examples, node 1 one, and the fourth of its examples is alone there: it counts nowhere."""
    node, labels = torch.tensor([0, 0, 1, 0, 1]), torch.tensor([0.5, -0.5, 0.5, 0.5, 0.0])
    assert_close(pfedgp.shares(PFedGP(loss="nodes"), node, labels), torch.tensor([1, 1, 3, 1, 0]) / 3)
    assert_close(pfedgp.shares(PFedGP(), node, labels), torch.tensor([1.0, 1, 1, 1, 0]))


def test_with_two_classes_both_losses_are_one():
    """The tree is a single node then."""
    model, data = built("mlp", (2, 3), 2, hidden=(5,)), shard([0, 1, 1] * 6, 24)
    found = []
    for loss in ("examples", "nodes"):
        c = ctx(PFedGP(chains=6, gibbs_steps=3, loss=loss), model)
        local = pfedgp.begin(c, Nothing(), pfedgp.server_init(c, Stream(0, "server")), data)
        found.append(pfedgp.objective(c, local, data, Stream(0, "noise").normal(pfedgp.noise_shape(c))))
    assert_close(*found)


def test_steps_with_momentum_and_weight_decay_are_those_of_pytorch(monkeypatch):
    c, data = ctx(PFedGP(lr=0.1, momentum=0.9, weight_decay=0.01)), shard([0, 1, 2, 3] * 6)
    monkeypatch.setattr(pfedgp, "objective", lambda c, local, batch, noise: (torch.zeros(()), local.theta.cos()))
    local = pfedgp.begin(c, Nothing(), pfedgp.server_init(c, Stream(0, "server")), data)
    theta = local.theta.clone().requires_grad_()
    optimizer = torch.optim.SGD([theta], lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(4):
        theta.grad = theta.detach().cos()
        optimizer.step()
        local, _ = pfedgp.step(c, local, data, torch.zeros(0))
    assert_close(local.theta, theta.detach())


def test_adam_with_momentum_is_refused():
    with pytest.raises(FedRayError, match=r"momentum.*0\.9.*Adam has a momentum of its own"):
        PFedGP(optimizer="adam", momentum=0.9)


def test_the_preset_of_public_code_plays():
    plan = small_plan("pfedgp", pfedgp.PUBLIC_CODE.overrides)
    assert (plan.cfg.algorithm.loss, plan.cfg.algorithm.momentum) == ("nodes", 0.9)
    with LocalFederation(plan) as federation:
        *_, last = federation
    assert last.personal.correct.sum() / last.personal.examples.sum() > 0.6
