"""The page of published results, made of data and of paragraphs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedray.studies.__main__ import main
from fedray.studies.results import (
    data,
    figures,
    missing,
    page,
    rows,
    tables,
    why,
)
from fedray.studies.results.data import BEST, EVERY, LATE
from fedray.studies.results.table import Claim, Table
from tests.studies.published import played, points, publish

pytestmark = pytest.mark.usefixtures("unpainted")
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PFEDBAYES = {"personal": 0.945, "global": 0.88}


def test_the_page_is_what_the_generator_makes_of_the_data() -> None:
    assert (RESULTS / page.PAGE).read_text(encoding="utf-8") == page.make(RESULTS)


def test_every_figure_that_is_apart_from_its_paper_has_a_paragraph_and_no_other_has_one() -> None:
    assert page.gaps(RESULTS) == []


def test_the_page_shows_the_figure_of_every_table_with_data_and_no_other_is_there() -> None:
    shown = re.findall(r"\]\(figures/(.*?)\)", (RESULTS / page.PAGE).read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(path.name for path in (RESULTS / "figures").iterdir())
    assert len({table.slug for table in tables.TABLES}) == len(tables.TABLES)


def test_a_table_that_takes_the_best_of_the_last_rounds_is_compared_by_them(tmp_path: Path) -> None:
    table = Table("table1-mnist", "T", "P.", 2, 1, 1, sources=("pFedBayes, Table 1",), best=LATE)
    run = {"global/accuracy": 0.6, f"{BEST}global/accuracy": 0.95, f"{LATE}global/accuracy": 0.874}
    data.add(tmp_path, [played(table, "fedavg-small", **run)])
    [row] = rows.rows(tmp_path, table)
    assert [verdict.nearness for verdict in row.verdicts()] == ["within ±"]
    assert points(figures.accuracies([row])) == {(87.4, 0), (87.38, 0.27)}
    text = page._text(page.Section(table, [row]), {})
    assert "| best of last eighth (%) | paper (%) | best of last eighth - paper |" in text
    assert "| 60.00 | 87.40 | 87.38 ± 0.27 | +0.02 | within ± |" in text


def test_a_table_that_looks_at_every_one_of_the_last_rounds_says_which_runs_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAvg has the best of 101 rounds in both seeds, FedProx in one: they are compared by what both have."""
    cells = ("fedavg-small", "fedprox-small")
    claim = Claim("global/accuracy", *cells, "Table 1", best=LATE)
    settings = {"sources": ("pFedBayes, Table 1",), "best": LATE, "only": cells, "eval_last": 100}
    table = Table("table1-mnist", "T", "P.", 800, 20, 2, (claim,), **settings)
    publish(monkeypatch, table)
    sparse, few, many = table._replace(eval_last=0), f"{LATE}global/accuracy", f"{EVERY}global/accuracy"
    for seed in (0, 1):
        data.add(tmp_path, [played(table, cells[0], seed, **{"global/accuracy": 0.6, few: 0.86, many: 0.88})])
        data.add(tmp_path, [played(sparse, cells[1], seed, **{"global/accuracy": 0.6, few: 0.85})])
    data.add(tmp_path, [played(table, cells[1], 0, **{"global/accuracy": 0.6, few: 0.85, many: 0.89})])

    def shown() -> tuple[list[float], float, str]:
        section = page.Section(table, rows.rows(tmp_path, table))
        [judged] = section.claims
        return [row.best("global") or 0 for row in section.rows], judged.said.by.mean, page._text(section, {})

    best, by, text = shown()
    assert best == pytest.approx([0.88, 0.85])
    assert by == pytest.approx(0.01)
    assert "evaluated every 20th round and in each of the last 100" in text
    assert "| fedavg-small | global" in text
    assert "| fedprox-small ‡ | global" in text
    assert "the best of every 20th" in text
    assert [len(work.runs) for work in missing.missing(tmp_path)] == [1]
    data.add(tmp_path, [played(table, cells[1], 1, **{"global/accuracy": 0.6, few: 0.85, many: 0.89})])
    best, by, text = shown()
    assert best == pytest.approx([0.88, 0.89])
    assert by == pytest.approx(-0.01)
    assert "‡" not in text


def test_paragraphs_that_are_missing_or_too_many_are_named(tmp_path: Path) -> None:
    assert why.paragraphs(tmp_path) == {}
    (tmp_path / why.WHY).write_text("# Why\n\n## a/x,lr=1, a/y\n\nTwo\nlines.\n\n## a/z\n\n## a/y\n\nAgain.\n")
    written = why.paragraphs(tmp_path)
    assert written == {("a/x,lr=1", "a/y"): "Two lines.", ("a/z",): "", ("a/y",): "Again."}
    found = list(why.gaps(written, {"a/x,lr=1": 3, "a/y": 3, "a/w": 3}))
    assert [line.split("`")[1] for line in found] == ["## a/w", "## a/z", "## a/y", "## a/z"]
    assert ["write a paragraph" in found[0], "no text" in found[1], "more than once" in found[2]] == [True] * 3
    assert "no cell that is apart" in found[3]
    assert list(why.gaps({("a/x",): "Text."}, {"a/x": 3})) == []


def test_a_paragraph_about_fewer_seeds_than_its_table_has_by_now_is_named() -> None:
    written = {("a/x", "a/y"): "By 1.3, the mean of four seeds. The paper's is the mean of 5 runs."}
    [found] = why.gaps(written, {"a/x": 6, "a/y": 3})
    assert found == "`## a/x, a/y` speaks of the mean of four seeds, the table has three or six: write it anew"
    assert list(why.gaps(written, {"a/x": 4, "a/y": 3})) == []


def test_the_page_shows_a_registered_table_before_its_first_run_and_fails_without_a_paragraph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run of FedAvg that is 20 points below pFedBayes' Table 1."""
    lowest = Table("table1-mnist", "T", "P.", 2, 1, 1, sources=("pFedBayes, Table 1",), only=("fedavg-small",))
    registered = Table("selection-rare", "R", "P.", 30, 1, 2, registered="*Hypothesis*: hip.")
    publish(monkeypatch, lowest, registered)
    bad = {"global/accuracy": 0.6, f"{BEST}global/accuracy": 0.674}
    data.add(tmp_path, [played(lowest, "fedavg-small", **bad)])
    assert main(["page", "--results", str(tmp_path)]) == 1
    assert "## table1-mnist/fedavg-small" in capfd.readouterr().err
    text = (tmp_path / page.PAGE).read_text(encoding="utf-8")
    assert "**Registered.** *Hypothesis*: hip.\n\nNo run is in the data yet." in text
    assert "Of 1 accuracies that a paper prints with a ±, 0 (0 %) are within" in text
    assert "8 runs are missing: 0.0 CPU hours, and 4 cells of unknown cost." in text
    assert "| 87.38 ± 0.27 | -19.98 | apart |" in text
    assert "| T | 1 | 1 | 0 of 1 |  |  |  | 0.00 |\n| R | 0 | 8 |  |  |  |  | 0.00 |\n" in text
    (tmp_path / why.WHY).write_text("## table1-mnist/fedavg-small\n\nTwo rounds only.\n")
    assert main(["page", "--results", str(tmp_path)]) == 0
    assert "**fedavg-small**: Two rounds only." in (tmp_path / page.PAGE).read_text(encoding="utf-8")


def test_a_paragraph_stands_below_the_table_where_its_cell_is_apart_and_no_other_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tables of one study: after two rounds FedAvg is 20 points below the paper, after four it is near."""
    shared = {"sources": ("pFedBayes, Table 1",), "only": ("fedavg-small",)}
    both = [Table("table1-mnist", f"After {rounds}", "P.", rounds, 1, 1, **shared) for rounds in (2, 4)]
    publish(monkeypatch, *both)
    for table, best in zip(both, (0.674, 0.874), strict=True):
        found = {"global/accuracy": 0.6, f"{BEST}global/accuracy": best}
        data.add(tmp_path, [played(table, "fedavg-small", **found)])
    (tmp_path / why.WHY).write_text("## table1-mnist/fedavg-small\n\nTwo rounds only.\n")
    assert page.gaps(tmp_path) == []
    after_two, after_four = page.make(tmp_path).split("## After ")[1:]
    assert "Two rounds only." in after_two
    assert "Two rounds only." not in after_four


def test_logs_of_a_papers_code_are_counted_apart_from_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BPFed's table is lost in our copy: 94.75 is from logs of its code."""
    table = Table("bpfed-mnist", "T", "P.", 2, 1, 1, sources=("BPFed", "logs of BPFed's code"), only=("bpfed-small",))
    publish(monkeypatch, table)
    found = {"personal/accuracy": 0.94, f"{BEST}personal/accuracy": 0.945}
    data.add(tmp_path, [played(table, "bpfed-small", **found)])
    text = page.make(tmp_path)
    assert "Of accuracies that a paper prints without a ± none is in the data." in text
    assert "Of 1 accuracies that are in logs of a paper's code, 1 (100 %) are within 1 point." in text
    figure = figures.agreement(page.sections_of(tmp_path))
    assert figure is not None
    assert [ax.get_xlabel() for ax in figure.axes] == ["accuracy in logs of its code (%)"]


def test_figures_in_another_reading_of_their_paper_are_counted_beside_those_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MNIST small: 94.13 ± 0.27 and 90.44 ± 0.45 of pFedBayes, 87.38 ± 0.27 of FedAvg."""
    common = {"rounds": 2, "eval_every": 1, "seeds": 1, "sources": ("pFedBayes, Table 1",)}
    first = Table("table1-mnist", "First", "P.", only=("pfedbayes-small", "fedavg-small"), **common)
    common["seeds"] = 2
    again = Table("table1-noise", "Again", "P.", only=("mnist-small",), reading="another noise", **common)
    publish(monkeypatch, first, again)
    kinds = {f"{best}{kind}/accuracy": value for best in ("", BEST) for kind, value in PFEDBAYES.items()}
    data.add(tmp_path, [played(first, "pfedbayes-small", **kinds)])
    data.add(tmp_path, [played(first, "fedavg-small", **{"global/accuracy": 0.9, f"{BEST}global/accuracy": 0.9})])
    assert "another reading" not in page.make(tmp_path)
    nearer = {name: value if name.endswith("personal/accuracy") else 0.9 for name, value in kinds.items()}
    data.add(tmp_path, [played(again, "mnist-small", **nearer)])
    text = page.make(tmp_path)
    assert "Of 3 accuracies that a paper prints with a ±, 1 (33 %) are within" in text
    assert (
        "2 of those with a ± were played in another reading, too: with another noise 2 of them are near, and without "
        "it 1. In that reading 2 of all 3 are near (67 %). 2 of the 2 have fewer than the 2 seeds that are planned."
    ) in text
    data.add(tmp_path, [played(again, "mnist-small", seed=1, **nearer)])
    assert "that are planned" not in page.make(tmp_path)


def test_the_page_says_why_rows_have_more_seeds() -> None:
    """MNIST small: a verdict was near its border. FMNIST large: so was one, and claims about two rows were open."""
    by_title = {table.title: table for table in tables.TABLES}
    border, both = (by_title[f"pFedBayes, Table 1: {title}"] for title in ("MNIST small", "FMNIST large"))
    said = {table.title: page.extension(page.Section(table, [])) for table in (border, both)}
    assert said[border.title].startswith(
        "the first seeds left verdicts on heurfedamp within a tenth of a point of their border. So more are planned"
    )
    assert said[both.title].startswith(
        "the first seeds left claims about pfedbayes, fedavg open, and verdicts on pfedgp within a tenth of a point"
    )


def test_a_run_with_a_seed_that_no_table_plans_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("quick", "Quick", "None.", 5, 1, 1)
    publish(monkeypatch, table)
    run = played(table, "fedavg", **{"global/accuracy": 0.8})
    data.add(tmp_path, [run])
    assert "more runs" not in page.make(tmp_path)
    data.add(tmp_path, [run._replace(seed=7, config="of another seed")])
    text = page.make(tmp_path)
    assert "**1 runs** of 1 of 1 tables" in text
    assert "1 more runs are in the files, but no table plans their seeds: quick/fedavg with seed 7." in text


def test_questions_of_ours_are_counted_apart_from_the_claims_of_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pFedBayes is more accurate by 0.1 ± 0.014: at two seeds the interval is 0.1 ± 0.127, and open."""
    asked = (
        Claim("global/accuracy", "pfedbayes", "fedavg", "Table 9"),
        Claim("global/nll", "pfedbayes", "fedavg", "are they calibrated?", ours=True),
    )
    table = Table("quick", "Quick", "None.", 5, 1, 2, asked)
    publish(monkeypatch, table)
    for seed in range(2):
        found = {"global/accuracy": 0.89 + 0.02 * seed, "global/nll": 0.5 + 0.002 * seed}
        worse = played(table, "fedavg", seed, **{"global/accuracy": 0.8, "global/nll": 1.0})
        data.add(tmp_path, [worse, played(table, "pfedbayes", seed, **found)])
    text = page.make(tmp_path)
    assert "Of 1 claims of papers, 1 have two seeds or more: 0 hold, 0 are refuted, and 1 are open." in text
    assert "Of 1 questions of ours, 1 have two seeds or more: 1 hold, 0 are refuted, and 0 are open." in text
    assert "By the mean of the last ten evaluations alone" not in text
    assert "| +10.00 | -2.71 to +22.71 | 2 | open | Table 9 |" in text
    assert "| +0.499 | +0.486 to +0.512 | 2 | holds | ours: are they calibrated? |" in text


def test_the_claim_of_a_paper_is_answered_by_what_it_prints_and_again_by_the_mean_of_the_last_ten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best are 0.05 apart in both seeds, the means 0.1 ± 0.14. Table 1 prints 90.44 in bold, and FedAvg's 87.38."""
    names = ("fedavg-small", "pfedbayes-small")
    settings = {"sources": ("pFedBayes, Table 1",), "bold": ("global/accuracy",), "best": LATE, "only": names}
    table = Table("table1-mnist", "T", "P.", 2, 1, 2, **settings)
    publish(monkeypatch, table)
    for seed, mean in enumerate((0.8, 1.0)):
        fedavg = {"global/accuracy": 0.8, f"{LATE}global/accuracy": 0.86 + 0.01 * seed}
        pfedbayes = {"global/accuracy": mean, f"{LATE}global/accuracy": 0.91 + 0.01 * seed}
        data.add(
            tmp_path, [played(table, name, seed, **each) for name, each in zip(names, (fedavg, pfedbayes), strict=True)]
        )
    text = page.make(tmp_path)
    assert "Of 1 claims of papers, 1 have two seeds or more: 1 hold, 0 are refuted, and 0 are open." in text
    assert "By the mean of the last ten evaluations alone, 0 hold, 0 are refuted, and 1 are open." in text
    best = "| global accuracy (points), best of last eighth | +5.00 | +5.00 to +5.00 | +3.06 | 2 |"
    assert f"{best} holds; more than printed | open (+10.00) |" in text
    assert "Their difference is in our interval for 0, above it for 0, and below it for 1." in text


def test_an_interval_says_whether_an_advantage_is_as_large_as_the_printed_one(tmp_path: Path) -> None:
    """Table 1 prints 90.44 for pFedBayes and 87.38 for FedAvg: 3.06 points more. Ours differ by 1 in two seeds.

    The interval is 12.71 spreads long to each side; the figure shows it, with logarithms if it is long.
    """
    names = ("fedavg-small", "pfedbayes-small")
    claim = Claim("global/accuracy", "pfedbayes-small", "fedavg-small", "Table 1")
    table = Table("table1-mnist", "T", "P.", 2, 1, 2, (claim,), ("pFedBayes, Table 1",), only=names)
    for spread, answer, size, scale in (
        (0.0, "holds", "less than printed", "linear"),
        (0.001, "open", "less than printed", "linear"),
        (0.002, "open", "", "linear"),
        (0.02, "open", "", "symlog"),
    ):
        folder = tmp_path / str(spread)
        for seed, sign in enumerate((-1, 1)):
            found = (0.8, 0.81 + sign * spread)
            data.add(
                folder,
                [
                    played(table, name, seed, **{f"{BEST}global/accuracy": value})
                    for name, value in zip(names, found, strict=True)
                ],
            )
        [judged] = page.Section(table, rows.rows(folder, table)).claims
        assert (judged.said.answer, judged.size) == (answer, size)
        assert judged.paper == pytest.approx(0.0306)
        figure = figures.advantages([judged])
        assert points(figure) == {(1.0, round(1270.62 * spread, 2)), (3.06, 0)}
        assert figure is not None
        assert figure.axes[0].get_xscale() == scale
    assert figures.advantages([]) is None


def test_an_open_claim_may_be_settled_to_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The intervals of accuracies are 12.71 times the spread to each side of a tie; 0.1 nats are no points."""
    claims = tuple(Claim(f"global/{metric}", "pfedbayes", "fedavg", "Table 9") for metric in ("accuracy", "nll"))
    for spread, alike, count in ((0.0007, "open; within a point", 1), (0.0009, "open", 0)):
        table = Table("quick", "Quick", "None.", 5, 1, 2, claims)
        publish(monkeypatch, table)
        folder = tmp_path / str(spread)
        for seed, sign in enumerate((-1, 1)):
            found = {"global/accuracy": 0.8 + sign * spread, "global/nll": 0.5 + sign * spread}
            better, worse = played(table, "pfedbayes", seed, **found), {"global/accuracy": 0.8, "global/nll": 0.5}
            data.add(folder, [better, played(table, "fedavg", seed, **worse)])
        text = page.make(folder)
        side = 1270.62 * spread
        assert f"| +0.00 | -{side:.2f} to +{side:.2f} | 2 | {alike} | Table 9 |" in text
        assert re.search(r"global NLL .* \| 2 \| open \| Table 9 \|", text)
        assert (f"The intervals of {count} of the open claims lie within a point of zero" in text) == bool(count)


def test_runs_with_settings_of_the_past_are_shown_but_neither_pooled_nor_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"sources": ("pFedBayes, Table 1",), "bold": ("global/accuracy",), "only": ("fedavg-small",)}
    table = Table("table1-mnist", "T", "P.", 2, 1, 2, **settings)
    publish(monkeypatch, table)
    figures = {"global/accuracy": 0.6, f"{BEST}global/accuracy": 0.8738}
    past = [played(table, "fedavg-small", seed, **figures)._replace(config=f"past{seed}") for seed in range(2)]
    data.add(tmp_path, past)
    text = page.make(tmp_path)
    assert "| fedavg-small † | global | 2 | 60.00 ± 0.00 | 87.38 ± 0.00 |" in text
    assert "Of accuracies that a paper prints with a ± none is in the data." in text
    assert "1 cells were played with settings that the study no longer has (†)" in text
    assert page.gaps(tmp_path) == []
    data.add(tmp_path, [played(table, "fedavg-small", 1, **figures)])
    text = page.make(tmp_path)
    assert "| fedavg-small | global | 1 | 60.00 | 87.38 | 87.38 ± 0.27 | +0.00 | within ± |" in text
    assert "†" not in text
