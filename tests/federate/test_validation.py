"""Validation examples: measured beside the test examples, by the same models, and never trained on."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import fedray
from fedray import launch, newcomers
from fedray.arrays import trees
from fedray.config import decisive, fingerprint, override
from fedray.data import loading
from fedray.data.shards import Shards
from fedray.federate import evaluation, report
from fedray.federate.in_process import LocalFederation
from fedray.federate.measures import metrics
from fedray.running import progress
from fedray.types import FedRayError
from tests.helpers import block, differing, each_of, experiment, small_plan

HELD = {"data.validation": 0.3}


def played(plan, backend="loop"):
    federation = LocalFederation(plan, backend)
    found = list(federation)
    return federation, found


def mislabelled(plan, part):
    """The plan with every label of a part of the shards wrong: another class for each example."""
    indices = np.concatenate(getattr(plan.partition, part))
    labels = loading.load(plan.cfg.data).y
    wrong = np.stack([indices, (labels[indices] + 1) % plan.model.classes], 1)
    return plan._replace(partition=plan.partition._replace(relabel=wrong))


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_without_a_share_nothing_is_different():
    plan = small_plan()
    _, found = played(plan)
    assert found[-1].validation is None
    assert not any("validation" in name for name in report.measures(found[-1]))
    assert not any("validation" in name for name in next(report.client_rows(found[-1], plan)))
    summary = report.summarize(plan, [{"round": 2} | report.measures(found[-1])], None)
    assert "validation" not in json.dumps(summary)


def test_a_run_without_a_share_is_the_one_of_versions_without_the_setting():
    cfg = small_plan().cfg
    assert "validation" not in decisive(cfg)["data"]
    assert fingerprint(cfg) != fingerprint(override(cfg, HELD))


@pytest.mark.parametrize("name", ["fedavg", "pfedbayes"])
def test_the_sums_are_those_of_the_models_on_the_validation_examples(name):
    plan = small_plan(name, HELD | {"predict_samples": 0, "rounds": 1})
    federation, (found,) = played(plan)
    server = plan.view(federation.snapshot().server)
    theta = server.theta if name == "fedavg" else server.mu
    for k, shard in enumerate(each_of(Shards(loading.load(plan.cfg.data), plan.partition, range(6)))):
        x, y = shard.validation
        at_mean = torch.log_softmax(plan.model.apply(theta, x), -1)[None]
        assert_close(trees.row(found.validation.global_, k), metrics.evaluate(at_mean, y))
        if name == "pfedbayes":
            clients = federation.snapshot().clients
            own = clients.q.mu[k] if clients.q_t[k] else theta  # who was not drawn yet has the global distribution
            at_mean = torch.log_softmax(plan.model.apply(own, x), -1)[None]
            assert_close(trees.row(found.validation.personal, k), metrics.evaluate(at_mean, y))
    assert (found.validation.personal is None) == (name == "fedavg")
    values = report.measures(found)
    assert values["validation/global/accuracy"] == metrics.summarize(metrics.pooled(found.validation.global_)).accuracy
    assert values["validation/global/accuracy"] != values["global/accuracy"]


@pytest.mark.parametrize("name", ["fedavg", "pfedbayes", "per_fedavg"])
@pytest.mark.parametrize(("part", "moved"), [("test", "test"), ("validation", "validation")])
def test_the_labels_of_a_part_move_its_own_figures_and_no_others(name, part, moved):
    plan = small_plan(name, HELD)
    (one, first), (other, second) = played(plan), played(mislabelled(plan, part))
    assert differing(one.snapshot(), other.snapshot()) == []  # neither part is trained on
    for a, b in zip(first, second, strict=True):
        tested = differing((a.personal, a.global_), (b.personal, b.global_))
        validated = differing(a.validation, b.validation)
        assert (bool(tested), bool(validated)) == (moved == "test", moved == "validation")


def test_n_is_the_number_of_examples_that_are_left_to_train_on():
    plan = small_plan("fedavg", HELD)
    server = plan.initial_server()
    reply = block(plan).train(1, range(6), plan.algorithm.broadcast(plan.context, server, range(6)))
    held = [len(part) for part in plan.partition.validation]
    whole = [len(part) for part in small_plan("fedavg").partition.train]
    assert reply.examples.tolist() == [n - m for n, m in zip(whole, held, strict=True)]


def test_evaluation_does_not_depend_on_packing_or_on_the_backend():
    plan = small_plan("pfedbayes", HELD)
    view, host = plan.view(plan.initial_server()), block(plan)
    whole = evaluation.evaluate(host, 1, view, False).validation
    parts = [evaluation.evaluate(block(plan, ids), 1, view, False).validation for ids in ((0, 1), (2, 3, 4, 5))]
    assert differing(whole, trees.concatenate(parts)) == []
    (_, loop), (_, stacked) = played(plan), played(plan, "vmap")
    assert [differing(a.validation, b.validation) for a, b in zip(loop, stacked, strict=True)] == [[], []]
    shipped = trees.to_torch(trees.to_numpy(evaluation.evaluate(host, 1, view, False)))  # as an actor sends it
    assert differing(shipped.validation, whole) == []


def test_newcomers_are_measured_on_theirs():
    held = {"clients_per_round": 3, "novel_clients": 2, "adapt_rounds": 2}
    plan = small_plan("pfedbayes", HELD | held)
    _, found = played(plan)
    last, adapted = found[1], found[-1]
    assert adapted.validation.novel.examples.tolist() == [len(part) for part in plan.partition.validation[4:]]
    assert (adapted.validation.personal, last.validation.novel) == (None, None)
    both = report.with_newcomers(last, adapted, plan)
    table = report.client_rows(both, plan)
    assert [row[f"validation_{kind}_accuracy"] != "" for row in table for kind in ("personal", "novel")] == (
        [True, False] * 4 + [False, True] * 2
    )
    history = [{"round": m.round} | report.measures(m) for m in found]
    summary = report.summarize(plan, history, None)
    assert summary["validation"]["novel"]["accuracy"] == history[-1]["validation/novel/accuracy"]


def test_newcomers_of_a_finished_run_have_a_partition_of_their_own(tmp_path):
    digits = loading.load(experiment().data)
    np.savez(tmp_path / "theirs.npz", x=digits.x, y=digits.y)
    options = newcomers.Options(run=tmp_path, data=str(tmp_path / "theirs.npz"), clients=2)
    plan, _ = newcomers.make_plan(small_plan("bpfed", HELD), options)
    assert (plan.cfg.data.validation, plan.partition.validation) == (0.0, ())


@pytest.mark.usefixtures("unpainted")
def test_a_run_reports_its_validation_everywhere(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    fast = ["--runtime", "local", "--tracking.uri", "none", "--rounds", "2", "--local-steps", "2"]
    options = [*fast, "--model.hidden", "8", "--data.validation", "0.25", "--output", "here"]
    assert launch.main(["per_fedavg", *options]) == 0
    assert "accuracy (%), validation" in capfd.readouterr().out
    summary = json.loads(Path("here/summary.json").read_text())
    last, clients = rows("here/metrics.csv")[-1], rows("here/clients.csv")
    accuracy = float(last["validation/personal/accuracy"])
    assert summary["validation"]["personal"]["accuracy"] == accuracy
    sizes = [int(row["validation_examples"]) for row in clients]
    assert summary["protocol"]["validation_examples"] == sum(sizes)
    right = sum(n * float(row["validation_personal_accuracy"]) for n, row in zip(sizes, clients, strict=True))
    assert right / sum(sizes) == pytest.approx(accuracy)
    status = progress.read(Path("here"))
    assert status.measures["validation/personal/accuracy"] == accuracy
    assert f"validation, personal {accuracy:.1%}" in progress.line(status)
    # Its personal models are adapted on the examples that the run trained on.
    model = fedray.load("here")
    plan = fedray.make_plan(model.plan.cfg)
    same = zip(model.plan.partition.validation, plan.partition.validation, strict=True)
    assert all(np.array_equal(a, b) for a, b in same)
    digits = loading.load(plan.cfg.data)
    for client in (0, 9):
        held = plan.partition.validation[client]
        found = (model.predict(digits.x[held], client=client).probs.argmax(-1).numpy() == digits.y[held]).mean()
        assert found == pytest.approx(float(clients[client]["validation_personal_accuracy"]))


def test_a_dataset_whose_clients_have_one_example_cannot_be_split():
    with pytest.raises(FedRayError, match="has one training example"):
        fedray.make_plan(
            override(experiment(), {"clients": 800, "clients_per_round": 4} | HELD | {"data.partition": "iid"})
        )
