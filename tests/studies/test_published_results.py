"""Published results: data of finished runs, the page made of them, and the verdict over a repeated run."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from fedray.compare.published import Published
from fedray.compare.tables import style
from fedray.config import override
from fedray.studies import agenda, study
from fedray.studies.__main__ import main
from fedray.studies.cell import Cell
from fedray.studies.named import STUDIES
from fedray.studies.named.quick import quick
from fedray.studies.results import (
    data,
    figures,
    judgement,
    machine,
    missing,
    page,
    record,
    rows,
    tables,
    verify,
    why,
)
from fedray.studies.results.data import BEST, LATE, Line
from fedray.studies.results.tables import Claim, Table
from fedray.types import FedRayError

pytestmark = pytest.mark.usefixtures("unpainted")
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


def line(seed: int = 0, cell: str = "fedavg", **metrics: float) -> Line:
    found = metrics or {"global/accuracy": 0.9}
    return Line("quick", cell, seed, 5, 1, f"f{seed}", "all", "abc", "python", "x86", 1.5, "d", found)


def test_the_page_is_what_the_generator_makes_of_the_data() -> None:
    assert (RESULTS / page.PAGE).read_text(encoding="utf-8") == page.make(RESULTS)


def test_every_figure_that_is_apart_from_its_paper_has_a_paragraph_and_no_other_has_one() -> None:
    assert page.gaps(RESULTS) == []


def test_the_page_shows_the_figure_of_every_table_with_data_and_no_other_is_there() -> None:
    shown = re.findall(r"\]\(figures/(.*?)\)", (RESULTS / page.PAGE).read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(path.name for path in (RESULTS / "figures").iterdir())
    assert len({table.slug for table in tables.TABLES}) == len(tables.TABLES)


def test_a_figure_has_the_best_of_every_seed_beside_the_papers_where_it_prints_one(tmp_path: Path) -> None:
    """87.38 ± 0.27 is FedAvg's figure on MNIST small in pFedBayes' Table 1; selection has only plots in its paper."""
    table = tables.Table("table1-mnist", "T", "P.", 2, 1, 2, sources=("pFedBayes, Table 1",), only=("fedavg-small",))
    runs = [{"global/accuracy": 0.6, f"{BEST}global/accuracy": best} for best in (0.84, 0.88)]
    lines = [line(seed, "fedavg-small", **run) for seed, run in enumerate(runs)]
    data.add(tmp_path, [each._replace(study="table1-mnist", rounds=2) for each in lines])
    assert points(figures.accuracies(rows.rows(tmp_path, table))) == {(86.0, 2.83), (84.0, 0), (88.0, 0), (87.38, 0.27)}
    plots = tables.Table("selection", "S", "P.", 100, 2, 1)
    data.add(tmp_path, [line(0, "hip", **runs[0])._replace(study="selection", rounds=100)])
    assert points(figures.accuracies(rows.rows(tmp_path, plots))) == {(60.0, 0)}


def test_a_table_that_takes_the_best_of_the_last_rounds_is_compared_by_them(tmp_path: Path) -> None:
    table = tables.Table("table1-mnist", "T", "P.", 2, 1, 1, sources=("pFedBayes, Table 1",), best=LATE)
    run = {"global/accuracy": 0.6, f"{BEST}global/accuracy": 0.95, f"{LATE}global/accuracy": 0.874}
    data.add(tmp_path, [line(0, "fedavg-small", **run)._replace(study="table1-mnist", rounds=2)])
    [row] = rows.rows(tmp_path, table)
    assert [verdict.nearness for verdict in row.verdicts()] == ["within ±"]
    assert points(figures.accuracies([row])) == {(87.4, 0), (87.38, 0.27)}
    text = page._text(page.Section(table, [row]), {})
    assert "| best of last eighth (%) | paper (%) | best of last eighth - paper |" in text
    assert "| 60.00 | 87.40 | 87.38 ± 0.27 | +0.02 | within ± |" in text


def points(figure: Figure | None) -> set[tuple[float, float]]:
    """Every point of a figure with one panel, with the half length of its error bar."""
    assert figure is not None
    (ax,) = figure.axes
    bars = {}
    for collection in ax.collections:
        assert isinstance(collection, LineCollection)
        ((low, _), (high, _)) = collection.get_segments()[0]
        bars[round((low + high) / 2, 2)] = round((high - low) / 2, 2)
    single = [drawn for drawn in ax.lines if drawn.get_marker() not in ("|", "None")]
    found = {round(float(x), 2) for drawn in single for x in np.atleast_1d(np.asarray(drawn.get_xdata()))}
    return {(x, bars.get(x, 0)) for x in found}


def test_paragraphs_that_are_missing_or_too_many_are_named(tmp_path: Path) -> None:
    assert why.paragraphs(tmp_path) == {}
    (tmp_path / why.WHY).write_text("# Why\n\n## a/x,lr=1, a/y\n\nTwo\nlines.\n\n## a/z\n\n## a/y\n\nAgain.\n")
    written = why.paragraphs(tmp_path)
    assert written == {("a/x,lr=1", "a/y"): "Two lines.", ("a/z",): "", ("a/y",): "Again."}
    found = list(why.gaps(written, ["a/x,lr=1", "a/y", "a/w"]))
    assert [line.split("`")[1] for line in found] == ["## a/w", "## a/z", "## a/y", "## a/z"]
    assert ["write a paragraph" in found[0], "no text" in found[1], "more than once" in found[2]] == [True] * 3
    assert "no cell that is apart" in found[3]
    assert list(why.gaps({("a/x",): "Text."}, ["a/x"])) == []


def test_the_page_shows_a_registered_table_before_its_first_run_and_fails_without_a_paragraph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run of FedAvg that is 20 points below pFedBayes' Table 1."""
    lowest = tables.Table("table1-mnist", "T", "P.", 2, 1, 1, sources=("pFedBayes, Table 1",), only=("fedavg-small",))
    registered = tables.Table("selection-rare", "R", "P.", 30, 1, 2, registered="*Hypothesis*: hip.")
    monkeypatch.setattr(page, "TABLES", (lowest, registered))
    bad = {"global/accuracy": 0.6, f"{BEST}global/accuracy": 0.674}
    data.add(tmp_path, [line(0, "fedavg-small", **bad)._replace(study="table1-mnist", rounds=2)])
    assert main(["page", "--results", str(tmp_path)]) == 1
    assert "## table1-mnist/fedavg-small" in capfd.readouterr().err
    text = (tmp_path / page.PAGE).read_text(encoding="utf-8")
    assert "**Registered.** *Hypothesis*: hip.\n\nNo run is in the data yet." in text
    assert "Of 1 figures that a paper prints with a ±, 0 (0 %) are within" in text
    assert "| 87.38 ± 0.27 | -19.98 | apart |" in text
    assert "| T | 1 | 1 | 0 of 1 |  |  |  | 0.00 |\n| R | 0 | 8 |  |  |  |  | 0.00 |\n" in text
    (tmp_path / why.WHY).write_text("## table1-mnist/fedavg-small\n\nTwo rounds only.\n")
    assert main(["page", "--results", str(tmp_path)]) == 0
    assert "**fedavg-small**: Two rounds only." in (tmp_path / page.PAGE).read_text(encoding="utf-8")


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
    found = record.measured(rows)
    assert found["global/accuracy"] == pytest.approx(accuracies[-10:].mean())
    assert found[f"{BEST}global/accuracy"] == 0.9
    assert found["comm/bytes_up"] == 217
    assert found[f"{LATE}global/accuracy"] == accuracies[-4]  # rounds 28 to 31 of 31
    rows = [{"round": 1.0, "personal/accuracy": 0.8}]
    rows += [{"round": 2.0 + i, "novel/accuracy": 0.5 + i / 100} for i in range(11)]  # while newcomers adapt
    adapted = record.measured(rows)
    assert adapted["personal/accuracy"] == 0.8
    assert adapted["novel/accuracy"] == pytest.approx(0.575)  # six of eleven: not more than half
    assert adapted[f"{BEST}novel/accuracy"] == 0.6
    rmse = record.measured([{"round": 1.0, "personal/rmse": 3.0}, {"round": 2.0, "personal/rmse": 4.0}])
    assert rmse[f"{BEST}personal/rmse"] == 3.0


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


def test_questions_of_ours_are_counted_apart_from_the_claims_of_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pFedBayes is more accurate by 0.1 ± 0.014: at two seeds the interval is 0.1 ± 0.127, and open."""
    asked = (
        Claim("global/accuracy", "pfedbayes", "fedavg", "Table 9"),
        Claim("global/nll", "pfedbayes", "fedavg", "are they calibrated?", ours=True),
    )
    monkeypatch.setattr(page, "TABLES", (Table("quick", "Quick", "None.", 5, 1, 2, asked),))
    for seed in range(2):
        worse = line(seed, "fedavg", **{"global/accuracy": 0.8, "global/nll": 1.0})
        better = line(seed, "pfedbayes", **{"global/accuracy": 0.89 + 0.02 * seed, "global/nll": 0.5 + 0.002 * seed})
        data.add(tmp_path, [worse, better])
    text = page.make(tmp_path)
    assert "Of 1 claims of papers with two seeds or more, 0 hold, 0 are refuted, and 1 are open." in text
    assert "Of 1 questions of ours with two seeds or more, 1 hold, 0 are refuted, and 0 are open." in text
    assert "| +10.00 | -2.71 to +22.71 | 2 | open | Table 9 |" in text
    assert "| +0.499 | +0.486 to +0.512 | 2 | holds | ours: are they calibrated? |" in text


def test_a_repeated_run_is_judged_by_its_bits_or_by_the_deviation() -> None:
    seeds = [line(seed, **{"global/accuracy": 0.9 + 0.01 * seed, "time/x": 1.0}) for seed in range(3)]  # sd 0.01
    told = verify.judge(seeds[0], seeds[0]._replace(metrics={"global/accuracy": 0.9, "time/x": 2.0}), seeds)
    assert (told.same, "to the bit" in told.text) == (True, True)
    assert not verify.judge(seeds[0], seeds[0]._replace(digest="other"), seeds).same
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


def short() -> list[Cell]:
    """The first cell of the quick study with two minibatches per round."""
    return [cell._replace(experiment=override(cell.experiment, {"local_steps": 2})) for cell in quick()[:1]]


def test_record_then_verify_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A study leaves its data, the page shows them, the run comes out the same, and only the other seed is missing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agenda, "STUDIES", {"quick": short})
    monkeypatch.setattr(rows, "STUDIES", {"quick": short})
    wanted = (Table("quick", "Quick", "None.", 2, 1, 2, (Claim("global/accuracy", "fedavg", "fedavg", "here"),)),)
    monkeypatch.setattr(missing, "TABLES", wanted)
    monkeypatch.setattr(page, "TABLES", wanted)
    monkeypatch.setattr(study, "finished", lambda *_: _committed("abc123"))
    local = ["--runtime", "local", "--concurrency", "1"]
    assert main(["quick", "--rounds", "2", "--seeds", "1", *local, "--record", "data"]) == 0
    [found] = data.read(tmp_path / "data", "quick")
    assert (found.cell, found.seed, found.rounds, found.commit) == ("fedavg", 0, 2, "abc123")
    assert found.command.endswith("--only fedavg --size all --seeds 1 --seed-start 0 --rounds 2 --eval-every 1 "
                                  "--runtime local")  # fmt: skip
    assert found.cpu_seconds >= 0
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
    works = missing.missing(tmp_path / "data", tmp_path)
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
def test_five_published_runs_come_out_to_the_bit() -> None:
    """Drawn anew each time among those of this kind of machine that take less than a CPU minute."""
    lines = [each for name in STUDIES for each in data.read(RESULTS, name) if each.cpu_seconds < 60]
    lines = [each for each in lines if each.machine == machine.kind()]
    if not lines:
        pytest.skip("no cheap run was published from this kind of machine")
    seed = int(np.random.SeedSequence().entropy) % 2**32  # type: ignore[arg-type]
    drawn = np.random.default_rng(seed).choice(len(lines), size=min(5, len(lines)), replace=False)
    for i in drawn:
        answer = verify.judge(lines[i], verify.again(lines[i], agenda.Data()), [lines[i]])
        assert answer.same, f"seed {seed}: {lines[i].study}/{lines[i].cell}: {answer.text}"
