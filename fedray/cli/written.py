"""Commands that are printed to be pasted: the one that runs an experiment, and the one that loads its result."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.config import Experiment, override


def command(experiment: Experiment) -> str:
    """The launch command of an experiment: every setting that is not a default, floats to the last bit."""
    from fedray import registry

    name = registry.algorithm_name(experiment.algorithm)
    record = registry.algorithms()[name]
    default = override(Experiment(algorithm=record.config()), dict(record.defaults))
    words = ["python -m fedray.launch", name, *(f"--plugin {module}" for module in registry.plug_ins())]
    words += _options(experiment, default, "")
    return " ".join(words + _options(experiment.algorithm, default.algorithm, ""))


def _options(cfg: Any, default: Any, prefix: str) -> list[str]:
    words: list[str] = []
    for field in dataclasses.fields(cfg):
        value, usual = getattr(cfg, field.name), getattr(default, field.name)
        name = field.name.replace("_", "-")
        option = prefix + name
        if field.name == "algorithm" or value == usual or value is None:
            continue
        if dataclasses.is_dataclass(value):
            words += _options(value, usual, f"{option}.")
        elif isinstance(value, bool):
            words += [f"--{option}" if value else f"--{prefix}no-{name}"]
        else:
            words += [f"--{option}", *(shlex.quote(word) for word in typed(value))]
    return words


def typed(value: Any) -> list[str]:
    """The words by which a command line has a value: of a mapping, each key before what it stands for."""
    if isinstance(value, Mapping):
        value = tuple(itertools.chain.from_iterable(value.items()))
    return [str(item) for item in (value if isinstance(value, tuple) else (value,))]


def load_command(folder: Path) -> str:
    """The command that loads the result in a folder, and shows what it is."""
    place = json.dumps(str(folder), ensure_ascii=False)  # a Python text in double quotes
    return f"python -c {shlex.quote(f'import fedray; print(fedray.load({place}))')}"
