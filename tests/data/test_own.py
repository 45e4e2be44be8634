"""What becomes of a user's own labels, inputs and tables, and what is refused with the reason."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import DataConfig, Experiment, override
from fedray.data import given, loading, own, tables
from fedray.data.readers import Dataset
from fedray.federate.planning import make_plan
from fedray.types import FedRayError

N = 60
KINDS = np.arange(N) % 3
FEATURES = np.random.default_rng(0).standard_normal((N, 4))


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (KINDS, ()),
        (KINDS.astype(np.uint8), ()),
        (KINDS.astype(float), ()),
        (KINDS[:, None], ()),
        (np.eye(3, dtype=np.uint8)[KINDS], ()),
        (np.eye(3)[KINDS], ()),
        (np.array(["ant", "bee", "cat"])[KINDS], ("ant", "bee", "cat")),
        (np.array(["ant", "bee", "cat"], object)[KINDS], ("ant", "bee", "cat")),
        (np.array([b"ant", b"bee", b"cat"])[KINDS], ("ant", "bee", "cat")),
        (np.array([b"chat", "fauvé".encode(), b"ours"])[KINDS], ("chat", "fauvé", "ours")),
        (np.array([-1, 4, 9])[KINDS], ("-1", "4", "9")),
        (np.array([-1.0, 4.0, 9.0])[KINDS], ("-1", "4", "9")),
    ],
)
def test_labels_of_any_kind_are_the_same_classes(labels, names):
    dataset = own.from_arrays(FEATURES, labels)
    assert dataset.y.dtype == np.int64
    assert dataset.y.tolist() == KINDS.tolist()
    assert (dataset.classes, dataset.names.classes) == (3, names)


def test_a_few_numbers_among_words_are_names():
    labels = np.array(["3.8", "3.9", "4.0", "nan", "dev"])[np.arange(N) % 5]
    assert own.from_arrays(FEATURES, labels).names.classes == ("3.8", "3.9", "4.0", "dev", "nan")


def test_two_classes_may_be_true_and_false():
    dataset = own.from_arrays(FEATURES, KINDS > 0)
    assert (dataset.y.tolist(), dataset.names.classes) == ((KINDS > 0).astype(int).tolist(), ("False", "True"))


def test_one_hot_columns_without_examples_are_classes_all_the_same():
    assert own.from_arrays(FEATURES, np.eye(5)[KINDS]).classes == 5


def test_floats_that_are_not_all_whole_are_real_targets():
    dataset = own.from_arrays(FEATURES, KINDS + 0.5)
    assert (dataset.real, dataset.classes, dataset.y.tolist()) == (True, 1, (KINDS + 0.5).tolist())


def test_labels_of_a_trained_model_keep_its_numbers():
    """A file with some of the classes only: cat is the model's class 2, though it is the file's class 1."""
    labels = ("ant", "bee", "cat")
    found = own.renumbered(own.from_arrays(FEATURES, np.array(["ant", "cat"])[KINDS % 2]), labels)
    assert found.y.tolist() == (2 * (KINDS % 2)).tolist()
    assert (found.classes, found.names.classes) == (3, labels)
    with pytest.raises(ValueError, match="the label 'dog' is none of the model's: ant, bee, cat"):
        own.renumbered(own.from_arrays(FEATURES, np.array(["ant", "dog"])[KINDS % 2]), labels)
    gaps = own.renumbered(own.from_arrays(FEATURES, np.array([1, 9])[KINDS % 2], classes=3), ("1", "5", "9"))
    assert gaps.y.tolist() == (2 * (KINDS % 2)).tolist()


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        (np.array(["3", "7"]), [3, 7]),
        (np.array([3, 7]), [3, 7]),
        (np.array([3.0, 7.0]), [3, 7]),
        (np.array([3, 12]), None),
        (np.array(["3", "cat"]), None),
    ],
)
def test_labels_without_names_of_a_trained_model_keep_its_numbers(tmp_path, labels, numbers):
    """A file with two of the model's ten digits: 7 is the model's class 7, though it is the file's class 1."""
    path = tmp_path / "mine.npz"
    np.savez(path, x=FEATURES, y=labels[KINDS % 2])
    if numbers is None:
        with pytest.raises(FedRayError, match=r"mine\.npz: the label '(12|cat)' is none of the model's: 0, 1, 2"):
            loading.load(DataConfig(name=str(path)), 10, ())
    else:
        found = loading.load(DataConfig(name=str(path)), 10, ())
        assert (np.unique(found.y).tolist(), found.classes) == (numbers, 10)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (KINDS[1:], r"y has shape \[59\] for 60 examples"),
        (np.where(KINDS, KINDS, np.nan), "y lacks 20 of its values"),
        (np.array(["a", None, "b"], object)[KINDS], "y lacks 20 of its values"),
        (np.zeros((N, 3)), "not one-hot"),
        (np.full((N, 3), 1), "not one-hot"),
        (np.zeros(N, int), "every example has the label 0"),
        (1000.0 * np.arange(N), "60 different whole numbers as floats"),
        (np.where(KINDS, 1e300, 0), "too large for labels"),
        (np.array(["a", pd.NA, "b"], object)[KINDS], "y lacks 20 of its values"),
        (np.where(KINDS, np.inf, 0.0), "y holds infinity 40 times; correct it, or leave these examples out"),
        (np.array([{}, {}, {}], object)[KINDS], "takes numbers or texts"),
        (KINDS.astype("M8[D]"), "takes numbers or texts"),
        (np.where(np.arange(N) == 7, "bad", (np.arange(N) / 8).astype(str)), "y holds 'bad' among numbers; correct it"),
    ],
)
def test_targets_that_are_none_are_refused(labels, reason):
    with pytest.raises(ValueError, match=reason):
        own.from_arrays(FEATURES, labels)


def test_labels_that_may_be_targets_are_said_to_be_labels():
    """Ages, say; ten kinds are kinds."""
    ages = own.from_arrays(FEATURES, np.arange(N) + 18)
    assert ages.classes == N
    assert any(note.startswith("y: 60 different whole numbers are labels; give targets") for note in ages.notes)
    assert not any("different whole numbers" in note for note in own.from_arrays(FEATURES, KINDS).notes)


def test_whole_numbers_are_features_or_pixels_by_their_shape():
    table = np.arange(4 * N).reshape(N, 4)
    features = own.from_arrays(table, KINDS)
    assert (features.x.dtype, features.scaling) == (np.float32, None)
    assert np.array_equal(features.x, table)
    images = np.arange(4 * N).reshape(N, 1, 2, 2)
    pixels = own.from_arrays(images, KINDS)
    assert (pixels.x.dtype, pixels.x.tolist()) == (np.uint8, images.tolist())
    assert pixels.scaling.divisor.tolist() == [127.5]
    assert own.from_arrays(images + 200, KINDS).x.dtype == np.float32  # not of 8 bits


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_that_are_all_whole_pixels_are_pixels(kind):
    pixels = np.random.default_rng(0).integers(0, 256, (N, 8, 6, 3))
    expected, dataset = own.from_arrays(pixels, KINDS), own.from_arrays(pixels.astype(kind), KINDS)
    assert (dataset.x.dtype, dataset.x.tolist(), dataset.notes) == (np.uint8, expected.x.tolist(), expected.notes)
    assert dataset.scaling == expected.scaling
    assert "x: whole numbers from 0 to 255 in the shape of images are read as their pixels" in dataset.notes


@pytest.mark.parametrize(
    "change",
    [
        lambda x: (x > 100).astype(float),  # binary
        lambda x: x // 16,  # four bits
        lambda x: x / 255,
        lambda x: x + 0.5,
        lambda x: x - 1,
        lambda x: x + 1,
        lambda x: x[:, 0, 0],  # a table
    ],
)
def test_other_floats_are_used_as_they_are(change):
    pixels = np.random.default_rng(0).integers(0, 256, (N, 3, 8, 6))
    pixels[0, :, 0, :2] = 0, 255
    x = change(pixels.astype(float))
    dataset = own.from_arrays(x, KINDS)
    assert (dataset.scaling, dataset.x.dtype) == (None, np.float32)
    assert np.array_equal(dataset.x, x.astype(np.float32))


def test_pixels_that_end_far_below_255_are_warned_of():
    """Sixteen greys of 256: nearly the same number everywhere, once they are scaled."""
    pixels = np.random.default_rng(0).integers(0, 256, (N, 8, 6))

    def remarks(x, **settings):
        cfg = DataConfig(name="given", partition="iid", **settings)
        return make_plan(Experiment(algorithm=FedAvg(), clients=2, data=cfg), (x, KINDS)).remarks

    (remark,) = remarks(pixels // 16)
    assert remark.startswith("the largest pixel is 15, but they are scaled as from 0 to 255")
    assert "`data.scaling=standard`" in remark
    assert remarks(pixels // 16, scaling="standard") == remarks(pixels) == remarks(pixels / 16) == ()


@pytest.mark.parametrize(
    ("shape", "read"),
    [
        ((N, 8, 6, 3), (3, 8, 6)),
        ((N, 8, 6, 1), (1, 8, 6)),
        ((N, 3, 8, 6), (3, 8, 6)),
        ((N, 3, 3, 3), (3, 3, 3)),  # either way; as it is
        ((N, 8, 6), (1, 8, 6)),
        ((N, 8, 6, 5), (8, 6, 5)),
    ],
)
def test_channels_come_first_and_it_is_said(shape, read):
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    dataset = own.from_arrays(x, KINDS)
    assert dataset.x.shape[1:] == read
    assert bool(dataset.notes) == (shape[1:] != read)
    if "channels last" in "".join(dataset.notes):
        assert np.array_equal(dataset.x[:, 2 % read[0]], x[..., 2 % read[0]])
    assert np.array_equal(own.fitted(x, dataset.x.shape[1:]), dataset.x)


def frame():
    table = pd.DataFrame(FEATURES, columns=list("abcd"))
    table["species"] = np.array(["ant", "bee", "cat"])[KINDS]
    return table.rename(columns={"species": "label"})


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_tables_are_read_as_arrays_are(tmp_path, suffix):
    path = tmp_path / f"mine{suffix}"
    if suffix == ".parquet":
        frame().to_parquet(path)
    else:
        frame().to_csv(path)  # with the row numbers, in a column without a name
    dataset = loading.load(DataConfig(name=str(path)))
    assert np.allclose(dataset.x, FEATURES)
    assert dataset.x.dtype == np.float32
    assert (dataset.y.tolist(), dataset.names.classes) == (KINDS.tolist(), ("ant", "bee", "cat"))
    assert dataset.notes[0] == "label is the target, a, b, c, d are the inputs"


def test_a_data_frame_may_take_the_place_of_a_dataset():
    plan = make_plan(Experiment(algorithm=FedAvg(), clients=2, data=DataConfig(partition="iid")), frame())
    assert (plan.model.classes, plan.model.input_shape, plan.names.classes) == (3, (4,), ("ant", "bee", "cat"))
    with pytest.raises(FedRayError, match="dataset: b lacks 1 of its values"):
        make_plan(Experiment(algorithm=FedAvg()), frame().mask(lambda table: table == FEATURES[3, 1]))


@pytest.mark.parametrize(
    "names", [["a", "a", "b", "y"], ["y", "0", "1", 0], ["a", "a ", "b", "y"], ["y", "a", "b", "y"]]
)
def test_two_columns_of_one_name_are_refused(names):
    """They would come in another order, or one would be lost."""
    table = pd.DataFrame(FEATURES, columns=names)
    with pytest.raises(ValueError, match=f"it has two columns {0 if 0 in names else names[0]}; rename one"):
        tables.from_frame(table)
    with pytest.raises(FedRayError, match="x: it has two columns"):
        tables.selected(table, ("a", "b"))


def test_blanks_around_the_names_of_a_data_frame_change_nothing():
    plain = frame()
    blank = plain.rename(columns={"b": " b", "label": "label "})
    found = tables.from_frame(blank)
    assert np.array_equal(found.x, tables.from_frame(plain).x)
    assert np.allclose(tables.selected(blank, found.names.features), found.x)


def test_columns_of_arrays_and_of_texts():
    images = np.arange(N * 64).reshape(N, 8, 8, 1) % 256
    assert tables.from_columns({"image": images.astype(np.uint8), "label": KINDS}).x.shape == (N, 1, 8, 8)
    rows = np.empty(N, object)
    rows[:] = list(FEATURES)
    assert np.allclose(tables.from_columns({"embedding": rows, "y": KINDS}).x, FEATURES)
    words = np.array(["good film", "bad film", "a film"], object)[KINDS]
    texts = tables.from_columns({"text": words, "label": KINDS})
    assert texts.vectors is not None
    assert len(texts.vectors) == 5  # zero, and good, film, bad, a
    assert texts.classes == 3


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"a": FEATURES[:, 0], "species": KINDS}, "no column is named y or label.*the columns are a, species"),
        ({"a": FEATURES[:, 0], "Label": KINDS}, "is it Label?"),
        ({"y": KINDS}, "there are no inputs"),
        (
            {"a": FEATURES[:, 0], "y": np.array([b"ant", "ourse\u00e9".encode("latin-1")])[KINDS % 2]},
            "y holds bytes that",
        ),
        ({"town": np.array(["Rome", "Bonn", "Oslo"])[KINDS], "a": KINDS, "y": KINDS}, "column town holds 'Rome'"),
        ({"when": KINDS.astype("M8[D]"), "y": KINDS}, "column when holds '1970-01-01'"),
        ({"a": KINDS.astype(str).astype(object), "b": KINDS, "y": KINDS}, "a holds '0', not as a number of NumPy's"),
        ({"a": np.array([Decimal("1.5")] * N), "y": KINDS}, "column a holds '1.5', not as .* convert it to floats"),
        ({"a": np.array([10**400, *[1] * (N - 1)], object), "y": KINDS}, "column a holds '10.* convert it to floats"),
        ({"a": np.array([[1, 2], [3], [4, 5]], object)[KINDS], "y": KINDS}, "a has examples of different shapes"),
        ({"a": FEATURES[:0, 0], "b": FEATURES[:0, 0], "y": KINDS[:0]}, "it has no examples: not one row"),
        ({"a": np.zeros((N, 2, 2)), "b": KINDS, "y": KINDS}, "column a holds images beside other inputs"),
    ],
)
def test_tables_that_are_none_are_refused(columns, reason):
    with pytest.raises(ValueError, match=reason):
        tables.from_columns(columns)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"a,y\n1,2\n1,2,3\n", "line 3 has more values than its header has columns"),
        (b"\xff\xfe\x00", "it is not text in UTF-8"),
        (b"a,y\n1,\n2,3\n", "y lacks 1 of its values"),
        (b"a,y\n", "it has no examples: not one row"),
        (b"a,y\n1,0,9\n2,1,8\n", "its rows have more values than its header has columns; name every column"),
        (b"a,outcome\n1,cat\n2,NA\n", "no column is named y or label"),
        (b"a,b,y\n1,2,0\n2,?,1\n", "column b holds '\\?', which is no number"),
        (b"a,Y\n1,0\n2,1\n", "no column is named .*; is it Y\\?"),
        (b"age,income,diagnosis\n1,0,2\n2,1,3\n", "no column is named [^?]*; the columns are age, income, diagnosis"),
        (b"a,y,y\n1,0,0\n2,1,1\n", "it has two columns y; rename one"),
        (b"a;b;y\n1,5;2,5;0\n2,5;3,5;1\n", "its columns are separated by semicolons; save it with commas"),
        (b"a\ty\n1\t0\n2\t1\n", "its columns are separated by tabs; save it with commas"),
        (b"null,null,y\n1,0,0\n2,1,1\n", "it has two columns null; rename one"),
        (b"5,0,0\n4,0,1\n", "no column is named y or label"),
        (b"a;b\n1;2\n", "no column is named y or label"),
        (None, "there is no such file"),
    ],
)
def test_damaged_tables_are_refused_in_their_own_terms(tmp_path, content, reason):
    path = tmp_path / "mine.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FedRayError, match=rf"mine\.csv: {reason}.*; give a table with a header"):
        loading.load(DataConfig(name=str(path)))
    path = tmp_path / "mine.parquet"
    path.write_bytes(b"no table")
    with pytest.raises(FedRayError, match=r"mine\.parquet: it is cut short, damaged, or of another format"):
        loading.load(DataConfig(name=str(path)))


def test_three_classes_are_dealt_and_it_is_said(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x=FEATURES, y=np.array(["ant", "bee", "cat"])[KINDS])
    settings = Experiment(algorithm=FedAvg(), clients=4, data=DataConfig(name=str(path)))
    plan = make_plan(settings)
    assert plan.cfg.data.labels_per_client == 3
    assert any("3 classes, and every client holds all of them" in remark for remark in plan.remarks)
    assert not any("data.size" in remark for remark in plan.remarks)
    sized = make_plan(override(settings, {"data.size": "small"}))
    assert "`data.size=small` has no effect: " in " ".join(sized.remarks)
    assert [np.bincount(KINDS[part]).tolist() for part in plan.partition.train] == [[4, 4, 4]] * 4
    assert plan.dataset().names.classes == plan.names.classes == ("ant", "bee", "cat")
    with pytest.raises(FedRayError, match=r"labels_per_client 5: the dataset has 3 classes"):
        make_plan(Experiment(algorithm=FedAvg(), data=DataConfig(name=str(path), labels_per_client=5)))


def owned(path):
    owners = np.array(["cem", "ann", "bob"])[np.arange(N) % 4 % 3]
    if path.suffix == ".npz":
        np.savez(path, x=FEATURES, y=KINDS, client=owners)
    else:
        table = frame().assign(client=owners)
        table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False)
    return owners


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_owners_are_the_clients_and_keep_their_names(tmp_path, suffix):
    path = tmp_path / f"mine{suffix}"
    owners = owned(path)
    plan = make_plan(Experiment(algorithm=FedAvg(), data=DataConfig(name=str(path))))
    assert (plan.clients, plan.cfg.data.partition, plan.names.users) == (3, "natural", ("ann", "bob", "cem"))
    for name, train, test in zip(plan.names.users, plan.partition.train, plan.partition.test, strict=True):
        assert sorted([*train, *test]) == np.flatnonzero(owners == name).tolist()
    assert plan.dataset().x.shape[1:] == (4,)  # the owner is no feature


def test_groups_of_owners_have_no_names_and_other_partitions_ignore_them(tmp_path):
    owned(path := tmp_path / "mine.npz")
    grouped = make_plan(Experiment(algorithm=FedAvg(), clients=2, data=DataConfig(name=str(path))))
    assert (grouped.clients, grouped.cfg.data.partition, grouped.names.users) == (2, "natural", ())
    dealt = make_plan(Experiment(algorithm=FedAvg(), clients=2, data=DataConfig(name=str(path), partition="iid")))
    assert (dealt.clients, dealt.names.users) == (2, ())


def test_owners_of_a_data_frame_are_the_clients_too():
    table = frame().assign(client=np.arange(N) % 4)
    plan = make_plan(Experiment(algorithm=FedAvg()), table)
    assert (plan.clients, plan.names.users) == (4, ("0", "1", "2", "3"))
    with pytest.raises(FedRayError, match=r"client lacks 1 of its values"):
        make_plan(Experiment(algorithm=FedAvg()), table.assign(client=[None, *range(N - 1)]))


def test_a_table_of_small_whole_numbers_holds_features_and_no_pixels():
    x = np.arange(N * 2).reshape(N, 2) % 2
    byte, long = (own.from_arrays(x.astype(kind), KINDS) for kind in (np.uint8, np.int64))
    assert (byte.scaling, byte.x.dtype, byte.notes) == (None, np.float32, long.notes)
    assert byte.x.tolist() == long.x.tolist() == x.tolist()


@pytest.mark.parametrize("shape", [(40, 0), (0, 5)])
def test_examples_without_numbers_are_refused(tmp_path, shape):
    path = tmp_path / "mine.npz"
    x, y = np.zeros(shape), np.arange(shape[0]) % 2
    np.savez(path, x=x, y=y)
    reason = rf"x has shape \[{shape[0]}, {shape[1]}\]: it has no examples, or these have no inputs"
    with pytest.raises(FedRayError, match=rf"mine\.npz: {reason}; give an .npz"):
        loading.load(DataConfig(name=str(path)))
    with pytest.raises(FedRayError, match=f"dataset: {reason}; give arrays"):
        given.given(Dataset(x, y, 2, None))
