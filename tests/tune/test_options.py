"""Every option of a launch is honoured by a sweep or refused by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from actors import server
from actors.hosted import Hosted
from actors.inside import InsideCohort
from actors.machines.demand import Cluster
from actors.machines.placement import Layout, Node
from fedray.compare.styles import STYLES
from fedray.config import Execution, flatten, override, to_dict
from fedray.federate.failures import ATTEMPTS, FailurePolicy
from fedray.federate.measures.tasks import TASKS
from fedray.federate.planning import make_plan
from fedray.types import for_command_line
from tests.chaos.faults import always
from tests.helpers import experiment
from tune import record, sweep
from tune import trial as trial_module
from tune.__main__ import main
from tune.options import MODES, Sweep
from tune.planner import Planner, Preview
from tune.space import make
from tune.trial import CommonToTrials, Trial

HONOURED = {
    "backend", "clients_per_actor", "gpus_per_client", "gpus", "cpus", "start_timeout", "address", "name", "output",
    "round_timeout", "tracking.uri", "tracking.experiment",
}  # fmt: skip
LAYOUT = Layout((tuple(range(6)),), 0.1, 0.0)
VICTIM = 2


def test_no_setting_of_an_execution_is_ignored() -> None:
    assert set(flatten(to_dict(Execution()))) == HONOURED | set(sweep.REFUSED)
    assert not HONOURED & set(sweep.REFUSED)


@pytest.mark.parametrize(
    ("entry", "alike"),
    [
        ("lr=choice(0.1)", True),
        ("data.alpha=choice(0.5)", True),
        ("data.name=choice(digits)", False),
        ("data.root=choice(/a,/b)", False),
        ("data.classes=choice(5,10)", False),
        ("data.embedding=choice(/a,/b)", False),
    ],
)
def test_trials_share_the_examples_unless_a_setting_that_decides_them_is_searched(
    entry: str, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep.ray, "put", lambda value: value)
    base, asked = experiment(), Sweep(max_rounds=2, mode="max", scheduler="asha")
    space = make([entry], {}, base)
    request = sweep.SweepRequest("s", Path(), base, Execution(), asked, space, [0], trials=1, preview=Preview(6))
    common = sweep._programme(request, LAYOUT, 1, False, Planner(), {}).common
    assert (common.dataset is not None) == alike


@pytest.mark.parametrize(("asked", "retries"), [("retry", ATTEMPTS - 1), ("skip", ATTEMPTS - 1), ("abort", 0)])
def test_how_failures_are_dealt_with_reaches_tune_and_its_trials(
    asked: str, retries: int, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    seen = {}

    def run(trainable: object, **options: object) -> SimpleNamespace:
        seen.update(options)
        return SimpleNamespace(trials=[])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "connect", lambda address: False)
    monkeypatch.setattr(sweep.demand, "survey", lambda wanted, patience: Cluster([Node(4.0, 0.0)]))
    monkeypatch.setattr(sweep.sight, "blind", lambda folder: [])
    monkeypatch.setattr(sweep.ray, "put", lambda value: value)
    monkeypatch.setattr(sweep.ray_tune, "with_parameters", lambda trial, common: seen.update(common=common))
    monkeypatch.setattr(sweep.ray_tune, "with_resources", lambda trial, resources: SimpleNamespace())
    monkeypatch.setattr(sweep.ray_tune, "run", run)
    options = ["--on-failure", asked, "--round-timeout", "7", "--space", "lr=uniform(0.1,0.2)"]
    main(["fedavg", *options, "--tracking.uri", "none"])
    assert seen["max_failures"] == retries
    assert (seen["common"].base.on_failure, seen["common"].timeout) == (asked, 7.0)


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> list[FailurePolicy]:
    """The policies that the cohorts of trials get; their clients live here, and one of them always fails."""
    found: list[FailurePolicy] = []

    def cohort(hosted: Hosted, *args, **named) -> InsideCohort:
        found.append(hosted.policy)
        assert (hosted.name, hosted.label) == ("trials", "trials-abc_00001")  # metrics tell trials apart
        return InsideCohort(hosted._replace(dataset=None))

    def plan(cfg, dataset=None):
        made = make_plan(cfg, dataset)
        return always(made, len(made.partition.train[VICTIM]), "exception")

    monkeypatch.setattr(server, "RayCohort", cohort)
    monkeypatch.setattr(trial_module, "make_plan", plan)
    monkeypatch.setattr(server, "fix_numerics", lambda: None)
    return found


def begun(on_failure: str) -> Trial:
    base = override(experiment(), {"on_failure": on_failure, "clients_per_round": 6, "rounds": 1})
    trial = object.__new__(Trial)
    trial._trial_info = SimpleNamespace(trial_id="abc_00001")
    trial.setup({"seed": 0}, CommonToTrials(base, LAYOUT, "loop", "test/global/accuracy", (), None, 7.0, "trials"))
    return trial


def test_a_trial_leaves_a_client_out_where_the_experiment_says_so(policies: list[FailurePolicy]) -> None:
    result = begun("skip").step()
    assert policies == [FailurePolicy(ATTEMPTS, skip=True, timeout=7.0)]
    assert result["rows"][-1]["failures"] == 1.0
    assert "failure" not in result


def test_a_trial_whose_settings_cannot_be_planned_ends_as_failed_and_the_next_one_is_played(
    policies: list[FailurePolicy], tmp_path: Path
) -> None:
    trial = begun("skip")
    assert trial.reset_config({"seed": 0, "model.name": "typo"})
    result = trial.step()
    trial.save_checkpoint(str(tmp_path))  # as Tune asks after every result
    assert result["done"]
    assert "typo" in result["failure"]
    told = record.outcome_of(SimpleNamespace(last_result=result, status="TERMINATED"), 1)
    assert told == f"failed: {for_command_line(result['failure'])}"
    trial.reset_config({"seed": 0})
    assert "failure" not in trial.step()


@pytest.mark.parametrize("on_failure", ["retry", "abort"])
def test_a_trial_ends_with_the_client_and_the_stage_that_failed(on_failure: str, policies: list[FailurePolicy]) -> None:
    result = begun(on_failure).step()
    assert policies == [FailurePolicy(1 if on_failure == "abort" else ATTEMPTS, skip=False, timeout=7.0)]
    assert result["done"]
    assert result["failure"].startswith(f"client {VICTIM}, round 1, finish: RuntimeError: this client cannot")


def test_a_sweep_and_a_comparison_agree_on_which_way_a_measure_is_better():
    better = {name: STYLES[name].better for task in TASKS for name in task.measures}
    assert {name: {"max": 1, "min": -1}[mode] for name, mode in MODES.items()} == {
        name: sign for name, sign in better.items() if sign
    }
