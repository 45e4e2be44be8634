"""A table of the user's own, .csv or .parquet: a column y (or label, target, class); all others are features."""

from __future__ import annotations

import contextlib
import re
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedray.config import DataConfig
from fedray.data import own, tables
from fedray.data.readers import Dataset, reading
from fedray.data.records import DatasetRecord

if TYPE_CHECKING:
    from pandas import DataFrame

SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
MISSING = ("", "na", "n/a", "nan", "null", "none")
REMEDY = "give a table with a header, a column y (or label, target, class), and numbers in the others"


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """The examples of the file, as :func:`fedray.data.tables.from_frame`; raises FedRayError naming the file."""
    import pandas

    path = Path(cfg.name)
    with reading(path, REMEDY):
        try:
            frame = pandas.read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
        except pandas.errors.EmptyDataError:
            raise ValueError("it is empty") from None
        except pandas.errors.ParserError as error:
            line = re.search(r"line (\d+)", str(error))
            where = f"line {line[1]} has" if line else "a line has"
            raise ValueError(f"{where} more values than its header has columns") from None
        return tables.from_frame(frame, classes, cfg.embedding)


def _read_csv(path: Path) -> DataFrame:
    """The table, with owners and labels as they are written: 007 is not 7, and the label NA is not a missing one."""
    import pandas

    _check_header(path)
    with warnings.catch_warnings():
        # Without index_col pandas takes the first value for a row's name where rows are longer than the header.
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        try:
            frame = pandas.read_csv(path, index_col=False, low_memory=False).rename(columns=str.strip)
        except pandas.errors.ParserWarning:
            raise ValueError("its rows have more values than its header has columns; name every column") from None
    named = [name for name in (tables.target_of(frame.columns), own.CLIENT) if name in frame.columns]
    read = pandas.read_csv(path, usecols=lambda name: name.strip() in named, dtype=str, keep_default_na=False)
    written = read.rename(columns=str.strip)
    for name in named:
        frame[name] = _as_written(written[name].to_numpy(), exact=name == own.CLIENT)
    return frame


def _check_header(path: Path) -> None:
    """Raise ValueError for columns of one name, which pandas would rename, and for columns that no comma separates."""
    import pandas

    first = pandas.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0]
    names = [name for each in first if (name := str(each).strip())]
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice and tables.target_of(names):  # else it has no header
        raise ValueError(f"it has two columns {twice[0]}; rename one")
    for mark, what in SEPARATORS.items():
        if len(names) == 1 and tables.target_of(part.strip() for part in names[0].split(mark)) and mark in names[0]:
            raise ValueError(
                f"its columns are separated by {what}; save it with commas and decimal points, or give the DataFrame "
                f"pandas.read_csv({path.name!r}, sep={mark!r}) from Python"
            )


def _as_written(words: np.ndarray, exact: bool) -> np.ndarray:
    """Numbers where all words are such, ``exact`` in their usual spelling; else the words. None where one is missing.

    Words for a missing value are such among numbers, and names among others.
    """
    words = np.array([word.strip() for word in words], object)
    there = np.array([word.lower() not in MISSING for word in words], bool)
    for kind in (int, float):
        with contextlib.suppress(ValueError, OverflowError):
            numbers = words[there].astype(kind)
            if exact and (kind is float or numbers.astype(str).tolist() != words[there].tolist()):
                break
            if there.all():
                return numbers
            found = np.full(len(words), np.nan)
            found[there] = numbers
            return found
    return np.array([word or None for word in words], object)


def owned(cfg: DataConfig) -> bool:
    """Whether the file has a column ``client``; False where it cannot be read, which :func:`load` will say."""
    import pandas
    import pyarrow.parquet

    try:
        path = Path(cfg.name).expanduser()
        if path.suffix == ".parquet":
            return own.CLIENT in pyarrow.parquet.read_schema(path).names
        return own.CLIENT in pandas.read_csv(path, nrows=0).rename(columns=str.strip).columns
    except (OSError, EOFError, zlib.error, RuntimeError, ValueError):
        return False


DATASET = DatasetRecord(
    summary="your table: .csv or .parquet with a column y and perhaps client; the others are features",
    load=load,
    protocols={"natural": own.OWNED},
    owned=owned,
    suffixes=(".csv", ".csv.gz", ".parquet"),
)
