"""The pass over the final models: which examples it asks about, what its numbers equal, and what is refused."""

import dataclasses
import math

import numpy as np
import pandas
import pytest
import torch
from torch.testing import assert_close

from fedray.arrays import trees
from fedray.arrays.rng import Stream
from fedray.config import Execution
from fedray.data import loading, shards
from fedray.data.scaling import unit
from fedray.federate.evaluation import Predictive, personal_model, personal_predictor
from fedray.federate.in_process import LocalFederation
from fedray.federate.measures import metrics
from fedray.federate.uncertainty import answers, questions, ranking, summary
from fedray.federate.uncertainty.conformal import CELLS
from fedray.federate.uncertainty.reply import SAMPLE, together
from fedray.federate.uncertainty.temperature import UNSCALED
from fedray.types import FedRayError
from tests.helpers import block, differing, small_plan

LABELS = {"data.partition": "labels"}  # five of ten classes each


@pytest.fixture(scope="module")
def plan():
    return small_plan("pfedbayes", LABELS)


@pytest.fixture(scope="module")
def played(plan):
    with LocalFederation(plan) as federation:
        *_, last = federation
        return last, federation.uncertainty(), federation


def asked(plan):
    host, dataset = block(plan), loading.load(plan.cfg.data)
    pool = questions.pool(plan, plan.dataset(dataset))
    return host, [questions.questions(host, k, pool) for k in range(len(host.ids))]


def rows_in(x, pool):
    """How many of the examples x are among those of a pool."""
    known = {row.tobytes() for row in pool.flatten(1).numpy()}
    return sum(row.tobytes() in known for row in x.flatten(1).numpy())


def test_half_of_the_test_examples_calibrate_and_the_others_score(plan):
    host, found = asked(plan)
    for k, each in enumerate(found):
        x, y = host.shards.test(k)
        (x0, y0), (x1, y1) = each.calibration, each.scored
        assert (len(y0), len(y1)) == (len(y) // 2, len(y) - len(y) // 2)
        both = torch.cat([x0, x1]).flatten(1)
        assert_close(both[np.lexsort(both.numpy().T)], x.flatten(1)[np.lexsort(x.flatten(1).numpy().T)])
        assert torch.equal(torch.cat([y0, y1]).bincount(), y.bincount())
    again = asked(plan)[1]
    assert differing(found, again) == []


def test_validation_examples_calibrate_where_they_are_held_out():
    plan = small_plan("pfedbayes", LABELS | {"data.validation": 0.2})
    host, found = asked(plan)
    for k, each in enumerate(found):
        assert differing(each.calibration, host.shards.validation(k)) == []
        (x, y), (scored, labels) = host.shards.test(k), each.scored  # in another order: they may be sorted by class
        assert not torch.equal(scored, x)
        assert_close(scored.flatten(1).sum(0), x.flatten(1).sum(0))
        assert torch.equal(labels.bincount(), y.bincount())


def test_unknown_examples_are_test_examples_of_classes_that_the_client_lacks(plan):
    host, found = asked(plan)
    dataset = plan.dataset(loading.load(plan.cfg.data))
    tests = np.concatenate(plan.partition.test)
    for k, each in enumerate(found):
        held = set(dataset.y[plan.partition.train[k]])
        strange = tests[~np.isin(dataset.y[tests], list(held))]
        pool, _ = shards.examples(dataset, strange)
        assert len(each.unknown) == min(SAMPLE, len(strange)) > 100
        assert rows_in(each.unknown, pool) == len(each.unknown)
        assert each.known.all()
        assert host.ids[k] == k


def test_examples_of_a_class_that_is_only_in_a_clients_test_shard_are_not_known(plan):
    test = plan.partition.test
    turned = plan._replace(partition=plan.partition._replace(test=(test[1], test[0], *test[2:])))
    host, found = asked(turned)
    assert set(plan.dataset().y[plan.partition.train[0]]) != set(plan.dataset().y[plan.partition.train[1]])
    assert not found[0].known.any()
    assert (
        answers.uncertainty(host, 1, plan.initial_server(), plan.dataset(), None)
        .personal.unknown.auroc[0]
        .isnan()
        .all()
    )


def test_unknown_examples_are_of_other_clients():
    """Also where a client tests on classes that it does not train on, as it may where all hold few examples."""
    plan = small_plan("fedavg", {"data.partition": "iid", "clients": 60, "clients_per_round": 60})
    host, found = asked(plan)
    own = [int((~np.isin(host.shards.test(k)[1].numpy(), host.shards.labels(k).numpy())).sum()) for k in range(60)]
    assert sum(own) > 20
    for k, each in enumerate(found):
        assert rows_in(each.unknown, host.shards.test(k)[0]) == 0


def test_at_temperature_one_it_is_the_last_evaluation():
    """With examples held out for calibration, all test examples score; the draws are those of the evaluation."""
    plan = small_plan("pfedbayes", LABELS | {"data.validation": 0.2})
    with LocalFederation(plan) as federation:
        *_, last = federation
        found = federation.uncertainty()
    for stats, each in ((last.personal, found.personal), (last.global_, found.global_)):
        at_one = trees.tree_map(lambda leaf: leaf[:, UNSCALED], each.scaled.stats)
        for name in ("examples", "correct", "nll", "brier", "bin_count", "bin_correct"):
            assert_close(getattr(at_one, name), getattr(stats, name))
        measured = summary.measures(each, summary.shared(each))
        pooled = metrics.summarize(metrics.pooled(stats))
        assert (measured["nll"], measured["ece"]) == pytest.approx((pooled.nll, pooled.ece))
    assert found.ids == tuple(range(6))


def test_a_client_asked_by_hand(plan, played):
    """The AUROC of the entropy, and the share of errors among the surest, from the model itself."""
    _, found, federation = played
    host, view = federation.cohort.block, plan.view(federation.state.server)
    each = questions.questions(host, 2, questions.pool(plan, plan.dataset()))
    model = personal_model(host, 2, plan.cfg.rounds, view)
    predict = personal_predictor(host, 2, plan.cfg.rounds, model, plan.cfg.predict_samples)

    def mean(x):
        return predict.rows(x).double().exp().mean(0)

    known, unknown = (torch.special.entr(mean(x)).sum(-1) for x in (each.scored[0], each.unknown))
    assert_close(found.personal.unknown.auroc[2, 1], ranking.auroc(known, unknown))
    x, y = each.scored
    confidence, predicted = mean(x).max(-1)
    surest = confidence.argsort(descending=True)[: math.ceil(0.8 * len(y))]
    assert_close(found.personal.selective.risk_at_coverage[2], (predicted != y)[surest].double().mean())


def test_it_does_not_depend_on_packing(plan, played):
    _, whole, federation = played
    host, view = federation.cohort.block, plan.view(federation.state.server)
    parts = []
    for ids in ((0,), (1, 2, 3, 4, 5)):
        part = block(plan, ids)
        part.private.replace(plan.cfg.rounds, list(ids), trees.rows(host.states, ids))
        parts.append(answers.uncertainty(part, plan.cfg.rounds, view, plan.dataset(), None))
    assert [part.ids for part in parts] == [(0,), (1, 2, 3, 4, 5)]
    assert differing(*(trees.tree_map(torch.nan_to_num, each[1:]) for each in (together(parts), whole))) == []


def test_a_client_that_holds_all_classes_has_no_unknown_ones():
    plan = small_plan("fedavg", {"data.partition": "iid"})
    with LocalFederation(plan) as federation:
        list(federation)
        found = federation.uncertainty()
    assert found.personal is None
    assert found.global_.unknown.auroc.isnan().all()
    measured = summary.summarize(plan, Execution(uncertainty=True), found)
    assert not [name for name in measured["global"] if name.startswith(("unknown", "far"))]
    assert {"global/aurc", "global/thr_coverage"} <= set(summary.tracked({"uncertainty": measured}))


def test_a_model_that_has_seen_all_examples_knows_all_classes():
    _, found = asked(small_plan("pooled"))
    assert all(each.known.all() for each in found)
    assert [len(each.unknown) for each in found] == [0] * 6


def test_the_run_has_its_clients_mean_and_each_client_its_own():
    """Weighted by their examples, of which they have unequal numbers here."""
    with LocalFederation(small_plan("pfedbayes")) as federation:
        list(federation)
        found = federation.uncertainty()
    rows = [row for row in summary.client_rows(found) if row["model"] == "personal"]
    whole = summary.measures(found.personal, summary.shared(found.personal))
    assert [row["aurc"] for row in rows] == pytest.approx(found.personal.selective.aurc.tolist())
    weights = np.array([row["scored_examples"] for row in rows])
    assert len(set(weights)) > 1
    for name in ("aurc", "thr_coverage", "aps_size", "nll_scaled"):
        assert whole[name] == pytest.approx(np.average([row[name] for row in rows], weights=weights))
    assert whole["scored_examples"] == weights.sum()
    assert {row["temperature_federated"] for row in rows} == {whole["temperature_federated"]}
    assert whole["nll_scaled_federated"] <= whole["nll"] + 0.05
    curve = [row["risk"] for row in summary.risk_rows(found) if row["model"] == "personal"]
    wrong = 1 - found.personal.scaled.stats.correct[:, UNSCALED].sum() / weights.sum()
    assert curve[-1] == pytest.approx(float(wrong))
    assert len(curve) == 50


def test_a_client_with_too_few_examples_takes_the_federated_threshold(played):
    _, found, _ = played
    sets = found.personal.sets
    few = sets._replace(threshold=sets.threshold.clone())
    few.threshold[0] = math.inf
    changed = found._replace(personal=found.personal._replace(sets=few))
    before, after = (summary.client_rows(each)[0] for each in (found, changed))
    common = summary.shared(found.personal)
    assert before["thr_coverage_federated"] == after["thr_coverage_federated"] == after["thr_coverage"]
    assert after["thr_threshold"] == common.thresholds[0] != before["thr_threshold"]
    assert after["thr_size"] == before["thr_size_federated"]
    nobody = common._replace(cells=(CELLS, CELLS))
    assert nobody.thresholds == (math.inf, math.inf)
    all_classes = summary.measures(changed.personal, nobody)
    assert (all_classes["thr_coverage_federated"], all_classes["aps_size_federated"]) == (1, 10)


def test_corruptions_cost_accuracy_and_the_first_row_has_none():
    plan = small_plan("fedavg", {"algorithm.lr": 0.2, "local_steps": 40, "model.hidden": (30,)})
    with LocalFederation(plan) as federation:
        list(federation)
        found = federation.uncertainty()
    rows = list(summary.shift_rows(plan, found))
    assert len(rows) == 16
    first = rows[0]
    assert (first["corruption"], first["severity"]) == ("none", 0)
    scored = metrics.pooled(trees.tree_map(lambda leaf: leaf[:, UNSCALED], found.global_.scaled.stats))
    assert first["accuracy"] == pytest.approx(float(scored.correct / scored.examples))
    worst = {row["corruption"]: row["accuracy"] for row in rows}
    assert all(worst[kind] < first["accuracy"] - 0.2 for kind in ("noise", "rotation"))


def test_a_model_without_draws_has_no_mutual_information():
    plan = small_plan("fedper", LABELS)
    with LocalFederation(plan) as federation:
        list(federation)
        found = federation.uncertainty()
    assert found.personal.unknown.auroc[:, 2].isnan().all()
    assert found.personal.unknown.auroc[:, :2].isfinite().all()


@pytest.mark.parametrize("draws", [2, 7, 100])
def test_draws_that_agree_have_no_mutual_information_however_their_average_rounds(draws):
    log_p = torch.log_softmax(5 * Stream(0, "p").normal([200, 10]), -1)
    found = answers.predicted(Predictive(lambda x: x.expand(draws, -1, -1), None), log_p)
    assert torch.equal(found.information, torch.zeros(200).double())


@pytest.fixture
def digits_like(tmp_path):
    path = tmp_path / "strange.npz"
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.integers(0, 17, (700, 1, 8, 8)).astype(np.float32), y=rng.integers(0, 3, 700))
    return str(path)


def test_noise_is_strange_and_in_the_runs_units(plan, played, digits_like):
    far = questions.far(plan, digits_like)
    assert far.shape == (SAMPLE, 1, 8, 8)
    assert (float(far.min()), float(far.max())) == (-1, 1)
    found = played[2].uncertainty(far)
    assert (found.personal.far.auroc[:, 1] > 0.5).double().mean() > 0.6
    assert differing(found.personal.unknown, played[1].personal.unknown) == []


def test_strange_examples_come_into_the_runs_units_or_are_refused(plan, tmp_path):
    """Digits are whole numbers up to 16, brought to [-1, 1]; pixels of files go to 255."""
    path, own = str(tmp_path / "strange.npz"), loading.load(plan.cfg.data)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8)).astype(np.uint8)
    np.savez(path, x=pixels, y=np.arange(40) % 2)
    found = [questions.far(plan._replace(scaling=each), path) for each in (own.scaling, unit(own.scaling))]
    assert torch.allclose(found[0].sort().values, 2 * found[1].sort().values - 1, atol=1e-6)
    assert found[0].flatten().sort().values.tolist() == pytest.approx(np.sort(pixels.ravel() / 127.5 - 1), abs=1e-6)
    np.savez(path, x=pixels / 255, y=np.arange(40) % 2)
    with pytest.raises(FedRayError, match="its inputs are fractions, those of the run whole numbers; choose a dataset"):
        questions.check(plan, Execution(uncertainty=True, ood=path))


def test_columns_of_a_strange_table_are_the_features_by_their_names(tmp_path):
    table = pandas.DataFrame(np.random.default_rng(0).standard_normal((40, 3)), columns=list("abc"))
    table = table.assign(y=np.arange(40) % 2)
    names = [str(tmp_path / f"{name}.csv") for name in ("own", "strange", "turned", "copy", "lacking")]
    strange = table.assign(a=table.a + 9)
    kept = (
        table,
        strange,
        strange[["c", "y", "b", "a"]],
        table[["c", "y", "b", "a"]],
        strange.rename(columns={"a": "d"}),
    )
    for name, each in zip(names, kept, strict=True):
        each.to_csv(name, index=False)
    settings = {"data.name": names[0], "data.partition": "iid", "clients": 2, "clients_per_round": 2}
    plan = small_plan("pfedbayes", settings)
    assert torch.equal(questions.far(plan, names[1]), questions.far(plan, names[2]))
    with pytest.raises(FedRayError, match="it is the run's own dataset"):
        questions.far(plan, names[3])
    with pytest.raises(FedRayError, match=r"`ood`: .*lacking.csv: it has no column a; .*; give the columns of the run"):
        questions.far(plan, names[4])


@pytest.mark.parametrize(
    ("execution", "reason"),
    [
        ({"ood": "mnist"}, "part of the uncertainty report"),
        ({"ood": "digits", "uncertainty": True}, "the run's own dataset"),
        ({"ood": "nosuch", "uncertainty": True}, "not a dataset"),
    ],
)
def test_what_cannot_be_asked_is_refused(plan, execution, reason):
    with pytest.raises(FedRayError, match=reason):
        questions.check(plan, Execution(**execution))


def test_a_dataset_of_another_shape_and_real_targets_are_refused(plan, tmp_path):
    path = tmp_path / "wide.npz"
    np.savez(path, x=np.zeros((20, 5), np.float32), y=np.arange(20) % 2)
    with pytest.raises(FedRayError, match=r"have the shape \[5\], those of the run \[1, 8, 8\]"):
        questions.check(plan, Execution(uncertainty=True, ood=str(path)))
    real = plan._replace(target=plan.scaling)
    questions.check(real, Execution())
    with pytest.raises(FedRayError, match="real numbers"):
        questions.check(real, Execution(uncertainty=True))
    assert dataclasses.replace(Execution(), uncertainty=True) != Execution()
