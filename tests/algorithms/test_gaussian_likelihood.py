"""Every algorithm that learns the noise of a Gaussian likelihood, on real targets; the others refuse them."""

import functools
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedray import registry
from fedray.arrays import trees
from fedray.config import DataConfig, Experiment, ModelConfig, override
from fedray.data.partition import Partition
from fedray.data.readers import Dataset
from fedray.data.shards import Shards
from fedray.federate import report
from fedray.federate.block import Block
from fedray.federate.in_process import LocalFederation
from fedray.federate.planning import make_plan
from fedray.types import FedRayError
from tests.helpers import ALGORITHMS, REQUIRED, differing, gathering, play

ABLE = [name for name in ALGORITHMS if registry.algorithms()[name].gaussian]
SCALE, SHIFT = 50.0, 1000.0
every_able = pytest.mark.parametrize("name", ABLE)


def linear(n=900, noise=0.1, seed=0):
    """y = 1000 + 50 (x·(1, -2, 0.5) + noise)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5]) + noise * rng.normal(size=n)
    return Dataset(x, SHIFT + SCALE * y, 1, None)


def experiment(name, **settings):
    base = Experiment(
        algorithm=registry.algorithms()[name].config(),
        data=DataConfig(partition="dirichlet", alpha=2.0, scaling="feature"),
        model=ModelConfig(name="mlp", hidden=(16,)),
        clients=6,
        clients_per_round=4,
        rounds=2,
        batch_size=48,
        local_steps=5,
        predict_samples=3,
    )
    return override(base, REQUIRED.get(name, {}) | settings)


plan_of = functools.cache(lambda name: make_plan(experiment(name), linear()))


def block(plan, backend="loop"):
    ids = range(plan.clients)
    return Block(gathering(plan), ids, Shards(plan.dataset(), plan.partition, ids), backend)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ABLE])
def test_the_others_refuse_real_targets_before_anything_starts(name):
    with pytest.raises(FedRayError, match=rf"^model.likelihood gaussian: {name} learns no noise.*; choose .*pfedbayes"):
        make_plan(experiment(name), linear())


def test_those_that_must_are_able():
    assert {"pfedbayes", "bpfed", "dsvgd", "svgd", "pvi", "fedavg"} <= set(ABLE)


@every_able
def test_a_loop_and_a_stack_are_bitwise_the_same(name):
    plan = plan_of(name)
    who = ((0,), (0,)) if plan.algorithm.pools else ((0, 2, 3, 5), (1, 2, 4, 5))
    ends = (play(plan, [block(plan, backend)], who) for backend in ("loop", "vmap"))
    for loop, stack in zip(*ends, strict=True):
        assert differing(loop, stack) == []


@pytest.mark.parametrize("name", [name for name in ABLE if not registry.algorithms()[name].pools])  # one shard
def test_targets_of_padding_rows_do_not_matter(name):
    plan = plan_of(name)
    clean, spoiled = block(plan), block(plan)
    plain, met = spoiled.shards.padded, []

    def spoil(index, size):
        data = plain(index, size)
        met.append(bool((data.weight == 0).any()))
        return data._replace(y=torch.where(data.weight == 0, 1e6, data.y))

    spoiled.shards.padded = spoil
    spoiled._seen = dict.fromkeys(("train", "personalize"), plan.facts.shard)  # all of a shard, as if it were asked for
    for first, second in zip(play(plan, [clean]), play(plan, [spoiled]), strict=True):
        assert differing(first, second) == []
    assert any(met)


@every_able
def test_an_evaluated_round_reports_errors_in_the_targets_units(name):
    plan = make_plan(experiment(name, rounds=1), linear())
    with LocalFederation(plan) as federation:
        (played,) = federation
    values = report.measures(played)
    kinds = [kind for kind, has in (("personal", plan.personal), ("global", plan.algorithm.predict_global)) if has]
    for kind in kinds:
        for name_ in plan.task.measures:
            assert math.isfinite(values[f"{kind}/{name_}"])
        assert values[f"{kind}/rmse"] > 5  # of a target whose sd is about 115
        assert f"{kind}/accuracy" not in values
    assert played.spotlights == ()
    assert report.calibration_rows(played) == []
    summary = report.summarize(plan, [{"round": 1} | values], None)
    assert summary[kinds[-1]]["rmse"] == values[f"{kinds[-1]}/rmse"]
    assert set(next(report.client_rows(played, plan))) > {f"{kinds[-1]}_coverage"}


LEARN = {
    "fedavg": {"algorithm.lr": 0.02, "algorithm.optimizer": "adam"},
    "pfedbayes": {"algorithm.zeta": 1.0, "algorithm.lr_personal": 0.01, "algorithm.lr_global": 0.01},
    "bpfed": {"algorithm.prior": "fixed", "algorithm.lr_personal": 0.01, "algorithm.lr_global": 0.01},
    "pvi": {"algorithm.lr": 0.02},
    "dsvgd": {"algorithm.lr": 0.02, "algorithm.prior": "noise"},
    "svgd": {"algorithm.lr": 0.05, "algorithm.prior": "noise", "rounds": 400, "eval_every": 400},
}


@pytest.mark.parametrize("name", LEARN)
def test_a_line_and_its_noise_are_recovered(name):
    """The noise has sd 25 in the target's units, which is then the RMSE, and 90 % of the targets are covered."""
    settings = {"model.name": "mclr", "rounds": 60, "eval_every": 60, "clients_per_round": 6, "local_steps": 10}
    plan = make_plan(experiment(name, **settings | LEARN[name]), linear(1800, noise=0.5))
    with LocalFederation(plan) as federation:
        *_, played = federation
    values = report.measures(played)
    for kind in ("personal", "global"):
        if f"{kind}/rmse" in values:
            assert values[f"{kind}/rmse"] == pytest.approx(25, rel=0.15)
            assert values[f"{kind}/coverage"] == pytest.approx(0.9, abs=0.06)
            assert values[f"{kind}/aleatoric_sd"] == pytest.approx(25, rel=0.2)


@pytest.mark.parametrize("name", ["pfedbayes", "bpfed"])
def test_every_client_has_a_noise_of_its_own(name):
    """Clients whose noise has sd 10 and 40: what the personal models call noise follows, client by client."""
    quiet, loud = linear(600, 0.2), linear(600, 0.8, seed=1)
    dataset = Dataset(np.concatenate([quiet.x, loud.x]), np.concatenate([quiet.y, loud.y]), 1, None)
    halves = np.split(np.arange(1200), 4)
    dealt = Partition(tuple(h[:200] for h in halves), tuple(h[200:] for h in halves))
    settings = {"model.name": "mclr", "clients": None, "rounds": 60, "eval_every": 60, "local_steps": 10}
    plan = make_plan(experiment(name, **settings | LEARN[name]), dataset, dealt)
    with LocalFederation(plan) as federation:
        *_, played = federation
    sds = (played.personal.aleatoric / played.personal.examples).sqrt()
    assert_close(sds, torch.tensor([10.0, 10.0, 40.0, 40.0]).double(), rtol=0.4, atol=0)


def test_targets_are_standardised_by_training_examples_of_members_only():
    """Newcomers' and test targets have no say in the moments: change them, and the training shards stay."""
    dataset = linear()
    plan = make_plan(experiment("pfedbayes", novel_clients=1, clients_per_round=4), dataset)
    train = np.concatenate(plan.partition.train[:5])
    assert_close(torch.tensor(plan.target.shift), torch.tensor(dataset.y[train].mean()).float(), rtol=1e-5, atol=0)
    assert_close(torch.tensor(plan.target.divisor), torch.tensor(dataset.y[train].std()).float(), rtol=1e-5, atol=0)
    others = np.setdiff1d(np.arange(len(dataset.y)), train)
    y, x = dataset.y.copy(), dataset.x.copy()
    y[others] += 1e3
    x[others] += 1e3
    again = make_plan(
        experiment("pfedbayes", novel_clients=1, clients_per_round=4), dataset._replace(x=x, y=y), plan.partition
    )
    for a, b in zip(
        trees.leaves((plan.target, plan.scaling)), trees.leaves((again.target, again.scaling)), strict=True
    ):
        assert np.array_equal(a, b)


def test_a_change_of_the_targets_units_changes_only_what_has_units():
    """Ten times the target, 500 more: the same model, ten times the errors, nll larger by log 10."""
    results = []
    for factor, offset in ((1.0, 0.0), (10.0, 500.0)):
        dataset = linear()
        dataset = dataset._replace(y=factor * dataset.y + offset)
        with LocalFederation(make_plan(experiment("pfedbayes", rounds=1), dataset)) as federation:
            results.append(report.measures(next(iter(federation))))
    plain, scaled = results
    assert scaled["personal/rmse"] == pytest.approx(10 * plain["personal/rmse"], rel=1e-3)
    assert scaled["personal/nll"] == pytest.approx(plain["personal/nll"] + math.log(10), abs=1e-3)
    assert scaled["personal/coverage"] == plain["personal/coverage"]


def test_labels_are_learned_as_noisy_one_hot_vectors():
    """The client-selection paper's network on the digits: predictions are probabilities, measured as such."""
    cfg = override(
        Experiment(algorithm=registry.algorithms()["dsvgd"].config(lr=0.01, particles=5)),
        {
            "model.likelihood": "gaussian",
            "rounds": 5,
            "clients": 3,
            "clients_per_round": 3,
            "model.hidden": (20,),
        },
    )
    plan = make_plan(cfg)
    assert plan.model.size == 64 * 20 + 20 + 20 * 10 + 10 + 1
    with LocalFederation(plan) as federation:
        *_, played = federation
    values = report.measures(played)
    assert values["personal/accuracy"] > 0.9
    assert values["personal/nll"] < 1.2  # of ten classes; chance has 2.3
