"""An experiment as the command line that runs it."""

from __future__ import annotations

import dataclasses
import shlex
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
            items = value if isinstance(value, tuple) else (value,)
            words += [f"--{option}", *(shlex.quote(str(item)) for item in items)]
    return words
