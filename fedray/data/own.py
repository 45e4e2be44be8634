"""Examples of the user's own, from arrays: what they mean, and what is done to them.

Every function raises ValueError that says what is wrong with the data; who knows the file adds its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedray.data import text
from fedray.data.readers import Dataset, checked_targets
from fedray.data.records import Protocol
from fedray.data.scaling import within

CLIENT = "client"  # the column that says whose an example is
OWNED = Protocol(clients=None, clients_per_round=None, network="auto")  # every owner is a client
GIVEN = "given"  # the dataset's name where the examples come from Python
CHANNELS = (1, 3, 4)  # grey; red, green and blue; and with opacity
PIXEL = 255
EXACT = 2**53  # whole numbers below it are exact as float64
MANY = 20  # different labels; more of them, given as floats, look like real targets
LISTED = 10  # words in a message


def from_arrays(
    x: Any, y: Any, client: Any = None, classes: int | None = None, embedding: str | Path | None = None
) -> Dataset:
    """The examples x [N, ...] with labels or real targets y, which belong to ``client`` [N] where that is given.

    x: images of uint8 pixels, numbers that are used as they are, or texts, whose words have their vectors in the file
    ``embedding`` or, without one, made-up vectors. Images may have their channels last. y [N]: labels
    of any kind (integers, whole floats, texts, booleans), one-hot rows [N, C], or real targets (floats, not all whole).
    ``classes`` is the number of classes of a trained model: labels 0..classes-1 stay as they are then, though not all
    of them occur. ``names`` and ``notes`` of the result say what became of labels, owners and inputs.
    """
    x = np.asarray(x)
    notes: list[str] = []
    if texts(x):
        numbers, words = text.numbered(x.tolist())
        file = None if embedding is None else Path(embedding)
        found = Dataset(numbers, np.empty(0), 0, None, vectors=text.vectors(words, file), texts=True)
    else:
        x, notes = _inputs(x)
        found = Dataset(x, np.empty(0), 0, within(PIXEL) if x.dtype == np.uint8 else None)
    dataset = with_target(found, y, classes)
    dataset = dataset._replace(notes=(*notes, *dataset.notes))
    return dataset if client is None else _owned(dataset, np.asarray(client))


def as_array(name: str, values: Any) -> np.ndarray:
    """What the caller has as an array; raises ValueError for what is none, or would mean something else as one."""
    if hasattr(values, "toarray"):
        raise ValueError(f"{name} is a sparse matrix; give {name}.toarray()")
    check_images(name, values if isinstance(values, list | tuple) else [values])
    if np.ma.is_masked(values):
        check_complete(name, int(np.ma.count_masked(values)))
    try:
        return np.asarray(values)
    except (ValueError, RuntimeError, TypeError):  # rows of different lengths; a tensor on a GPU, with a gradient
        remedy = "give a NumPy array, a tensor on the CPU of a type that NumPy has, or lists of one length"
        raise ValueError(f"{name} is no array; {remedy}") from None


def check_images(name: str, values: Iterable[Any]) -> None:
    """Raise ValueError for images of PIL whose numbers are no brightness, or do not mean the same in all of them."""
    modes = sorted({mode for each in values if isinstance(mode := getattr(each, "mode", None), str)})
    if {"P", "PA"} & set(modes):
        raise ValueError(f"{name} is an image with a palette, whose numbers are no colours; give image.convert('RGB')")
    if "LA" in modes:
        raise ValueError(f"{name} is a grey image with opacity, which is no input; give image.convert('L') or 'RGBA'")
    if len(modes) > 1:
        raise ValueError(
            f"{name} has images of PIL's modes {' and '.join(modes)}; give all of them image.convert('RGB')"
        )


def channels_first(x: Any) -> Any:
    """Images [N, H, W, C] as [N, C, H, W]; anything else as it is."""
    last = x.ndim == 4 and x.shape[-1] in CHANNELS and x.shape[1] not in CHANNELS
    return np.ascontiguousarray(np.moveaxis(x, -1, 1)) if last else x


def fitted(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Inputs of the user's as a network of this input shape takes them, where that is a matter of channels."""
    if x.shape[1:] == shape:
        return x
    return x[:, None] if (1, *x.shape[1:]) == shape else channels_first(x)


def renumbered(dataset: Dataset, labels: tuple[str, ...]) -> Dataset:
    """The examples with the classes numbered as in ``labels``, those of a trained model; raises ValueError for one
    that it does not know."""
    own = dataset.names.classes or tuple(map(str, range(dataset.classes)))
    occurring = np.unique(dataset.y)
    unknown = [own[c] for c in occurring if own[c] not in labels]
    if unknown:
        raise ValueError(f"the label {unknown[0]!r} is none of the model's: {listed(list(labels))}")
    place = np.array([labels.index(name) if name in labels else 0 for name in own], np.int64)
    return dataset._replace(y=place[dataset.y], classes=len(labels), names=dataset.names._replace(classes=labels))


def _inputs(x: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Inputs as uint8 pixels or float32 features, and what was done to them."""
    notes: list[str] = []
    if x.ndim < 2 or x.dtype.kind not in "iufb":
        raise ValueError(f"x has shape {list(x.shape)} and type {x.dtype}; it takes numbers [N, ...], N examples")
    if x.size == 0:
        raise ValueError(f"x has shape {list(x.shape)}: it has no examples, or these have no inputs")
    found = channels_first(x)
    if found is not x:
        notes.append(f"x: images {_sides(x)} have their channels last; they are read as {_sides(found)}")
    if found.ndim > 2 and _pixels(found):
        if found.dtype != np.uint8:
            notes.append(f"x: whole numbers from 0 to {PIXEL} in the shape of images are read as their pixels")
            found = found.astype(np.uint8)
    elif found.dtype.kind in "iu":
        notes.append("x: whole numbers are features and used as they are; `data.scaling=feature` standardises them")
    if found.dtype == np.uint8 and found.ndim == 3:
        found = found[:, None]
        notes.append(f"x: images {_sides(x)} are grey; they are read as {_sides(found)}")
    if found.dtype != np.uint8 or found.ndim == 2:
        with np.errstate(over="ignore"):
            found = found.astype(np.float32)
        if not np.isfinite(found).all():
            raise ValueError("x holds NaN (a missing value), infinity, or a number too large for float32")
    return found, notes


def _pixels(x: np.ndarray) -> bool:
    """Whether images hold whole numbers in 0..255: of any integers; of floats, which may have units of their own, only
    where some lie in the upper half."""
    if x.dtype.kind not in "iuf" or not x.size or not (x.min() >= 0 and x.max() <= PIXEL):
        return False
    return x.dtype.kind in "iu" or (x.max() > PIXEL / 2 and np.array_equal(x, x.astype(np.uint8)))


def _sides(images: np.ndarray) -> str:
    return " x ".join(map(str, images.shape[1:]))


def with_target(dataset: Dataset, y: Any, classes: int | None) -> Dataset:
    """The dataset with its target: real numbers as they are, labels as numbers 0..C-1.

    Floats that are all whole are labels, but of a trained model with one output, whose targets are real.
    """
    count = len(dataset.x)
    y, hot = _flat(np.asarray(y), count)
    if y.dtype.kind == "f" and (classes == 1 or (y % 1).any()):
        return dataset._replace(y=checked_targets(y, count), classes=1)
    notes = (f"y: one-hot rows of {hot} classes",) if hot else ()
    if y.dtype.kind == "f":
        y = _whole(y)
        notes = ("y: whole numbers are labels, though they are stored as floats",)
    values, numbers = np.unique(y, return_inverse=True)
    _check_words(values)
    if hot:
        values, numbers = np.arange(hot), y
    if classes is None and len(values) < 2:
        raise ValueError(f"every example has the label {values[0]}; a classifier needs two")
    if values.dtype.kind in "iu" and _like_targets(len(values), count):
        what = f"y: {len(values)} different whole numbers are labels"
        notes += (f"{what}; give targets of a regression as floats, in a unit in which not all are whole",)
    known = len(values) if classes is None else classes
    if values.dtype.kind in "iu" and values.min() >= 0 and values.max() < known:
        return dataset._replace(y=y.astype(np.int64), classes=known, notes=notes)
    names = tuple(map(str, values.tolist()))
    notes = (*notes, f"y: {len(names)} classes, numbered in this order: {listed(list(names))}")
    return dataset._replace(
        y=numbers.astype(np.int64), classes=len(names), names=dataset.names._replace(classes=names), notes=notes
    )


def _flat(y: np.ndarray, count: int) -> tuple[np.ndarray, int]:
    """The target as [N], and of one-hot rows [N, C] their C, else 0."""
    hot = 0
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    elif y.ndim == 2:
        if y.dtype.kind not in "iufb" or not (np.isin(y, (0, 1)).all() and (y.sum(1) == 1).all()):
            raise ValueError(f"y has shape {list(y.shape)}, but its rows are not one-hot: a single 1 and else 0")
        y, hot = y.argmax(1), y.shape[1]
    if y.shape != (count,):
        raise ValueError(f"y has shape {list(y.shape)} for {count} examples; it takes one target for each")
    if count == 0:
        raise ValueError("it has no examples")
    return _plain(y, "y"), hot


def _plain(values: np.ndarray, name: str) -> np.ndarray:
    """Values [N] of numbers or texts; raises ValueError for missing ones, and for anything else."""
    if values.dtype.kind == "O":
        items = values.tolist()
        check_complete(name, sum(map(_missing, items)))
        values = np.asarray(items)
    if values.dtype.kind == "f":
        check_complete(name, int(np.isnan(values).sum()))
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError:
            way_out = f"numpy.char.decode({name}, 'latin-1')"
            raise ValueError(f"{name} holds bytes that are no text in UTF-8; give texts, such as {way_out}") from None
    if values.ndim != 1 or values.dtype.kind not in "iufbU":
        raise ValueError(f"{name} holds values of type {values.dtype}; it takes numbers or texts")
    if values.dtype.kind == "f" and (endless := int(np.isinf(values).sum())):
        raise ValueError(f"{name} holds infinity {endless} times; correct it, or leave these examples out")
    return values


def _missing(value: Any) -> bool:
    """Whether a value is None, NaN or pandas' NA, which says of no comparison whether it is true."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True
    except ValueError:  # an array
        return False


def check_complete(name: str, missing: int) -> None:
    """Raise ValueError where values are missing."""
    if missing:
        raise ValueError(f"{name} lacks {missing} of its values; fill them in, or leave these examples out")


def _check_words(values: np.ndarray) -> None:
    """Raise ValueError for a word among real targets, which would make names of classes of them all."""
    numbers = [float(value) for value in values.tolist() if is_number(value)] if values.dtype.kind == "U" else []
    numbers = [number for number in numbers if math.isfinite(number)]
    many = MANY < len(numbers) < len(values) < 2 * len(numbers)  # fewer may be names, such as 3.9 and dev
    if many and any(number % 1 for number in numbers):
        word = next(value for value in values.tolist() if not is_number(value))
        raise ValueError(f"y holds {word!r} among numbers; correct it, or leave this example out")


def _like_targets(different: int, examples: int) -> bool:
    """Whether there are so many different labels that they may be real targets."""
    return different > max(MANY, examples // 10)


def _whole(y: np.ndarray) -> np.ndarray:
    """Labels that were given as floats, as integers."""
    different = len(np.unique(y))
    if float(np.abs(y).max()) >= EXACT:  # which float16 cannot hold
        raise ValueError("y holds whole numbers that are too large for labels; divide real targets by a unit of theirs")
    if _like_targets(different, len(y)):
        raise ValueError(
            f"y holds {different} different whole numbers as floats; labels are given as integers, and real targets in "
            "a unit in which not all of them are whole"
        )
    return y.astype(np.int64)


def _owned(dataset: Dataset, client: np.ndarray) -> Dataset:
    """The dataset with its examples' owners."""
    if client.shape != (len(dataset.y),):
        raise ValueError(f"client has shape {list(client.shape)} for {len(dataset.y)} examples; it names one for each")
    names, users = np.unique(_plain(client, CLIENT), return_inverse=True)
    named = tuple(map(str, names.tolist()))
    notes = (*dataset.notes, f"client: {len(named)} owners of examples: {listed(list(named))}")
    return dataset._replace(users=users.astype(np.int64), names=dataset.names._replace(users=named), notes=notes)


def texts(values: np.ndarray) -> bool:
    return values.ndim == 1 and len(values) > 0 and all(isinstance(each, str) for each in values.tolist())


def is_number(value: Any) -> bool:
    """Whether a value can be read as a number."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    except OverflowError:  # of a whole number beyond a double
        return True
    return True


def listed(words: list[str]) -> str:
    """The first few of some words."""
    more = f" and {len(words) - LISTED} more" if len(words) > LISTED else ""
    return f"{', '.join(words[:LISTED])}{more}"
