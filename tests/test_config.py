"""Settings: one way to change them, there and back through JSON, and complaints with value, reason and remedy."""

import dataclasses
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from fedray import config, registry
from fedray.config import CheckpointConfig, DataConfig, Execution, Experiment, ModelConfig, TrackingConfig, override
from fedray.types import FedRayError, SettingError, for_command_line, require
from tests.helpers import ALGORITHMS, experiment, small_plan, undocumented

ALGORITHM_CONFIGS = [registry.algorithms()[name].config for name in ALGORITHMS]
CHANGED = [
    DataConfig(name="a.npz", root=Path("/data"), alpha=0.1, partition="iid"),
    ModelConfig(name="mlp", hidden=(5, 7)),
    Execution(output=Path("out"), gpus_per_client=0.5, tracking=TrackingConfig(uri="none")),
    Execution(gpus=0, cpus=4, start_timeout="2h"),
]


@pytest.mark.parametrize("cfg", [*CHANGED, *(type(cfg)() for cfg in CHANGED), *(kind() for kind in ALGORITHM_CONFIGS)])
def test_configs_go_through_json_and_back(cfg):
    assert config.from_dict(type(cfg), json.loads(json.dumps(config.to_dict(cfg)))) == cfg


def test_an_experiment_goes_through_json_and_back_but_for_its_algorithm():
    cfg = experiment("pfedbayes", {"model.hidden": (5, 7), "data.root": Path("/data")})
    back = config.from_dict(Experiment, json.loads(json.dumps(config.to_dict(cfg))))
    algorithm = config.from_dict(type(cfg.algorithm), back.algorithm)
    assert override(back, {"algorithm": algorithm}) == cfg


def test_flat_names_are_those_of_override():
    cfg = experiment("pfedbayes")
    flat = config.flatten(config.to_dict(cfg))
    assert {"algorithm.zeta", "data.name", "model.hidden", "rounds"} <= set(flat)
    assert override(cfg, {name: flat[name] for name in ("algorithm.zeta", "data.name", "rounds")}) == cfg


def test_override_replaces_nested_fields_in_a_copy():
    cfg = experiment("pfedbayes")
    changed = override(cfg, {"algorithm.zeta": 3.0, "data.alpha": 9.0, "rounds": 7})
    assert (changed.algorithm.zeta, changed.data.alpha, changed.rounds) == (3.0, 9.0, 7)
    assert (cfg.algorithm.zeta, cfg.data.alpha, cfg.rounds) == (10.0, 0.5, 2)
    assert override(changed, {"algorithm.zeta": 10.0, "data.alpha": 0.5, "rounds": 2}) == cfg


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("rouds", r"'rouds' is not a setting of Experiment; .*rounds"),
        ("algorithm.zetta", r"'zetta' is not a setting of PFedBayes; .*zeta"),
        ("data.alpa", r"'alpa' is not a setting of DataConfig; .*alpha"),
    ],
)
def test_override_answers_an_unknown_name_with_the_known_ones(name, match):
    with pytest.raises(FedRayError, match=match):
        override(experiment("pfedbayes"), {name: 1})


def test_from_dict_answers_an_unknown_name_with_the_known_ones():
    with pytest.raises(ValueError, match=r"DataConfig has no setting alpa, but alpha,"):
        config.from_dict(DataConfig, {"alpa": 1})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedpop", {"sampler": "map", "prior": "fixed"}),
        ("pfedbred", {"variance": (2.0,), "prior": "gaussian"}),
        ("heurfedamp", {"lr": 30.0, "mu": 0.01}),
    ],
)
def test_a_rule_about_two_settings_is_asked_of_both_whichever_comes_first(name, settings):
    """The first of these alone is refused."""
    backwards = dict(reversed(settings.items()))
    for each in (settings, backwards):
        cfg = override(experiment(name), {f"algorithm.{field}": value for field, value in each.items()})
        assert {field: getattr(cfg.algorithm, field) for field in each} == each
    first = next(iter(settings))
    with pytest.raises(FedRayError):
        override(experiment(name), {f"algorithm.{first}": settings[first]})


def test_a_part_may_be_replaced_and_changed_at_once():
    cfg = override(experiment(), {"data.alpha": 9.0, "data": DataConfig(name="mnist")})
    assert cfg.data == DataConfig(name="mnist", alpha=9.0)


def test_override_validates():
    with pytest.raises(FedRayError, match=r"zeta -1"):
        override(experiment("pfedbayes"), {"algorithm.zeta": -1})


def test_a_complaint_gives_value_reason_and_remedy():
    require(True, "some_name", 3, "reason", "remedy")
    with pytest.raises(FedRayError, match=r"^some_name 3: reason; remedy$"):
        require(False, "some_name", 3, "reason", "remedy")


def test_a_complaint_speaks_of_settings_and_on_a_command_line_of_options():
    name, remedy = "data.labels_per_client", "raise `clients` or use `mode=parallel`"
    with pytest.raises(SettingError, match=f"^{name} 0: reason; {remedy}$") as raised:
        require(False, name, 0, "reason", remedy)
    error = pickle.loads(pickle.dumps(raised.value))
    assert error.setting == name
    written = "--data.labels-per-client 0: reason; raise --clients or use --mode parallel"
    assert for_command_line(error) == written
    assert for_command_line(FedRayError("`loss_deviation`: give `a path`")) == "--loss-deviation: give `a path`"


def test_a_remedy_on_a_command_line_can_be_typed():
    """A switch has no value there, and an algorithm no option."""
    with pytest.raises(SettingError) as raised:
        require(False, "algorithm", "pooled", "reason", "try `algorithm=local`, or give `pool_users=True`")
    assert for_command_line(raised.value) == "ALGORITHM pooled: reason; try local, or give --pool-users"


@pytest.mark.parametrize(
    ("setting", "value", "option"),
    [
        ("elastic", False, "--no-elastic"),
        ("data.download", False, "--data.no-download"),
        ("tracking.system_metrics", True, "--tracking.system-metrics"),
        ("rounds", 1, "--rounds 1"),
        ("rounds", 0, "--rounds 0"),
    ],
)
def test_a_complaint_of_a_switch_names_the_option_that_was_typed(setting, value, option):
    with pytest.raises(SettingError) as raised:
        require(False, setting, value, "reason", "remedy")
    assert for_command_line(raised.value) == f"{option}: reason; remedy"


REFUSED = [
    (DataConfig, "alpha", (0.0, -3.0, float("nan"), float("inf"))),
    (DataConfig, "test_fraction", (0.0, 1.0, 5.0, -1.0, float("nan"))),
    (DataConfig, "majority", (0, -9)),
    (DataConfig, "alternate", (0,)),
    (DataConfig, "labels_per_client", (0, -1)),
    ("fedavg", "lr", (0, -1, float("nan"), float("inf"))),
    ("fedavg", "beta", (0, 2.5, -1, float("nan"))),
    ("fedavg", "ft", (-1,)),
    ("fedavg", "weighting", ("all",)),
    ("fedprox", "lr", (0,)),
    ("fedprox", "mu", (-1, float("nan"))),
    ("pfedbred", "alpha", (0, -1, float("nan"))),
    ("pfedbred", "alpha_m", (-1, float("inf"))),
    ("pfedbred", "lam", (-1, float("nan"))),
    ("pfedbred", "eta", (-1,)),
    ("pfedbred", "eta_a", (-1,)),
    ("pfedbred", "eta_tilde", (-1,)),
    ("pfedbred", "strategy", ("lg",)),
    ("pfedme", "inner_steps", (0,)),
    ("pfedme", "variance", ((), (0.0,), (2.0,), (0.5, float("nan")))),
    ("pfedme", "beta", (0,)),
    ("per_fedavg", "alpha", (-1,)),
    ("per_fedavg", "alpha_m", (0,)),
    ("per_fedavg", "delta", (0,)),
    ("per_fedavg", "adapt_steps", (-1,)),
    ("pfedbayes", "zeta", (-1, float("nan"))),
    ("pfedbayes", "lr_personal", (0, -1)),
    ("pfedbayes", "lr_global", (0, -1)),
    ("pfedbayes", "personal_steps", (0,)),
    ("pfedbayes", "mc_samples", (0,)),
    ("pfedbayes", "beta", (0, 1.5, -1)),
    ("pfedbayes", "noise_sd", (-1,)),
    ("pfedbayes", "likelihood", ("sum",)),
    ("pfedbayes", "kl", ("reverse",)),
    ("pfedbayes", "rho_sd", (-0.1,)),
    ("pfedbayes", "rho_init", (float("nan"), float("inf"), float("-inf"))),
    (ModelConfig, "hidden", ((0,), (5, -1))),
    (Experiment, "rounds", (0,)),
    (Experiment, "clients", (0,)),
    (Experiment, "clients_per_round", (0,)),
    (Experiment, "batch_size", (0,)),
    (Experiment, "local_steps", (0,)),
    (Experiment, "eval_every", (0,)),
    (Experiment, "eval_last", (-1,)),
    (Experiment, "predict_samples", (-1,)),
    (Experiment, "seed", (-1, 2**63)),
    (TrackingConfig, "experiment", ("", "x" * 501)),
    (Execution, "clients_per_actor", (0,)),
    (Execution, "gpus_per_client", (-0.1,)),
    (Execution, "gpus", (-1, "all")),
    (Execution, "cpus", (0, -1)),
    (Execution, "start_timeout", ("soon", "-1", "1d", "m")),
]


@pytest.mark.parametrize(("kind", "field", "values"), REFUSED)
def test_settings_are_refused_with_value_reason_and_remedy(kind, field, values):
    kind = registry.algorithms()[kind].config if isinstance(kind, str) else kind
    name = {ModelConfig: "model.", DataConfig: "data.", TrackingConfig: "tracking."}.get(kind, "") + field
    for value in values:
        with pytest.raises(
            FedRayError, match=rf"^{name} '?{re.escape(str(value))}'?: .+; (try|use|give|leave|choose) "
        ):
            kind(**{field: value})


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"clients_per_round": 7}, r"^clients_per_round 7: .*all 6 clients; lower it or raise `clients`"),
        ({"selection": "best"}, r"^`selection` 'best' .*choose from .*uniform"),
        ({"data.name": "mnits"}, r"^data.name mnits: .*; did you mean mnist\? choose from cifar10, .*digits"),
        ({"data.alpha": 0.0}, r"^data.alpha 0.0: .*; choose"),
        ({"data.test_fraction": 1.0}, r"^data.test_fraction 1.0: .*; choose"),
        ({"clients": 2000, "data.partition": "iid"}, r"^clients 2000: .*; lower it to at most 898"),
    ],
)
def test_plans_refuse_settings_with_value_reason_and_remedy(settings, match):
    with pytest.raises(FedRayError, match=match):
        small_plan("fedavg", settings)


@pytest.mark.parametrize("kind", [CheckpointConfig, DataConfig, ModelConfig, Experiment, Execution, TrackingConfig])
def test_every_setting_has_a_help_text(kind):
    nested = {"data", "model", "tracking", "checkpoint", "algorithm"}  # explain themselves
    assert set(undocumented(kind)) <= nested


@pytest.mark.parametrize("kind", [CheckpointConfig, DataConfig, ModelConfig, Experiment, Execution, TrackingConfig])
def test_a_value_of_another_type_is_refused_for_every_setting(kind):
    for field in dataclasses.fields(kind):
        if field.name != "algorithm":
            with pytest.raises(FedRayError, match=rf"{field.name} <object .*: is not .+; give "):
                kind(**{field.name: object()})


@pytest.mark.parametrize(
    ("kind", "settings", "match"),
    [
        (DataConfig, {"alpha": "0.5"}, r"data.alpha '0.5': is not a number; give a number"),
        (DataConfig, {"classes": True}, r"data.classes True: is not a whole number or None"),
        (
            DataConfig,
            {"layout": "ring"},
            r"data.layout ring: it is not a value of this setting; choose cluster or window",
        ),
        (ModelConfig, {"hidden": 5}, r"model.hidden 5: is not a tuple, each a whole number"),
        (Experiment, {"data": "digits"}, r"data 'digits': is not DataConfig"),
        (Experiment, {"seed": 1.5}, r"seed 1.5: is not a whole number"),
    ],
)
def test_a_complaint_about_a_type_says_what_it_should_be(kind, settings, match):
    with pytest.raises(FedRayError, match=match):
        kind(**settings)


def test_values_of_a_like_type_are_taken():
    assert DataConfig(root="dir").root == Path("dir")
    assert DataConfig(root=Path("dir")) == DataConfig(root="dir")
    assert Execution(output="out").output == Path("out")
    assert ModelConfig(hidden=[5, 7]).hidden == (5, 7)  # type: ignore[arg-type]
    assert type(Experiment(rounds=np.int64(3)).rounds) is int  # type: ignore[arg-type]
    assert DataConfig(alpha=1).alpha == 1


@pytest.mark.parametrize("name", ["root", "embedding"])
def test_the_home_of_nobody_is_refused(name):
    with pytest.raises(FedRayError, match=rf"data.{name} ~nouser/x: there is no such user"):
        small_plan("fedavg", {f"data.{name}": "~nouser/x"})


def test_configs_need_no_command_line_library():
    for path in Path(config.__file__).parent.glob("*.py"):
        assert "tyro" not in path.read_text()


@pytest.mark.parametrize("name", registry.algorithms())
def test_a_value_of_another_type_is_refused_for_every_setting_of_an_algorithm(name):
    config = registry.algorithms()[name].config
    for field in dataclasses.fields(config):
        with pytest.raises(FedRayError, match=rf"^{field.name} <object .*: is not .+; give "):
            config(**{field.name: object()})
