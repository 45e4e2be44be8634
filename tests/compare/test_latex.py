"""Tables for papers: what stands in the LaTeX source, and that no part of a table is too wide or too long."""

from __future__ import annotations

import re

from fedray.compare.latex import LINE, LINES, NOTES, latex
from fedray.compare.tables import CONTROLS, ComparisonTable, Entry

LONG = "personal ECE (%) ↓"  # without its arrow it would fill a line
HOSTILE = r"<script>&|#%$_^~{\end{table}"


def table(*rows, header=("algorithm", "settings", "n", "accuracy (%) ↑"), caption="What it is.", left=2):
    block = [[cell if isinstance(cell, Entry) else Entry(cell) for cell in cells] for cells in rows]
    return ComparisonTable("comparison", list(header), [block], left, caption)


def lines(text):
    """The rows of all tabulars, each on one line."""
    inside = re.findall(r"\\begin{tabular}.*?\\toprule(.*?)\\bottomrule", text, re.DOTALL)
    rows = re.split(r" ?\\\\\n", "".join(inside).replace("\\midrule\n", ""))
    return [" ".join(line.split()) for line in rows if line.strip()]


def test_a_row_has_its_cells_and_bold_and_the_rules_of_booktabs():
    text = latex(table(["fed_avg", "a=1", "2", Entry("90.0 ± 1.0", bold=True)], ["fedprox", "", "3", "–"]))
    assert lines(text) == [
        r"algorithm & settings & n & accuracy (\%) $\uparrow$",
        r"fed\_avg & a=1 & 2 & \textbf{90.0 $\pm$ 1.0}",
        r"fedprox & & 3 & --",
    ]
    assert r"\begin{tabular}{llrr}" in text
    assert r"\label{tab:comparison}" in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    assert text.isascii()


def test_a_title_wraps_and_its_arrow_stays_with_its_word():
    text = latex(table(["a", "", "1", "0.5"], ["b", "x", "2", "0.6"], header=("by", "settings", "n", LONG)))
    assert r"\shortstack[r]{personal ECE \\ (\%) $\downarrow$}" in text


def test_what_all_rows_have_in_common_is_said_once_and_the_first_column_stays():
    text = latex(table(["fedavg", "x", "3", "0.5"], ["fedavg", "x", "3", "0.6"]))
    assert lines(text)[1:] == ["fedavg & 0.5", "fedavg & 0.6"]
    assert r"\caption{What it is. All rows: settings x, n 3.}" in text
    assert "All rows" not in latex(table(["a", "", "1", "0.5"], ["b", "x", "2", "0.6"]))


def test_the_title_of_the_controls_spans_the_columns_and_shares_nothing():
    text = latex(table(["fedavg", "x", "3", "0.5"], [CONTROLS, "", "", ""], ["local", "x", "3", "0.6"]))
    assert lines(text)[2] == r"\multicolumn{2}{l}{Controls, not federated}"
    assert "All rows: settings x, n 3." in text


def test_published_results_stand_below_under_a_letter_each_once():
    same = Entry("0.5", note="0.6 [X, Table 1]")
    text = latex(table(["a", "", "1", same], ["b", "x", "2", same], ["c", "x", "3", Entry("0.7", note="0.8 [Y]")]))
    assert [line.rpartition(" ")[2] for line in lines(text)[1:]] == ["0.5$^{a}$", "0.5$^{a}$", "0.7$^{b}$"]
    below = text.split(r"\end{tabular}")[1]
    assert "$^{a}$~0.6 {[}X, Table 1]; $^{b}$~0.8 {[}Y]\n" in below
    many = [[f"r{i}", f"{i}", f"{i}", Entry("0", note=f"note {i}")] for i in range(28)]
    assert "$^{z}$~note 25; $^{aa}$~note 26; $^{bb}$~note 27" in " ".join(latex(table(*many)).split("\n"))


def wide(rows, metrics):
    header = ["algorithm", "settings", "n", *(f"metric {k}" for k in range(metrics))]
    cells = [[f"method {i}", f"lr={i}", str(i), *(f"{i}.{k:02d} ± 1.00" for k in range(metrics))] for i in range(rows)]
    return table(*cells, header=header)


def test_a_wide_table_is_set_in_parts_that_fit_a_line_and_have_the_words_of_their_rows():
    text = latex(wide(2, 11))
    shown = lines(text)
    titles = [line for line in shown if line.startswith("algorithm")]
    assert len(titles) > 2
    assert all(title.startswith("algorithm & settings & n & metric") for title in titles)
    assert re.findall(r"metric \d+", " ".join(titles)) == [f"metric {k}" for k in range(11)]
    assert max(len(line.replace(r"$\pm$", "±")) for line in shown) <= LINE
    assert len({len(line.split(" & ")) for line in shown[:3]}) == 1


def test_parts_that_fill_a_page_go_on_in_another_table_with_the_number_of_the_first():
    text = latex(wide(20, 11))
    pages = text.split(r"\begin{table}")[1:]
    assert len(pages) > 1
    assert all(len(lines(page)) <= LINES for page in pages)
    assert [page.count(r"\label") for page in pages] == [1, *[0] * (len(pages) - 1)]
    assert all("\\addtocounter{table}{-1}\n\\caption{Continued.}" in page for page in pages[1:])
    assert text.count(r"\begin{table}") == text.count(r"\end{table}")


def test_a_long_table_with_notes_is_set_on_pages_that_hold_its_rows_and_the_notes_of_these():
    rows = [[f"method {i}", f"lr={i}", str(i), Entry("0.5", note=f"{'x' * 70} {i}")] for i in range(90)]
    pages = latex(table(*rows)).split(r"\begin{table}")[1:]
    assert re.findall(r"method \d+", "".join(pages)) == [f"method {i}" for i in range(90)]
    for page in pages:
        letters = re.findall(r"0\.5\$\^{(\w+)}\$", page)
        assert re.findall(r"\$\^{(\w+)}\$~", page) == letters
        assert len(lines(page)) + 80 * len(letters) // NOTES <= LINES


def test_letters_are_in_the_order_in_which_a_reader_meets_them():
    header = ["algorithm", "settings", "n", *(f"metric number {k}" for k in range(8))]
    rows = [[f"r{i}", f"lr={i}", str(i), *(Entry("1", note=f"{i} {k}") for k in range(8))] for i in range(2)]
    text = latex(table(*rows, header=header))
    assert text.count(r"\toprule") > 1
    assert re.findall(r"1\$\^{(\w)}\$", text) == list("abcdefghijklmnop")


def test_long_words_stand_on_several_lines_of_which_the_first_is_that_of_their_row():
    words = "pfedbayes fashion_mnist small rounds=100"
    text = latex(table([words, "", "1", "0.5"], ["b", words, "2", "0.6"]))
    cell = r"\begin{tabular}[t]{@{}l@{}}pfedbayes fashion\_mnist \\ small rounds=100\end{tabular}"
    assert text.count(f"{cell} &") == 2


def test_the_caption_of_every_page_has_room_above_the_rule():
    text = latex(wide(20, 11))
    for page in text.split(r"\begin{table}")[1:]:
        assert page.index(r"\setlength{\belowcaptionskip}") < page.index(r"\caption")


def test_what_is_missing_in_all_rows_is_nothing_that_they_have_in_common():
    assert "All rows: n 1." in latex(table(["a", "–", "1", "0.5"], ["b", "–", "1", "0.6"]))


def test_a_row_that_begins_with_a_bracket_is_no_length_of_a_line_break():
    text = latex(table(["[100]", "", "1", "0.5"], ["[200]", "x", "2", "0.6"]))
    assert "{[}100]" in text
    assert not re.search(r"\\\\\s*\[", text)


def test_a_number_keeps_its_sign_and_a_word_its_hyphen():
    text = latex(table(["fed-2", "rho=-2.5, lr=1e-05", "1", "-0.5"], ["b", "x", "2", "0.6"]))
    assert r"fed-2 & rho=$-$2.5, lr=1e-05 & 1 & $-$0.5" in lines(text)


def test_a_hostile_name_is_text():
    text = latex(table([HOSTILE, HOSTILE, "1", Entry("0", note=HOSTILE)], ["b", "x", "2", "0.6"], caption=HOSTILE))
    assert r"\textless{}script\textgreater{}\&\textbar{}\#\%\$\_\textasciicircum{}" in text
    assert r"\textasciitilde{}\{\textbackslash{}end\{table\}" in text
    assert text.count(r"\end{table}") == 1


def test_a_large_number_has_a_power_of_ten():
    text = latex(table(["a", "lr=1.5e-05", "1", "1.23e+06 ± 1.10e+05"], ["b", "x", "2", "0.6"]))
    assert r"a & lr=1.5e-05 & 1 & 1.23$\cdot10^{6}$ $\pm$ 1.10$\cdot10^{5}$" in lines(text)
