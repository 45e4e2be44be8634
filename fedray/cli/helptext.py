"""What --help shows of the settings: the few that matter first, and all of them in groups."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import textwrap
from collections.abc import Sequence
from typing import Any

from fedray.cli.reading import read_options
from fedray.cli.written import typed

WIDTH = 100
FIRST = {  # in the order in which a new user meets them
    "data.name": "a dataset of the list above, or the path of your own file (.npz, .csv, .parquet, .json, .jsonl)",
    "data.root": "folder of the datasets; by default $FEDRAY_DATA_ROOT",
    "data.partition": "how the examples are dealt to the clients",
    "clients": "number of clients; by default the paper's",
    "clients_per_round": "clients that train in a round; by default the paper's",
    "rounds": "communication rounds",
    "model.name": "the network; by default the paper's for the dataset",
    "seed": "seed of every random stream",
    "runtime": "ray: clients are Ray actors; local: all in this process",
    "output": "folder of the result; by default runs/NAME",
}


def option(dotted: str) -> str:
    """A setting as the user types it."""
    return "--" + dotted.replace("_", "-")


def first(cfgs: tuple[Any, ...]) -> str:
    """The options that matter first; ``cfgs`` are searched for their values."""
    lines = ["Options that matter first:", ""]
    for dotted, text in FIRST.items():
        value = next(found for cfg in cfgs if (found := _value(cfg, dotted)) is not _MISSING)
        lines += _entry(option(dotted), text if value is None else f"{text} (default: {value})")
    return "\n".join(lines)


def own(algorithm: str, settings: Any) -> str:
    """The names of an algorithm's own options, with their defaults."""
    lines = [f"Options of {algorithm}, with their defaults:", ""]
    words = [_typed(field.name, getattr(settings, field.name)) for field in dataclasses.fields(settings)]
    wrapped = textwrap.wrap("   ".join(word.replace(" ", "\0") for word in words), WIDTH - 2, break_on_hyphens=False)
    lines += [f"  {line}".replace("\0", " ") for line in wrapped]
    return "\n".join(lines)


def _typed(name: str, value: Any) -> str:
    """An option with its default as the user types it; a switch turns away from its default."""
    if isinstance(value, bool):
        return f"{option(f'no_{name}')} (on)" if value else f"{option(name)} (off)"
    return f"{option(name)} {' '.join(typed(value))}"


def long(algorithm: str, fields: Sequence[tuple[str, Any, Any]]) -> str:
    """All options, in boxes by what they are about; data, model and others have boxes of their own in these."""
    titles = {"algorithm": f"options of {algorithm}", "experiment": "federation", "execution": "execution"}
    grouped: dict[str, list[tuple[str, Any, Any]]] = {title: [] for title in ("this command", *titles.values())}
    for field in fields:
        grouped[titles.get(field[0], "this command")].append(field)
    return "\n\n".join(box(title, some) for title, some in grouped.items())


def box(title: str, fields: Sequence[tuple[str, Any, Any]]) -> str:
    """The help of some options as tyro prints it, its first box with another title and without --help.

    On a wide terminal tyro sets boxes side by side: those on the right of the first one stay as they are.
    """
    kind: type[Any] = dataclasses.make_dataclass("Options", fields, frozen=True)
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="utf-8")  # with an encoding, for which tyro draws lines
    with contextlib.redirect_stdout(stream), contextlib.suppress(SystemExit):
        read_options(kind, ["--help"], "", "")
    stream.flush()
    shown = content.getvalue().decode()
    lines = shown[shown.index("╭") :].splitlines()
    end = lines[0].index("╮")
    lines[0] = f"╭─ {title} ".ljust(end, "─") + lines[0][end:]
    of_help = False
    for at, line in enumerate(lines):
        of_help = line.startswith("│ -h, --help") or (of_help and line.startswith("│  "))
        if of_help:
            lines[at] = "│".ljust(end) + line[end:]
    return "\n".join(line for line in lines if line.strip("│ "))


_MISSING = object()


def _value(cfg: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        cfg = getattr(cfg, name, _MISSING)
    return cfg


def _entry(name: str, text: str) -> list[str]:
    first, *rest = textwrap.wrap(text, WIDTH - 26)
    return [f"  {name:<22}  {first}", *(" " * 26 + line for line in rest)]
