"""What the tables of the page hold: cells, claims, bold face and printed figures."""

from __future__ import annotations

from fedray.compare.published import Published
from fedray.studies.named import STUDIES
from fedray.studies.results import printed, tables


def test_every_published_table_is_of_a_study_and_has_claims_of_its_cells() -> None:
    for table in tables.TABLES:
        cells = {cell.name for cell in STUDIES[table.study]()}
        assert {name for claim in table.claims for name in (claim.better, claim.worse)} <= cells
        compared = table.claims or table.bold or table.reading
        assert compared or table.protocol.startswith("No paper has these figures"), table.title
        assert all(claim.source for claim in table.claims)
        if table.registered or table.protocol.startswith("No paper has this table"):
            assert all(claim.ours for claim in table.claims), table.title
        assert table.sources or not table.bold
    [first] = [table for table in tables.TABLES if table.study == "selection"]
    runs = first.runs().values()
    assert len({run.name for run in runs}) == 4 * 100
    assert {(run.experiment.rounds, run.experiment.eval_every) for run in runs} == {(100, 2)}


def test_only_rows_of_claims_have_more_seeds_and_they_have_all_of_them() -> None:
    """A row outside every claim would have its figures sharpened for nothing; one seed alone could be chosen."""
    extended = [table for table in tables.TABLES if table.extended]
    assert extended
    for table in extended:
        seeds: dict[str, set[int]] = {}
        for run in table.runs().values():
            seeds.setdefault(run.cell, set()).add(run.experiment.seed)
        more = {cell for cell, found in seeds.items() if found == set(range(table.more_seeds))}
        border = {cell for cell in more if cell.split("-")[0] in table.border}
        assert all(seeds[cell] == set(range(table.seeds)) for cell in seeds.keys() - more), table.title
        assert more - border <= {name for claim in printed.claims(table) for name in (claim.better, claim.worse)}, (
            table.title
        )
        assert len(more) >= len(table.extended), table.title


def bold(title: str) -> set[tuple[str, str]]:
    """The best cells by metric that a table's bold face claims."""
    [table] = [table for table in tables.TABLES if table.title == title]
    return {(claim.metric, claim.better) for claim in printed.claims(table) if claim.source.endswith("bold")}


def test_bold_face_is_the_printed_one() -> None:
    """As in the papers: on FMNIST pFedBayes is not the best global model, and FedAMP is the best of MNIST MCLR."""
    ours = ("personal/accuracy", "pfedbayes-small")
    assert bold("pFedBayes, Table 1: MNIST small") == {ours, ("global/accuracy", "pfedbayes-small")}
    assert bold("pFedBayes, Table 1: FMNIST small") == {ours, ("global/accuracy", "fedprox-small")}
    assert bold("pFedBayes, Table 2: ζ, ρ and learning rates") == {("global/accuracy", "base")}
    found = {name for _, name in bold("pFedBayes, Table 3: learning rates of the rivals")}
    assert found == {
        "fedavg,lr=0.01",
        "fedprox,lr=0.01,mu=0.001",
        "bnfed,lr=0.5",
        "per_fedavg,alpha=0.01",
        "pfedme,alpha=0.01,alpha_m=0.01",
        "heurfedamp,xi_own=0.5,lr=0.01",
        "pfedgp,lr=0.05",
    }
    assert ("personal/accuracy", "fedamp") in bold("pFedBreD, Tables 2 and 3: MNIST, MCLR")
    assert ("personal/accuracy", "mh+ft") in bold("pFedBreD, Tables 2 and 3: FMNIST, DNN")
    # FedEM's personal figures are printed in a line of global models, of which the bold face of others says nothing.
    assert not [claim for table in tables.TABLES for claim in printed.claims(table) if claim.worse == "fedem"]


def test_an_ordering_of_printed_figures_is_about_the_best_evaluations_and_one_of_a_plot_about_the_last() -> None:
    for table in tables.TABLES:
        for claim in printed.claims(table):
            of_figures = bool(table.sources) and claim.metric.endswith("accuracy")
            assert claim.best == (table.best if of_figures else ""), (table.title, claim)
    kinds = {(bool(claim.best), claim.ours) for table in tables.TABLES for claim in printed.claims(table)}
    assert kinds == {(True, False), (False, False), (False, True)}


def test_a_figure_is_compared_with_the_table_that_it_repeats() -> None:
    """pFedBayes on MNIST medium stands in Tables 1 and 2 with different figures."""
    tables1 = {table.title: table for table in tables.TABLES}
    cells = {cell.name: cell for cell in STUDIES["table1-mnist"]()}
    of = printed.settings(cells["pfedbayes-medium"].experiment)
    first = printed.figure(tables1["pFedBayes, Table 1: MNIST medium"], of, "personal/accuracy")
    second = printed.figure(tables1["pFedBayes, Table 2: ζ, ρ and learning rates"], of, "personal/accuracy")
    assert first == Published(0.9709, 0.0013, "pFedBayes, Table 1")
    assert second == Published(0.9718, None, "pFedBayes, Table 2")
