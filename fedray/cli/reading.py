"""Words of a command line as a dataclass of options."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from fedray.types import FedRayError

T = TypeVar("T")
EMPTY = (None, "", ())
METAVARS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}
_tyro = tyro.constructors.ConstructorRegistry()
_asked: list[tyro.constructors.StructTypeInfo] = []


@_tyro.primitive_rule
def _optional(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | tyro.constructors.UnsupportedTypeAnnotationError | None:
    """Show an optional setting as ``INT``, not as tyro's ``{None}|INT``."""
    if info.type is type(None):  # the algorithm's own settings: no option
        return tyro.constructors.UnsupportedTypeAnnotationError(())
    options = typing.get_args(info.type)
    if type(None) not in options:
        return None
    kinds = [Path] if Path in options else [option for option in options if option in METAVARS]
    if len(kinds) != 1 or (len(kinds) < len(options) - 1 and Path not in options):
        return None
    (kind,) = kinds
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=METAVARS[kind],
        instance_from_str=lambda words: None if words[0] == "None" else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, options),
        str_from_instance=lambda value: [str(value)],
    )


@_tyro.struct_rule
def _explained(info: tyro.constructors.StructTypeInfo) -> tyro.constructors.StructConstructorSpec | None:
    """Show the help of a setting as one paragraph, and no default that is empty: the text says what is done then.

    Tyro joins only lines that are not indented, and those of a setting's docstring are.
    """
    if not dataclasses.is_dataclass(info.type) or _asked:
        return None
    _asked.append(info)  # the answer is that of tyro's own rules
    try:
        spec = tyro.constructors.ConstructorRegistry.get_struct_spec(info)
    finally:
        _asked.clear()
    if not isinstance(spec, tyro.constructors.StructConstructorSpec):
        return None
    return dataclasses.replace(spec, fields=tuple(map(_shown, spec.fields)))


def _shown(field: tyro.constructors.StructFieldSpec) -> tyro.constructors.StructFieldSpec:
    kind = field.type
    if field.default in EMPTY or field.default is True:  # a switch that is on is shown as --no-x
        hint = "(on by default)" if field.default is True else ""
        kind = typing.Annotated[kind, tyro.conf.arg(help_behavior_hint=hint)]
    return dataclasses.replace(field, type=kind, helptext=_paragraph(field.helptext))


def _paragraph(text: str | Callable[[], str | None] | None) -> Callable[[], str | None]:
    def joined() -> str | None:  # when it is shown, for reading it is slow
        said = text() if callable(text) else text
        return " ".join(said.split()) if said else said

    return joined


def read_options(kind: type[T], argv: Sequence[str], prog: str, description: str, pairs: bool = False) -> T:
    """A command line as a dataclass of options; tyro prints help and mistakes and leaves with exit code 0 or 2.

    A switch is only turned away from its default unless there are ``pairs``: --x beside --no-x.
    """
    return tyro.cli(kind, prog=prog, description=description, args=list(argv), config=_config(pairs), registry=_tyro)


def strays(kind: type[Any], argv: Sequence[str], pairs: bool = False) -> list[str]:
    """The words of a command line that no option takes; none where it is at fault elsewhere."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            config = _config(pairs)
            return tyro.cli(kind, args=list(argv), config=config, registry=_tyro, return_unknown_args=True)[1]
        except SystemExit:
            return []


def _config(pairs: bool) -> tuple[Any, ...]:
    off = () if pairs else (tyro.conf.FlagCreatePairsOff,)
    return (*off, tyro.conf.HelptextFromCommentsOff, tyro.conf.SuppressFixed)


def early(argv: Sequence[str], option: str) -> str:
    """The value of an option that must be read first, because it changes the defaults of the others; "" without one.

    Raises FedRayError for an empty value, as of a variable of the shell that is not set.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(option, default=None, nargs="?", dest="value")
    value = parser.parse_known_args(list(argv))[0].value
    if value == "":
        raise FedRayError(f"{option} '': is empty; give its value, or leave it out")
    return value or ""
