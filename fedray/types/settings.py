"""A setting that came after results had been published: those keep their fingerprint."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

T = TypeVar("T")
BEFORE = "before"


def added(before: T) -> T:
    """A config field whose default, ``before``, stands for what was computed when there was no such setting.

    At this value the field is left out of the experiment's fingerprint, so that runs of earlier versions are found and
    can be verified. Once released, ``before`` does not change.
    """
    return dataclasses.field(default=before, metadata={BEFORE: before})  # type: ignore[return-value]


def at_its_origin(field: dataclasses.Field[Any], value: object) -> bool:
    """Whether a config field has the value that stands for its absence in earlier versions."""
    return BEFORE in field.metadata and field.metadata[BEFORE] == value
