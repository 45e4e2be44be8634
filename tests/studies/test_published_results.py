"""Published results: data of finished runs, what is said of them, and the verdict over a repeated run."""

from __future__ import annotations

import math
import os
import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedray.compare.published import Published
from fedray.compare.styles import style
from fedray.config import Experiment, override
from fedray.federate import report
from fedray.federate.in_process import LocalFederation
from fedray.federate.planning import make_plan
from fedray.studies import agenda, study
from fedray.studies.__main__ import main
from fedray.studies.cell import experiment
from fedray.studies.named import STUDIES
from fedray.studies.results import (
    data,
    judgement,
    machine,
    missing,
    page,
    record,
    tables,
    verify,
)
from fedray.studies.results.data import BEST, EVERY, LATE
from fedray.studies.results.table import Claim, Table
from fedray.types import FedRayError
from tests.studies.published import line, publish, short

pytestmark = pytest.mark.usefixtures("unpainted")
RUN = experiment("fedavg", {})
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
# What the published runs to repeat are drawn by: another each time, and one for all processes of xdist.
DRAW = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex(4)


def test_lines_survive_the_file_to_the_bit_and_a_later_run_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    first = line(0, **{"global/accuracy": 0.1 + 0.2, "global/nll": math.pi})
    data.add(tmp_path, [first, line(1)])
    assert data.read(tmp_path, "quick") == [first, line(1)]
    data.add(tmp_path, [line(0, **{"global/accuracy": 0.5})])
    assert [each.metrics["global/accuracy"] for each in data.read(tmp_path, "quick")] == [0.5, 0.9]
    assert data.read(tmp_path, "table2") == []
    (tmp_path / "quick.csv").write_text("study,cell\nquick,fedavg\n")
    with pytest.raises(FedRayError, match="not a file of results"):
        data.read(tmp_path, "quick")


def test_a_figure_is_the_mean_of_the_last_ten_evaluations_and_the_best_of_all() -> None:
    accuracies = np.linspace(0.9, 0.2, 30)  # falls: the best is the first
    rows = [{"round": 1.0, "comm/bytes_up": 7.0}]
    rows += [{"round": 2.0 + i, "global/accuracy": float(a), "comm/bytes_up": 7.0} for i, a in enumerate(accuracies)]
    found = record.measured(rows, override(RUN, {"rounds": 31}))
    assert found["global/accuracy"] == pytest.approx(accuracies[-10:].mean())
    assert found[f"{BEST}global/accuracy"] == 0.9
    assert found["comm/bytes_up"] == 217
    assert found[f"{LATE}global/accuracy"] == accuracies[-4]  # rounds 28 to 31 of 31
    rows = [{"round": 1.0, "personal/accuracy": 0.8}]
    rows += [{"round": 2.0 + i, "novel/accuracy": 0.5 + i / 100} for i in range(11)]  # while newcomers adapt
    adapted = record.measured(rows, override(RUN, {"rounds": 1}))
    assert adapted["personal/accuracy"] == adapted[f"{LATE}personal/accuracy"] == 0.8
    assert not any(name.startswith(EVERY) for name in adapted)
    assert adapted["novel/accuracy"] == pytest.approx(0.575)  # six of eleven: not more than half
    assert adapted[f"{BEST}novel/accuracy"] == 0.6
    rmse = record.measured([{"round": 1.0, "personal/rmse": 3.0}, {"round": 2.0, "personal/rmse": 4.0}], RUN)
    assert rmse[f"{BEST}personal/rmse"] == 3.0


@pytest.mark.parametrize(("peak", "counts"), [(27.0, False), (28.0, True), (32.0, True)])
def test_the_last_eighth_begins_with_the_round_that_the_paper_names(peak: float, counts: bool) -> None:
    """Of rounds 700 to 800 of 800 the first one counts, too: here 28 to 32 of 32."""
    rows = [{"round": float(i), "global/accuracy": 0.9 if i == peak else 0.5} for i in range(1, 33)]
    found = record.measured(rows, override(RUN, {"rounds": 32, "eval_last": 4}))
    assert found[f"{BEST}global/accuracy"] == 0.9
    assert found[f"{LATE}global/accuracy"] == found[f"{EVERY}global/accuracy"] == (0.9 if counts else 0.5)


def test_a_run_that_is_written_again_keeps_the_machine_that_played_it(tmp_path: Path) -> None:
    data.add(tmp_path, [line(0)])
    data.add(tmp_path, [line(0)._replace(machine="another"), line(1)._replace(machine="another")])
    assert [each.machine for each in data.read(tmp_path, "quick")] == [line(0).machine, "another"]
    data.add(tmp_path, [line(0)._replace(machine="another", digest="other bits")])
    assert {each.machine for each in data.read(tmp_path, "quick")} == {"another"}


def test_evaluations_of_each_of_the_last_rounds_add_a_measure_and_change_no_other() -> None:
    """One run of 40 rounds, evaluated every fifth, with and without each of the last five: an eighth."""
    settings = {"rounds": 40, "eval_every": 5, "local_steps": 1, "algorithm.personal_steps": 1, "predict_samples": 1}
    usual = experiment("pfedbayes", settings)
    dense = override(usual, {"eval_last": 5})
    (few, first), (many, second) = (_rows(cfg) for cfg in (usual, dense))
    assert few == [1, 5, 10, 15, 20, 25, 30, 35, 40]  # 1 and 10 are for a figure
    assert many == [1, 5, 10, 15, 20, 25, 30, 35, 36, 37, 38, 39, 40]
    without, found = record.measured(first, usual), record.measured(second, dense)
    every = {name: found.pop(name) for name in list(found) if name.startswith(EVERY)}
    assert found == without
    accuracies = [row["global/accuracy"] for row in second if row["round"] >= 35]
    assert every[f"{EVERY}global/accuracy"] == max(accuracies) > found[f"{LATE}global/accuracy"]
    assert not any(name.startswith(EVERY) for name in record.measured(second, override(dense, {"eval_last": 4})))


def _rows(cfg: Experiment) -> tuple[list[int], list[dict[str, float]]]:
    """The evaluated rounds of a run, and the measures of all rounds but their times."""
    plan = make_plan(cfg)
    rows = [{"round": float(played.round), **report.measures(played)} for played in LocalFederation(plan)]
    rows = [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
    return [int(row["round"]) for row in rows if "global/accuracy" in row], rows


def test_a_file_of_an_earlier_version_has_no_evaluations_of_the_last_rounds(tmp_path: Path) -> None:
    data.add(tmp_path, [line(0)])
    path = tmp_path / "quick.csv"
    names, first = path.read_text().splitlines()
    place = names.split(",").index("eval_last")
    older = [",".join(cell for k, cell in enumerate(row.split(",")) if k != place) for row in (names, first)]
    path.write_text("\n".join(older) + "\n")
    assert data.read(tmp_path, "quick") == [line(0)]


@pytest.mark.parametrize(
    ("ours", "sd", "expected"),
    [
        (0.902, 0.003, "within ±"),
        (0.909, 0.003, "within 1 point"),
        (0.915, 0.008, "within twice ±"),
        (0.915, 0.007, "apart"),
        (0.895, None, "within 1 point"),
        (0.889, None, "apart"),
    ],
)
def test_nearness(ours: float, sd: float | None, expected: str) -> None:
    assert judgement.nearness(ours, Published(0.9, sd, "a paper")) == expected


def test_a_figure_at_a_distance_of_a_point_is_near() -> None:
    """In floating point 0.9516 - 0.9416 is above 0.01."""
    assert judgement.nearness(0.9416, Published(0.9516, None, "a paper")) == "within 1 point"
    assert judgement.nearness(0.9415, Published(0.9516, None, "a paper")) == "apart"


def test_the_paired_interval_is_students_and_takes_the_partitions_out() -> None:
    noise = np.random.default_rng(0).normal(size=12)
    a = {seed: 5.0 + 10 * x + (-1) ** seed for seed, x in enumerate(noise)}
    b = {seed: 4.0 + 10 * x for seed, x in enumerate(noise)} | {99: 0.0}
    found = judgement.ordering("global/accuracy", a, b)
    assert found is not None
    half = 2.200985 * math.sqrt(12 / 11) / math.sqrt(12)  # of differences 1 ± 1 in twelve seeds, by the table of t
    assert found.by.n == 12
    assert (found.by.mean, found.low, found.high) == pytest.approx((1.0, 1 - half, 1 + half), abs=1e-5)
    assert found.answer == "holds"
    other = judgement.ordering("global/accuracy", b, a)
    assert other is not None
    assert other.answer == "refuted"
    same = judgement.ordering("global/accuracy", a, a)
    assert same is not None
    assert same.answer == "refuted"  # as of fine-tuning, which cannot change a global model
    assert judgement.ordering("global/accuracy", {0: 1.0}, {0: 2.0}) is None
    assert judgement.ordering("global/accuracy", {0: 1.0}, {1: 2.0}) is None


def test_better_is_more_accurate_but_less_wrong() -> None:
    one, two = {0: 0.5, 1: 0.52}, {0: 0.1, 1: 0.1}
    for metric, mean in (("global/accuracy", 0.41), ("global/nll", -0.41), ("personal/ece", -0.41)):
        found = judgement.ordering(metric, one, two)
        assert found is not None
        assert found.by.mean == pytest.approx(mean)
    assert all(style(claim.metric).better for table in tables.TABLES for claim in table.claims)
    with pytest.raises(ValueError, match="neither more nor less"):
        judgement.ordering("global/entropy", one, two)


def test_a_repeated_run_is_judged_by_its_bits_or_by_the_deviation() -> None:
    seeds = [line(seed, **{"global/accuracy": 0.9 + 0.01 * seed, "time/x": 1.0}) for seed in range(3)]  # sd 0.01
    told = verify.judge(seeds[0], seeds[0]._replace(metrics={"global/accuracy": 0.9, "time/x": 2.0}), seeds)
    assert (told.same, "to the bit" in told.text) == (True, True)
    assert not verify.judge(seeds[0], seeds[0]._replace(digest="other"), seeds).same
    assert not verify.judge(seeds[0], seeds[0]._replace(metrics={"global/accuracy": 0.91}), seeds).same
    assert not verify.judge(seeds[0], seeds[0]._replace(metrics={}, machine="arm"), seeds).same
    told = verify.judge(seeds[0], seeds[0]._replace(metrics={"global/accuracy": 0.9 + 2e-16}), seeds)
    assert (told.same, "1 of 1 metrics differ by less than 1e-12" in told.text) == (True, True)
    assert not verify.judge(seeds[0], seeds[0]._replace(metrics={}), seeds).same
    near = seeds[0]._replace(digest="other", metrics={"global/accuracy": 0.919}, machine="arm")
    assert verify.judge(seeds[0], near, seeds).same
    assert not verify.judge(seeds[0], near._replace(metrics={"global/accuracy": 0.921}), seeds).same


def test_the_kind_of_machine_names_what_bits_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(
        "vendor_id : GenuineIntel\nflags : fpu avx2 fma\n\nvendor_id : GenuineIntel\nflags : fpu avx2 fma\n"
    )
    monkeypatch.setattr(machine, "CPUINFO", info)
    assert "GenuineIntel avx2 fma; " in machine.kind()
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "none")
    assert "torch" in machine.kind()
    assert machine.kind("Some GPU") == f"{machine.kind()}; on Some GPU"
    assert machine.has_gpu(machine.kind("Some GPU"))
    assert not machine.has_gpu(machine.kind("cpu"))


def test_record_then_verify_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A study leaves its data, the page shows them, the run comes out the same, and only the other seed is missing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agenda, "STUDIES", {"quick": short})
    wanted = (Table("quick", "Quick", "None.", 2, 1, 2, (Claim("global/accuracy", "fedavg", "fedavg", "here"),)),)
    publish(monkeypatch, *wanted)
    monkeypatch.setattr(study, "finished", lambda *_: _committed("abc123"))
    local = ["--runtime", "local", "--concurrency", "1"]
    assert main(["quick", "--rounds", "2", "--seeds", "1", *local, "--record", "data"]) == 0
    [found] = data.read(tmp_path / "data", "quick")
    assert (found.cell, found.seed, found.rounds, found.commit) == ("fedavg", 0, 2, "abc123")
    assert found.command.endswith("--only fedavg --size all --seeds 1 --seed-start 0 --rounds 2 --eval-every 1 "
                                  "--runtime local")  # fmt: skip
    assert len(found.digest) == 64
    assert main(["verify", "quick/fedavg", "--results", "data"]) == 0
    assert "the same to the bit" in capfd.readouterr().out
    assert (
        main(["quick", "--rounds", "2", "--seeds", "1", *local, "--record", "asked", "--uncertainty", "--output", "u"])
        == 0
    )
    [asked] = data.read(tmp_path / "asked", "quick")
    assert asked.command == f"{found.command} --uncertainty"
    assert 0 < asked.metrics["global/unknown_auroc"] < 1
    assert main(["verify", "quick/fedavg", "--results", "asked"]) == 0
    works = missing.missing(tmp_path / "data")
    assert [(work.name, [run.experiment.seed for run in work.runs]) for work in works] == [("quick/fedavg", [1])]
    assert works[0].cpu_seconds == found.cpu_seconds
    text = page.make(tmp_path / "data")
    assert f"| fedavg | global | 1 | {100 * found.metrics['global/accuracy']:.2f} |" in text
    assert "| Quick | 1 | 2 |  |  |  |  | 0.00 |" in text
    with pytest.raises(FedRayError, match=r"choose from quick/fedavg"):
        verify.find(tmp_path / "data", "quick/fedprox")


DIES = """
import os, sys
from fedray.studies import agenda, study
from fedray.studies.__main__ import main
from fedray.studies.named.quick import quick

agenda.STUDIES = {"quick": lambda: quick()[:1]}
study.finished = lambda *_: Committed(commit="abc123")


class Committed(dict):
    def get(self, key, default=None):
        return self["commit"]

    def __contains__(self, key):
        return False


move = study._Board.ended


def ended(self, ended):
    move(self, ended)
    os._exit(9)


study._Board.ended = ended
main(sys.argv[1:])
"""


def test_a_run_is_in_the_data_as_soon_as_it_ends(tmp_path: Path) -> None:
    """A machine that dies after the first of two runs takes no data with it."""
    command = ["quick", "--rounds", "1", "--seeds", "2", "--runtime", "local", "--concurrency", "1", "--record", "data"]
    died = subprocess.run([sys.executable, "-c", DIES, *command], cwd=tmp_path, check=False, capture_output=True)
    assert died.returncode == 9, died.stderr.decode()
    assert [found.seed for found in data.read(tmp_path / "data", "quick")] == [0]


def test_a_run_without_data_counts_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What cannot be recorded is named at the end, and the runs after it are played."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agenda, "STUDIES", {"quick": short})
    monkeypatch.setattr(study, "finished", lambda *_: _committed("abc123"))
    add = data.add

    def full(folder: Path, lines: list[data.Line]) -> None:
        if lines[0].seed == 0:
            raise FedRayError("the disk is full")
        add(folder, lines)

    monkeypatch.setattr(data, "add", full)
    command = ["quick", "--rounds", "1", "--seeds", "2", "--runtime", "local", "--concurrency", "1"]
    assert main([*command, "--record", "data"]) == 1
    assert "failed   fedavg-s0: no data: the disk is full" in capfd.readouterr().err
    assert [found.seed for found in data.read(tmp_path / "data", "quick")] == [1]


def test_a_cell_that_is_published_with_several_numbers_of_rounds_is_found_with_each(tmp_path: Path) -> None:
    short, longer = line(0), line(0)._replace(rounds=100, config="g")
    data.add(tmp_path, [short, longer])
    assert verify.find(tmp_path, "quick/fedavg") == [longer]
    assert verify.find(tmp_path, "quick/fedavg", 5) == [short]
    with pytest.raises(FedRayError, match=r"rounds.*7.*choose from 5, 100"):
        verify.find(tmp_path, "quick/fedavg", 7)


class _Everything(dict):
    """The commits of a store that holds every run that has a folder."""

    def get(self, key: str, default: str | None = None) -> str:
        return str(self["commit"])

    def __contains__(self, key: object) -> bool:
        return False


def _committed(commit: str) -> _Everything:
    return _Everything(commit=commit)


def test_what_no_commit_has_leaves_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agenda, "STUDIES", {"quick": short})
    monkeypatch.setattr(study, "finished", lambda *_: _committed("abc123+dirty"))
    command = ["quick", "--rounds", "1", "--seeds", "1", "--runtime", "local", "--concurrency", "1"]
    assert main([*command, "--record", "data"]) == 0
    assert "played by code that no commit has" in capfd.readouterr().err
    assert data.read(tmp_path / "data", "quick") == []
    assert main([*command[:-4], "--record", "data"]) == 2
    assert "add --runtime local" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("which", range(5))
def test_five_published_runs_come_out_to_the_bit(which: int) -> None:
    """Drawn anew each time among those of this kind of machine that take less than a CPU minute."""
    lines = [each for name in STUDIES for each in data.read(RESULTS, name) if each.cpu_seconds < 60]
    lines = [each for each in lines if each.machine == machine.kind()]
    if len(lines) <= which:
        pytest.skip("too few cheap runs were published from this kind of machine")
    drawn = lines[np.random.default_rng(int.from_bytes(DRAW.encode(), "big")).permutation(len(lines))[which]]
    answer = verify.judge(drawn, verify.again(drawn, agenda.Data()), [drawn])
    assert answer.same, f"PYTEST_XDIST_TESTRUNUID={DRAW}: {drawn.study}/{drawn.cell}: {answer.text}"
