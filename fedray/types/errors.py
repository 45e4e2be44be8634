"""Errors that name the value, the reason and the remedy, and the checks of settings that raise them."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import errno
import functools
import math
import numbers
import re
import typing
from collections.abc import Generator, Iterable
from pathlib import Path
from types import UnionType
from typing import Any, cast


class FedRayError(Exception):
    """A mistake in what the user asked for or supplied. The message names the value, the reason and the remedy."""


class RunError(FedRayError):
    """A run that had begun cannot go on. The message names who failed, the reason and the remedy."""


@contextlib.contextmanager
def writing(what: object) -> Generator[None, None, None]:
    """Turn the OSError of a disk that is full, or of a folder that cannot be written, into a RunError that names it."""
    try:
        yield
    except OSError as error:
        raise RunError(unwritable(what, error)) from None


DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # of the disk, or of what a user may have of it


def unwritable(what: object, error: OSError) -> str:
    """A message about what cannot be written: the reason, and what a user can do."""
    remedies = {**dict.fromkeys(DISK_FULL, "free space there"), errno.ENAMETOOLONG: "shorten it"}
    remedy = remedies.get(error.errno or 0, "make it a folder that you may write to")
    return f"{what}: cannot be written ({(error.strerror or first_line(error)).lower()}); {remedy}"


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type where the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class SettingError(FedRayError):
    """A setting has a value with which nothing can run.

    ``setting`` is its dotted name. Reason and remedy name other settings in backticks: `mode` or `mode=parallel`.
    """

    def __init__(self, setting: str, value: object, reason: str, remedy: str):
        super().__init__(setting, value, reason, remedy)
        self.setting = setting
        self.value = value
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.setting} {self.value}: {self.reason}; {self.remedy}"


def suggestion(name: object, known: Iterable[str]) -> str:
    """ "did you mean mnist? " where a name that is not known is much like one that is, else nothing."""
    near = difflib.get_close_matches(str(name).lower(), list(known), 1)
    return f"did you mean {near[0]}? " if near else ""


def for_command_line(error: Exception | str) -> str:
    """A message with settings written as options: ``clients_per_round`` as ``--clients-per-round``.

    A switch is given without its value, and an algorithm as a word of its own.
    """
    text = str(error)
    if isinstance(error, SettingError):
        switch = isinstance(error.value, bool)
        shown = f"`{error.setting}={error.value}`" if switch else f"`{error.setting}` {error.value}"
        text = f"{shown}: {error.reason}; {error.remedy}"
    return re.sub(r"`([a-z][a-z0-9_.]*)(?:=([^`]*))?`", _option, text)


def _option(found: re.Match[str]) -> str:
    name, value = found.groups()
    if name == "algorithm":
        return value or "ALGORITHM"
    option = "--" + name.removeprefix("algorithm.").replace("_", "-")
    if value == "False":
        group, dot, last = option[2:].rpartition(".")
        return f"--{group}{dot}no-{last}"
    return option if value in (None, "True") else f"{option} {value}"


def require(ok: bool, name: str, value: object, reason: str, remedy: str) -> None:
    """Raise SettingError unless ``ok``."""
    if not ok:
        raise SettingError(name, value, reason, remedy)


def check_types(cfg: Any, prefix: str = "") -> None:
    """Raise SettingError for a field of a config whose value does not have the field's type.

    Whole numbers count as floats; NaN and infinity do not. Lists become tuples, and paths given as strings become
    paths. Messages put ``prefix`` before the name of the field.
    """
    hints = _hints(cfg.__class__)
    for field in dataclasses.fields(cfg):
        hint = hints[field.name]
        value = _plain(getattr(cfg, field.name))
        if isinstance(value, str) and Path in _options(hint):
            value = Path(value)
        object.__setattr__(cfg, field.name, value)
        if not _fits(hint, value):
            listed = [name for option in _options(hint) for name in _values(option)]
            if listed and isinstance(value, str):
                remedy = f"{suggestion(value, listed)}choose {_or(listed)}"
                raise SettingError(prefix + field.name, value, "it is not a value of this setting", remedy)
            raise SettingError(prefix + field.name, repr(value), f"is not {_words(hint)}", f"give {_words(hint)}")
        require(_finite(value), prefix + field.name, value, "is not finite", "give a number that is")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """The types of a class's fields, evaluated once: that takes longer than all the checks."""
    return typing.get_type_hints(cls)


def _values(hint: Any) -> list[str]:
    """The values of a Literal; of any other type none."""
    return list(map(str, typing.get_args(hint))) if typing.get_origin(hint) is typing.Literal else []


def _or(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _plain(value: Any) -> Any:
    """A NumPy number, which a search may draw, as a Python number; a list as a tuple."""
    if isinstance(value, list):
        return tuple(cast("list[Any]", value))
    convert: Any = getattr(value, "item", None) if isinstance(value, numbers.Number) else None
    return convert() if convert else value


def _options(hint: Any) -> tuple[Any, ...]:
    # `int | Literal["auto"]` is a Union of the older kind.
    return typing.get_args(hint) if typing.get_origin(hint) in (UnionType, typing.Union) else (hint,)


def _fits(hint: Any, value: Any) -> bool:
    return any(_is(option, value) for option in _options(hint))


def _is(hint: Any, value: Any) -> bool:
    if hint is Any:
        return True
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        items = cast("tuple[Any, ...]", value)
        return isinstance(value, tuple) and all(_fits(typing.get_args(hint)[0], item) for item in items)
    hint = getattr(hint, "__supertype__", hint)  # what a NewType is made of
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else typing.get_origin(hint) or hint)


def _finite(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_finite, cast("tuple[Any, ...]", value)))
    return not isinstance(value, float) or math.isfinite(value)


def _words(hint: Any) -> str:
    """A type in words, for a message."""
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", Path: "a path"}
    names |= {type(None): "None"}
    words: list[str] = []
    for option in _options(hint):
        if _values(option):
            words.append(f"one of {', '.join(_values(option))}")
        elif typing.get_origin(option) is tuple:
            words.append(f"a tuple, each {_words(typing.get_args(option)[0])}")
        else:
            words.append(names.get(option, getattr(option, "__name__", str(option))))
    return " or ".join(words)
