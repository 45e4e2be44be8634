"""The loss deviation: a worked example, its sums, whose examples are counted, and what a run writes of it."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedray.arrays import trees
from fedray.data import loading
from fedray.federate import evaluation
from fedray.federate.in_process import LocalFederation
from fedray.federate.measures import loss_deviation
from fedray.federate.measures.loss_deviation import deviations, rows
from fedray.federate.messages import ClassLosses
from fedray.launch import main
from fedray.running.drawing import figures
from tests.helpers import block, differing, small_plan


def table(*values):
    return torch.tensor(values, dtype=torch.float64)


# Two clients, three classes: the second client lacks class 1, nobody has class 2.
TOY = ClassLosses(
    train=table([5, 3, 0], [4, 0, 0]),
    own=table([2, 4, 0], [6, 0, 0]),
    own_nll=table([2, 2, 0], [12, 0, 0]),
    union=table([8, 4, 0], [8, 4, 0]),
    union_nll=table([16, 2, 0], [24, 10, 0]),
)


@pytest.fixture(scope="module")
def plan():
    return small_plan("pfedbayes")


@pytest.fixture(scope="module")
def played(plan):
    """The last round's report and the sums of a federation of six unequal clients, some of which lack classes."""
    with LocalFederation(plan) as federation:
        *_, last = federation
        return last, federation.class_losses()


def test_two_clients_by_hand():
    """L̄_0 = (2·1 + 6·2)/8 = 1.75; Ḡ_0 = (2 + 3)/2, Ḡ_1 = (0.5 + 2.5)/2."""
    nan, found = math.nan, deviations(TOY)
    wanted = (
        table([1, 0.5, nan], [2, nan, nan]),
        table([2, 0.5, nan], [3, 2.5, nan]),
        table([-0.75, 0, nan], [0.25, nan, nan]),
        table([-0.5, -1, nan], [0.5, 1, nan]),
    )
    for field, value in zip(found, wanted, strict=True):
        assert_close(field, value, equal_nan=True)
    first, *_, last = rows(TOY)
    assert first == {"client": 0, "class": 0, "train_examples": 5, "test_examples": 2,
                     "L": 1, "G": 2, "dL": -0.75, "dG": -0.5}  # fmt: skip
    assert list(last.values()) == [1, 2, 0, 0, "", "", "", ""]
    assert list(rows(TOY)[4].values()) == [1, 1, 0, 0, "", 2.5, "", 1]
    diverged = rows(TOY._replace(own_nll=table([nan, 2, 0], [12, 0, 0])))
    assert all(math.isnan(value) for value in (diverged[0]["L"], diverged[0]["dL"], diverged[3]["dL"]))
    assert (diverged[0]["G"], diverged[1]["L"], diverged[4]["L"]) == (2, 0.5, "")


def test_what_is_above_and_below_the_mean_cancels(plan, played):
    _, losses = played
    found = deviations(losses)
    assert (losses.own == 0).any()
    assert torch.equal(found.own_deviation.isnan(), losses.own == 0)
    assert_close((losses.own * found.own_deviation).nansum(0), torch.zeros(10).double(), atol=1e-9, rtol=0)
    assert_close(found.union_deviation.sum(0), torch.zeros(10).double(), atol=1e-12, rtol=0)
    assert found.union_deviation.abs().min(1).values.max() > 1e-3


def test_the_numbers_of_examples_are_those_of_the_partition(plan, played):
    labels = loading.load(plan.cfg.data).y
    for indices, found in ((plan.partition.train, played[1].train), (plan.partition.test, played[1].own)):
        assert found.tolist() == [np.bincount(labels[i], minlength=10).tolist() for i in indices]
    assert torch.equal(played[1].union, played[1].own.sum(0).expand(6, 10))


def test_an_example_counts_for_the_class_that_the_partition_gives_it(plan):
    test = np.concatenate(plan.partition.test)
    labels = loading.load(plan.cfg.data).y[test]
    wrong = np.stack([test[labels == 3], np.full((labels == 3).sum(), 7)], 1)
    turned = plan._replace(partition=plan.partition._replace(relabel=wrong))
    view, dataset = plan.view(plan.initial_server()), loading.load(plan.cfg.data)
    losses = loss_deviation.class_losses(block(turned), 1, view, dataset)
    assert losses.own[:, 3].sum() == losses.union[0, 3] == 0
    assert torch.equal(losses.union, losses.own.sum(0).expand(6, 10))


def test_own_losses_add_up_to_those_of_the_last_evaluation(played):
    last, losses = played
    assert_close(losses.own_nll.sum(1), last.personal.nll)


def test_the_union_is_everyones_test_set(plan):
    """A model's losses on the union are those on each client's test set, which it gets by changing places."""
    view = plan.view(plan.initial_server())

    def losses(shift):
        test = plan.partition.test
        turned = plan._replace(partition=plan.partition._replace(test=[*test[shift:], *test[:shift]]))
        host = block(turned)
        host.train(1, range(6), turned.initial_server())  # which looks at no test set
        return loss_deviation.class_losses(host, 1, view, loading.load(plan.cfg.data))

    by_place = [losses(shift) for shift in range(6)]
    assert_close(by_place[0].union_nll, sum(found.own_nll for found in by_place))
    assert_close(by_place[0].union, sum(found.own for found in by_place))
    assert (by_place[0].union_nll[0] - by_place[0].union_nll[1]).abs().min() > 1e-3  # each has its own model


def test_it_does_not_depend_on_packing_and_hardly_on_pieces(plan, played, monkeypatch):
    dataset, view = loading.load(plan.cfg.data), plan.view(plan.initial_server())
    whole = loss_deviation.class_losses(block(plan), 2, view, dataset)
    parts = [loss_deviation.class_losses(block(plan, ids), 2, view, dataset) for ids in ((0,), (1, 2, 3, 4, 5))]
    assert differing(whole, trees.concatenate(parts)) == []
    for module in (loss_deviation, evaluation):
        monkeypatch.setattr(module, "ROWS", 7)
    assert_close(loss_deviation.class_losses(block(plan), 2, view, dataset), whole)


def test_a_client_is_better_than_the_others_at_the_classes_that_it_holds():
    plan = small_plan("pfedbayes", {"data.partition": "labels", "model.hidden": (50,), "rounds": 4, "local_steps": 20})
    with LocalFederation(plan) as federation:
        list(federation)
        losses = federation.class_losses()
    gaps, held = deviations(losses).union_deviation, losses.train > 0
    assert held.sum(1).tolist() == [5] * 6
    assert (gaps[held] < 0).double().mean() >= 0.9  # draws may spoil a class or two
    assert (gaps[~held] > 0).double().mean() >= 0.9


FAST = ["--runtime", "local", "--rounds", "2", "--local-steps", "2", "--tracking.uri", "none"]


def test_a_run_writes_it_and_is_otherwise_the_same(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figures, "builders", lambda *_: {})  # others' figures take their time
    assert main([*FAST, "--output", "with", "--loss-deviation"]) == 0
    assert main([*FAST, "--output", "without"]) == 0
    found = figures.read_csv(Path("with/loss_deviation.csv"))
    assert len(found) == 10 * 10
    for row in found:
        held = int(row["test_examples"]) > 0
        assert (row["L"] != "", row["dL"] != "", row["G"] != "") == (held, held, True)
    only = {p.relative_to("with") for p in Path("with").rglob("*")} - {
        p.relative_to("without") for p in Path("without").rglob("*")
    }
    assert {str(path) for path in only} == {"loss_deviation.csv", "figures/loss_deviation.png"}
    for name in ("clients.csv", "calibration.csv", "personal.safetensors", "config.json"):
        assert Path("with", name).read_bytes() == Path("without", name).read_bytes()


def test_an_actor_has_as_many_times_the_timeout_as_there_are_clients(monkeypatch):
    """It predicts the test sets of all of them, where an evaluation predicts its own clients'."""
    from actors import cohort as module
    from fedray.federate.failures import FailurePolicy

    asked = []
    monkeypatch.setattr(module.ray, "put", lambda value: value)
    monkeypatch.setattr(module.trees, "concatenate", lambda parts: parts)
    cohort = object.__new__(module.RayCohort)
    cohort._plan = SimpleNamespace(clients=50)
    cohort.crew = module.Crew(lambda slot, seat: None, str, 1, (), FailurePolicy(timeout=100.0), False)
    cohort.crew._fresh.clear()  # no time to start
    monkeypatch.setattr(cohort.crew, "ask", asked.append)
    cohort.evaluate(1, (), False)
    cohort.class_losses(1, ())
    short, long = (cohort.crew._deadline(0, question) for question in asked)
    assert long - short == pytest.approx(4900, abs=1)
