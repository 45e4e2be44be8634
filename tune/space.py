"""What a sweep searches: ``NAME=loguniform(0.5,20)`` and its kin, checked against the settings they will replace."""

from __future__ import annotations

import ast
import dataclasses
import math
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ray import tune as ray_tune

from fedray.config import Experiment, override
from fedray.types import Choice, FedRayError, LogUniform, Uniform


class Grid(NamedTuple):
    """A hyper-parameter of which every value is tried."""

    values: tuple[Any, ...]


Domain = LogUniform | Uniform | Choice | Grid
KINDS = {"loguniform": LogUniform, "uniform": Uniform, "choice": Choice, "grid": Grid}
OUTSIDE = r",(?![^()]*\))"  # the commas between values, of which one may be a tuple, such as (100,)
FORM = "NAME=loguniform(LOW,HIGH), uniform(LOW,HIGH), choice(A,B,...) or grid(A,B,...)"


def make(entries: Iterable[str], defaults: Mapping[str, Domain], cfg: Experiment) -> dict[str, Domain]:
    """Dotted setting -> domain, of the command line's entries or else of the algorithm's own space.

    Raises FedRayError for an entry that cannot be read, a setting that does not exist, an empty range, and values that
    the setting refuses.
    """
    given = [_read(entry) for entry in entries] or list(defaults.items())
    if not given:
        raise FedRayError(f"--space: the algorithm names nothing to search by itself; give {FORM}")
    space: dict[str, Domain] = {}
    for name, domain in given:
        path = _path(name, cfg)
        if path in space:
            raise FedRayError(f"--space {name}: is given twice; give it once")
        _check(name, path, domain, cfg)
        space[path] = domain
    return space


def _read(entry: str) -> tuple[str, Domain]:
    found = re.fullmatch(r"\s*([\w.-]+)\s*=\s*(\w+)\((.*)\)\s*", entry)
    if not found or found[2] not in KINDS:
        raise FedRayError(f"--space {entry}: cannot be read; write {FORM}")
    name, kind, inner = found.groups()
    values = tuple(map(value_of, re.split(OUTSIDE, inner))) if inner.strip() else ()
    if kind in ("choice", "grid"):
        if not values:
            raise FedRayError(f"--space {entry}: an empty range; give at least one value")
        if kind == "grid" and len(set(values)) < len(values):  # its trials would count as two seeds
            raise FedRayError(f"--space {entry}: a value is given twice; give each once")
        return name, KINDS[kind](values)
    if len(values) != 2 or not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise FedRayError(f"--space {entry}: {kind} takes two numbers, LOW and HIGH; write {name}={kind}(0.5,20)")
    return name, KINDS[kind](*map(float, values))


def value_of(text: str) -> Any:
    """A number, a truth value, or a bare word, such as rho, as a command line or a table writes it."""
    try:
        return hashable(ast.literal_eval(text.strip()))
    except (ValueError, SyntaxError):
        return text.strip()


def hashable(value: Any) -> Any:
    """A list as a tuple, for configurations are counted by their values; Ray Tune's files have tuples as lists."""
    return tuple(value) if isinstance(value, list) else value


def _path(name: str, cfg: Experiment) -> str:
    """The dotted field of the experiment that a name means: the algorithm's settings need no prefix."""
    field = name.replace("-", "_")
    own = [f.name for f in dataclasses.fields(cfg.algorithm)]
    if field in own:
        return f"algorithm.{field}"
    if field in ("rounds", "seed"):
        raise FedRayError(
            f"--space {name}: is set by the sweep itself; use --{'max-rounds' if field[0] == 'r' else 'seeds'}"
        )
    if field == "data.validation":
        raise FedRayError(
            f"--space {name}: trials are ranked on the same validation examples; give all of them one --{name}"
        )
    try:
        override(cfg, {field: _current(cfg, field)})
    except (FedRayError, AttributeError):
        others = [f.name for f in dataclasses.fields(cfg) if f.name not in ("algorithm", "rounds", "seed")]
        raise FedRayError(
            f"--space {name}: no such setting; choose from {', '.join(own)} of the algorithm, or {', '.join(others)}"
        ) from None
    return field


def _current(cfg: Experiment, path: str) -> Any:
    value: Any = cfg
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _takes_fractions(cfg: Experiment, path: str) -> bool:
    """Whether a setting is a real number by its type; its value may be None."""
    owner, _, field = path.rpartition(".")
    hint = typing.get_type_hints(type(_current(cfg, owner) if owner else cfg))[field]
    return float in (hint, *typing.get_args(hint))


def _check(name: str, path: str, domain: Domain, cfg: Experiment) -> None:
    """Refuse an empty range, and ends or values that the setting itself refuses."""
    if isinstance(domain, LogUniform | Uniform):
        low, high = domain
        if low >= high:
            raise FedRayError(f"--space {name}={show(domain)}: an empty range; LOW < HIGH is needed")
        if isinstance(domain, LogUniform) and low <= 0:
            raise FedRayError(f"--space {name}={show(domain)}: {low:g} has no logarithm; 0 < LOW is needed")
        if not _takes_fractions(cfg, path):
            raise FedRayError(f"--space {name}={show(domain)}: {name} takes no fractions; use choice or grid")
    for value in domain if isinstance(domain, LogUniform | Uniform) else domain.values:
        try:
            current = _current(cfg, path)
            if current is not None and isinstance(value, str) != isinstance(current, str):
                raise TypeError(f"{value!r} is not of the kind of {current!r}")
            override(cfg, {path: value})
        except (FedRayError, TypeError) as error:
            raise FedRayError(f"--space {name}={show(domain)}: {error}") from None


def show(domain: Domain) -> str:
    """A domain as it is written on the command line."""
    kind = next(kind for kind, cls in KINDS.items() if isinstance(domain, cls))
    values = domain if isinstance(domain, LogUniform | Uniform) else domain.values
    return f"{kind}({','.join(f'{value:g}' if isinstance(value, float) else str(value) for value in values)})"


def to_tune(domain: Domain) -> Any:
    """The same domain for Ray Tune."""
    if isinstance(domain, LogUniform):
        return ray_tune.loguniform(*domain)
    if isinstance(domain, Uniform):
        return ray_tune.uniform(*domain)
    return ray_tune.grid_search(list(domain.values)) if isinstance(domain, Grid) else ray_tune.choice(domain.values)
