"""The algorithms and other plug-ins as --help lists them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fedray.cli.helptext import WIDTH

if TYPE_CHECKING:
    from fedray.types import Algorithm


def listed(names: Mapping[str, Algorithm]) -> str:
    """The algorithms with their summaries, for a description."""
    width = max(map(len, names))
    return "\n".join(f"  {name:<{width}}  {record.summary}" for name, record in names.items())


def wrapped(names: Iterable[str]) -> str:
    """Names alone, for a short description."""
    return textwrap.fill(", ".join(names), WIDTH, initial_indent="  ", subsequent_indent="  ")


def named_plug_ins() -> str:
    """The names of the datasets, partitions, networks and selection policies, for a short description."""
    shown = {option: dict.fromkeys(_shown(*item) for item in table.items()) for option, table in _tables().items()}
    return "\n".join(f"{option} is one of\n{wrapped(names)}" for option, names in shown.items())


def _tables() -> dict[str, Mapping[str, Any]]:
    """The plug-ins by the option that names them."""
    from fedray import registry

    return {
        "--selection": registry.selections(),
        "--data.name": registry.datasets(),
        "--data.partition": registry.partitions(),
        "--model.name": registry.networks(),
    }


def listed_plug_ins() -> str:
    """The selection policies, datasets, partitions and networks with their summaries, for a description."""
    parts: list[str] = []
    for option, table in _tables().items():
        width = max(map(len, table))
        lines = [f"  {_shown(name, record):<{width}}  {record.summary}" for name, record in table.items()]
        parts.append("\n".join([f"{option} is one of", *lines]))
    return "\n\n".join(parts)


def _shown(name: str, record: Any) -> str:
    """A name as the user types it: a file format stands for the path of a file, a family for one of its tables."""
    if getattr(record, "suffixes", ()):
        return "PATH"
    return f"{name}-NAME" if getattr(record, "tables", ()) else name
