"""What is missing in the published data, and what it will cost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fedray.config import Execution, Experiment, override
from fedray.federate.compiled import choice
from fedray.studies import agenda
from fedray.studies.__main__ import main
from fedray.studies.cell import Cell
from fedray.studies.named.quick import quick
from fedray.studies.results import data, missing, record
from fedray.studies.results.table import Table
from fedray.types import FedRayError
from tests.studies.published import played

pytestmark = pytest.mark.usefixtures("unpainted")
EVALUATED = 2  # rounds of eight: every fourth


def cells() -> list[Cell]:
    """Two cells of two minibatches per round; in that of pFedBayes newcomers adapt after the rounds."""
    fedavg, pfedbayes = (cell._replace(experiment=override(cell.experiment, {"local_steps": 2})) for cell in quick())
    newcomers = override(pfedbayes.experiment, {"novel_clients": 2, "adapt_rounds": 4})
    return [fedavg, pfedbayes._replace(experiment=newcomers)]


@pytest.fixture(autouse=True)
def two_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agenda, "STUDIES", {"quick": cells})
    monkeypatch.setattr(missing, "TABLES", (Table("quick", "Quick", "None.", 4, 1, 2),))
    (tmp_path / "data").mkdir()


def test_costs_are_those_of_other_seeds_or_of_a_few_rounds_and_the_cheapest_comes_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run of FedAvg is in the data; of pFedBayes with newcomers three rounds and their adaptation are tried."""
    data.add(tmp_path / "data", [played(missing.TABLES[0], "fedavg", 1)._replace(cpu_seconds=7200.0)])
    longer = played(missing.TABLES[0], "pfedbayes", 1)  # and one of pFedBayes with more rounds, which tells nothing
    data.add(tmp_path / "data", [longer._replace(rounds=99, config="other", cpu_seconds=60.0)])
    asked = ["all", "--results", "data", "--output", "runs", "--list"]
    assert main(asked) == 0
    lines = capfd.readouterr().out.splitlines()
    costs = ["quick/fedavg 1 runs x 120.0 CPU min", "quick/pfedbayes 2 runs x ? CPU min"]
    assert [" ".join(each.split()) for each in lines[:2]] == costs
    assert lines[2] == "3 runs are missing: 2.0 CPU hours, and 1 cells of unknown cost"
    assert main([*asked, "--measure"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [each.split("/")[1].split()[0] for each in lines[:2]] == ["pfedbayes", "fedavg"]
    assert "unknown" not in lines[2]
    [seconds] = missing._estimates(Path("data")).values()
    assert 0 < seconds < 60


@pytest.mark.parametrize("long", [True, False])
def test_a_run_is_tried_as_the_whole_of_it_would_be_played(long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds by themselves are too short to compile their step; a run of eight is not where it pays from them on.

    FedAvg has ten clients with two minibatches each: 60 steps in three rounds, and 160 in eight.
    """
    monkeypatch.setattr(choice, "unit", lambda plan: SimpleNamespace(operations=1))
    monkeypatch.setattr(choice, "WORTH", 100 if long else 200)
    monkeypatch.setattr(choice, "obtain_unit", lambda *_: SimpleNamespace(key="package"))
    asked = []

    def play(cfg: Experiment, execution: Execution) -> None:
        asked.append((cfg.rounds, execution.backend))

    monkeypatch.setattr(missing.session, "run_experiment", play)
    # The start, a round, a round and an evaluation, two rounds of newcomers.
    took = [{record.CPU: seconds} for seconds in (9.0, 1.0, 4.0, 2.0, 2.0)]
    monkeypatch.setattr(missing, "read_measures", lambda _: took)
    run = agenda.plan_runs("quick", agenda.Options(only=("fedavg",), rounds=8, eval_every=4)).runs[0]
    assert missing._tried(run, agenda.Data()) == 8 * 1.0 + EVALUATED * 3.0 + 4.0
    assert asked == [(3, "compiled" if long else "auto")]


def test_all_plays_what_is_missing_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of pFedBayes seeds 0 and 2 are missing; one run of FedAvg fails, and one leaves no data."""
    monkeypatch.setattr(missing, "TABLES", (Table("quick", "Quick", "None.", 4, 1, 3),))
    calls = []

    def play(study: str, options: agenda.Options, command: str, table: bool) -> dict[str, str]:
        calls.append((study, options.only, options.seed_start, options.seeds, options.rounds))
        if options.only == ("fedavg",):
            return {"fedavg-s0": "the disk is full"}
        assert options.record is not None
        data.add(options.record, [played(missing.TABLES[0], "pfedbayes", options.seed_start)])
        return {}

    monkeypatch.setattr(missing.study, "play", play)
    data.add(tmp_path / "data", [played(missing.TABLES[0], "pfedbayes", 1), played(missing.TABLES[0], "fedavg", 2)])
    assert main(["all", "--results", "data"]) == 1
    assert calls == [
        ("quick", ("fedavg",), 0, 2, 4),
        ("quick", ("pfedbayes",), 0, 1, 4),
        ("quick", ("pfedbayes",), 2, 1, 4),
    ]
    told = [each for each in capfd.readouterr().err.splitlines() if each.startswith("failed")]
    assert told[0] == "failed   quick/fedavg-s0: the disk is full"
    assert told[1].startswith("failed   quick/fedavg-s1: the store has it as finished, but it left no data")
    assert len(told) == 2


def test_what_another_command_has_played_meanwhile_is_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(missing, "TABLES", (Table("quick", "Quick", "None.", 4, 1, 2),))
    calls = []

    def play(study: str, options: agenda.Options, command: str, table: bool) -> dict[str, str]:
        calls.append((options.only, options.seed_start, options.seeds))
        rest = (("fedavg", 0), ("fedavg", 1), ("pfedbayes", 0))  # of which two are another command's
        data.add(tmp_path / "data", [played(missing.TABLES[0], *each) for each in rest])
        return {}

    monkeypatch.setattr(missing.study, "play", play)
    data.add(tmp_path / "data", [played(missing.TABLES[0], "pfedbayes", 1)])
    assert main(["all", "--results", "data"]) == 0
    assert calls == [(("pfedbayes",), 0, 1)]
    assert "quick/fedavg is in the data by now" in capfd.readouterr().err


def test_a_cell_whose_data_are_not_here_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    played_cells = []

    def play(study: str, options: agenda.Options, command: str, table: bool) -> dict[str, str]:
        played_cells.append(options.only)
        if options.only == ("fedavg",):
            raise FedRayError("data.root nowhere: is missing")
        return {}

    monkeypatch.setattr(missing.study, "play", play)
    assert main(["all", "--results", "data"]) == 1
    assert played_cells == [("fedavg",), ("pfedbayes",)]
    assert "failed   quick/fedavg-s0: data.root nowhere: is missing" in capfd.readouterr().err


@pytest.mark.parametrize("command", [["page"], ["all", "--list"], ["verify", "quick/fedavg"]])
def test_a_folder_that_is_not_there_is_refused(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--results", "nowhere"]) == 2
    told = capfd.readouterr().err
    assert "nowhere" in told
    assert "--record" in told
    assert not Path("nowhere").exists()
