"""Texts -> sequences of word numbers, and the frozen vectors that stand for the words.

The vectors are no part of the network: each process looks its own up when it builds a shard, and no message has them.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fedray.data.readers import reading, rectangular

LENGTH = 25  # words kept of a text, T
WIDTH = 50  # numbers in a made-up vector, E
SD = 0.5  # of its numbers, about that of GloVe's
REMEDY = "give `data.embedding` a text file with a word and its numbers in every line, such as glove.6B.50d.txt"
WORD = re.compile(r"[\w']+|[.,!?;]")  # LEAF's


def opened(path: Path) -> IO[str]:
    """A text file to read, be it compressed or not, with a byte-order mark (as Windows writes it) or not."""
    plain = path.suffix != ".gz"
    return open(path, encoding="utf-8-sig") if plain else gzip.open(path, "rt", encoding="utf-8-sig")


def numbered(texts: Iterable[str]) -> tuple[np.ndarray, list[str]]:
    """Texts as rows [N, T] of word numbers, and the words 1..V in order of appearance; 0 fills short rows up."""
    numbers: dict[str, int] = {}
    rows = []
    for text in texts:
        row = [numbers.setdefault(word, len(numbers) + 1) for word in WORD.findall(text.lower())[:LENGTH]]
        rows.append(row + [0] * (LENGTH - len(row)))
    return np.array(rows, np.int32).reshape(-1, LENGTH), list(numbers)


def vectors(words: Sequence[str], file: Path | None) -> np.ndarray:
    """The vectors [V + 1, E] of the words 1..V, float32; that of 0 is zero.

    From a file, zero for words that it lacks; without one, numbers that a hash of the word's letters gives: the same
    in every process, but words of like meaning are no more alike than others. Raises FedRayError for a file that is
    missing, corrupt, or has none of the words.
    """
    found = Vectors(file).of(words)
    if file is not None and not found.any():
        with reading(file, REMEDY):
            raise ValueError("it has none of the words of the dataset")
    return found


class Vectors:
    """The vectors of words, as :func:`vectors` gives them; those that were looked up are kept."""

    def __init__(self, file: Path | None):
        self._file = file
        self._known: dict[str, np.ndarray] = {}
        self._width = WIDTH

    def of(self, words: Sequence[str]) -> np.ndarray:
        """The vectors [V + 1, E] of the words 1..V; raises FedRayError for a file that is missing or corrupt."""
        unknown = {word for word in words if word not in self._known}
        if self._file is None:
            self._known |= {word: _hashed(word) for word in unknown}
        elif unknown or not self._known:
            with reading(self._file, REMEDY):
                found, self._width = _read(self._file, unknown)
            zero = np.zeros(self._width, np.float32)
            self._known |= {word: found.get(word, zero) for word in unknown}
        return np.stack([np.zeros(self._width, np.float32), *(self._known[word] for word in words)])

    def embedded(self, texts: Iterable[str]) -> np.ndarray:
        """Texts as the vectors [N, T, E] of their words; raises as :meth:`of`."""
        rows, words = numbered(texts)
        return self.of(words)[rows]


def _hashed(word: str) -> np.ndarray:
    """Uniform numbers of mean 0 and sd ``SD``."""
    digest = hashlib.shake_128(word.encode("utf-8", "surrogatepass")).digest(2 * WIDTH)
    return ((np.frombuffer(digest, "<u2") - 32767.5) / 65536 * 12**0.5 * SD).astype(np.float32)


def _read(file: Path, wanted: set[str]) -> tuple[dict[str, np.ndarray], int]:
    """The vectors of those words that a file has, and how many numbers each has."""
    found: dict[str, np.ndarray] = {}
    with opened(file) as file_lines:
        lines: Iterator[str] = file_lines
        first = next(lines, "")
        head = first.split()
        if len(head) == 2:  # word2vec begins with the number of words and that of their numbers
            width = int(head[1])
        else:
            width = len(head) - 1
            lines = itertools.chain([first], lines)
        for line in lines:
            if line[: line.find(" ")] in wanted:
                word, *numbers = line.rstrip().rsplit(" ", width)  # a word may have spaces
                vector = rectangular(numbers, np.float32)
                if len(vector) != width or not np.isfinite(vector).all():
                    raise ValueError(f"{word!r} does not have {width} numbers, as the first word")
                found[word] = vector
    return found, max(width, 0)
