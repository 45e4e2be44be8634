"""Units of inputs: constants or moments, the same wherever they are taken, and kept with a run."""

import numpy as np
import pytest
import torch

from fedray import launch
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import DataConfig, Experiment
from fedray.data import loading
from fedray.data.scaling import FLOOR, Scaling, from_json, moments, of_targets, standard, to_json, unit, within
from fedray.federate.in_process import LocalFederation
from fedray.federate.planning import make_plan, resolve
from fedray.running import finished
from fedray.types import FedRayError
from tests.helpers import small_plan


def images(dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 200, (500, 1, 3, 4)).astype(dtype)


def test_a_range_becomes_one_around_zero_or_from_zero():
    raw = torch.tensor([[0.0], [64], [255]])
    assert within(255).apply(raw.clone()).flatten().tolist() == pytest.approx([-1, 64 / 127.5 - 1, 1])
    assert unit(within(255)).apply(raw.clone()).flatten().tolist() == pytest.approx([0, 64 / 255, 1])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_standard_units_have_mean_zero_and_sd_one_over_all_inputs(dtype):
    x = images(dtype)
    scaled = moments(x, each=False).apply(torch.from_numpy(x).float()).double()
    assert scaled.mean().abs() < 1e-6
    assert scaled.std(correction=0).item() == pytest.approx(1, abs=1e-4)
    assert scaled.std(0).std() > 1e-3  # not each by itself


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_feature_units_have_mean_zero_and_sd_one_of_every_input(dtype):
    x = images(dtype)
    x[:, 0, 1, 2] = 7  # constant: no division by zero
    scaled = moments(x, each=True).apply(torch.from_numpy(x).float()).double()
    assert scaled.mean(0).abs().max() < 1e-4
    sd, expected = scaled.std(0, correction=0), torch.ones(1, 3, 4, dtype=torch.float64)
    expected[0, 1, 2] = 0
    torch.testing.assert_close(sd, expected, atol=1e-3, rtol=0)
    assert moments(x, each=True).divisor[0, 1, 2] == np.float32(FLOOR)


def test_squares_of_large_whole_numbers_do_not_overflow():
    x = 1_700_000_000_000 + np.arange(4000)[:, None]  # milliseconds, whose squares add up to more than 2^63
    for found in (moments(x, each=True), moments(x, each=False)):
        assert found.shift.item() == pytest.approx(x.mean())
        assert found.divisor.item() == pytest.approx(x.std())


@pytest.mark.parametrize("kind", ["standard", "feature"])
@pytest.mark.parametrize("units", [1e-9, 1e-5, 1, 1e5])
def test_float_features_of_ones_own_have_sd_one_in_any_units(kind, units):
    x = (units * np.random.default_rng(0).standard_normal((500, 3))).astype(np.float32)
    x[:, 2] = units  # constant
    dataset = loading.Dataset(x, np.zeros(500, np.int64), 1, None)
    found = loading.scaling(DataConfig(name="given", scaling=kind), dataset, [np.arange(500)])
    scaled = found.apply(torch.from_numpy(x.copy())).double()
    if kind == "standard":
        assert scaled.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    else:
        torch.testing.assert_close(scaled.std(0, correction=0), torch.tensor([1.0, 1, 0]).double(), atol=1e-5, rtol=0)
    assert scaled.mean().abs() < 1e-5


def test_a_feature_with_a_large_offset_is_no_constant():
    """Times of half an hour in seconds since 1970, which float32 rounds to 128 s; and one that is all the same."""
    x = np.float32(1.7e9 + np.arange(0, 1800, 2.0))[:, None]
    x = np.concatenate([x, np.full_like(x, 0.1)], 1)
    scaled = standard(x).apply(torch.from_numpy(x.copy())).double()
    torch.testing.assert_close(scaled.std(0, correction=0), torch.tensor([1.0, 0]).double(), atol=1e-5, rtol=0)
    assert scaled.abs().max() < 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [("covertype", "feature"), ("femnist", "feature"), ("femnist", "standard"), ("uci-wine", "standard")],
)
def test_float_features_of_published_datasets_keep_the_published_floor(name, kind):
    dataset = loading.Dataset(images(np.float32) / 1e5, np.zeros(500, np.int64), 1, None)
    found = loading.scaling(DataConfig(name=name, scaling=kind), dataset, [np.arange(500)])
    assert all(map(np.array_equal, found, moments(dataset.x, each=kind == "feature")))


def test_a_scaling_survives_json():
    found = moments(images(), each=True)
    again = from_json(to_json(found))
    assert isinstance(again, Scaling)
    assert all(map(np.array_equal, found, again))
    assert again.shift.dtype == np.float32
    far = of_targets(1.7e9 + np.arange(9.0) / 7)
    again = from_json(to_json(far))
    assert (again.shift, again.divisor, again.shift.dtype) == (*far, np.float64)
    assert from_json(to_json(None)) is None


@pytest.mark.parametrize(("offset", "sd"), [(1.7e9, 100), (1.7e9, 1e-3), (-1e6, 0.5), (0, 1e-9), (1e3, 1)])
def test_real_targets_have_sd_one_whatever_their_offset(offset, sd):
    y = offset + sd * np.random.default_rng(0).standard_normal(500)
    scaled = of_targets(y).apply(torch.from_numpy(y.copy())).double()
    assert scaled.mean().abs() < 0.1
    assert scaled.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_targets_that_float32_can_hold_have_the_units_that_they_always_had():
    y = 1e5 + np.random.default_rng(0).standard_normal(500)
    assert all(map(np.array_equal, of_targets(y), standard(y)))
    assert of_targets(np.full(1000, 0.1 + 1e9)).divisor == 1


def test_an_offset_of_real_targets_does_not_matter():
    """Unix times: a hundred seconds are as well predicted as a hundred of anything else."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 2)).astype(np.float32)
    y = 100 * (x @ [1.0, -1.0] + 0.1 * rng.standard_normal(300))
    cfg = Experiment(algorithm=FedAvg(lr=0.1), rounds=3, clients=3, data=DataConfig(name="given", partition="iid"))

    def error(targets):
        *_, last = LocalFederation(make_plan(cfg, (x, targets)))
        return float((last.global_.squared_error.sum() / last.global_.examples.sum()).sqrt())

    assert error(y + 1.7e9) == pytest.approx(error(y), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "partition", "given", "expected"),
    [
        ("mnist", "lognormal", "auto", "feature"),
        ("fashion_mnist", "lognormal", "auto", "standard"),
        ("cifar10", "lognormal", "auto", "auto"),
        ("femnist", "auto", "auto", "unit"),
        ("mnist", "shards", "auto", "unit"),
        ("mnist", "auto", "auto", "auto"),
        ("mnist", "lognormal", "range", "range"),
    ],
)
def test_auto_is_the_papers(name, partition, given, expected):
    cfg = resolve(Experiment(algorithm=FedAvg(), data=DataConfig(name=name, partition=partition, scaling=given)))
    assert cfg.data.scaling == expected


def test_what_a_dataset_cannot_have_is_refused():
    features = loading.Dataset(images(np.float32), np.zeros(500, np.int64), 1, None)
    for kind in ("range", "unit"):
        with pytest.raises(FedRayError, match=f"data.scaling {kind}: the range .* choose standard or feature"):
            loading.scaling(DataConfig(scaling=kind), features, [np.arange(500)])
    texts = features._replace(vectors=np.zeros((3, 2), np.float32))
    with pytest.raises(FedRayError, match="the vectors of words are used as they are"):
        loading.scaling(DataConfig(scaling="feature"), texts, [np.arange(500)])


@pytest.mark.parametrize("kind", ["standard", "feature"])
def test_moments_are_of_the_training_shards_of_the_members_alone(kind):
    """Test examples, newcomers and examples that nobody has could be anything else."""
    cfg = DataConfig(scaling=kind, classes=7)
    settings = {"data": cfg, "novel_clients": 2, "clients_per_round": 3}
    made = small_plan("fedper", settings)
    known = np.concatenate(made.partition.train[:4])
    dataset = loading.load(cfg)
    other = dataset.x.copy()
    other[np.setdiff1d(np.arange(len(other)), known)] = 255
    again = make_plan(made.cfg, dataset._replace(x=other))
    assert all(map(np.array_equal, made.scaling, again.scaling))
    seen = made.dataset().scaling.apply(torch.from_numpy(dataset.x[known]).float()).double()
    axes = (0,) if kind == "feature" else (0, 1, 2, 3)
    assert seen.mean(axes).abs().max() < 1e-4
    assert made.remarks == ()


def test_the_moments_of_all_examples_are_marked():
    made = small_plan("fedavg", {"data.scaling": "feature", "data.moments": "all"})
    expected = moments(loading.load(made.cfg.data).x, each=True)
    assert all(map(np.array_equal, made.scaling, expected))
    assert [remark for remark in made.remarks if "scaled by the mean and sd of test examples, too" in remark]
    assert small_plan("fedavg", {"data.moments": "all"}).remarks == ()  # constants


def test_a_control_that_pools_has_the_units_of_the_federation():
    federated, pooled = (small_plan(name, {"data.scaling": "feature"}) for name in ("fedavg", "pooled"))
    assert all(map(np.array_equal, federated.scaling, pooled.scaling))


def test_a_finished_run_predicts_raw_inputs_in_its_own_units(tmp_path, capsys):
    args = "fedavg --rounds 2 --clients 2 --data.scaling feature --runtime local --tracking.uri none --output"
    assert launch.main([*args.split(), str(tmp_path / "run"), "--json"]) == 0
    run, dataset = finished.load(tmp_path / "run"), loading.load(DataConfig())
    theta = run.snapshot.server.theta
    x = torch.from_numpy(dataset.x[:50]).double()
    train = dataset.x[np.concatenate(run.plan.partition.train)]
    own = (x - x.new_tensor(train.mean(0))) / (x.new_tensor(train.std(0)) + FLOOR)
    expected = torch.softmax(run.plan.model.apply(theta.double(), own), -1)
    torch.testing.assert_close(run.predict(dataset.x[:50]).probs.double(), expected, atol=1e-5, rtol=1e-4)


def test_a_dataset_loaded_before_is_taken_in_the_plans_units():
    cfg = Experiment(algorithm=FedAvg(), data=DataConfig(scaling="feature"))
    dataset = loading.load(DataConfig())
    made = make_plan(cfg, dataset)
    units = made.dataset(dataset).scaling
    assert units is not None
    assert units.divisor.shape == (1, 8, 8)
