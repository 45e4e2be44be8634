"""Messages in the words of the caller of :func:`fedray.run`: arguments, where a command line has options."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from fedray.types import FedRayError, RunError, SettingError

# The arguments that stand for settings of another name, and for what make_plan calls otherwise.
ARGUMENTS = {"data.name": "data", "model.name": "model", "dataset": "data", "layers": "model", "network": "model"}
LONGEST, SHOWN = 300, 40  # letters of a value in a message, such as a path; of longer ones so many are shown
RECORDS = ("checkpoint", "tracking")  # arguments that are configs by themselves


def argument(setting: str) -> str:
    """The argument for a setting's dotted name or option: ``alpha`` for data.alpha, ``on_failure`` for --on-failure."""
    dotted = setting.removeprefix("--").replace("-", "_")
    first, _, last = dotted.rpartition(".")
    return ARGUMENTS.get(dotted) or (first if first in RECORDS else last)


def translated(text: str) -> str:
    """A message with arguments in place of settings and options: ``partition="iid"`` for `data.partition=iid`."""
    text = re.sub(r"^(dataset|layers|network)\b(?=[:= ])", lambda found: argument(found[1]), text)
    text = re.sub(r"--[a-z][a-z.-]*[a-z]", lambda found: argument(found[0]), text)
    return re.sub(r"`([a-z][a-z0-9_.]*)(?:=([^`]*))?`", _assignment, text)


def _assignment(found: re.Match[str]) -> str:
    name, value = argument(found[1]), found[2]
    return name if value is None else f"{name}={_literal(value)}"


def _literal(value: str) -> str:
    """A value as Python has it: words in quotes, unless they are a literal already."""
    plain = re.fullmatch(r"[\[({'\"].*|-?[0-9.]+(e-?\d+)?|inf|nan|True|False|None", value)
    return value if plain else f'"{value}"'


def _short(value: str) -> str:
    """A value in one line: of an array that was given for a name only its beginning."""
    return value if len(value) <= LONGEST else f"{' '.join(value.split())[:SHOWN]}..."


@contextlib.contextmanager
def naming_arguments() -> Iterator[None]:
    """Raise every FedRayError again with a message that names arguments."""
    try:
        yield
    except SettingError as error:
        text = f"{argument(error.setting)}={_literal(_short(str(error.value)))}: {error.reason}; {error.remedy}"
        raise FedRayError(translated(text)) from None
    except RunError as error:
        raise RunError(translated(str(error))) from error
    except FedRayError as error:
        raise FedRayError(translated(str(error))) from None
