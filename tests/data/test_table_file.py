"""Tables in files: what a CSV file writes as a name stays as it is."""

import gzip

import pandas
import pytest

from fedray.config import DataConfig
from fedray.data import loading, tables
from fedray.federate.planning import make_plan
from fedray.studies.cell import experiment
from fedray.types import FedRayError


def test_a_cut_archive_and_two_columns_of_one_name_are_said(tmp_path):
    table = "x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(5000))
    whole = gzip.compress(table.encode())
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "twice.csv").write_text("x, y,y\n1,0,0\n2,1,1\n")
    for name, reason in (("cut.csv.gz", "cut short"), ("twice.csv", "it has two columns y; rename one")):
        with pytest.raises(FedRayError, match=reason):
            make_plan(experiment("fedavg", {"data.name": str(tmp_path / name)}))


@pytest.mark.parametrize(
    ("clients", "names", "users"),
    [
        (["007", "7", "010", "10"], ("007", "010", "10", "7"), [0, 3, 1, 2]),
        (["10", "7", "7", "10"], ("7", "10"), [1, 0, 0, 1]),  # numbers, in their order
        (["1.0", "1", "2", "2"], ("1", "1.0", "2"), [1, 0, 2, 2]),
        (["NA", "DE", " DE", "NA"], ("DE", "NA"), [1, 0, 0, 1]),
    ],
)
def test_owners_in_a_csv_have_the_names_that_it_writes(tmp_path, clients, names, users):
    path = tmp_path / "mine.csv"
    path.write_text("a,y,client\n" + "".join(f"{k},{k % 2},{client}\n" for k, client in enumerate(clients)))
    dataset = loading.load(DataConfig(name=str(path)))
    assert (dataset.names.users, dataset.users.tolist()) == (names, users)


def test_blanks_around_names_and_commas_at_the_ends_of_lines_change_nothing(tmp_path):
    (tmp_path / "mine.csv").write_text("a, y ,client ,\n" + "".join(f"{k},{k % 2},{k // 2},\n" for k in range(4)))
    dataset = loading.load(DataConfig(name=str(tmp_path / "mine.csv")))
    assert dataset.x.tolist() == [[0], [1], [2], [3]]
    assert (dataset.y.tolist(), dataset.users.tolist()) == ([0, 1, 0, 1], [0, 0, 1, 1])
    assert any("without a name" in note for note in dataset.notes)


def test_a_column_that_looks_like_the_owners_is_an_input_and_it_is_said(tmp_path):
    rows = "".join(f"{k},{k % 2},{k // 2}\n" for k in range(4))
    for name, said in (("Client", True), ("user_id", True), ("client", False), ("b", False)):
        (tmp_path / "mine.csv").write_text(f"a,y,{name}\n{rows}")
        dataset = loading.load(DataConfig(name=str(tmp_path / "mine.csv")))
        remark = f"column {name} is an input; call it client if it says whose an example is"
        assert (remark in dataset.notes) == said


def test_a_second_column_with_the_name_of_a_target_is_an_input_and_it_is_said(tmp_path):
    (tmp_path / "mine.csv").write_text("a,label,y\n" + "".join(f"{k},{k % 2},{k % 2}\n" for k in range(4)))
    dataset = loading.load(DataConfig(name=str(tmp_path / "mine.csv")))
    assert dataset.x.shape == (4, 2)
    assert "column label is an input; remove it if it tells the target" in dataset.notes


def test_labels_in_a_csv_may_be_words_for_a_missing_value(tmp_path):
    """They are missing values among numbers."""

    def labelled(*words):
        path = tmp_path / "mine.csv"
        path.write_text("a,y\n" + "".join(f"{k},{word}\n" for k, word in enumerate(words)))
        dataset = loading.load(DataConfig(name=str(path)))
        return dataset.names.classes, dataset.y.tolist()

    assert labelled("NA", "None", "b", "NA") == (("NA", "None", "b"), [0, 1, 2, 0])
    assert labelled("0.5", "1.5", "3") == ((), [0.5, 1.5, 3])
    for words in (("1", "NA", "0"), ("0.5", "nan", "1"), ("a", "", "b")):
        with pytest.raises(FedRayError, match="y lacks 1 of its values"):
            labelled(*words)


def test_a_target_and_owners_in_the_index_of_a_table_are_read_and_another_index_is_said_to_be_left_out(tmp_path):
    """A .parquet file keeps the index among its columns, and its schema names it."""
    table = pandas.DataFrame({"a": range(4), "b": range(4, 8), "y": [0, 1, 0, 1], "client": [1, 1, 2, 2]})
    for index, inputs in ((["client"], 2), (["y"], 2), (["client", "y", "a"], 1), (["b"], 1)):
        table.set_index(index).to_parquet(tmp_path / "mine.parquet")
        dataset = loading.load(DataConfig(name=str(tmp_path / "mine.parquet")))
        assert dataset.x.shape == (4, inputs)
        assert (dataset.y.tolist(), dataset.users.tolist()) == ([0, 1, 0, 1], [0, 0, 1, 1])
        said = [note for note in dataset.notes if "names the rows" in note]
        assert said == [f"{name} names the rows and is left out" for name in index if name in "ab"]


@pytest.mark.parametrize("kind", [float, object])
def test_a_table_without_rows_has_no_inputs(kind):
    """A filter may leave none; an answer to none is none."""
    frame = pandas.DataFrame({"dose": [], "age": []}, dtype=kind)
    assert tables.selected(frame, ("age", "dose")).shape == (0, 2)
