"""Whether the values of a config have the types of their fields."""

from __future__ import annotations

import dataclasses
import numbers
import types
import typing
from pathlib import Path
from typing import Any

from fedray.types import require


def check_types(cfg: Any, prefix: str = "") -> None:
    """Raise FedRayError for a field of a config that holds a value of another type than its own.

    A whole number is a float, too. Lists become tuples, and paths given as strings become paths. ``prefix`` stands
    before the names in messages.
    """
    hints = typing.get_type_hints(type(cfg))
    for field in dataclasses.fields(cfg):
        hint, value = hints[field.name], getattr(cfg, field.name)
        if isinstance(value, numbers.Number) and hasattr(value, "item"):  # of NumPy, as a search may draw it
            value = value.item()  # pyright: ignore[reportAttributeAccessIssue]
            object.__setattr__(cfg, field.name, value)
        if isinstance(value, list):
            value = tuple(value)
            object.__setattr__(cfg, field.name, value)
        if isinstance(value, str) and Path in _options(hint):
            object.__setattr__(cfg, field.name, Path(value))
        elif not _fits(hint, value):
            reason, remedy = f"is not {_words(hint)}", f"give {_words(hint)}"
            require(False, prefix + field.name, repr(value), reason, remedy)


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _fits(hint: Any, value: Any) -> bool:
    return any(_is(option, value) for option in _options(hint))


def _is(hint: Any, value: Any) -> bool:
    if hint is Any:
        return True
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(typing.get_args(hint)[0], item) for item in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _words(hint: Any) -> str:
    """A type in words, for a message."""
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", Path: "a path"}
    names |= {type(None): "None"}
    words: list[str] = []
    for option in _options(hint):
        if typing.get_origin(option) is typing.Literal:
            words.append(f"one of {', '.join(map(str, typing.get_args(option)))}")
        elif typing.get_origin(option) is tuple:
            words.append(f"a tuple, each {_words(typing.get_args(option)[0])}")
        else:
            words.append(names.get(option, getattr(option, "__name__", str(option))))
    return " or ".join(words)
