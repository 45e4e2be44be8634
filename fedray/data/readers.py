"""What readers of datasets share: the pooled examples, and checks.

Whatever is wrong with a file becomes a FedRayError that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedray.data.scaling import Scaling
from fedray.types import FedRayError

GIVE = (
    "give arrays (x [N, ...], y [N]), a DataFrame, a Dataset of PyTorch or Hugging Face, or one of fedray.data.readers"
)
REPLACE = "delete it and add `data.download`, or choose another `data.root`"


class Names(NamedTuple):
    """What data of the user's own call their classes, users and features; empty where these have numbers only."""

    classes: tuple[str, ...] = ()  # of the labels 0..C-1
    users: tuple[str, ...] = ()  # of the users 0..U-1
    features: tuple[str, ...] = ()  # of the numbers of an input


class Dataset(NamedTuple):
    """Pooled examples, raw as stored."""

    x: np.ndarray  # [N, ...]: images [N, channels, height, width], float32 features, or int32 word numbers [N, T]
    y: np.ndarray  # [N] labels 0..C-1, int64; or real targets, float64
    classes: int  # C; 1 with real targets
    scaling: Scaling | None  # of inputs to a network's units; None: used as they are
    users: np.ndarray | None = None  # [N] whose example it is, 0..U-1, where the dataset says so
    vectors: np.ndarray | None = None  # [V + 1, E] float32, those of the words
    target: Scaling | None = None  # of real targets to a network's units; None: labels, or not known yet
    names: Names = Names()
    texts: bool = False  # whether x are the words of texts, as fedray.data.text numbers them
    notes: tuple[str, ...] = ()  # how a file of the user's own was read, where that is not obvious

    @property
    def real(self) -> bool:
        """Whether the targets are real numbers: regression."""
        return self.y.dtype.kind == "f"

    @property
    def strata(self) -> np.ndarray:
        """[N] what a partition may deal by: the label, or which tenth of all targets a real one falls in, 0..9."""
        if not self.real:
            return self.y
        return np.searchsorted(np.quantile(self.y, np.arange(1, 10) / 10), self.y, side="right")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of an example as a network sees it."""
        return tuple(self.x.shape[1:]) if self.vectors is None else (self.x.shape[1], self.vectors.shape[1])


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Whatever is wrong with a file becomes a FedRayError that names it and says so in the file's own terms."""
    try:
        yield
    except PermissionError as error:  # another format, or the same file anew, would not help
        raise FedRayError(f"{path}: {_reason(error)}; let yourself read it, or give another file") from error
    except Exception as error:  # pickle, zipfile, zlib and numpy raise whatever the damage leads them to
        raise FedRayError(f"{path}: {_reason(error)}; {remedy}") from error


def _reason(error: Exception) -> str:
    """What an exception of a reader says of its file."""
    if type(error) is ValueError:  # ours
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be read: {error.strerror.lower()}"
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(error, JSONDecodeError):
        return f"it is not JSON: {error.msg.lower()}, line {error.lineno}, column {error.colno}"
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}"
    return f"it is cut short, damaged, or of another format ({type(error).__name__})"


def rectangular(values: Any, dtype: Any = None) -> np.ndarray:
    """Nested lists as an array; raises ValueError where they are not numbers, or of different lengths."""
    try:
        return np.array(values, dtype)
    except (ValueError, TypeError):
        lengths = sorted({len(row) for row in values if isinstance(row, list | tuple)})
        if len(lengths) > 1:
            reason = f"its rows have different lengths, from {lengths[0]} to {lengths[-1]}"
            raise ValueError(f"{reason}; give all of them the same number of values") from None
        raise ValueError("it holds something else where numbers belong") from None


def native(values: np.ndarray) -> np.ndarray:
    """The same numbers in this machine's byte order: NetCDF, FITS and IDX files have another one, PyTorch has not."""
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def checked_labels(values: Any, count: int, classes: int) -> np.ndarray:
    """The labels [count] as int64; raises ValueError unless they are integers 0..C-1."""
    y = values if isinstance(values, np.ndarray) else rectangular(values)
    if y.shape != (count,) or y.dtype.kind not in "iu" or count == 0 or y.min() < 0 or y.max() >= classes:
        raise ValueError(f"its labels are not {count} integers that number {classes} classes without gaps")
    return y.astype(np.int64)


def checked_targets(values: Any, count: int) -> np.ndarray:
    """The real targets [count] as float64; raises ValueError unless they are finite and not all the same."""
    y = np.asarray(values)
    if y.shape != (count,) or y.dtype.kind != "f" or not np.isfinite(y).all() or count == 0 or y.min() == y.max():
        raise ValueError(f"its targets are not {count} finite numbers that differ")
    return y.astype(np.float64)


def checked_dataset(dataset: Dataset, who: str = "dataset", remedy: str = GIVE) -> Dataset:
    """The caller's own examples, labels as int64; raises FedRayError where they do not fit together."""
    if not isinstance(dataset, Dataset):
        raise FedRayError(f"{who}={type(dataset).__name__}: is not a Dataset; {remedy}")
    x, users, vectors = dataset.x, dataset.users, dataset.vectors
    reason = ""
    if not isinstance(x, np.ndarray) or x.ndim < 2 or x.dtype.kind not in "iuf":
        reason = "x is not an array [N, ...] of numbers"
    elif x.size == 0:
        reason = f"x has shape {list(x.shape)}: it has no examples, or these have no inputs"
    elif x.dtype.kind == "f" and not np.isfinite(x).all():
        reason = "x holds NaN or infinity"
    elif users is not None and not _numbered(users, len(x)):
        reason = f"users are not {len(x)} integers that number the users 0, 1, ... without gaps"
    elif vectors is not None and (x.dtype.kind == "f" or x.min() < 0 or x.max() >= len(vectors)):
        reason = "x are not word numbers of the vectors"
    elif not _scales(dataset.scaling, x):
        reason = f"its scaling is no Scaling of NumPy arrays that fit inputs of shape {list(x.shape[1:])}"
    if reason:
        raise FedRayError(f"{who}: {reason}; {remedy}")
    scaling = dataset.scaling and Scaling(*map(native, dataset.scaling))
    dataset = dataset._replace(x=native(x), scaling=scaling, vectors=None if vectors is None else native(vectors))
    try:
        if np.asarray(dataset.y).dtype.kind == "f" and dataset.classes == 1:
            return dataset._replace(y=checked_targets(dataset.y, len(x)))
        return dataset._replace(y=checked_labels(dataset.y, len(x), dataset.classes))
    except (ValueError, TypeError) as error:
        raise FedRayError(f"{who}: {error}; {remedy}") from None


def _scales(scaling: Any, x: np.ndarray) -> bool:
    """Whether a scaling is none, or one of inputs x [N, ...]."""
    if scaling is None:
        return True
    parts = [scaling.shift, scaling.divisor] if isinstance(scaling, Scaling) else []
    if not parts or not all(isinstance(part, np.ndarray) for part in parts):
        return False
    try:
        return np.broadcast_shapes(x.shape, *(part.shape for part in parts)) == x.shape
    except ValueError:
        return False


def _numbered(users: Any, count: int) -> bool:
    """Whether they are the users [count] of as many examples, 0..U-1 with an example each."""
    if not isinstance(users, np.ndarray) or users.shape != (count,) or users.dtype.kind not in "iu":
        return False
    return np.array_equal(found := np.unique(users), np.arange(len(found)))
