"""Values from files that anybody may have changed: JSON is decoded here, and compared with the types it should have."""

from __future__ import annotations

import contextlib
import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from fedray.types import FedRayError

T = TypeVar("T")

MAX_DEPTH = 64  # of nested lists and objects; ours have 4


def decode(content: bytes | str) -> Any:
    """The value of a JSON text in UTF-8; raises ValueError for anything else, and for one that is nested too deeply."""
    text = content.decode("utf-8") if isinstance(content, bytes) else content
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for outer in level
            if isinstance(outer, list | dict)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has a type such as ``int | None``, ``dict[str, float]`` or ``Literal["a", "b"]``.

    A whole number fits where a real one is wanted, and a list where a tuple is: JSON knows no difference. A type that
    JSON does not know fits everything.
    """
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin is typing.Annotated:
        return fits(value, args[0])
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, option) for option in args)
    if origin is typing.Literal:
        return any(type(value) is type(option) and value == option for option in args)
    if origin is tuple:
        return isinstance(value, list | tuple) and (len(args) < 2 or all(fits(item, args[0]) for item in value))
    if origin is list:
        return isinstance(value, list) and all(fits(item, args[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(k, args[0]) and fits(v, args[1]) for k, v in value.items())
    if hint is types.NoneType or hint is None:
        return value is None
    if hint is float:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return isinstance(value, float) or (whole and abs(value) <= sys.float_info.max)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, hint) if hint in (bool, str, list, dict) else True


def record(kind: type[T], values: Any) -> T:
    """A NamedTuple from a JSON object; raises ValueError unless the object has its fields with their types."""
    hints = typing.get_type_hints(kind)
    if not isinstance(values, Mapping) or not set(values) <= set(hints):
        raise ValueError(f"it is not an object of {', '.join(hints)}")
    for name, value in values.items():
        if not fits(value, hints[name]):
            raise ValueError(f"{name} is {str(value)[:40]!r}, which has another type")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"a value is missing: {error}") from None


@contextlib.contextmanager
def refuse_damage(what: str, remedy: str, kind: type[FedRayError] = FedRayError) -> Iterator[None]:
    """Turn every exception over a damaged file, of whichever library, into one FedRayError with the reason.

    KeyboardInterrupt and SystemExit pass.
    """
    try:
        yield
    except FedRayError:
        raise
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        if not isinstance(error, OSError | ValueError):
            reason = f"{type(error).__name__}: {reason}"
        raise kind(f"{what} ({reason.splitlines()[0][:300]}); {remedy}") from None
