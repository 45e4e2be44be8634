"""What a plan says of an experiment's settings."""

import pytest
from torch import nn

from fedray import registry
from fedray.config import ModelConfig
from fedray.federate.planning import refusal
from fedray.nets import network
from fedray.nets.network import NetworkRecord
from fedray.studies.cell import experiment
from fedray.types import FedRayError
from tests.helpers import small_plan


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("fedper", {"adapt_rounds": 3}, "`adapt_rounds` 3 changes nothing without `novel_clients`"),
        ("fedavg", {"model.name": "mclr", "model.hidden": (7,)}, "`model.hidden` (7,) changes nothing: mclr has no"),
        ("fedavg", {"model.lstm_hidden": 7}, "`model.lstm_hidden` 7 changes nothing: mlp has no such layers"),
        ("fedavg", {"selection_epsilon": 0.3}, "`selection_epsilon` 0.3 changes nothing: the uniform policy draws by"),
    ],
)
def test_settings_that_the_federation_does_not_read_are_said(name, settings, words):
    assert any(remark.startswith(words) for remark in small_plan(name, settings).remarks)
    assert not any("changes nothing" in remark for remark in small_plan(name).remarks)


def test_a_network_that_cannot_have_the_usual_width_reads_it():
    def layers(cfg, input_shape, classes):
        first, second = cfg.hidden
        return nn.Sequential(nn.Flatten(), nn.Linear(64, first), nn.Linear(first, second), nn.Linear(second, classes))

    record = NetworkRecord("two hidden layers", layers)
    assert network.unread(record, ModelConfig(hidden=(7, 8)), (1, 8, 8), 10) == []
    assert network.unread(record, ModelConfig(hidden=(7, 8), lstm_hidden=3), (1, 8, 8), 10) == ["lstm_hidden"]


def test_settings_that_are_read_are_not_said():
    plan = small_plan("fedper", {"clients_per_round": 3, "novel_clients": 2, "adapt_rounds": 3})
    asked = small_plan("dsvgd", {"selection": "hip", "selection_epsilon": 0.3})
    wide = small_plan("fedavg", {"model.hidden": (7, 7)})
    assert not any("changes nothing" in remark for each in (plan, asked, wide) for remark in each.remarks)


def test_minibatches_that_are_mostly_empty_are_said_where_they_are_computed():
    """pFedGP has noise for every row, so its minibatches are not narrowed."""
    said = [
        [remark for remark in small_plan(name, {"batch_size": 5000}).remarks if "every row is computed" in remark]
        for name in ("pfedgp", "fedavg")
    ]
    assert [len(each) for each in said] == [1, 0]


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("bnfed", {"data.name": "mnist", "model.likelihood": "gaussian"}, "bnfed learns no noise precision"),
        ("fedavg", {"data.name": "mnits"}, "mnits"),
        ("fedavg", {"data.name": "mnist", "clients": 3, "clients_per_round": 4}, "clients_per_round 4"),
    ],
)
def test_what_the_settings_alone_refuse_is_known_without_the_data(name, settings, reason):
    assert reason in refusal(experiment(name, settings))
    assert refusal(experiment(name, {"data.name": "mnist"})) is None


def test_weights_that_depend_on_who_else_is_in_a_process_are_refused(monkeypatch):
    record = registry.algorithms()["fedavg"]
    for weigh in (lambda ctx, n: n / n.sum(), lambda ctx, n: 0.5 * n):
        wrong = record._replace(aggregate=record.aggregate._replace(weigh=weigh))
        monkeypatch.setattr(registry, "algorithm_of", lambda cfg, wrong=wrong: wrong)
        with pytest.raises(FedRayError, match=r"^algorithm fedavg: weigh gives clients of 3 and 5 examples .*; return"):
            small_plan("fedavg")


PRESETS = [(name, preset) for name, record in registry.algorithms().items() for preset in record.presets]


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_what_a_preset_sets_is_not_said(name, preset):
    overrides = dict(registry.algorithms()[name].presets[preset].overrides)
    given = {key: overrides[key] for key in ("selection", "selection_epsilon", "adapt_rounds") if key in overrides}
    assert not any("changes nothing" in remark for remark in small_plan(name, given).remarks)
