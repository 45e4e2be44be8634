"""The figures of published results: every table's accuracies, and one with all that papers print."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.collections import LineCollection

from fedray.studies.results import data, figures, page, rows
from fedray.studies.results.data import BEST
from fedray.studies.results.table import Table
from tests.studies.published import played, points

pytestmark = pytest.mark.usefixtures("unpainted")


def test_a_figure_has_the_best_of_every_seed_beside_the_papers_where_it_prints_one(tmp_path: Path) -> None:
    """87.38 ± 0.27 is FedAvg's figure on MNIST small in pFedBayes' Table 1; selection has only plots in its paper."""
    table = Table("table1-mnist", "T", "P.", 2, 1, 2, sources=("pFedBayes, Table 1",), only=("fedavg-small",))
    runs = [{"global/accuracy": 0.6, f"{BEST}global/accuracy": best} for best in (0.84, 0.88)]
    data.add(tmp_path, [played(table, "fedavg-small", seed, **run) for seed, run in enumerate(runs)])
    assert points(figures.accuracies(rows.rows(tmp_path, table))) == {(86.0, 2.83), (84.0, 0), (88.0, 0), (87.38, 0.27)}
    plots = Table("selection", "S", "P.", 100, 2, 1)
    data.add(tmp_path, [played(plots, "hip", **runs[0])])
    assert points(figures.accuracies(rows.rows(tmp_path, plots))) == {(60.0, 0)}


def test_a_cell_that_learns_nothing_does_not_push_the_others_together(tmp_path: Path) -> None:
    """On the scale of errors, 98 and 96 % are as far apart as 96 and 92 %, however low another cell is."""
    cells = ("fedavg-small", "fedprox-small", "bnfed-small", "pfedme-small")
    table = Table("table1-mnist", "T", "P.", 2, 1, 1, only=cells)

    def places(*accuracies: float) -> list[float]:
        """Where the accuracies of the cells lie, as shares of the panel."""
        for cell, accuracy in zip(cells, accuracies, strict=True):
            data.add(tmp_path, [played(table, cell, **{"global/accuracy": accuracy})])
        figure = figures.accuracies(rows.rows(tmp_path, table))
        assert figure is not None
        [ax] = figure.axes
        assert ("logarithmic" in ax.get_xlabel()) == (min(accuracies) < 0.5)
        drawn = ax.transData.transform([(100 * each, 0) for each in accuracies])
        return [float(x) for x in ax.transAxes.inverted().transform(drawn)[:, 0]]

    worst, low, middle, high = places(0.1, 0.92, 0.96, 0.98)
    assert high - middle == pytest.approx(middle - low)
    assert high - middle > 0.1
    assert 0 < worst < low
    assert high < 1
    near = places(0.90, 0.92, 0.96, 0.98)
    assert near[2] - near[1] == pytest.approx(2 * (near[3] - near[2]))


def test_one_figure_has_every_printed_accuracy_and_what_is_apart_is_hollow(tmp_path: Path) -> None:
    """87.38 ± 0.27 and 87.65 ± 0.30 are FedAvg's and FedProx's figures on MNIST small in pFedBayes' Table 1."""
    cells = ("fedavg-small", "fedprox-small")
    table = Table("table1-mnist", "T", "P.", 2, 1, 1, sources=("pFedBayes, Table 1",), only=cells)
    plots = Table("selection", "S", "P.", 100, 2, 1)
    for cell, best in zip(cells, (0.8688, 0.7765), strict=True):
        data.add(tmp_path, [played(table, cell, **{"global/accuracy": 0.6, f"{BEST}global/accuracy": best})])
    data.add(tmp_path, [played(plots, "hip", **{"global/accuracy": 0.6})])
    sections = [page.Section(each, rows.rows(tmp_path, each)) for each in (table, plots)]
    figure = figures.agreement(sections)
    assert figure is not None
    [panel] = figure.axes
    assert panel.get_title() == "pFedBayes"
    drawn = {(round(line.get_xdata()[0], 2), round(line.get_ydata()[0], 2)): line for line in panel.lines}
    assert set(drawn) == {(87.38, -0.5), (87.65, -10.0)}
    assert [line.get_markerfacecolor() == "white" for _, line in sorted(drawn.items())] == [False, True]
    bars = [bar.get_segments()[0][:, 1] for bar in panel.collections if isinstance(bar, LineCollection)]
    assert sorted(round((high - low) / 2, 2) for low, high in bars) == [0.27, 0.3]
    assert figures.agreement(sections[1:]) is None
