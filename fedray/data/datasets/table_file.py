"""A table of the user's own, .csv or .parquet: a column y (or label, target, class); all others are features."""

from __future__ import annotations

import re
from pathlib import Path

from fedray.config import DataConfig
from fedray.data import own
from fedray.data.readers import Dataset, reading
from fedray.data.records import DatasetRecord

REMEDY = "give a table with a header, a column y (or label, target, class), and numbers in the others"


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """The examples of the file, as :func:`fedray.data.own.from_frame`; raises FedRayError naming the file."""
    import pandas

    path = Path(cfg.name)
    with reading(path, REMEDY):
        try:
            frame = pandas.read_parquet(path) if path.suffix == ".parquet" else pandas.read_csv(path)
        except pandas.errors.EmptyDataError:
            raise ValueError("it is empty") from None
        except pandas.errors.ParserError as error:
            line = re.search(r"line (\d+)", str(error))
            where = f"line {line[1]} has" if line else "a line has"
            raise ValueError(f"{where} more values than its header has columns") from None
        return own.from_frame(frame, classes)


def owned(cfg: DataConfig) -> bool:
    """Whether the file has a column ``client``; False where it cannot be read, which :func:`load` will say."""
    import pandas
    import pyarrow.parquet

    try:
        path = Path(cfg.name).expanduser()
        if path.suffix == ".parquet":
            return own.CLIENT in pyarrow.parquet.read_schema(path).names
        return own.CLIENT in pandas.read_csv(path, nrows=0).columns
    except (OSError, RuntimeError, ValueError):
        return False


DATASET = DatasetRecord(
    summary="your table: .csv or .parquet with a column y and perhaps client; the others are features",
    load=load,
    protocols={"natural": own.OWNED},
    owned=owned,
    suffixes=(".csv", ".csv.gz", ".parquet"),
)
