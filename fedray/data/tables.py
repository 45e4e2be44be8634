"""Examples in tables: what their columns are. Raises ValueError as :mod:`fedray.data.own`."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedray.data.own import CLIENT, check_complete, check_images, from_arrays, is_number, listed, texts
from fedray.data.readers import Dataset
from fedray.types import FedRayError

TARGETS = ("y", "label", "labels", "target", "class")  # columns that may hold the target; the first that is there does
OWNERS = (CLIENT, "clients", "client_id", "user", "users", "user_id", "owner")  # columns that look like it


def target_of(columns: Iterable[str]) -> str | None:
    """The column that holds the target, or None."""
    known = set(columns)
    return next((name for name in TARGETS if name in known), None)


def from_columns(
    columns: Mapping[str, np.ndarray], classes: int | None = None, embedding: str | Path | None = None
) -> Dataset:
    """The examples of a table: columns by name, each [N] or [N, ...].

    y (or label, target, class) is the target, and ``client`` the owner. One column of texts is split into words; one
    of arrays with two axes or more are images; numbers in all other columns are features.
    """
    target = target_of(columns)
    if target is None:
        near = [name for name in columns if name.strip().lower() in TARGETS]
        near += [each for name in TARGETS for each in difflib.get_close_matches(name, columns, 1, cutoff=0.75)]
        hint = f"; is it {near[0]}? " if near else "; "
        raise ValueError(f"no column is named {' or '.join(TARGETS)}{hint}the columns are {', '.join(columns)}")
    unnamed = list(filter(_nameless, columns))
    left_out = {target, CLIENT, *unnamed}
    if len(columns[target]) == 0:
        raise ValueError("it has no examples: not one row")
    features = {name: np.asarray(values) for name, values in columns.items() if name not in left_out}
    if not features:
        raise ValueError(f"it has no column but {', '.join(columns)}: there are no inputs")
    alone = next(iter(features.values()))
    x = alone if len(features) == 1 and texts(alone) else _stacked(features)
    dataset = from_arrays(x, columns[target], columns.get(CLIENT), classes, embedding)
    notes = [f"{target} is the target, {listed(list(features))} {'is' if len(features) == 1 else 'are'} the inputs"]
    notes += [f"the column without a name ({name}) is left out" for name in unnamed]
    notes += [f"column {name} is an input; remove it if it tells the target" for name in features if name in TARGETS]
    owners = [] if CLIENT in columns else [name for name in features if name.strip().lower() in OWNERS]
    notes += [f"column {name} is an input; call it {CLIENT} if it says whose an example is" for name in owners]
    each = tuple(features) if dataset.x.shape[1:] == (len(features),) and not dataset.texts else ()
    return dataset._replace(notes=(*notes, *dataset.notes), names=dataset.names._replace(features=each))


def arranged(dataset: Dataset, features: tuple[str, ...]) -> Dataset:
    """The examples with their features in the order of a trained model's; raises ValueError where they are others."""
    own = dataset.names.features
    if not own or not features or own == features:
        return dataset
    _check_columns(own, features)
    x = dataset.x[:, [own.index(name) for name in features]]
    return dataset._replace(x=x, names=dataset.names._replace(features=features))


def selected(frame: Any, features: tuple[str, ...]) -> np.ndarray:
    """The columns [B, D] of a pandas DataFrame that are a model's features, in its order; raises FedRayError where it
    lacks one, or one holds no numbers."""
    try:
        columns = _named(frame)
        _check_columns(columns, features)
        return _stacked({name: columns[name] for name in features})
    except ValueError as error:
        raise FedRayError(f"x: {error}") from None


def is_frame(data: Any) -> bool:
    """Whether data are a pandas DataFrame; other libraries have classes of that name, too."""
    return type(data).__name__ == "DataFrame" and hasattr(data, "isna")


def _check_columns(known: Collection[str], features: tuple[str, ...]) -> None:
    missing = [name for name in features if name not in known]
    if missing:
        raise ValueError(f"it has no column {missing[0]}; the model's features are {listed(list(features))}")


def _nameless(column: str) -> bool:
    """Whether a table does not name a column, such as that of its row numbers; pandas calls it Unnamed."""
    return not column or column.startswith("Unnamed: ")


def from_frame(frame: Any, classes: int | None = None, embedding: str | Path | None = None) -> Dataset:
    """The examples of a pandas DataFrame, by :func:`from_columns`.

    Targets and owners may be its index, which a .parquet file keeps among its columns. Any other index is no input.
    """
    named = [name for name in frame.index.names if name is not None]
    frame = frame.reset_index([name for name in named if name in (*TARGETS, CLIENT) and name not in frame.columns])
    columns = _named(frame)
    if target_of(columns):
        for name, missing in zip(frame.columns, frame.isna().sum(), strict=True):
            check_complete(str(name), 0 if _nameless(str(name).strip()) else int(missing))
    dataset = from_columns(columns, classes, embedding)
    notes = [f"{name} names the rows and is left out" for name in named if name in frame.index.names]
    return dataset._replace(notes=(*dataset.notes, *notes))


def _named(frame: Any) -> dict[str, np.ndarray]:
    """The columns of a pandas DataFrame by their names, which have no blanks around them, as those of a file; raises
    ValueError where two have one name."""
    names = [str(name).strip() for name in frame.columns]
    if twice := [name for name, n in Counter(names).items() if n > 1 and not _nameless(name)]:
        raise ValueError(f"it has two columns {twice[0]}; rename one")
    return {name: frame.iloc[:, place].to_numpy() for place, name in enumerate(names)}


def from_hugging_face(dataset: Any) -> Dataset:
    """The examples of a ``datasets.Dataset``, by :func:`from_columns`; class labels keep their names."""
    images = [name for name, kind in dataset.features.items() if type(kind).__name__ == "Image"]
    # As images: an array would not say what its numbers are.
    stored = {name: _objects(dataset.with_format(None)[name][:]) for name in images}
    stored |= (dataset.remove_columns(images) if images else dataset).with_format("numpy")[:]
    columns = {name: np.asarray(stored[name]) for name in dataset.column_names}
    for name, values in columns.items():
        check_complete(name, sum(each is None for each in values.tolist()) if values.dtype.kind == "O" else 0)
    found = from_columns(columns)
    target = next(name for name in TARGETS if name in stored)
    names = tuple(getattr(dataset.features[target], "names", None) or ())
    if not names or found.real:
        return found
    y = np.asarray(stored[target], np.int64)
    check_complete(target, int((y < 0).sum()))  # -1 says that the label of an example is not known
    return found._replace(y=y, classes=len(names), names=found.names._replace(classes=names))


def _objects(values: Sequence[Any]) -> np.ndarray:
    return np.fromiter(values, object, len(values))


def _stacked(features: Mapping[str, np.ndarray]) -> np.ndarray:
    """The inputs: one column of arrays as it is, or numbers side by side [N, D]."""
    ready = {name: _numbers(name, values) for name, values in features.items()}
    (_, values), *others = ready.items()
    if not others and values.ndim > 1:
        return values
    if deep := [name for name, values in ready.items() if values.ndim > 2]:
        raise ValueError(f"column {deep[0]} holds images beside other inputs ({listed(list(ready))}); remove either")
    return np.concatenate([values if values.ndim > 1 else values[:, None] for values in ready.values()], 1)


def _numbers(name: str, values: np.ndarray) -> np.ndarray:
    """A column of numbers or of arrays; raises ValueError for anything else."""
    values = of_rows(name, values) if values.dtype.kind == "O" else values
    if values.dtype.kind not in "iufb":
        strange = [each for each in values.flat if not is_number(each)]
        example = f"{next(iter(strange or values.flat), '')!s:.40}"
        if values.size and not strange:  # as texts, or of a type that NumPy does not have, such as Decimal
            raise ValueError(f"column {name} holds {example!r}, not as a number of NumPy's; convert it to floats")
        raise ValueError(f"column {name} holds {example!r}, which is no number; encode it as numbers, or remove it")
    return values


def of_rows(name: str, values: np.ndarray) -> np.ndarray:
    """A column of lists or arrays as one array; of single values as it is."""
    if not len(values):  # an empty table's columns have no type of their own
        return np.empty(0)
    check_images(f"column {name}", values.tolist())
    rows = [np.asarray(each) for each in values.tolist()]
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        some = " and ".join(sorted(str(list(shape)) for shape in shapes)[:2])
        raise ValueError(f"column {name} has examples of different shapes, such as {some}; give them one shape")
    return np.stack(rows)
