"""Datasets in the format of LEAF, whose examples name their user: Sent140, FEMNIST, and files of one's own.

A ``.json`` file holds {"users": [...], "user_data": {user: {"x": [...], "y": [...]}}}, a ``.jsonl`` file a line
{"user": ..., "text": ..., "label": ...} per example; either may be compressed (``.gz``). LEAF's own division of a
user's examples into training and test files is undone, like that of all datasets here. Caldas et al., arXiv:1812.01097.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedray.config import DataConfig
from fedray.data import own, text
from fedray.data.readers import Dataset, Names, checked_labels, reading, rectangular
from fedray.data.scaling import within
from fedray.types import SettingError

SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
TEXT = 4  # place of the text in what LEAF keeps of a tweet
PIXELS = 784
REMEDY = "give a file in LEAF's format, .json (users, user_data) or .jsonl (user, text, label)"


def files(cfg: DataConfig) -> list[Path]:
    """The files of a dataset below its root, training first; raises FedRayError where there are none.

    They lie in NAME/ or NAME/data/, in LEAF's folders train and test or directly.
    """
    assert cfg.root is not None
    name = cfg.name
    root = Path(cfg.root)
    for folder in (root / name / "data", root / name):
        parts = [folder / "train", folder / "test"] if (folder / "train").is_dir() else [folder]
        found = [path for part in parts for path in sorted(part.glob("*")) if path.name.endswith(SUFFIXES)]
        if found:
            return found
    remedy = "put LEAF's train and test folders there, point `data.root` to where they are, or give a file's path"
    raise SettingError("data.name", name, f"{root / name} has no .json or .jsonl files", remedy)


def load(
    paths: Sequence[Path], classes: int | None, embedding: str | Path | None, trained: int | None = None
) -> Dataset:
    """The pooled examples, with users numbered in order of appearance.

    Texts become word numbers with their vectors; rows of 784 numbers in [0, 1] are images of 28 x 28 pixels, others
    features. ``classes`` is C, or None to take the labels there are, of any kind; not all of those of a model that was
    ``trained`` on so many need occur then. Raises FedRayError naming a file that is missing or corrupt.
    """
    users: dict[str, int] = {}
    xs: list[Any] = []
    ys: list[Any] = []
    groups: list[int] = []
    for path in paths:
        with reading(path, REMEDY):
            for user, x, y in _users(path):
                if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
                    raise ValueError(f"user {user} does not have as many labels as examples")
                if x:
                    xs.append(_features(x))
                    ys += y
                    groups += [users.setdefault(user, len(users))] * len(y)
    with reading(paths[0], REMEDY):
        dataset = _inputs(xs, embedding)
        dataset = dataset._replace(users=np.array(groups), names=Names(users=tuple(users)))
        if classes is None:
            return own.with_target(dataset, rectangular(ys), trained)
        return dataset._replace(y=checked_labels(ys, len(groups), classes), classes=classes)


def _inputs(xs: list[Any], embedding: str | Path | None) -> Dataset:
    """The inputs of all users, one after the other; raises ValueError where they are not of one kind."""
    if all(isinstance(part, list) for part in xs):
        numbers, words = text.numbered(line for part in xs for line in part)
        vectors = text.vectors(words, None if embedding is None else Path(embedding))
        return Dataset(numbers, np.empty(0), 0, None, vectors=vectors, texts=True)
    if any(isinstance(part, list) for part in xs):
        raise ValueError("some of its examples are texts and some are numbers")
    widths = sorted({part.shape[1] for part in xs})
    if len(widths) > 1:
        raise ValueError(f"its users have examples of different lengths, from {widths[0]} to {widths[-1]} numbers")
    x = np.concatenate(xs)
    if x.shape[1:] == (PIXELS,) and x.min() >= 0 and x.max() <= 1:
        return Dataset(x.reshape(-1, 1, 28, 28), np.empty(0), 0, within(1))
    return Dataset(x, np.empty(0), 0, None)


def _users(path: Path) -> Iterator[tuple[str, Any, Any]]:
    """(user, examples, labels) of a file, or of each of its lines."""
    with text.opened(path) as file:
        if path.name.endswith((".jsonl", ".jsonl.gz")):
            for number, line in enumerate(file, 1):
                if line.strip():
                    row = _row(line, number)
                    yield str(row["user"]), [row["text"]], [row["label"]]
            return
        content = json.load(file)
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object of users and user_data")
    listed, known = list(map(str, content["users"])), content["user_data"]
    if twice := [user for user, count in Counter(listed).items() if count > 1]:
        raise ValueError(f"users lists {twice[0]} twice, and its examples would count twice")
    if unlisted := sorted(known.keys() - set(listed)):
        raise ValueError(f"user_data holds {unlisted[0]}, whom users does not list: its examples would be left out")
    for user in listed:
        if not isinstance(known[user], dict):
            raise ValueError(f"user_data of {user} is no JSON object of x and y")
        yield user, known[user]["x"], known[user]["y"]


def _row(line: str, number: int) -> Any:
    """The example in a line of a file; raises ValueError that says which line holds none."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:  # it counts from this line
        raise ValueError(f"line {number} is not JSON: {error.msg.lower()}, column {error.colno}") from None
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is no JSON object of user, text and label")
    if missing := [name for name in ("user", "text", "label") if row.get(name) is None]:
        raise ValueError(f"line {number} has no {missing[0]}")
    return row


def _text(row: Any) -> Any:
    """The text of a tweet as LEAF keeps it; any other example as it is."""
    if not (isinstance(row, list) and row and isinstance(row[0], str)):
        return row
    if len(row) <= TEXT:
        raise ValueError(f"a tweet is a list of {len(row)} fields, but its text is the {TEXT + 1}th")
    return row[TEXT]


def _features(x: list[Any]) -> list[str] | np.ndarray:
    """A user's texts, or numbers as float32 [n, D]; raises ValueError for anything else."""
    texts: list[Any] = [_text(row) for row in x]
    if all(isinstance(row, str) for row in texts):
        return texts
    table = rectangular(x, np.float32)
    if table.ndim != 2 or not np.isfinite(table).all():
        raise ValueError("an example is neither a text nor a row of finite numbers")
    return table
