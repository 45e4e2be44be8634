"""--eval-clients: a keyed sample of the clients is evaluated, by the numbers that they have when all are."""

import csv

import pytest
import torch

from fedray.arrays import trees
from fedray.config import Execution, TrackingConfig, decisive, fingerprint, override
from fedray.federate import report
from fedray.federate.in_process import LocalFederation
from fedray.federate.planning import make_plan
from fedray.running.session import run_experiment
from fedray.types import FedRayError
from tests.helpers import block, differing, experiment, small_plan

SOME = {"eval_clients": 3, "rounds": 3}


def played(settings):
    with LocalFederation(small_plan("pfedbayes", settings), "vmap") as federation:
        return federation.plan, list(federation), federation.snapshot()


def test_the_sample_has_the_numbers_of_these_clients_and_training_those_of_all():
    _, whole, expected = played({"rounds": 3})
    plan, found, snapshot = played(SOME)
    assert differing(snapshot, expected) == []
    for some, everyone in zip(found, whole, strict=True):
        assert some.evaluated == tuple(plan.evaluated(some.round))
        assert everyone.evaluated == tuple(range(6))
        for kind in ("personal", "global_"):
            assert differing(getattr(some, kind), trees.rows(getattr(everyone, kind), some.evaluated)) == []
    assert len({some.evaluated for some in found}) > 1


def test_every_client_is_drawn_as_often():
    plan = small_plan("fedavg", SOME | {"rounds": 4000})
    drawn = [i for number in range(1, 4001) for i in plan.evaluated(number)]
    counts = torch.tensor(drawn).bincount(minlength=6)
    assert counts.sum() == 3 * 4000
    assert ((counts - 2000).abs() < 5 * (4000 / 4) ** 0.5).all()
    assert all(list(plan.evaluated(n)) == sorted(set(plan.evaluated(n))) for n in range(50))


def test_the_uncertainty_figure_shows_the_same_clients_in_all_rounds():
    plan, _, _ = played(SOME)
    with LocalFederation(plan) as federation:
        list(federation)
        shown = federation.history().spotlights
    assert [spot.round for spot in shown] == [0, 1, 3]
    assert {spot.ids for spot in shown} == {tuple(plan.shown)}
    assert len(plan.shown) == 3
    many = small_plan("pfedbayes", SOME | {"clients": 60, "eval_clients": 30})
    assert len(many.shown) == 10
    assert set(many.shown) <= set(range(60))
    assert small_plan("pfedbayes").shown == range(6)


def test_blocks_evaluate_their_own_share_of_the_sample():
    from fedray.federate.evaluation import evaluate

    plan = small_plan("pfedbayes", SOME)
    view = plan.view(plan.initial_server())
    parts = [evaluate(block(plan, ids), 2, view, False) for ids in ((0, 1), (2,), (3, 4, 5))]
    assert [i for part in parts for i in part.ids] == list(plan.evaluated(2))
    gone = [part for part in parts if not part.ids]
    assert all((part.personal, part.global_, part.validation) == (None, None, None) for part in gone)


def test_of_newcomers_a_sample_of_their_own_is_drawn():
    plan = small_plan("pfedbayes", {"clients_per_round": 2, "novel_clients": 3, "eval_clients": 2, "adapt_rounds": 6})
    with LocalFederation(plan) as federation:
        played = list(federation)
    *_, last = (each for each in played if each.novel is None)
    rounds = [each for each in played if each.novel is not None]
    adapted = rounds[-1]
    assert len({each.evaluated for each in rounds}) > 1
    assert set(adapted.evaluated) < {3, 4, 5}
    both = last
    for each in rounds:  # as a run takes them up: those of another sample give way
        both = report.with_newcomers(both, each, plan)
    rows = list(report.client_rows(both, plan))
    assert [row["client"] for row in rows if row["novel_accuracy"] != ""] == list(adapted.evaluated)
    assert [row["client"] for row in rows if row["personal_accuracy"] != ""] == list(last.evaluated)


def test_results_say_so_and_what_is_not_asked_for_changes_no_name(tmp_path):
    plan = small_plan("pfedbayes", SOME)
    assert report.protocol(plan, [1])["clients"].startswith("3 of 6, drawn anew each time, evaluated, 4 trained")
    assert report.protocol(small_plan(), [1])["clients"].startswith("all 6 evaluated")
    assert "eval_clients" not in decisive(small_plan().cfg)
    assert fingerprint(override(plan.cfg, {"eval_clients": None})) != fingerprint(plan.cfg)
    with pytest.raises(FedRayError, match="eval_clients 7: the federation has 6 clients"):
        make_plan(experiment("fedavg", {"eval_clients": 7}))
    execution = Execution(runtime="local", output=tmp_path / "run", tracking=TrackingConfig(uri="none"))
    result = run_experiment(experiment("pfedbayes", SOME), execution)
    with (result.folder / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert sum(row["personal_accuracy"] != "" for row in rows) == 3
