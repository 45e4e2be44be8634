"""Operations on configs: change a setting, compare, fingerprint, and convert to and from plain dicts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.config.decode import fits
from fedray.config.experiment import Experiment
from fedray.types import BEFORE, FedRayError, at_its_origin, suggestion


def override(cfg: Any, settings: Mapping[str, Any]) -> Any:
    """A copy of a config with dotted fields replaced, e.g. ``{"algorithm.zeta": 3.0}``.

    All at once, so that rules about several fields are asked of the outcome alone. Raises FedRayError for a field that
    does not exist, listing those that do.
    """
    changes: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for dotted, value in settings.items():
        if not dataclasses.is_dataclass(cfg) or isinstance(cfg, type):
            raise FedRayError(f"{dotted!r}: {cfg!r} has no settings of its own; give a field of the experiment")
        head, _, rest = dotted.partition(".")
        names = [f.name for f in dataclasses.fields(cfg)]
        if head not in names:
            near = suggestion(head, names)
            raise FedRayError(
                f"{dotted!r} is not a setting of {type(cfg).__name__}; {near}choose from {', '.join(names)}"
            )
        if rest:
            inner.setdefault(head, {})[rest] = value
        else:
            changes[head] = value
    for head, its in inner.items():
        changes[head] = override(changes.get(head, getattr(cfg, head)), its)
    return dataclasses.replace(cfg, **changes) if changes else cfg


def to_dict(cfg: Any) -> Any:
    """A config as plain nested dicts, lists, strings and numbers, ready for JSON."""
    if dataclasses.is_dataclass(cfg) and not isinstance(cfg, type):
        return {f.name: to_dict(getattr(cfg, f.name)) for f in dataclasses.fields(cfg)}
    if isinstance(cfg, tuple | list):
        return [to_dict(item) for item in cfg]
    return str(cfg) if isinstance(cfg, Path) else cfg


def decisive(cfg: Experiment) -> dict[str, Any]:
    """The settings that change the numbers, as plain nested dicts.

    Where the data lie does not count, nor whether a client that fails is asked again: only skip leaves clients out.
    Settings that came later do not count at the value that stands for their absence (:func:`fedray.types.added`); so it
    is with sfc64, which is what auto means on a CPU.
    """
    values = _without_origins(cfg)
    values["data"] = {name: value for name, value in values["data"].items() if name not in ("root", "download")}
    if cfg.on_failure != "skip":
        del values["on_failure"]
    if cfg.noise_generator != "philox":
        del values["noise_generator"]
    return values


def _without_origins(cfg: Any) -> Any:
    """:func:`to_dict` without the settings that are as if they did not exist."""
    if not dataclasses.is_dataclass(cfg) or isinstance(cfg, type):
        return to_dict(cfg)
    fields = [
        (f.name, getattr(cfg, f.name)) for f in dataclasses.fields(cfg) if not at_its_origin(f, getattr(cfg, f.name))
    ]
    return {name: _without_origins(value) for name, value in fields}


def origins(cfg: Any) -> dict[str, Any]:
    """Dotted field -> the value that stands for its absence, of the fields that are :func:`fedray.types.added`."""
    found = {}
    for field in dataclasses.fields(cfg):
        value = getattr(cfg, field.name)
        if BEFORE in field.metadata:
            found[field.name] = field.metadata[BEFORE]
        elif dataclasses.is_dataclass(value):
            found |= {f"{field.name}.{name}": before for name, before in origins(value).items()}
    return found


def fingerprint(cfg: Experiment) -> str:
    """16 hex digits that two resolved experiments share exactly where they compute the same.

    A setting that a later version adds changes it, unless it is :func:`fedray.types.added`.
    """
    values = decisive(cfg) | {"kind": f"{type(cfg.algorithm).__module__}.{type(cfg.algorithm).__qualname__}"}
    # Whoever writes 5 for 5.0 means the same.
    same = json.loads(json.dumps(values), parse_float=lambda text: int(v) if (v := float(text)).is_integer() else v)
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]


def from_dict(kind: type, values: Mapping[str, Any]) -> Any:
    """The inverse of :func:`to_dict` for a config class whose nested configs are typed.

    Raises ValueError for what is no config; who knows the file adds its name.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{kind.__name__} is {str(values)[:40]!r}, which is no object of names and values")
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(kind)}
    unknown = set(values) - known
    if unknown:
        raise ValueError(f"{kind.__name__} has no setting {', '.join(sorted(unknown))}, but {', '.join(sorted(known))}")
    for name, value in values.items():
        if not fits(value, hints[name]):
            raise ValueError(f"{kind.__name__}.{name} is {str(value)[:40]!r}, which is no value of it")
    try:
        return kind(**{name: _parse(hints[name], value) for name, value in values.items()})
    except FedRayError as error:
        raise ValueError(f"{kind.__name__}: {error}") from None


def _parse(hint: Any, value: Any) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is not None and Path in options:
        return Path(value)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return from_dict(hint, value)  # type: ignore[arg-type]
    return tuple(value) if isinstance(value, list) else value


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one level with dotted keys, for tracking parameters."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        nested = flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
        flat |= nested
    return flat


def differences(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """The names under which two flat configurations differ."""
    return [name for name in {**a, **b} if a.get(name) != b.get(name)]


def differing(a: Any, b: Any) -> list[str]:
    """The dotted names of the settings in which two configs differ."""
    return differences(flatten(to_dict(a)), flatten(to_dict(b)))
