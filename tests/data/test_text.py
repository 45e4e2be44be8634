"""Texts as word numbers, and the vectors of words, made up or from a file."""

import gzip
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from fedray.config import DataConfig
from fedray.data import loading, own, text
from fedray.types import FedRayError
from tests.data.test_own import KINDS


def test_a_text_is_its_first_words_and_marks_in_small_letters():
    x, words = text.numbered(["Don't stop, @me!! #now", "", "me   DON'T"])
    assert words == ["don't", "stop", ",", "me", "!", "now"]
    assert x.dtype == np.int32
    assert x.tolist() == [[1, 2, 3, 4, 5, 5, 6] + [0] * 18, [0] * 25, [4, 1] + [0] * 23]
    x, words = text.numbered([" ".join(f"w{i}" for i in range(30))])
    assert x[0].tolist() == list(range(1, 26))
    assert words[-1] == "w24"
    x, words = text.numbered([])
    assert (x.shape, words) == ((0, 25), [])


def test_made_up_vectors_depend_on_the_word_alone():
    words = [f"word{i}" for i in range(2000)]
    table = text.vectors(words, None)
    assert (table.shape, table.dtype) == ((2001, 50), np.float32)
    assert (table[0] == 0).all()
    assert np.array_equal(text.vectors(words[::-1], None)[1:], table[:0:-1])
    code = "from fedray.data import text; print(text.vectors(['word7', '\\ud800'], None)[1:].tobytes().hex())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert bytes.fromhex(other)[:200] == table[8].tobytes()


def test_made_up_vectors_look_like_independent_numbers():
    table = text.vectors([f"word{i}" for i in range(2000)], None)[1:]
    assert abs(table.mean()) < 4 * 0.5 / table.size**0.5
    assert table.std() == pytest.approx(0.5, rel=0.01)
    likeness = np.corrcoef(table) - np.eye(2000)
    assert likeness.std() == pytest.approx(1 / 7, rel=0.05)  # as of 50 independent numbers
    assert np.abs(np.corrcoef(table.T) - np.eye(50)).max() < 5 / 2000**0.5


GLOVE = "the 0.1 -0.2 3e-1\ngood 1 2 3\n. . . 7 7 7\nworse 0 0 0\n"
EXPECTED = [[0, 0, 0], [1, 2, 3], [0.1, -0.2, 0.3], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("header", ["", "4 3\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_vectors_come_from_a_file_and_are_zero_for_words_that_it_lacks(tmp_path, header, packed):
    path = tmp_path / ("v.txt.gz" if packed else "v.txt")
    raw = (header + GLOVE).encode()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    table = text.vectors(["good", "the", "nowhere", "."], path)
    assert table.dtype == np.float32
    assert np.allclose(table, EXPECTED)


def test_words_that_were_looked_up_are_kept_and_others_are_zero(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text(GLOVE)
    known = text.Vectors(path)
    assert known.embedded(["nowhere", ""]).tolist() == np.zeros((2, text.LENGTH, 3)).tolist()
    assert known.embedded(["Good film"])[0, :2].tolist() == [[1, 2, 3], [0, 0, 0]]
    path.unlink()
    assert known.embedded(["film good"])[0, :2].tolist() == [[0, 0, 0], [1, 2, 3]]
    with pytest.raises(FedRayError, match=r"v\.txt: there is no such file"):
        known.embedded(["the"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no such file"),
        (b"", "none of the words"),
        (b"the 1 2 3\n", "none of the words"),
        (b"the 1 2 3\ngood 1 2\n", "'good' does not have 3 numbers"),
        (b"the 1 2 3\ngood 1 2 nan\n", "'good' does not have 3 numbers"),
        (b"the 1 2 3\ngood 1 two 3\n", "where numbers belong"),
        (b"the 1 2 3\ngood 1 2 \xff\n", "not text in UTF-8"),
        (b"three words here and there\ngood 1 2 3 4\n", None),  # a first line that is not asked for
    ],
)
def test_an_unusable_file_of_vectors_is_refused(tmp_path, content, reason):
    path = tmp_path / "v.txt"
    if content is not None:
        path.write_bytes(content)
    if reason is None:
        assert text.vectors(["good"], path)[1].tolist() == [1, 2, 3, 4]
        return
    with pytest.raises(FedRayError, match=rf"v\.txt: .*{reason}.*; give `data.embedding` a text file"):
        text.vectors(["good"], path)


@pytest.mark.parametrize("name", ["mine.csv", "mine.npz"])
def test_the_words_of_texts_have_the_vectors_of_a_file(tmp_path, name):
    words = np.array(["good film", "bad film", "a film"])[KINDS]
    (tmp_path / "vectors.txt").write_text("good 1 2\nfilm 3 4\nbad 5 6\n")
    pd.DataFrame({"text": words, "label": KINDS}).to_csv(tmp_path / "mine.csv", index=False)
    np.savez(tmp_path / "mine.npz", x=words, y=KINDS)
    cfg = DataConfig(name=str(tmp_path / name), embedding=str(tmp_path / "vectors.txt"))
    found = loading.load(cfg)
    assert found.input_shape == (25, 2)
    assert found.vectors[found.x[1, :3]].tolist() == [[5, 6], [3, 4], [0, 0]]
    given = own.from_arrays(words, KINDS)
    assert np.array_equal(given.x, found.x)
    assert given.input_shape == (25, 50)
