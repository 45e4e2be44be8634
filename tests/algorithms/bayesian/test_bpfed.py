"""BPFed: its limits pFedBayes, solo training and FedPer, and what of a client is never seen elsewhere."""

import pytest
import torch
from torch.testing import assert_close

from fedray import registry
from fedray.algorithms.bayesian import bpfed, pfedbayes
from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.bayes import variational
from fedray.bayes.gaussian import Gaussian, kl, kl_and_grad_prior, sigma_and_slope
from fedray.config import override
from fedray.federate import evaluation
from fedray.federate.measures import metrics
from fedray.federate.uploads import payload_bytes
from tests.helpers import block, differing, experiment, play, shard, small_plan

EVERYTHING = ("body", "head")


def outcome(name, settings=None, **own):
    plan = small_plan(name, {f"algorithm.{field}": value for field, value in own.items()} | (settings or {}))
    return plan, *play(plan, [block(plan)])


def first_client(plan):
    """(local, minibatch, noise, shard) of client 1 at the start of a round of a federation that has played two."""
    host = block(plan)
    server, states, _ = play(plan, [host])
    data = shard(host, 1)
    batch = trees.tree_map(lambda leaf: leaf[:48] if leaf.ndim else leaf, data)
    local = bpfed.begin(plan.context, trees.row(states, 1), bpfed.broadcast(plan.context, server, [1]), data)
    noise = Stream(0, "test").normal(plan.algorithm.noise_shape(plan.context))
    return trees.tree_map(torch.clone, local), batch, noise, data


def test_without_personal_layers_and_sync_it_is_pfedbayes_bit_for_bit():
    plan, server, states, seen = outcome("bpfed", personal=(), sync=False)
    _, theirs, their_states, expected = outcome("pfedbayes", zeta=1.0)
    assert differing(server, theirs) == []
    assert differing(states.posterior, their_states) == []
    for (ups, infos), (other, other_infos) in zip(seen, expected, strict=True):
        assert torch.equal(ups.mu, other.mu[:, : plan.model.size])
        assert differing(infos, other_infos) == []


@pytest.mark.parametrize("sync", [True, False])
def test_with_every_layer_personal_nothing_is_uploaded_and_clients_are_alone(sync):
    plan, server, together, seen = outcome("bpfed", personal=EVERYTHING, sync=sync)
    assert all(payload_bytes(ups, plan) == 0 for ups, _ in seen)
    assert differing(server, plan.initial_server()) == []
    _, alone, _ = play(plan, [block(plan)], rounds=((2,), (2,)))
    assert differing(trees.row(together, 2), trees.row(alone, 2)) == []


def test_the_dirac_limit_is_fedper():
    """No noise, no divergence, the posterior's shared layers uploaded: Adam on the weights, shared and personal."""
    limit = {"zeta": 0.0, "noise_sd": 0.0, "personal_steps": 1, "upload": "posterior", "predict_with": "average"}
    shards = {"data.partition": "iid"}  # of nearly one size: Adam's ε stands beside gradients of a sum, or of a mean
    bayes = outcome("bpfed", shards, lr_personal=0.01, **limit)
    point = outcome("fedper", shards, lr=0.01, optimizer="adam", weighting="uniform")
    start = bayes[0].initial_server().mu
    plan = point[0]
    hosts = [block(plan)]
    own = plan.model.part(("head",))
    hosts[0].private.replace(0, hosts[0].ids, fedper_states(hosts[0].states, start[own]))
    plan = plan._replace(algorithm=plan.algorithm._replace(server_init=lambda *_: point_of(start)))
    server, states, _ = play(plan, hosts)
    moved = (bayes[1].mu - start)[plan.model.part(("body",))]
    assert moved.abs().max() > 0.05
    assert_close(bayes[1].mu, server.theta, rtol=0, atol=2e-5)
    assert_close(bayes[2].posterior.q.mu[:, own], states.theta, rtol=0, atol=2e-5)


def fedper_states(states, head):
    return states._replace(theta=head.expand_as(states.theta).clone())


def point_of(theta):
    from fedray.algorithms.averaging.fedavg import Point

    return Point(theta)


def test_a_round_begins_where_both_divergences_and_their_gradients_are_zero():
    """Of ζ KL(q‖w) to q nothing is left at any ζ, nor of KL(q‖w) to w."""
    grads = []
    for zeta in (0.0, 1e6):
        plan = small_plan("bpfed", {"algorithm.zeta": zeta})
        local, batch, noise, _ = first_client(small_plan("bpfed"))
        w = local.w
        grads.append(
            variational.objective_grad(
                plan.cfg.algorithm, plan.model, local.client.q, w.mu, sigma_and_slope(w.rho)[0], batch, noise[0]
            )
        )
    assert kl(local.client.q, local.w) == 0
    assert_close(grads[0], grads[1], rtol=1e-6, atol=1e-4)
    divergence, grad = kl_and_grad_prior(local.client.q, local.w)
    assert divergence == 0
    assert torch.cat(grad).count_nonzero() == 0


def test_the_prior_of_personal_layers_is_what_the_client_believed_and_of_shared_ones_the_average():
    plan = small_plan("bpfed")
    host = block(plan)
    server, states, _ = play(plan, [host])
    local, _, _, _ = first_client(plan)
    own, shared = plan.model.part(("head",)), plan.model.rest(("head",))
    client = trees.row(states, 1).posterior
    assert torch.equal(local.w.mu[own], client.q.mu[own])
    assert torch.equal(local.w.rho[own], client.q.rho[own])
    assert torch.equal(local.w.mu[shared], server.mu[shared])
    assert torch.equal(local.client.q.mu[shared], server.mu[shared])
    assert local.client.q_t == 0  # its optimizer starts anew


def test_a_fixed_prior_does_not_follow_the_client():
    ends = {}
    for prior in ("moving", "fixed"):
        plan = small_plan("bpfed", {"algorithm.prior": prior, "algorithm.zeta": 5.0})
        local, batch, noise, _ = first_client(plan)
        start = trees.tree_map(torch.clone, local)
        for _ in range(8):
            local, _ = bpfed.step(plan.context, local, batch, noise)
        assert differing(local.w, start.w) == ["mu", "rho"]
        ends[prior] = kl(local.client.q, start.w)
        if prior == "fixed":
            assert differing(local.prior, start.prior) == []
    assert ends["fixed"] < ends["moving"]  # held back by a prior that stays


def test_a_carried_prior_of_personal_layers_is_the_clients_copy_of_the_last_round():
    """It follows the posterior by steps of its own, and the server does not touch it."""
    plan = small_plan("bpfed", {"algorithm.prior": "carried", "algorithm.sync": False})
    model, host = plan.model, block(plan)
    own, shared = model.part(("head",)), model.rest(("head",))
    start = plan.initial_server()
    assert differing(trees.row(host.states, 1).prior, bpfed.take(start, own)) == []  # before the first round
    server, states, _ = play(plan, [host])
    data, client = shard(host, 1), trees.row(states, 1)
    local = bpfed.begin(plan.context, client, bpfed.broadcast(plan.context, server, [1]), data)
    assert differing(bpfed.take(local.w, own), client.prior) == []
    assert differing(bpfed.take(local.w, shared), bpfed.take(server, shared)) == []
    assert (client.prior.mu - start.mu[own]).abs().max() > 1e-3
    assert (client.prior.mu - client.posterior.q.mu[own]).abs().max() > 1e-3
    ended, _ = bpfed.finish(plan.context, local._replace(w=local.client.q), data)
    assert differing(ended.prior, bpfed.take(local.client.q, own)) == []


PARITY = [("pfedbayes", "a_parity", 50), ("pfedbayes", "h_parity", 0.1), ("bpfed", "h_parity", 1000)]


@pytest.mark.parametrize(("name", "preset", "nats"), PARITY)
def test_parity_presets_play_and_stack(name, preset, nats):
    """Two rounds, bitwise the same one by one and stacked; how far q may leave its prior is a matter of the preset."""
    overrides = registry.algorithms()[name].presets[preset].overrides
    plan = small_plan(name, {**overrides, "local_steps": 10})
    loop, stack = (play(plan, [block(plan, backend=backend)]) for backend in ("loop", "vmap"))
    assert all(differing(a, b) == [] for a, b in zip(loop[:2], stack[:2], strict=True))
    infos = loop[2][-1][1]
    assert infos.nll.isfinite().all()
    assert (infos.kl[:, -1] < nats).all()
    assert (infos.kl[:, -1] > nats / 100).all()


def test_the_parity_preset_is_published_code():
    """pFedBayes's, with a far smaller weight, without a shared start of q, and with a prior of its own for the head."""
    cfg = override(experiment("bpfed"), bpfed.ALGORITHM.presets["h_parity"].overrides)
    theirs = override(experiment("pfedbayes"), pfedbayes.ALGORITHM.presets["h_parity"].overrides)
    own = {"zeta": 5e-5, "sync": False, "prior": "carried"}
    assert {name: getattr(cfg.algorithm, name) for name in own} == own
    for name in ("noise_sd", "likelihood", "kl", "rho_init", "rho_sd", "keep_global_moments", "personal_steps"):
        assert getattr(cfg.algorithm, name) == getattr(theirs.algorithm, name)
    assert (cfg.batch_size, cfg.local_steps, cfg.predict_samples, cfg.data.layout) == (100, 20, 1, "cluster")


def test_the_text_of_the_paper_has_ten_epochs():
    overrides = bpfed.ALGORITHM.presets["paper_text"].overrides
    cfg = override(experiment("bpfed"), bpfed.ALGORITHM.defaults | overrides)
    assert cfg.local_steps * cfg.batch_size == 10 * 5 * 50  # MNIST small: five classes of 50 training examples
    assert (cfg.algorithm.personal_steps, cfg.train_all) == (1, True)


@pytest.mark.parametrize("kind", ["kept", "average"])
def test_a_personal_model_predicts_with_the_shared_layers_that_it_was_told_to(kind):
    """Through the evaluation of a federation, too, whose clients have trained their shared layers apart."""
    plan = small_plan("bpfed", {"algorithm.predict_with": kind})
    host = block(plan)
    server, states, _ = play(plan, [host])
    view, k = plan.view(server), 2
    own, found = trees.row(states.posterior.q, k), evaluation.personal_model(host, k, 2, view).q
    personal, shared = plan.model.part(("head",)), plan.model.rest(("head",))
    expected = bpfed.take(own, shared) if kind == "kept" else view
    assert differing(bpfed.take(found, shared), expected) == []
    assert differing(bpfed.take(found, personal), bpfed.take(own, personal)) == []
    assert differing(bpfed.take(own, shared), view)
    reply = evaluation.evaluate(host, 2, view, False)
    noise = plan.prediction_noise(plan.context, plan.cfg.predict_samples, "predict", k, 2)
    x, y = host.shards.test(k)
    model = pfedbayes.predict_personal(plan.context, states.posterior._replace(q=found), x, noise)
    assert torch.equal(reply.personal.nll[k], metrics.evaluate(model, y).nll)


@pytest.mark.parametrize("sync", [True, False])
def test_a_client_that_was_not_drawn_yet_has_the_published_body(sync):
    """And not that of the server's first weights, which nobody has trained: in a test, and in its first round."""
    plan = small_plan("bpfed", {"algorithm.sync": sync})
    server, _, _ = play(plan, [host := block(plan)])
    new, view, shared = bpfed.client_init(plan.context, plan.initial_server()), plan.view(server), _shared(plan)
    tested = bpfed.personalize(plan.context, new, view, shard(host, 1), torch.zeros(0))
    begun = bpfed.begin(plan.context, new, view, shard(host, 1))
    for q in (tested.q, begun.client.q):
        assert differing(bpfed.take(q, shared), view) == []
    met = new._replace(posterior=new.posterior._replace(q_t=torch.ones(())))
    again = bpfed.begin(plan.context, met, view, shard(host, 1)).client.q
    assert (differing(bpfed.take(again, shared), view) == []) == sync


def _shared(plan):
    return plan.model.rest(("head",))


@pytest.mark.parametrize("sync", [True, False])
def test_a_newcomer_moves_personal_layers_alone(sync):
    plan = small_plan("bpfed", {"algorithm.sync": sync})
    local, batch, noise, _ = first_client(plan)
    start = trees.tree_map(torch.clone, local)
    for _ in range(4):
        local, _ = bpfed.adapt(plan.context, local, batch, noise)
    own, shared = plan.model.part(("head",)), plan.model.rest(("head",))
    for after, before in zip((*local.client.q, *local.w), (*start.client.q, *start.w), strict=True):
        assert torch.equal(after[shared], before[shared])
        assert not torch.equal(after[own], before[own])


@pytest.mark.parametrize("prior", ["moving", "carried", "fixed"])
def test_a_newcomers_body_is_the_average_without_sync_too(prior):
    """What it began with is of the server's first weights, which nobody has trained."""
    plan = small_plan("bpfed", {"algorithm.sync": False, "algorithm.prior": prior})
    host = block(plan)
    server, _, _ = play(plan, [host])
    data, down = shard(host, 1), bpfed.broadcast(plan.context, server, [1])
    new, noise = bpfed.client_init(plan.context, plan.initial_server()), Stream(0, "newcomer")
    own, shared = plan.model.part(("head",)), plan.model.rest(("head",))
    local, heads = bpfed.begin(plan.context, new, down, data), []
    for _ in range(3):
        draws = noise.normal(plan.algorithm.noise_shape(plan.context))
        local, _ = bpfed.adapt(plan.context, trees.tree_map(torch.clone, local), data, draws)
        assert differing(bpfed.take(local.client.q, shared), down) == []
        heads.append(local.client.q.mu[own])
    assert not torch.equal(heads[0], heads[2])
    met, _ = bpfed.finish(plan.context, local, data)
    later = bpfed.Gaussian(down.mu + 1, down.rho)
    local, _ = bpfed.adapt(plan.context, bpfed.begin(plan.context, met, later, data), data, draws)
    assert differing(bpfed.take(local.client.q, shared), down) == []  # without sync it keeps what it has


def test_a_newcomers_head_learns_under_the_body_that_it_was_given(monkeypatch):
    """In each of several inner steps: as where the gradients of shared layers are zero, and so their Adam steps."""
    plan = small_plan("bpfed", {"algorithm.personal_steps": 4})
    shared, seen, plain = plan.model.rest(("head",)), [], pfedbayes.objective_grad
    local, batch, _, _ = first_client(plan)
    noise = Stream(0, "inner").normal(plan.algorithm.noise_shape(plan.context))
    zero = torch.zeros(len(shared))

    def watched(cfg, model, q, *rest):
        seen.append(bpfed.take(trees.tree_map(torch.clone, q), shared))
        return plain(cfg, model, q, *rest)

    def without_shared(*given):
        nll, grad = plain(*given)
        return nll, bpfed.put(Gaussian(*grad), shared, Gaussian(zero, zero))

    ends = []
    for train, grad in ((bpfed.adapt, watched), (bpfed.step, without_shared)):
        monkeypatch.setattr(pfedbayes, "objective_grad", grad)
        ends.append(train(plan.context, trees.tree_map(torch.clone, local), batch, noise))
    (end, info), (frozen, other) = ends
    assert len(seen) == 4
    assert all(differing(q, bpfed.take(local.client.q, shared)) == [] for q in seen)
    assert differing((end.client.q, end.w, info), (frozen.client.q, frozen.w, other)) == []


def test_an_upload_holds_the_shared_layers_alone():
    plan, server, states, seen = outcome("bpfed")
    own, shared = plan.model.part(("head",)), plan.model.rest(("head",))
    ups = seen[-1][0]
    assert ups.mu.shape[1:] == ups.rho.shape[1:] == shared.shape
    assert torch.equal(server.mu[own], plan.initial_server().mu[own])
    assert payload_bytes(ups, plan) == 4 * 2 * 4 * len(shared)
    assert not torch.equal(states.posterior.q.mu[0][own], states.posterior.q.mu[1][own])
