"""The entry of a study's table: an experiment without its seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from fedray import registry
from fedray.config import Experiment, override


class Cell(NamedTuple):
    """One entry of a study's table. It is run once per seed."""

    name: str  # its runs are called <name>-s<seed>; a plain file name
    tags: tuple[str, ...]  # what it has in common with other cells: --only selects all with a tag
    experiment: Experiment
    seeds: int = 2  # default number of runs
    uncertainty: bool = False  # whether its runs end with the uncertainty report, as by --uncertainty


Study: TypeAlias = Callable[[], list[Cell]]  # the first sentence of its docstring is shown by --help


def experiment(algorithm: str, settings: Mapping[str, Any]) -> Experiment:
    """An algorithm with its own defaults, and settings (dotted field -> value) that change them."""
    record = registry.algorithms()[algorithm]
    return override(Experiment(algorithm=record.config()), dict(record.defaults) | dict(settings))
