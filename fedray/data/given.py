"""The caller's own examples as Python has them: arrays, tables, and the datasets of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedray.data.own import CLIENT, as_array, check_images, from_arrays
from fedray.data.readers import Dataset, checked_dataset
from fedray.data.tables import from_frame, from_hugging_face, of_rows
from fedray.types import FedRayError, first_line


def given(dataset: Any) -> Dataset:
    """The caller's own examples: arrays (x, y) or (x, y, client) as in :func:`from_arrays`, a pandas DataFrame, a
    Dataset of Hugging Face or of PyTorch, or one of ours.

    Raises FedRayError for anything else, and where they do not fit together.
    """
    if isinstance(dataset, Dataset):
        return checked_dataset(dataset)
    kinds: dict[str, Callable[[Any], Dataset]] = {"isna": from_frame, "with_format": from_hugging_face}
    named = type(dataset).__name__ in ("DataFrame", "Dataset")  # other libraries have such classes, too
    read = next((kinds[method] for method in kinds if named and hasattr(dataset, method)), None)
    if isinstance(dataset, torch.utils.data.Dataset):
        read = from_torch
    elif type(dataset) is tuple and len(dataset) in (2, 3):
        read = _from_tuple
    if read is None:
        return checked_dataset(dataset)  # pyright: ignore[reportArgumentType]
    try:
        return read(dataset)
    except ValueError as error:
        raise FedRayError(f"dataset: {error}") from error.__cause__


def _from_tuple(arrays: Any) -> Dataset:
    found = {name: as_array(name, values) for name, values in zip(("x", "y", CLIENT), arrays, strict=False)}
    return from_arrays(found["x"], found["y"], found.get(CLIENT))


def from_torch(dataset: Any) -> Dataset:
    """The examples of a ``torch.utils.data.Dataset`` with a length, whose items are pairs x, y.

    Labels that number the names in its attribute ``classes``, as those of torchvision's datasets do unless they are
    transformed, have these names.
    """
    try:
        count = len(dataset)
    except (TypeError, NotImplementedError):
        raise ValueError("this torch Dataset has no length; give one that is indexed from 0") from None
    items = [_item(dataset, k) for k in range(count)]
    if not items or not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise ValueError("the items of this torch Dataset are not pairs (x, y) of an input and its target")
    inputs, targets = zip(*items, strict=True)
    check_images("x", inputs)
    x = np.fromiter((as_array("x", each) for each in inputs), object, len(items))
    y, names = as_array("y", targets), _class_names(dataset)
    numbered = y.ndim == 1 and y.dtype.kind in "iu" and y.min() >= 0 and y.max() < len(names)
    found = from_arrays(of_rows("x", x), y, classes=len(names) if numbered else None)
    return found._replace(names=found.names._replace(classes=names)) if numbered else found


def _class_names(dataset: Any) -> tuple[str, ...]:
    """What a Dataset, or the one that it is a part of, calls its classes; empty where it does not say."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    if getattr(dataset, "target_transform", None) is not None:  # its labels may number something else
        return ()
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names) if len(set(names)) == len(names) > 1 else ()


def _item(dataset: Any, k: int) -> Any:
    """An item of the caller's Dataset; raises ValueError for whatever it raises."""
    try:
        return dataset[k]
    except Exception as error:
        raise ValueError(
            f"item {k} of this torch Dataset cannot be read ({first_line(error)}); mend it, or leave it out"
        ) from error
