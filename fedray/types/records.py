"""Whether the record of a plug-in keeps to its contract, as far as one can see without calling its functions."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from fedray.types.contracts import Algorithm, Choice, LogUniform, Preset, Selection, Stage, Sums, Uniform
from fedray.types.errors import FedRayError, suggestion

PLAIN = (bool, int, float, str, Path, dict, types.NoneType)  # of which settings are
DIALS = "LogUniform(LOW, HIGH), Uniform(LOW, HIGH) or Choice((A, B, ...))"


def check_record(where: str, record: tuple[Any, ...]) -> None:
    """Raise FedRayError for what no run could use: settings, searches, presets, and functions with wrong parameters.

    Algorithms, selection policies and stages of scores have protocols: the types of their fields.
    """
    if not isinstance(record, Algorithm | Selection | Stage | Sums):
        return
    if isinstance(record, Algorithm):
        _check_algorithm(where, record)
    for field, hint in typing.get_type_hints(type(record)).items():
        function = getattr(record, field)
        if isinstance(function, Sums):
            check_record(where, function)
            continue
        protocols = [option for option in (hint, *typing.get_args(hint)) if getattr(option, "_is_protocol", False)]
        if not protocols or (function is None and type(None) in typing.get_args(hint)):
            continue
        expected = list(inspect.signature(protocols[0].__call__).parameters)[1:]
        check_parameters(where, record, field, expected)


def check_parameters(where: str, record: tuple[Any, ...], field: str, expected: Sequence[str]) -> None:
    """Raise FedRayError for a field of a record that is no function of so many parameters."""
    function = getattr(record, field)
    if not callable(function):
        raise FedRayError(f"{where}: {field} is {function!r}, not a function; it takes ({', '.join(expected)})")
    signature = inspect.signature(function)
    try:
        signature.bind(*expected)
    except TypeError:
        name = getattr(function, "__name__", repr(function))
        raise FedRayError(
            f"{where}: {name}, the {field} of its {type(record).__name__}, takes "
            f"({', '.join(signature.parameters)}), but is called with ({', '.join(expected)}); "
            "change its parameters"
        ) from None


def _check_algorithm(where: str, record: Algorithm) -> None:
    """Raise FedRayError for fields of an algorithm that hold no functions."""
    _check_settings(where, record.config)
    if record.predict_global is None and record.predict_personal is None:
        raise FedRayError(f"{where}: it has neither predict_global nor predict_personal; give one of them")
    for field in ("scores", "defaults", "space", "presets"):
        if not isinstance(getattr(record, field), Mapping):
            raise FedRayError(f"{where}: {field} is {getattr(record, field)!r}; it must be a dict")
    scores: Mapping[str, Any] = record.scores
    for name, stages in scores.items():
        if type(stages) is not tuple or not all(isinstance(stage, Stage) for stage in cast("tuple[Any, ...]", stages)):
            raise FedRayError(f"{where}: the score {name} is {stages!r}; it must be a tuple of Stage(probe, combine)")
    for stage in itertools.chain.from_iterable(record.scores.values()):
        check_record(where, stage)
    presets: Mapping[str, Any] = record.presets
    for name, preset in presets.items():
        if not isinstance(preset, Preset):
            raise FedRayError(f"{where}: the preset {name} is {preset!r}; it must be a Preset(overrides, warning)")
    known = [field.name for field in dataclasses.fields(record.config)]
    space: Mapping[str, Any] = record.space
    for name, dial in space.items():
        if name not in known:
            raise FedRayError(
                f"{where}: space has {name!r}, no setting of {record.config.__name__}; "
                f"{suggestion(name, known)}choose from {', '.join(known)}"
            )
        listed = isinstance(dial, Choice) and isinstance(cast("Any", dial.values), tuple | list)
        if not listed and not isinstance(dial, LogUniform | Uniform):
            raise FedRayError(f"{where}: the space of {name} is {dial!r}; it must be {DIALS}")


def _check_settings(where: str, config: Any) -> None:
    """Raise FedRayError unless an algorithm's settings are a frozen dataclass with a default for each."""
    name = getattr(config, "__name__", repr(config))
    if not dataclasses.is_dataclass(config):
        raise FedRayError(f"{where}: its config {name} is no dataclass; decorate it with @dataclass(frozen=True)")
    if not isinstance(config, type):
        raise FedRayError(f"{where}: its config {name} is an object; give the class {type(config).__name__}")
    for cls in itertools.takewhile(lambda cls: "__dataclass_fields__" not in vars(cls), config.__mro__):
        own = [field for field, kind in inspect.get_annotations(cls).items() if "ClassVar" not in str(kind)]
        if own:
            raise FedRayError(
                f"{where}: {own[0]} of its config {cls.__name__} is no setting, for {cls.__name__} is no dataclass of "
                "its own; decorate it with @dataclass(frozen=True, kw_only=True)"
            )
    if not config.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise FedRayError(f"{where}: its config {name} can be changed; decorate it with @dataclass(frozen=True)")
    try:
        hints = typing.get_type_hints(config)
    except (NameError, AttributeError, TypeError) as error:
        reason = f"a type of its config {name} is not known ({error})"
        raise FedRayError(f"{where}: {reason}; import it outside of `if TYPE_CHECKING`") from error
    for field in dataclasses.fields(config):
        if not _is_plain(hints[field.name]):
            raise FedRayError(
                f"{where}: the setting {field.name} of {name} is {field.type}; a setting is a number, str, Path, "
                "Literal[...], dict[str, ...] or tuple[..., ...]"
            )
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise FedRayError(f"{where}: the setting {field.name} of {name} has no default; give it one")


def _is_plain(hint: Any) -> bool:
    """Whether a command line and a file can hold a setting of this type."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return all(map(_is_plain, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return all(option is ... or _is_plain(option) for option in typing.get_args(hint))
    kind = getattr(hint, "__supertype__", hint)  # what a NewType is made of
    return (typing.get_origin(kind) or kind) in (*PLAIN, typing.Literal)
